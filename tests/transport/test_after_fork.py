# SPDX-License-Identifier: Apache-2.0
"""What a forked child of a process that used gRPC is told, and that neither of them crashes (RULES K4)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.amount import some
from tests.kit.lane_table import SURVIVES_FORK

SCRIPT = Path(__file__).with_name("forking.py")
ROOT = SCRIPT.parent.parent.parent


@pytest.mark.long
@pytest.mark.rule("K4")
@pytest.mark.parametrize(("when", "told"), [("open", "refused"), ("closed", "refused"), ("imported", "connected")])
def test_a_child_is_refused_if_grpc_was_used_before_the_fork_and_ends_like_any_program(when: str, told: str) -> None:
    for _ in range(some(2, few=1)):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), when], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [told, "child ended with 0"] * 4, done.stdout + done.stderr


@pytest.mark.rule("K4")
@pytest.mark.parametrize("lane", [lane for lane, survives in SURVIVES_FORK.items() if survives])
def test_a_child_of_a_process_without_grpc_connects_by_itself_and_the_parent_goes_on(lane: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), lane], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["connected", "child ended with 0"] * 4, done.stdout + done.stderr
