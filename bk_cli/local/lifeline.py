# SPDX-License-Identifier: Apache-2.0
"""Runs a command and ends it when its own standard input closes (RULES E4).

``python -m bk_cli.local.lifeline COMMAND …``: the parent holds the other end of a pipe, which the kernel closes however
the parent dies, ``kill -9`` included. On Linux, the kernel also ends the command when this process is killed. Our own
processes need no wrapper: they call :func:`end_with`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_END_S = 5.0


def _prepare_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere there is only the pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _watch(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _end(child)


def end_with(fd: int, grace_s: float = _END_S) -> None:
    """End this process when the other end of the pipe ``fd`` closes: by SIGTERM, and after ``grace_s`` at once."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def main(command: list[str]) -> int:
    """Run ``command`` with empty input until it ends or our input closes. Return its exit code, or 128 + signal."""
    if not command:
        print("usage: python -m bk_cli.local.lifeline COMMAND …", file=sys.stderr)
        return 2
    # A SIGTERM that comes while the command starts waits until the handler can pass it on.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_prepare_child)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    code = child.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
