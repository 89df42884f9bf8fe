# SPDX-License-Identifier: Apache-2.0
"""Helps ports that have their own sockets to listen, to accept connections, and to time them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from bk_core.errors import BookKeeperError, InvalidArgumentError, PortInUseError
from bk_core.model import host_and_port, plain_host

logger = logging.getLogger(__name__)

_BACKLOG = 512
"""The maximum number of connections that the kernel queues until the bookie accepts them."""
_ACCEPTED_A_TURN = 64
"""The maximum number of connections accepted in one turn of the loop, so that other work is not delayed."""
_ACCEPT_AGAIN_S = 1.0
"""The seconds for which no connection is accepted after accept has failed, for instance because no file is free."""


def listening_socket(address: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens on this address; port 0 means any free port. ``address`` is a name or an address,
    IPv6 with or without brackets.

    Raises PortInUseError, which names the command's ``option``, if another program has the port; InvalidArgumentError
    if this machine has no such address, or this process may not use the port."""
    host = plain_host(address)
    try:
        return _listening(host, port)
    except OSError as error:
        where = f"{host_and_port(host, port)}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            remedy = f"stop the other program, or name another {option}"
            raise PortInUseError("another program listens on the port", value=where, remedy=remedy) from error
        raise _cannot_listen(error, where, option) from error


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. If a name has addresses of both kinds, an IPv4 address is used. Raises OSError."""
    kinds = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, found = min(kinds, key=lambda kind: kind[0] != socket.AF_INET)
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle's delay on
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(found)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _cannot_listen(error: OSError, where: str, option: str) -> InvalidArgumentError:
    if isinstance(error, socket.gaierror):
        what, remedy = "the name to listen on cannot be resolved", "give an address of this machine, or 0.0.0.0 for all"
    elif error.errno in (errno.EACCES, errno.EPERM):
        what, remedy = (
            "this process may not listen on the port",
            f"name another {option}: ports below 1024 need a privilege",
        )
    elif error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        what, remedy = "this machine has no such address", "give an address of this machine, or 0.0.0.0 for all"
    else:
        what, remedy = "this process cannot listen on the port", f"name another {option} or another address"
    return InvalidArgumentError(what, value=where, remedy=remedy)


def peer_of(sock: socket.socket) -> str:
    """Return a name for the other end of a connection, for logs."""
    try:
        peer = sock.getpeername()
    except OSError:
        return "a client that is gone"
    return host_and_port(peer[0], peer[1]) if isinstance(peer, tuple) else "a client on this machine"


class Acceptor:
    """Accepts connections from :meth:`start` on, and passes each to ``greet``, which then owns it. Each ``greet`` runs
    in a task of its own and must end within ``deadline_s``. ``is_full`` is called first, with the connection and the
    number of these tasks; if it returns True, the connection is closed."""

    def __init__(
        self,
        listening: list[socket.socket],
        greet: Callable[[socket.socket], Coroutine[Any, Any, None]],
        is_full: Callable[[socket.socket, int], bool],
        port: str,
        deadline_s: float,
    ) -> None:
        self._sockets, self._greet, self._is_full = listening, greet, is_full
        self._port, self._deadline_s = port, deadline_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepts = False
        self._again: dict[socket.socket, asyncio.TimerHandle] = {}  # timers until a socket accepts connections again
        for each in listening:
            each.setblocking(False)

    def start(self) -> None:
        self._accepts = True
        for each in self._sockets:
            asyncio.get_running_loop().add_reader(each, self.accept, each)

    def stop(self) -> None:
        """Accept no more connections, and close those that ``greet`` still has. Also allowed if it was not started."""
        for timer in self._again.values():
            timer.cancel()
        for listening in self._sockets:
            if self._accepts:
                asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        for task in self._tasks:
            task.cancel()

    def accept(self, listening: socket.socket) -> None:
        """Accept the waiting connections, at most ``_ACCEPTED_A_TURN`` in one call."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_A_TURN):
            try:
                sock, _ = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the client has gone meanwhile
                continue
            except OSError as error:  # too many open files, or no memory: without a pause it would fail again at once
                logger.warning("no connections are accepted for %g s: %s", _ACCEPT_AGAIN_S, error)
                loop.remove_reader(listening)
                again = loop.call_later(_ACCEPT_AGAIN_S, loop.add_reader, listening, self.accept, listening)
                self._again[listening] = again
                return
            sock.setblocking(False)
            if self._is_full(sock, len(self._tasks)):
                sock.close()
                continue
            task = loop.create_task(self._greeted(sock), name=f"{self._port}: first message")
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, sock))

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # maybe before its first step, so that it could not close the connection itself
            sock.close()

    async def _greeted(self, sock: socket.socket) -> None:
        peer = peer_of(sock)
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._greet(sock)
        except (BookKeeperError, OSError) as error:  # among them TimeoutError
            why = str(error) or "nothing came in time"
            logger.info("%s: the connection of %s ends before its first message: %s", self._port, peer, why)
            sock.close()
        except Exception:
            sock.close()
            raise


class Timers:
    """The timers of one connection, by name."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def start(self, name: str, delay_s: float, call: Callable[[], object]) -> None:
        """Start a timer. A running timer of the same name is stopped."""
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
