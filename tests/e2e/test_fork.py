# SPDX-License-Identifier: Apache-2.0
"""Programs that fork: what works, and what is refused at once with the way out (RULES K4)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bk_cli.local.cluster import LocalCluster
from tests.kit.lane_table import OURS, SURVIVES_FORK

SCRIPT = Path(__file__).with_name("forking_clients.py")
ROOT = SCRIPT.parent.parent.parent


@pytest.mark.e2e
@pytest.mark.rule("K4")
@pytest.mark.parametrize(
    ("lane", "when", "does"),
    [
        pytest.param(
            lane,
            when,
            "wrote" if SURVIVES_FORK[lane] else "refused",
            marks=pytest.mark.thorough if when == "closed" else (),
        )
        for lane in OURS
        for when in ("open", "closed", "fork")
    ]
    + [(lane, when, "wrote") for lane in OURS if not SURVIVES_FORK[lane] for when in ("unused", "spawn")],
)
def test_a_forked_child_connects_or_is_refused_at_once_and_never_crashes(
    cluster: LocalCluster, lane: str, when: str, does: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), lane, when, cluster.uri],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [does, "ended with 0"] * 6, done.stdout + done.stderr
