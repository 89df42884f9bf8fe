# SPDX-License-Identifier: Apache-2.0
"""Children end with their parent, whatever kills it (RULES E4)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import comes_true

DEADLINE_S = 10.0


def ended(pid: int) -> bool:
    """Also if nobody has reaped it yet: init does that now and then."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except FileNotFoundError:  # it went meanwhile, or this system has no /proc
        return False


def parent_of(child: str) -> subprocess.Popen[str]:
    """A process that starts ``child`` (Python) with a lifeline, prints what it prints first, and sleeps."""
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen({child}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "print(child.stdout.readline().strip(), flush=True)\n"
        "time.sleep(60)\n"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def kill_and_reap(parent: subprocess.Popen[str]) -> int:
    """SIGKILL the parent; the pid that its child printed."""
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    return pid


@pytest.mark.rule("E4")
@pytest.mark.parametrize(
    "begun",
    ["lifeline.end_with(0)", "signal.signal(signal.SIGTERM, signal.SIG_IGN); lifeline.end_with(0, 0.1)"],
    ids=["usual", "ignores SIGTERM"],
)
def test_our_own_processes_end_when_their_parent_is_killed(begun: str) -> None:
    sleeper = (
        f"import os, signal, time; from bk_cli.local import lifeline\n{begun}\n"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    pid = kill_and_reap(parent_of(f"[sys.executable, '-c', {sleeper!r}]"))
    assert comes_true(lambda: ended(pid))


@pytest.mark.rule("E4")
def test_a_sigterm_that_comes_while_the_command_starts_ends_the_command() -> None:
    command = "import time; time.sleep(60)"
    code = (
        "import os, signal, subprocess, sys; from bk_cli.local import lifeline\n"
        "class Started(subprocess.Popen):\n"
        "    def __init__(self, *arguments, **named):\n"
        "        super().__init__(*arguments, **named)\n"
        "        print(self.pid, flush=True); os.kill(os.getpid(), signal.SIGTERM)\n"
        "subprocess.Popen = Started\n"
        f"sys.exit(lifeline.main([sys.executable, '-c', {command!r}]))\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as wrapper:
        assert wrapper.stdout is not None
        child = int(wrapper.stdout.readline())
        assert wrapper.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert comes_true(lambda: ended(child))
