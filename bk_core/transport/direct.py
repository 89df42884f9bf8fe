# SPDX-License-Identifier: Apache-2.0
"""The direct lane: the messages of ``lane_streams.py`` on plain sockets, a connection for each stream. To a bookie on
the same machine it is a unix socket (``same_host.py``), else TCP.

Nothing is made before the first use, and no thread is: so a child of a process that uses it makes connections of its
own (K4).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from bk_core.errors import BookKeeperError, TransportError
from bk_core.model import BookieServiceInfo, Endpoint
from bk_core.transport.lane_streams import LaneLink, LaneStream
from bk_core.transport.message_socket import GONE, MessageSocket
from bk_core.transport.port import Caller
from bk_core.transport.same_host import address_of
from bk_core.transport.slots import Slots
from bk_core.wire.direct import Received, preamble


class DirectLink(LaneLink):
    """:class:`~bk_core.transport.port.Link` over plain sockets."""

    def __init__(self, info: BookieServiceInfo, endpoint: Endpoint, caller: Caller, slots: Slots) -> None:
        super().__init__(info, endpoint, caller)
        self._slots = slots

    async def disconnect(self) -> None:
        """Each stream has closed its own connection."""

    async def carry(self, stream: LaneStream) -> None:
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
                carrier = MessageSocket(
                    await self._connected(), self._slots, receive=receive, next_message=stream.next_message, ended=end
                )
                carrier.send_first(preamble(stream.method))
                stream.wake = carrier.wake
                carrier.read(True)
                await heard.wait()
            reason = await ended
        except OSError as error:  # among them TimeoutError, which says nothing if it is asyncio's
            reason = str(error) or "no answer in time"
        finally:
            if carrier is not None:
                carrier.close()
        if isinstance(reason, BookKeeperError):
            raise reason
        if stream.greeted and reason == GONE:
            # the bookie stops; the next use connects to its new address
            raise TransportError("the bookie ended the stream", value=f"bookie {self.bookie_id}")
        self.lost(stream, reason)

    async def _connected(self) -> socket.socket:
        """A new connection; on the bookie's own machine past its network. Raises OSError."""
        address = address_of(self.endpoint)
        if address is not None:
            with contextlib.suppress(OSError):  # the bookie is gone, or began anew: its port will tell
                return await _local(address)
        return await self._over_tcp()

    async def _over_tcp(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.endpoint.host, self.endpoint.port, type=socket.SOCK_STREAM)
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


async def _local(address: str) -> socket.socket:
    """Raises OSError."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        sock.getpeername()  # with a full backlog it is not connected, and asyncio does not notice
    except BaseException:
        sock.close()
        raise
    return sock
