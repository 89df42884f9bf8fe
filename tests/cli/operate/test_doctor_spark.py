# SPDX-License-Identifier: Apache-2.0
"""``bk doctor --spark``: what a worker says, and what is made of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest

import bk_core
from bk_cli.local.children import free_port
from bk_cli.local.cluster import LocalCluster
from bk_cli.operate import doctor_probe, doctor_spark
from bk_core.cluster.finding import Finding, Weight
from bk_core.errors import BookieUnreachableError, BookKeeperError, PackageMismatchError
from bk_core.installing import how_to_install

HEALTHY: dict[str, Any] = {
    "host": "node-7",
    "python": platform.python_version(),
    "executable": "/usr/bin/python3",
    "pyarrow": "18.0.0",
    "package": bk_core.__version__,
    "unreachable": [],
}


def judge(**changes: Any) -> list[Finding]:
    return list(doctor_spark._judge({**HEALTHY, **changes}))


def test_a_healthy_worker_is_well() -> None:
    assert [each.weight for each in judge()] == [Weight.FINE, Weight.FINE]


@pytest.mark.rule("E1")
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"package": None}, PackageMismatchError, f"version {bk_core.__version__} there: {how_to_install()}"),
        ({"package": "0.0.9"}, PackageMismatchError, "worker: 0.0.9"),
        ({"pyarrow": None}, PackageMismatchError, "pip install pyarrow"),
        ({"python": "3.9.1"}, PackageMismatchError, "PYSPARK_PYTHON"),
        ({"unreachable": ["b1:3181: timed out"]}, BookieUnreachableError, "b1:3181: timed out"),
    ],
)
def test_an_unwell_worker_is_named_with_what_to_do(
    changes: dict[str, Any], error: type[BookKeeperError], words: str
) -> None:
    with pytest.raises(error) as caught:
        judge(**changes)
    assert words in str(caught.value)
    assert "node-7" in str(caught.value)


def test_the_probe_tells_of_this_process_and_of_what_it_cannot_reach() -> None:
    port = free_port()
    found = doctor_probe.probe([("127.0.0.1", port)])
    assert (found["package"], found["executable"]) == (bk_core.__version__, sys.executable)
    (trouble,) = found["unreachable"]  # type: ignore[misc]  # values of a report are of any type
    assert trouble.startswith(f"127.0.0.1:{port}: ")


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_job_of_one_task_reaches_every_bookie(cluster: LocalCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bk_cli.main", "doctor", "--spark", "--json", "--metadata-service-uri", cluster.uri],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        timeout=150,
        check=False,
    )
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (findings, done.stderr)
    assert [f["text"] for f in findings if f["check"] == "spark"][
        -1
    ] == "one task ran, and its worker reaches every bookie"
