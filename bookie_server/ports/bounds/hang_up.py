# SPDX-License-Identifier: Apache-2.0
"""Finds and ends connections through the sockets of this process.

gRPC's asyncio server cannot end a call whose client takes nothing: a status waits behind the data that is not taken,
and a cancelled handler leaves its call as it was, memory included. Shutting down the socket always works. gRPC does not
show it, but the system does.
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
    ``port``. False if there is none, or the system does not tell. All streams of the connection fail then."""
    address = _address(peer, port)
    return address is not None and shut_down({address}) > 0


def peer_named(peer: str) -> str:
    """Host and port of a client in gRPC's notation, as other ports write them."""
    address = _address(peer, 0)
    return f"{address[0]}:{address[1]}" if address is not None else unquote(peer)


def shut_down(addresses: Collection[Address]) -> int:
    """Shut down these connections; returns how many there were."""
    ended = 0
    for found, address in _connections():
        if address in addresses:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


def connected(ports: Collection[int]) -> list[Address]:
    """The clients connected to ``ports`` of this process; empty if the system does not tell."""
    return [address for _, address in _connections() if address[2] in ports]


def files_open() -> int:
    """How many files this process has open, which is a quick upper bound of its connections; 0 if the system does not
    tell."""
    try:
        return len(os.listdir(_OPEN_FILES))
    except OSError:
        return 0


def _connections() -> Iterator[tuple[socket.socket, Address]]:
    """A duplicate of the socket of each connection of this process; it is closed when the next one is requested. A
    duplicate stays the same connection whatever other threads close. Our port is part of the address because a client
    may use one port of its own for connections to several ports here."""
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
    """Checked first, because closing a duplicate of another file may release a lock."""
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:  # closed meanwhile
        return False
