# SPDX-License-Identifier: Apache-2.0
"""The gRPC lane. It has one channel for each bookie, and a call for each of the three streams of ``streams.py``.

gRPC gets messages as raw bytes. The lane raises ForkedHandleError in a forked child of a process that used gRPC
(:mod:`bk_core.after_fork`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import grpc

from bk_core.access.tls import Tls
from bk_core.access.tokens import not_let_in
from bk_core.after_fork import holds_grpc
from bk_core.errors import InvalidArgumentError, TransportError
from bk_core.model import Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lane.link import LaneLink
from bk_core.transport.lane.messages import CHANNEL_OPTIONS, SERVICE
from bk_core.transport.lane.streams import LaneStream
from bk_core.transport.whereabouts import At, Whereabouts
from bk_core.wire.lane.grpc_frames import pack, unpack

_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.min_reconnect_backoff_ms", 1000))

_ALERT_S = 0.5


class GrpcLink(LaneLink):
    """A :class:`~bk_core.transport.port.Link` over gRPC."""

    def __init__(self, at: At, caller: Caller, whereabouts: Whereabouts) -> None:
        super().__init__(at, caller, whereabouts)
        holds_grpc(self)  # and through it the channels
        self._channels: dict[Endpoint, Any] = {}

    def _channel(self, endpoint: Endpoint) -> Any:
        if endpoint not in self._channels:
            more: dict[str, Any] = {"options": _OPTIONS, "compression": grpc.Compression.NoCompression}
            target = endpoint.where
            if self.tls is None:
                self._channels[endpoint] = grpc.aio.insecure_channel(target, **more)
            else:
                authorities, certificate, key = self.tls.pem()
                credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
                self._channels[endpoint] = grpc.aio.secure_channel(target, credentials, **more)
        return self._channels[endpoint]

    async def disconnect(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def carry(self, stream: LaneStream, endpoint: Endpoint) -> None:
        awake = asyncio.Event()
        awake.set()
        stream.wake = awake.set
        call: Any = self._channel(endpoint).stream_stream(
            f"/{SERVICE}/{stream.method}"
        )()  # no serializers: messages are bytes
        holds_grpc(call)
        writer = asyncio.get_running_loop().create_task(_write(stream, call, awake))
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await self._receive(stream, call)
            while True:
                await self._receive(stream, call)
        except grpc.aio.AioRpcError as error:
            if not stream.greeted and error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise not_let_in(f"bookie {self.bookie_id}", str(error.details()), has_token=False) from error
            if not stream.greeted and self.tls is not None:
                await self._raise_tls_error(self.tls, endpoint)
            raise self.lost(stream, endpoint, str(error.details())) from error
        except TimeoutError as error:
            raise self.lost(stream, endpoint, "no answer in time") from error
        finally:
            writer.cancel()
            call.cancel()

    async def _raise_tls_error(self, tls: Tls, endpoint: Endpoint) -> None:
        """Find the reason of a failed connection by a TLS handshake without gRPC, because gRPC reports little about a
        failed handshake. Raises TlsError if this handshake fails; otherwise TLS was not the reason."""
        host, port = endpoint.host, endpoint.port
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                context = tls.client_of("h2")
                reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
                try:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_ALERT_S):
                            if not await reader.read(1):  # a bookie that accepts our certificate sends bytes now
                                raise ConnectionResetError
                finally:
                    writer.transport.abort()
        except (ssl.SSLError, ConnectionResetError) as error:
            raise self.tls_failure(endpoint, error) from error
        except (OSError, InvalidArgumentError):  # the bookie does not answer, or a certificate file is being written
            return

    async def _receive(self, stream: LaneStream, call: Any) -> None:
        message = await call.read()
        if message is grpc.aio.EOF:
            await call.code()
            # the bookie stops; the next use connects to its new address
            raise TransportError("the bookie ended the stream", value=f"bookie {self.bookie_id}")
        if stream.gets_frames:
            frames, rest = unpack(message)
            stream.receive(rest, frames)
        else:
            stream.receive(message)


async def _write(stream: LaneStream, call: Any, awake: asyncio.Event) -> None:
    """Write the messages of a stream as they get ready. The task that reads reports a failure."""
    while True:
        await awake.wait()
        awake.clear()
        while (message := stream.next_message()) is not None:
            try:
                await call.write(pack(message))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return
