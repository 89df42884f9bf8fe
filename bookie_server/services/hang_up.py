# SPDX-License-Identifier: Apache-2.0
"""Ends a connection from below.

gRPC's asyncio server has no way to end a call whose client takes nothing: a status waits behind the data that is not
taken, and a handler that is cancelled leaves its call as it was, memory and all. What always works is to shut down the
socket, which gRPC does not show but the system does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from urllib.parse import unquote

_OPEN_FILES = "/dev/fd"


def hang_up(peer: str, port: int) -> bool:
    """Shut down this process's connection from ``peer``, named as gRPC does (``ipv4:127.0.0.1:4711``), to its own
    ``port``; False if there is none, or the system does not tell. All streams of the connection fail then."""
    address = _address(peer)
    if address is None:
        return False
    with contextlib.suppress(OSError):
        for name in os.listdir(_OPEN_FILES):
            if _is_socket(int(name)) and _shut_down(int(name), address, port):
                return True
    return False


def _address(peer: str) -> tuple[str, int] | None:
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


def _shut_down(number: int, address: tuple[str, int], port: int) -> bool:
    """Shut it down if it is that connection; works on a duplicate, which stays the same whatever others close. A client
    may use one port of its own for connections to several ports here."""
    try:
        duplicate = os.dup(number)
    except OSError:  # closed meanwhile
        return False
    try:
        found = socket.socket(fileno=duplicate)
    except OSError:  # no socket
        os.close(duplicate)
        return False
    with found:
        try:
            name, own = found.getpeername(), found.getsockname()
            if not isinstance(name, tuple) or (_plain(name[0]), name[1], own[1]) != (*address, port):
                return False
            found.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
