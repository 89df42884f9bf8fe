# SPDX-License-Identifier: Apache-2.0
"""Where a bookie listens for clients on its own machine: a unix socket, named in its endpoint's extensions.

The socket's name is in Linux's abstract namespace: it is no file, so nothing is left of it when the bookie ends, and
any process in the bookie's network namespace reaches it, as its ports. It holds 128 random bits, so a bookie that was
started again has another one. The extension also says in which network of which running machine the name means
something. Elsewhere nobody tries it: a stranger there could listen under this name.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid

from bk_core.model import Endpoint

_PREFIX = "local="
_SEND_BYTES = 1 << 20


def place() -> str:
    """Names the network of this running machine that this process is in; empty where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        network = os.stat("/proc/self/ns/net")
    except OSError:
        return ""
    return f"{boot}:{network.st_dev:x}:{network.st_ino:x}"


def listen() -> tuple[socket.socket, str] | None:
    """A socket that listens, and the extension that tells clients of it; None where there is no such thing."""
    here = place()
    if sys.platform != "linux" or not here:
        return None
    name = f"bookkeeper-{uuid.uuid4().hex}"
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0{name}")
        sock.listen(512)
    except OSError:  # a sandbox may forbid it; there is TCP
        sock.close()
        return None
    return sock, f"{_PREFIX}{name};{here}"


def address_of(endpoint: Endpoint) -> str | None:
    """Where a bookie of this endpoint listens for this process; None if it is somewhere else."""
    for extension in endpoint.extensions:
        if extension.startswith(_PREFIX):
            name, _, there = extension.removeprefix(_PREFIX).partition(";")
            if there and there == place():
                return f"\0{name}"
    return None


def widen(sock: socket.socket) -> None:
    """Let a unix socket hold a message of a megabyte: unlike TCP's, its buffer does not grow by itself."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
