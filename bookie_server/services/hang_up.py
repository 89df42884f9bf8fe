# SPDX-License-Identifier: Apache-2.0
"""Connections seen and ended from below.

gRPC's asyncio server has no way to end a call whose client takes nothing: a status waits behind the data that is not
taken, and a handler that is cancelled leaves its call as it was, memory and all. What always works is to shut down the
socket, which gRPC does not show but the system does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator
from urllib.parse import unquote

from bookie_server.services.connections import Address

_OPEN_FILES = "/dev/fd"


def hang_up(peer: str, port: int) -> bool:
    """Shut down this process's connection from ``peer``, named as gRPC does (``ipv4:127.0.0.1:4711``), to its own
    ``port``; False if there is none, or the system does not tell. All streams of the connection fail then."""
    address = _address(peer)
    return address is not None and shut_down({address}, port) > 0


def shut_down(addresses: Collection[Address], port: int) -> int:
    """Shut down this process's connections from ``addresses`` to its own ``port``; how many there were."""
    ended = 0
    for found, address in _connections(port):
        if address in addresses:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


def connected(port: int) -> list[Address]:
    """Who is connected to this process's own ``port``; nobody where the system does not tell."""
    return [address for _, address in _connections(port)]


def files_open() -> int:
    """How many files this process has open: a bound, told at once, of how many are connected; 0: not told."""
    try:
        return len(os.listdir(_OPEN_FILES))
    except OSError:
        return 0


def _connections(port: int) -> Iterator[tuple[socket.socket, Address]]:
    """A duplicate of each connection to ``port``, closed when the next one is asked for: it stays the same whatever
    others close. A client may use one port of its own for connections to several ports here."""
    try:
        names = os.listdir(_OPEN_FILES)
    except OSError:
        return
    for name in names:
        if not _is_socket(int(name)):
            continue
        try:
            duplicate = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        try:
            found = socket.socket(fileno=duplicate)
        except OSError:  # no socket
            os.close(duplicate)
            continue
        with found:
            try:
                peer, own = found.getpeername(), found.getsockname()
            except OSError:  # it listens, or has ended
                continue
            if isinstance(peer, tuple) and own[1] == port:
                yield found, (_plain(peer[0]), peer[1])


def _address(peer: str) -> Address | None:
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]


def _is_socket(number: int) -> bool:
    """Of other files no duplicate is made: to close one may take a lock away."""
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:  # closed meanwhile
        return False
