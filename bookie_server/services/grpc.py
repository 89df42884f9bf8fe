# SPDX-License-Identifier: Apache-2.0
"""The gRPC lane's server: a port, and for each stream one task that reads and one that writes.

Messages are raw bytes to gRPC; what they mean is in ``lane_streams.py``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc

from bk_core.errors import BookKeeperError, PortInUseError
from bk_core.transport.messages import CHANNEL_OPTIONS, SERVICE
from bookie_server.engine import BookieEngine
from bookie_server.services.lane_streams import AddStream, BookieFacts, ControlStream, LaneStream, ReadStream

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 60.0
"""A client that takes nothing for so long is cut off."""

HELLO_TIMEOUT_S = 10.0
"""A client that says nothing for so long after opening a stream is cut off."""

_SERVER_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),  # two bookies on one port must fail, not share
    ("grpc.max_concurrent_streams", 1024),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
_STREAMS: dict[str, type[LaneStream]] = {"Add": AddStream, "Read": ReadStream, "Control": ControlStream}
_GONE = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError)


class GrpcServer:
    """A port that serves the lane. Bound when made, so that a port in use is known before anything else happens."""

    def __init__(self, listen_address: str, port: int) -> None:
        """Raises PortInUseError."""
        self._server = grpc.aio.server(options=_SERVER_OPTIONS, compression=grpc.Compression.NoCompression)
        try:
            self.port: int = self._server.add_insecure_port(f"{_bracketed(listen_address)}:{port}")
        except RuntimeError as error:
            raise PortInUseError(
                "the port cannot be listened on",
                value=f"{listen_address}:{port}",
                remedy="stop the other program, or name another --port",
            ) from error

    async def start(self, engine: BookieEngine, facts: BookieFacts) -> None:
        """Begin to serve."""
        handlers = {name: _handler(kind, engine, facts) for name, kind in _STREAMS.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no more; streams end within ``grace_s``."""
        await self._server.stop(grace_s)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _handler(kind: type[LaneStream], engine: BookieEngine, facts: BookieFacts) -> Any:
    async def serve(_: Any, context: Any) -> None:
        stream = kind(engine, facts)
        tasks = [asyncio.ensure_future(_read(stream, context)), asyncio.ensure_future(_write(stream, context))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stream.end()
            tasks[0].cancel()  # the writer ends by itself, once it has written what is ready
            await asyncio.gather(*tasks, return_exceptions=True)

    return grpc.stream_stream_rpc_method_handler(serve)  # no serializers: messages are bytes


async def _read(stream: LaneStream, context: Any) -> None:
    """Take messages until the client is done or breaks the rules."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            message = await context.read()
        while message is not grpc.aio.EOF:
            stream.receive(message)
            await stream.flow.wait()
            if stream.closing:
                return
            message = await context.read()
    except BookKeeperError as error:
        log.warning("stream %d: %s", stream.stream, error)
        stream.close(str(error))
    except _GONE as error:
        stream.close(f"the client is gone: {error!r}")


async def _write(stream: LaneStream, context: Any) -> None:
    """Write what is ready, one message at a time, until the stream closes."""
    try:
        while True:
            await stream.wake.wait()
            stream.wake.clear()
            while (message := stream.next_message()) is not None:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await context.write(message)
                stream.message_left()
            if stream.closing:
                return
    except _GONE as error:
        stream.close(f"the client is gone: {error!r}")
