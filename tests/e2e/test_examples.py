# SPDX-License-Identifier: Apache-2.0
"""Every example runs as the README says, against a real cluster, and says what it is there to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bk_cli.cluster import LocalCluster

ROOT = Path(__file__).parents[2]

EXAMPLES = {
    "append_and_read": ["read to the LAC: [b'second', b'third']", "[BK_LEDGER_FENCED]"],
    "write_ahead_log": ["[BK_LEADERSHIP_LOST]", "changes logged: 151"],
    "spark_batch": ['{"id":1,"name":"A'],
    "spark_stream": ["rows seen: 100 last: event 99"],
}


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_does_what_it_shows(cluster: LocalCluster, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", cluster.uri],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in EXAMPLES[name]:
        assert line in done.stdout


def test_every_example_is_run() -> None:
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert programs - set(EXAMPLES) == {"__init__", "demo", "flights", "spark_session"}
