# SPDX-License-Identifier: Apache-2.0
"""Starts TLS on Apache's wire, on both sides. Each side sends one message of version 3 in clear text, and then the
handshake follows.

Neither side reads a byte beyond this message. Bytes that an attacker adds in clear text must never count as bytes that
came over TLS.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from google.protobuf.message import DecodeError

from bk_core.access.tls import NoTlsError
from bk_core.errors import RemoteProtocolError
from bk_core.transport.lane.tls_socket import exactly
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.proto import bookie_rpc_pb2 as pb

MESSAGE_BYTES_MAX = 4096
"""The maximum size, in bytes, of the answer to START_TLS. A correct answer has less than a hundred bytes."""
_LENGTH = struct.Struct(">I")


async def ask_for_tls(sock: socket.socket) -> None:
    """Send START_TLS on a non-blocking socket and receive the answer. Raises OSError, such as NoTlsError, and
    RemoteProtocolError if the answer cannot be parsed."""
    request = v3.request(pb.START_TLS, 0)
    request.startTLSRequest.SetInParent()
    await asyncio.get_running_loop().sock_sendall(sock, v3.framed(request))
    try:
        answer = pb.Response.FromString(await first_message(sock))
    except DecodeError as error:
        raise RemoteProtocolError("the answer to START_TLS cannot be parsed") from error
    if int(answer.status) != Status.EOK:
        raise NoTlsError(f"it answers START_TLS with {pb.StatusCode.Name(answer.status)}")


async def first_message(sock: socket.socket) -> bytes:
    """Receive the first message on a connection, and not a byte more, and return it without its length field. Raises
    ConnectionError, and RemoteProtocolError if the message has more than MESSAGE_BYTES_MAX."""
    (size,) = _LENGTH.unpack(await exactly(sock, _LENGTH.size))
    if size > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError("a connection does not begin with START_TLS", value=f"a message of {size} bytes")
    return await exactly(sock, size)
