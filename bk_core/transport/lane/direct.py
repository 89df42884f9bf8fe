# SPDX-License-Identifier: Apache-2.0
"""The direct lane. It carries the messages of ``streams.py`` on plain sockets, with one connection for each stream. To
a bookie on the same machine it uses a unix socket (``same_host.py``), otherwise TCP.

A connection is made on first use, and no thread is ever made. So a forked child of a process that uses this lane makes
new connections (K4).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from bk_core.access.tls import Tls
from bk_core.errors import BookKeeperError, TlsError, TransportError
from bk_core.memory.slots import Slots
from bk_core.model import Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lane.link import LaneLink
from bk_core.transport.lane.message_socket import GONE, MessageSocket
from bk_core.transport.lane.messages import asleep
from bk_core.transport.lane.same_host import address_of
from bk_core.transport.lane.streams import LaneStream
from bk_core.transport.lane.tls_socket import Connected, TlsSocket, message_socket, shake_hands
from bk_core.transport.tcp import over_tcp
from bk_core.transport.whereabouts import At, Whereabouts
from bk_core.wire.lane.direct_messages import Received, preamble

ALONE_BYTES = 64 << 10
"""The size, in bytes, from which a frame is sent alone in a message. The bookie then receives the frame at the start of
a memory page, and can write it from there."""


class DirectLink(LaneLink):
    """A :class:`~bk_core.transport.port.Link` over plain sockets."""

    def __init__(self, at: At, caller: Caller, whereabouts: Whereabouts, slots: Slots) -> None:
        super().__init__(at, caller, whereabouts)
        self._slots = slots

    async def disconnect(self) -> None:
        """Do nothing, because each stream closes its connection."""

    async def carry(self, stream: LaneStream, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        heard: asyncio.Event = asyncio.Event()
        ended: asyncio.Future[BookKeeperError | str] = loop.create_future()

        def receive(message: Received) -> None:
            stream.receive(message.rest, message.frames)
            heard.set()

        def end(reason: str, error: BookKeeperError | None) -> None:
            heard.set()
            if not ended.done():
                ended.set_result(error or reason)

        carrier: MessageSocket | None = None
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                plain = await _connected(endpoint)
                sock: Connected = plain if self.tls is None else await self._secured(plain, self.tls, endpoint)
                carrier = message_socket(
                    sock, self._slots, receive=receive, next_message=stream.next_message, ended=end
                )
                carrier.send_first(preamble(stream.method))
                stream.wake, stream.alone_bytes = carrier.wake, ALONE_BYTES
                carrier.read(True)
                await heard.wait()
            reason = await ended
        except OSError as error:  # a TimeoutError, too; asyncio's has no text
            reason = str(error) or "no answer in time"
        finally:
            if carrier is not None:
                carrier.close()
            stream.wake = asleep
        raise self._ended(stream, endpoint, reason)

    def _ended(self, stream: LaneStream, endpoint: Endpoint, reason: BookKeeperError | str) -> BookKeeperError:
        """Make the error for a connection that ended with ``reason``."""
        if isinstance(reason, TlsError) and stream.greeted:
            reason = reason.value
        if isinstance(reason, TlsError):  # a bookie refuses our certificate only after the handshake
            return self.tls_failure(endpoint, reason.__cause__ or reason)
        if isinstance(reason, BookKeeperError):
            return reason
        if stream.greeted and reason == GONE:
            # the bookie stops; the next use connects to its new address
            return TransportError("the bookie ended the stream", value=f"bookie {self.bookie_id}")
        return self.lost(stream, endpoint, reason)

    async def _secured(self, sock: socket.socket, tls: Tls, endpoint: Endpoint) -> TlsSocket:
        """Do the TLS handshake and return the connection with TLS. Raises TlsError; then the connection is closed."""
        secured = TlsSocket(sock, tls.client(), server_hostname=endpoint.host)
        try:
            await shake_hands(secured)
        except OSError as error:
            secured.close()
            if isinstance(error, TimeoutError):
                raise
            raise self.tls_failure(endpoint, error) from error
        except BaseException:
            secured.close()
            raise
        return secured


async def _connected(endpoint: Endpoint) -> socket.socket:
    """Connect to the bookie, through its unix socket if it is on this machine, otherwise by TCP. Raises OSError."""
    address = address_of(endpoint)
    if address is not None:
        with contextlib.suppress(OSError):  # the bookie has ended or restarted; try its TCP port
            return await _local(address)
    return await over_tcp(endpoint.host, endpoint.port)


async def _local(address: str) -> socket.socket:
    """Connect to a unix socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        sock.getpeername()  # raises if the backlog was full, which asyncio does not notice
    except BaseException:
        sock.close()
        raise
    return sock
