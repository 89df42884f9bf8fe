# SPDX-License-Identifier: Apache-2.0
"""A process that has imported everything and forks bookies and clients, so that a new one costs milliseconds, not a
second.

Each line on its standard input is a job. Each line on its standard output is an answer, or the end of a child. When the
input closes, or when the nursery is killed, the kernel ends every child, even a stopped one: none outlives a trial.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bk_cli.local.children import child_environment

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_PRELOADED = (
    "bk_cli.bookies.bookie",
    "bk_cli.main",
    "bookie_server.main",
    "bookie_server.ports.lane.grpc",
    "bk_core.client.reading.quorum_lac",
    "bk_core.metadata.tree.store",
    "bk_core.transport.lane.grpc",
    "tests.trials.bookie.clients",
)
ANSWER_S = 20.0


class Nursery:
    """The trial's end of a nursery. It starts children, signals them, and learns how they ended. Every thread may use
    it."""

    def __init__(self, **more: str) -> None:
        """Start the nursery. ``more`` are variables for the environment of its children."""
        # threads must not exist before the forks
        environment = {**child_environment(), "OPENBLAS_NUM_THREADS": "1", **more}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trials.kit.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._answers: queue.Queue[int] = queue.Queue()
        self._ended: dict[int, int] = {}
        self._change = threading.Condition()
        self._asking = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._listener.start()

    def start(self, target: str, log_path: Path, **arguments: Any) -> Child:
        """Fork a process that calls ``target`` ("module:function") with these arguments. Its output goes to the log.

        With ``network=True`` it has a network of its own, and waits for its first interface.
        """
        job = {"target": target, "log": str(log_path), "network": arguments.pop("network", False)}
        with self._asking:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({**job, "arguments": arguments}).encode() + b"\n")
            self._process.stdin.flush()
            return Child(self, self._answers.get(timeout=ANSWER_S))

    def exit_code(self, pid: int) -> int | None:
        with self._change:
            return self._ended.get(pid)

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return the exit code, negative for a signal, or None if the process has not ended in time."""
        with self._change:
            self._change.wait_for(lambda: pid in self._ended, timeout_s)
            return self._ended.get(pid)

    def close(self) -> None:
        """End all children and the nursery."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "code" not in said:
                with self._change:
                    self._ended.pop(said["pid"], None)  # of an earlier child with this pid
                self._answers.put(said["pid"])
                continue
            with self._change:
                self._ended[said["pid"]] = said["code"]
                self._change.notify_all()


class Child:
    """A forked process. Signals go through a descriptor, because its pid may belong to another process once it has
    ended."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        try:
            self._handle: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._handle = None

    @property
    def exit_code(self) -> int | None:
        return self._nursery.exit_code(self.pid)

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    def signal(self, number: int) -> None:
        """Send a signal, unless the child has ended."""
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if the child has not ended in time."""
        return self._nursery.wait(self.pid, timeout_s)

    def release(self) -> None:
        """Close the descriptor. The child gets no more signals."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def idle() -> None:
    """Sleep for a long time."""
    time.sleep(600)


# --- the process itself -----------------------------------------------------------------------------------------------


def _serve() -> None:
    for name in _PRELOADED:
        import_module(name)
    wake, wake_end = os.pipe()
    for end in (wake, wake_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pids: set[int] = set()
    left = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        _reap(pids)
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            pid = _fork(json.loads(line))
            pids.add(pid)
            _say({"pid": pid})
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def _reap(pids: set[int]) -> None:
    """Report the children that ended, and then release their pids."""
    for pid in sorted(pids):
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            status = ended.si_status
            _say({"pid": pid, "code": status if ended.si_code == os.CLD_EXITED else -status})
            os.waitpid(pid, 0)
            pids.discard(pid)


def _say(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _fork(job: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        _detach(job)
        module, _, function = job["target"].partition(":")
        code = getattr(import_module(module), function)(**job["arguments"]) or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _detach(job: dict[str, Any]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if job["network"]:
        import socket

        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        deadline = time.monotonic() + ANSWER_S
        while len(socket.if_nameindex()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)


if __name__ == "__main__":
    _serve()
