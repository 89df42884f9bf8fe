# SPDX-License-Identifier: Apache-2.0
"""What the ports with sockets of their own have in common: how they listen, and the timers of a connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from bk_core.errors import PortInUseError

_BACKLOG = 512


def listening_socket(address: str, port: int, option: str) -> socket.socket:
    """Bind and listen; port 0 takes a free one. Raises PortInUseError, which names the command's ``option``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise PortInUseError(
            "the port cannot be listened on",
            value=f"{address}:{port}",
            remedy=f"stop the other program, or name another {option}",
        ) from error


class Timers:
    """The timers of one connection, by name."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def start(self, name: str, delay_s: float, call: Callable[[], object]) -> None:
        """Instead of one of this name that runs."""
        self.stop(name)
        self._handles[name] = self._loop.call_later(delay_s, call)

    def stop(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle:
            handle.cancel()

    def runs(self, name: str) -> bool:
        return name in self._handles

    def stop_all(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
