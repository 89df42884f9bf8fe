# SPDX-License-Identifier: Apache-2.0
"""Makes copies of the checkout in which mutants are planted, and runs pytest in one of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
DEADLINE_S = 300
BYTECODE = "__pycache__"


def copy_of_checkout(to: Path) -> None:
    """Copy the files that git tracks or would add, in their current state, and their bytecode. The environment is
    shared.

    Without the bytecode, each run would compile every module that its tests import, which takes seconds. Python ignores
    the bytecode of an edited file, because it names the time of the last change, and runs in the copy write none.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for folder in {path.parent for path in to.rglob("*.py")}:
        if (compiled := ROOT / folder.relative_to(to) / BYTECODE).is_dir():
            shutil.copytree(compiled, folder / BYTECODE)
    (to / ".venv").symlink_to(ROOT / ".venv")


def run_tests(
    tests: tuple[str, ...], checkout: Path, deadline_s: float = DEADLINE_S, variables: dict[str, str] | None = None
) -> tuple[int, str]:
    """Return pytest's exit code (−1 if it did not end in time), and the test that failed first or the end of the
    output."""
    command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1", **(variables or {})}
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        try:
            said, complained = running.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return -1, "a hang"
        finally:  # a mutant may leave processes that never end; only they are in this session
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    lines = said.splitlines()
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED tests", "ERROR tests"))]
    begun = [line.split()[0] for line in lines if line.startswith("tests/") and "::" in line]
    if not failed and begun and "+ Timeout +" in said + complained:  # it ended the whole process
        failed = [f"{begun[-1]} (a hang)"]
    return running.returncode, failed[0] if failed else said[-500:] + complained[-500:]
