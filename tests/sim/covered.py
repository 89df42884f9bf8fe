# SPDX-License-Identifier: Apache-2.0
"""What of ``bk_core/protocol`` the simulation alone reaches: branch coverage of schedules, scripts and scopes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import coverage

ROOT = Path(__file__).parents[2]
SOURCE = "bk_core/protocol"
WANTED_PERCENT = 98.0
SCHEDULES = 4_000
SCOPES = ("pair", "pair-crash", "change", "change-lost", "degraded", "delayed-change", "close-and-recovery")


def measure(jobs: int) -> int:
    """Print the coverage by file; 1 if it is less than wanted."""
    share = SCHEDULES // jobs
    with TemporaryDirectory() as folder:
        python = [sys.executable, "-m", "coverage", "run", "--branch", f"--source={SOURCE}"]
        workers = []
        for number in range(jobs):
            ask = [
                f"--data-file={folder}/whole.{number}",
                "-m",
                "tests.sim.covered",
                str(number),
                str(share),
                str(jobs),
            ]
            workers.append(subprocess.Popen([*python, *ask], cwd=ROOT))
        failed = [worker.wait() for worker in workers]
        whole = coverage.Coverage(data_file=f"{folder}/whole", branch=True)
        whole.combine([folder])
        percent = whole.report(show_missing=True, file=sys.stdout)
    print(f"coverage of {SOURCE} by simulation alone: {percent:.1f} % (wanted {WANTED_PERCENT:g} %)")
    return 0 if percent >= WANTED_PERCENT and not any(failed) else 1


def work(number: int, count: int, jobs: int) -> None:
    """One worker's part."""
    from tests.sim.campaign import run_chunk
    from tests.sim.exhaustive.scopes import scope
    from tests.sim.exhaustive.search import explore
    from tests.sim.scripts import SCRIPTS

    found = run_chunk("protocol", number * count, count)
    assert not found.violations, found.violations[:3]
    for name in SCOPES[number::jobs]:
        assert explore(scope(name), seconds=60).violation is None, name
    for name in tuple(SCRIPTS)[number::jobs]:
        SCRIPTS[name]()


if __name__ == "__main__":
    work(*map(int, sys.argv[1:]))
