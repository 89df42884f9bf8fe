# SPDX-License-Identifier: Apache-2.0
"""Handles START_TLS of Apache's wire at the bookie, which begins a connection before its first request.

The bookie reads one message in clear text, which must be START_TLS, and not a byte behind it. The protocol for requests
begins after the handshake.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from google.protobuf.message import DecodeError

from bk_core.access.tls import explained
from bk_core.errors import RemoteProtocolError, TlsError
from bk_core.transport.bookie_rpc.start_tls import first_message
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.ports.access.principal import Principal
from bookie_server.ports.access.tls import PortTls, linger, names_shown
from bookie_server.ports.sockets import peer_of

PORT = "Apache's wire"


async def begin_tls(sock: socket.socket, tls: PortTls, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
    """Start TLS on an accepted connection. ``protocol`` continues on it. A client that sends another request first gets
    EUA. If TLS does not start, this logs the refusal and raises OSError or RemoteProtocolError."""
    loop, peer = asyncio.get_running_loop(), peer_of(sock)
    try:
        request = pb.Request.FromString(await first_message(sock))
    except (DecodeError, RemoteProtocolError) as error:
        tls.refused(peer, PORT, "it does not begin with START_TLS")
        raise RemoteProtocolError("a connection does not begin with START_TLS") from error
    if request.header.operation != pb.START_TLS:
        tls.refused(peer, PORT, "it speaks plain")
        await loop.sock_sendall(sock, v3.framed(v3.header_only(request, Status.EUA)))
        await linger(sock)
        return
    await loop.sock_sendall(sock, v3.framed(v3.answer(request)))
    try:
        await loop.connect_accepted_socket(protocol, sock, ssl=tls.context())
    except OSError as error:
        tls.refused(peer, PORT, explained(error)[0])
        raise


def principal_of(transport: asyncio.BaseTransport, tls: PortTls | None) -> tuple[Principal, str]:
    """Return the identity of the client after its handshake, and the reason why it is refused, or an empty text if it
    is admitted."""
    at = transport.get_extra_info("peername")
    peer = f"{at[0]}:{at[1]}" if at else "a client that is gone"
    if tls is None:
        return Principal(peer), ""
    try:
        return tls.admit(names_shown(transport.get_extra_info("peercert")), peer, PORT), ""
    except TlsError as error:
        return Principal(peer), str(error)
