# SPDX-License-Identifier: Apache-2.0
"""The trial's end of a driver. It starts the driver, sends it jobs, and kills it as a lost machine would end. A spare
driver may stand by."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bk_cli.local.children import child_environment, last_lines

READY_S = 180.0
ANSWER_S = 300.0
LOCAL = "local[2,8]"
"""Two cores; Spark tries a task eight times."""
WARM_LOCAL = "local[1,8]"
"""One core, so that half as many Python workers have to start."""


class DriverEndedError(RuntimeError):
    """The driver has ended, or does not answer."""


class SparkDriver:
    """A driver process and its JVM, in a process group of their own."""

    def __init__(
        self,
        where: Path,
        number: int,
        master: str = LOCAL,
        conf: Mapping[str, str] | None = None,
        warm: Mapping[str, object] | None = None,
    ) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self.log_path = where / f"driver-{number}.log"
        command = [sys.executable, "-m", "tests.trials.spark.driver"]
        command += [str(where / f"driver-{number}"), master, json.dumps(warm) if warm else ""]
        command += [f"{name}={text}" for name, text in (conf or {}).items()]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(),
                start_new_session=True,
                text=True,
            )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._jvm: int | None = None
        self.is_dead = False

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def wait_ready(self) -> None:
        """Wait until the session is up. Raises DriverEndedError."""
        if self._jvm is None:
            self._jvm = int(self.answer(READY_S)["jvm"])

    def begin(self, do: str, **job: Any) -> None:
        """Send a job. :meth:`answer` returns its outcome."""
        self.wait_ready()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **job}) + "\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the next answer. Its ``error`` is the text of an exception that Spark raised. Raises
        DriverEndedError."""
        try:
            found = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            found = None
        if found is None:
            raise DriverEndedError(f"no answer from the driver: {last_lines(self.log_path)}")
        return found

    def ask(self, do: str, **job: Any) -> dict[str, Any]:
        """Send a job, and return its answer."""
        self.begin(do, **job)
        return self.answer()

    @property
    def has_answered(self) -> bool:
        """Whether :meth:`answer` would return at once."""
        return not self._answers.empty()

    def kill(self) -> None:
        """Kill the JVM and the driver at once with SIGKILL. Spark's own daemons then end the Python workers."""
        self.is_dead = True
        self._end()

    def _end(self) -> None:
        if self._jvm is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._jvm, signal.SIGKILL)
            self._jvm = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End all processes of the driver, which may have been killed before."""
        self.is_dead = True
        self._end()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


class Drivers:
    """The drivers of a trial, one at a time. With ``warm``, the next driver starts and copies this log while the
    current one works: a first query takes twenty seconds, later ones three."""

    def __init__(self, where: Path, *, warm: Mapping[str, object] | None = None) -> None:
        self._where, self._warm, self._number = where, warm, 0
        self._current: SparkDriver | None = None
        self._spare: SparkDriver | None = None
        self._dead: list[SparkDriver] = []
        self.started = 0
        self.longest_start_s = 0.0

    def get(self, *, is_last: bool = False) -> SparkDriver:
        """Return the current driver, or the next one if the current one was killed. ``is_last`` says that no other one
        will be needed."""
        if self._current is None or self._current.is_dead:
            if self._current is not None:
                self._dead.append(self._current)
            began = time.monotonic()
            self._current, self._spare = self._spare or self._start(), None
            self._prepare(is_last)
            self._current.wait_ready()
            self.longest_start_s = max(self.longest_start_s, time.monotonic() - began)
        self._prepare(is_last)
        return self._current

    def _prepare(self, is_last: bool) -> None:
        if self._warm and self._spare is None and not is_last:
            self._spare = self._start()

    def _start(self) -> SparkDriver:
        self._number += 1
        self.started += 1
        return SparkDriver(self._where, self._number, WARM_LOCAL if self._warm else LOCAL, warm=self._warm)

    def reap(self) -> None:
        """End the processes that killed drivers have left behind."""
        for each in self._dead:
            each.close()
        self._dead.clear()

    def close(self) -> None:
        for each in (self._current, self._spare, *self._dead):
            if each is not None:
                each.close()
        self._current = self._spare = None
        self._dead.clear()
