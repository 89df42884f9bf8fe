# SPDX-License-Identifier: Apache-2.0
"""Finds and ends connections through the sockets of this process.

gRPC's asyncio server cannot end a call whose client reads nothing: a status waits behind the data that is not read, and
the call of a cancelled handler stays, with its memory. Shutting down the socket always works. gRPC does not expose its
sockets, so this file finds them among the open files of the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator
from urllib.parse import unquote

from bookie_server.ports.bounds.connections import Address

_OPEN_FILES = "/dev/fd"


def hang_up(peer: str, port: int) -> bool:
    """Shut down this process's connection from ``peer``, in gRPC's notation (``ipv4:127.0.0.1:4711``), to its own
    ``port``; all streams of the connection fail. Return False if there is no such connection, or the system does not
    list open files."""
    address = _address(peer, port)
    return address is not None and shut_down({address}) > 0


def peer_named(peer: str) -> str:
    """Convert gRPC's notation of a client to host and port, as other ports write them."""
    address = _address(peer, 0)
    return f"{address[0]}:{address[1]}" if address is not None else unquote(peer)


def shut_down(addresses: Collection[Address]) -> int:
    """Shut down these connections; return how many were shut down."""
    ended = 0
    for found, address in _connections():
        if address in addresses:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


def connected(ports: Collection[int]) -> list[Address]:
    """Return the clients connected to ``ports`` of this process; none if the system does not list open files."""
    return [address for _, address in _connections() if address[2] in ports]


def files_open() -> int:
    """Return how many files this process has open, which is a quick upper bound of its connections; 0 if the system
    does not list them."""
    try:
        return len(os.listdir(_OPEN_FILES))
    except OSError:
        return 0


def _connections() -> Iterator[tuple[socket.socket, Address]]:
    """Yield a duplicate of the socket of each connection of this process; it is closed when the next one is requested.
    A duplicate refers to the same connection even if another thread closes the original. Our port is part of the
    address because a client may use one port of its own for connections to several of ours."""
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
        except OSError:  # not a socket
            os.close(duplicate)
            continue
        with found:
            try:
                peer, own = found.getpeername(), found.getsockname()
            except OSError:  # it listens, or has ended
                continue
            if isinstance(peer, tuple):
                yield found, (_plain(peer[0]), peer[1], own[1])


def _address(peer: str, port: int) -> Address | None:
    family, _, rest = unquote(peer).partition(":")
    host, _, its_port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not its_port.isdigit():
        return None
    return _plain(host.strip("[]")), int(its_port), port


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]


def _is_socket(number: int) -> bool:
    """Return whether the file is a socket. Only sockets may be duplicated here, because closing a duplicate of another
    file may release a lock."""
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:  # closed meanwhile
        return False
