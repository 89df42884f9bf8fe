# SPDX-License-Identifier: Apache-2.0
"""Makes and finds the unix socket on which a bookie listens for clients on the same machine. An extension of the
bookie's endpoint names it.

The socket's name is in Linux's abstract namespace. It is not a file, so nothing remains of it when the bookie ends. Any
process in the bookie's network namespace can connect to it, as to the bookie's ports. The name has 128 random bits, so
a restarted bookie has another name. The extension also names the running machine and the network namespace in which the
name is valid. Clients elsewhere do not use the name, because another program could listen under it there.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid

from bk_core.model import Endpoint

_PREFIX = "local="
_SEND_BYTES = 1 << 20
"""The size of the send buffer of a local connection, in bytes."""


def place() -> str:
    """Return a name for this running machine and the network namespace of this process. Return an empty text if the
    system does not report them."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        network = os.stat("/proc/self/ns/net")
    except OSError:
        return ""
    return f"{boot}:{network.st_dev:x}:{network.st_ino:x}"


def listen() -> tuple[socket.socket, str] | None:
    """Return a listening socket, and the extension that announces it to clients. Return None if the system has no such
    sockets."""
    here = place()
    if sys.platform != "linux" or not here:
        return None
    name = f"bookkeeper-{uuid.uuid4().hex}"
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0{name}")
        sock.listen(512)
    except OSError:  # a sandbox may forbid it; clients then use TCP
        sock.close()
        return None
    return sock, f"{_PREFIX}{name};{here}"


def address_of(endpoint: Endpoint) -> str | None:
    """Return the unix address at which this process can connect to the endpoint's bookie, or None if there is none on
    this machine."""
    for extension in endpoint.extensions:
        if extension.startswith(_PREFIX):
            name, _, there = extension.removeprefix(_PREFIX).partition(";")
            if there and there == place():
                return f"\0{name}"
    return None


def widen(sock: socket.socket) -> None:
    """Let a unix socket hold a message of a megabyte. Unlike that of TCP, its buffer does not grow by itself."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
