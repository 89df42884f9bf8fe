# SPDX-License-Identifier: Apache-2.0
"""Connects over TCP, for lanes that use plain sockets."""

from __future__ import annotations

import asyncio
import socket


async def over_tcp(host: str, port: int) -> socket.socket:
    """Connect to the host and return the socket, which is non-blocking. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    error = OSError("the host has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except OSError as refused:
            sock.close()
            error = refused
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise error
