# SPDX-License-Identifier: Apache-2.0
"""The server of the gRPC lane. It has one port, and for each stream a task that reads and a task that writes.

For gRPC a message is raw bytes, which ``streams.py`` interprets.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from bk_core.access.tls import Names, Pem
from bk_core.errors import BookKeeperError, PortInUseError, TlsError
from bk_core.model import GRPC, TLS, Endpoint, host_and_port, plain_host
from bk_core.transport.lane.messages import CHANNEL_OPTIONS, SERVICE
from bk_core.wire.lane.grpc_frames import pack, unpack
from bookie_server.engine.engine import BookieEngine
from bookie_server.ports.access.principal import Principal
from bookie_server.ports.access.tls import PortTls, said_to_client
from bookie_server.ports.bounds.clients import Clients
from bookie_server.ports.bounds.hang_up import hang_up, peer_named
from bookie_server.ports.bounds.memory_bounds import GRACE_S, HELLO_TIMEOUT_S, STREAMS_MAX, WRITE_TIMEOUT_S
from bookie_server.ports.lane.control_stream import STREAMS
from bookie_server.ports.lane.streams import BookieFacts, LaneStream
from bookie_server.ports.sockets import listening_socket

logger = logging.getLogger(__name__)

_SERVER_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),  # two bookies on one port must fail, not share
    ("grpc.max_concurrent_streams", STREAMS_MAX),
    ("grpc.http2.bdp_probe", 0),  # otherwise a client may send 64 MiB ahead on a stream that is not read
    # how far a client may send ahead; larger messages are requested one by one
    ("grpc.http2.lookahead_bytes", 256 << 10),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
_GONE = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError)


class GrpcServer:
    """The :class:`~bookie_server.ports.service.Service` of the gRPC lane."""

    def __init__(self, listen_address: str, port: int, clients: Clients, tls: PortTls | None = None) -> None:
        """Bind the port. Raises PortInUseError."""
        most = clients.connections.connections_max
        options = (*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most))
        self._server = grpc.aio.server(options=options, compression=grpc.Compression.NoCompression)
        self._clients, self._started, self._tls = clients, False, tls
        address = host_and_port(plain_host(listen_address), port)
        try:
            if tls is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, _credentials(tls))
        except RuntimeError as error:
            # raises an error with the reason, which gRPC does not give
            listening_socket(listen_address, port, "--grpc-port").close()
            raise PortInUseError(
                "this process cannot listen on the port",
                value=f"{address}: {error}",
                remedy="stop the other program, or name another --grpc-port",
            ) from error

    def endpoint(self, host: str) -> Endpoint:
        return Endpoint(GRPC, host, self.port, GRPC, extensions=() if self._tls is None else (TLS,))

    async def start(self, engine: BookieEngine, facts: BookieFacts) -> None:
        handlers = {name: self._handler(kind, engine, facts) for name, kind in STREAMS.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        await self._server.start()
        self._started = True

    async def stop(self, grace_s: float) -> None:
        if not self._started:  # gRPC releases a port only if it has served there
            await self._server.start()
        await self._server.stop(grace_s)

    def _handler(self, kind: type[LaneStream], engine: BookieEngine, facts: BookieFacts) -> Any:
        async def serve(_: Any, context: Any) -> None:
            try:
                principal = self._principal(context)
            except TlsError as error:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, said_to_client(error))
            await self._serve(kind(engine, facts, principal), context)

        return grpc.stream_stream_rpc_method_handler(serve)  # no serializers: messages are bytes

    def _principal(self, context: Any) -> Principal:
        """Return the principal of a stream. Raises TlsError for a client that is not let in."""
        peer = peer_named(context.peer())
        if self._tls is None:
            return Principal(peer)
        said = context.auth_context()
        return self._tls.admit(_names_of(said) if "x509_pem_cert" in said else None, peer, "gRPC")

    async def _serve(self, stream: LaneStream, context: Any) -> None:
        """Carry a stream's messages until it ends. If its client reads none of its answers, end the whole connection,
        because otherwise gRPC would keep the unwritten messages for as long as the client stays."""
        awake, flow = asyncio.Event(), asyncio.Event()

        def wake() -> None:
            awake.set()
            (flow.set if stream.flows else flow.clear)()

        stream.wake, stream.lane = wake, GRPC
        wake()
        tasks = [
            asyncio.ensure_future(_read(stream, context, flow)),
            asyncio.ensure_future(_write(stream, context, self._clients.read_stall_s, awake)),
        ]
        stream.on_cut = lambda: [task.cancel() for task in tasks]
        self._clients.streams.add(stream)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._clients.streams.discard(stream)
            stream.end()
            tasks[0].cancel()  # the writer ends by itself, once it has written the queued answers
            _, late = await asyncio.wait(tasks[1:], timeout=GRACE_S)
            tasks[1].cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            stream.on_cut = None
        bugs = [error for error in ends if isinstance(error, Exception)]  # gRPC does not report them
        for error in bugs:
            logger.error("stream %d ends by an exception", stream.stream, exc_info=error)
        if stream.writing or late:
            hang_up(context.peer(), self.port)
            raise asyncio.CancelledError
        if stream.was_cut:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, stream.closing)
        if bugs:
            await context.abort(grpc.StatusCode.INTERNAL, f"the bookie failed on this stream: {bugs[0]!r}")


def _credentials(port_tls: PortTls) -> Any:
    """Return gRPC's credentials, which check for each connection whether the files have changed. gRPC can request a
    certificate from all clients or from none. If a certificate is optional, it requests none."""
    tls = port_tls.tls
    before: list[Pem] = []

    def configuration() -> Any:
        now = tls.pem()
        if before == [now]:
            return None
        before[:] = [now]
        return grpc.ssl_server_certificate_configuration([(now.key, now.certificate)], now.authorities)

    first = configuration()
    return grpc.dynamic_ssl_server_credentials(first, configuration, port_tls.client_auth and not port_tls.wants_tokens)


def _names_of(said: Mapping[str, Sequence[bytes]]) -> Names:
    """Return the names in a client's certificate, as gRPC decodes it."""

    def texts(key: str) -> list[str]:
        return [each.decode("utf-8", "replace") for each in said.get(key, ())]

    return Names("".join(texts("x509_subject")[:1]), texts("peer_dns"), texts("peer_uri"))


async def _read(stream: LaneStream, context: Any, flow: asyncio.Event) -> None:
    """Receive messages until the client is done or breaks the rules."""
    clock = asyncio.get_running_loop().time
    stream.reading_since = clock()
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            message = await context.read()
        while message is not grpc.aio.EOF:
            stream.reading_since = math.inf
            if stream.gets_frames:
                frames, rest = unpack(message)
                stream.receive(rest, frames)
                del frames, rest
            else:
                stream.receive(message)
            del message  # otherwise it stays in memory until the next one arrives
            await flow.wait()
            if stream.closing:
                return
            stream.reading_since = clock()
            message = await context.read()
    except BookKeeperError as error:
        logger.warning("stream %d: %s", stream.stream, error)
        stream.close(str(error))
    except _GONE as error:
        stream.close(f"the client is gone: {error!r}")


async def _write(stream: LaneStream, context: Any, stall_s: float, awake: asyncio.Event) -> None:
    """Write queued answers, one message at a time, until the stream closes."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            await awake.wait()
            awake.clear()
            while (message := stream.next_message()) is not None:
                stream.writing = True
                late = loop.call_later(stall_s, stream.stall)
                try:
                    async with asyncio.timeout(WRITE_TIMEOUT_S):
                        await context.write(pack(message))
                finally:
                    late.cancel()
                stream.writing = False
                stream.message_left()
            if stream.closing:
                return
    except TimeoutError:
        stream.cut("the client reads nothing")
    except _GONE as error:
        stream.close(f"the client is gone: {error!r}")
