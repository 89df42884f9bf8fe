# SPDX-License-Identifier: Apache-2.0
"""A server that a nursery starts, any number of times. Its data and its log stay when the process ends."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from bk_cli.local.children import last_lines
from tests.trials.kit.network import connect
from tests.trials.kit.nursery import Child, Nursery

READY_S, END_S = 90.0, 40.0
_POLL_S = 0.01


class ServerProcess:
    """A server. ``network`` is the number of its own network, or None."""

    def __init__(self, nursery: Nursery, name: str, log_path: Path, network: int | None = None) -> None:
        self._nursery, self.name, self.log_path, self._network = nursery, name, log_path, network
        self.child: Child | None = None
        self._log_start = 0

    def begin(self, target: str, **arguments: Any) -> None:
        """Start the server. :meth:`wait_ready` waits until it serves."""
        self.log_path.touch()
        self._log_start = self.log_path.stat().st_size
        self.child = self._nursery.start(target, self.log_path, network=self._network is not None, **arguments)
        if self._network is not None:
            connect(self._network, self.child.pid, READY_S)

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.is_running

    def said(self) -> str:
        """Return the server's log since its last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    @property
    def is_ready(self) -> bool:
        return any(line.startswith("ready ") for line in self.said().splitlines())

    def wait_ready(self) -> None:
        """Wait until the server serves. Raises RuntimeError with the end of the log if it does not, or if it has
        ended."""
        deadline = time.monotonic() + READY_S
        while not self.is_ready:
            if not self.is_running or time.monotonic() > deadline:
                code = None if self.child is None else self.child.exit_code
                raise RuntimeError(f"{self.name} does not start, exit code {code}: {last_lines(self.log_path)}")
            time.sleep(_POLL_S)

    def signal(self, number: int) -> None:
        if self.child is not None:
            self.child.signal(number)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: int) -> int | None:
        """Send a signal that ends the server. Return the exit code, or None if the server goes on."""
        if self.child is None:
            return 0
        self.child.signal(number)
        code = self.child.wait(END_S)
        if code is not None:
            self.child.release()
            self.child = None
        return code
