# SPDX-License-Identifier: Apache-2.0
"""Kazoo's threads and sockets, bounded so that no single server can use up a caller's deadline (M5).

Kazoo waits the whole session timeout for a connection, and the session timeout divided by the number of hosts for the
answer to its greeting. A server that is starting accepts and does not answer, and a host that is gone never answers:
one such attempt lasted longer than any call's deadline. Also, an unexpected error ends kazoo's connection thread for
good.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler

logger = logging.getLogger(__name__)


class BoundedHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's handler, but connecting and greeting together take at most ``attempt_s``.

    ``is_connected`` says whether the greeting was answered. ``on_ended`` is called on the connection's thread when the
    thread ends for any reason; it must not wait.
    """

    def __init__(self, attempt_s: float, is_connected: Callable[[], bool], on_ended: Callable[[], None]) -> None:
        super().__init__()
        self._attempt_s, self._is_connected, self._on_ended = attempt_s, is_connected, on_ended
        self._socket: socket.socket | None = None
        self._attempt_ends = self._heard = time.monotonic()

    def create_connection(self, *arguments: Any, **options: Any) -> socket.socket:
        self._attempt_ends = time.monotonic() + self._attempt_s
        self._socket = super().create_connection(*arguments, **{**options, "timeout": self._attempt_s})
        self._heard = time.monotonic()
        return self._socket

    def select(
        self, readable: list[Any], writable: list[Any], exceptional: list[Any], timeout: float | None = None
    ) -> Any:
        if not self._is_connected():
            left = max(0.0, self._attempt_ends - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        ready = super().select(readable, writable, exceptional, timeout)
        if self._socket in ready[0]:
            self._heard = time.monotonic()
        return ready

    def cut_if_silent(self, for_s: float) -> None:
        """Break a connection on which nothing arrived for ``for_s`` seconds; kazoo then makes another one."""
        if self._socket is not None and time.monotonic() - self._heard >= for_s:
            with contextlib.suppress(OSError):  # already broken
                self._socket.shutdown(socket.SHUT_RDWR)

    def spawn(self, run: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        if isinstance(getattr(run, "__self__", None), ConnectionHandler):
            return super().spawn(self._run_connection, run)
        return super().spawn(run, *arguments, **options)

    def _run_connection(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            logger.error("the thread of the connection to ZooKeeper ended: %r", error)
        finally:
            self._on_ended()
