# SPDX-License-Identifier: Apache-2.0
"""The gRPC lane's server: one port, and for each stream a task that reads and a task that writes.

To gRPC a message is raw bytes; ``lane_streams.py`` interprets it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import grpc

from bk_core.errors import BookKeeperError, PortInUseError
from bk_core.transport.messages import CHANNEL_OPTIONS, SERVICE
from bookie_server.config import ServerLimits
from bookie_server.engine.engine import BookieEngine
from bookie_server.services.connections import Connections
from bookie_server.services.control_stream import ControlStream
from bookie_server.services.hang_up import connected, files_open, hang_up, shut_down
from bookie_server.services.lane_streams import AddStream, BookieFacts, LaneStream, ReadStream
from bookie_server.services.room import (
    STREAMS_MAX,
    MemoryWatch,
    connections_allowed,
    give_memory_back,
    memory_bytes_usable,
    resident_bytes,
)

logger = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 60.0
"""A client that takes nothing for so long is cut off; sooner, if others wait for the memory."""

GRACE_S = 2.0
"""How long the queued answers of an ending stream may take to be written."""

SILENT_S = 0.5
"""When memory is short, streams are ended that have sent no whole message for so long."""

_WATCH_INTERVAL_S = 0.25
_COUNT_INTERVAL_S = 1.0

HELLO_TIMEOUT_S = 10.0
"""A client that sends nothing for so long after opening a stream is cut off."""

_SERVER_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),  # two bookies on one port must fail, not share
    ("grpc.max_concurrent_streams", STREAMS_MAX),
    ("grpc.http2.bdp_probe", 0),  # else a client may send 64 MiB ahead on a stream that is not read
    ("grpc.http2.lookahead_bytes", 256 << 10),  # at most so much ahead; larger messages are requested one by one
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
_STREAMS: dict[str, type[LaneStream]] = {"Add": AddStream, "Read": ReadStream, "Control": ControlStream}
_GONE = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError)


class GrpcServer:
    """A port that serves the lane. It is bound when made, so that a port in use is noticed first of all."""

    def __init__(self, listen_address: str, port: int, limits: ServerLimits | None = None) -> None:
        """Raises PortInUseError."""
        limits = limits or ServerLimits()
        connections_max = connections_allowed(limits.connections_max, limits.files_kept)
        if connections_max < limits.connections_max:
            logger.warning("at most %d clients can connect: raise the limit of open files", connections_max)
        options = (*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", connections_max))
        self._server = grpc.aio.server(options=options, compression=grpc.Compression.NoCompression)
        self._memory = MemoryWatch(limits.memory_bytes_max or memory_bytes_usable())
        self._read_stall_s = limits.read_stall_s
        self.connections = Connections(
            connections_max, min(limits.connections_per_address_max or max(1, connections_max // 2), connections_max)
        )
        self._streams: set[LaneStream] = set()
        self._watches: list[asyncio.Task[None]] = []
        try:
            self.port: int = self._server.add_insecure_port(f"{_bracketed(listen_address)}:{port}")
        except RuntimeError as error:
            raise PortInUseError(
                "the port cannot be listened on",
                value=f"{listen_address}:{port}",
                remedy="stop the other program, or name another --port",
            ) from error

    async def start(self, engine: BookieEngine, facts: BookieFacts) -> None:
        handlers = {name: self._handler(kind, engine, facts) for name, kind in _STREAMS.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        await self._server.start()
        self._watches = [
            asyncio.create_task(self._watch_memory(), name="memory watch"),
            asyncio.create_task(self._watch_connections(), name="connection watch"),
        ]

    async def stop(self, grace_s: float) -> None:
        """Take no more messages; streams end within ``grace_s``."""
        for watch in self._watches:
            watch.cancel()
        await self._server.stop(grace_s)

    async def _watch_memory(self) -> None:
        """End silent streams when memory is short: each may hold most of a message that never ends."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            taken = resident_bytes()
            if not self._memory.shed(taken):
                continue
            silent = [stream for stream in self._streams if loop.time() - stream.reading_since > SILENT_S]
            if not silent:
                continue
            logger.warning("%d MiB of memory are taken: %d silent streams are ended", taken >> 20, len(silent))
            for stream in silent:
                stream.cut("memory is short, and nothing came on this stream")
            await asyncio.sleep(_WATCH_INTERVAL_S)  # until gRPC has released them
            give_memory_back()
            self._memory.has_shed(resident_bytes())

    async def _watch_connections(self) -> None:
        """Keep each address to its share of the connections; gRPC keeps the total to its bound."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_COUNT_INTERVAL_S)
            if files_open() > self.connections.share_max:  # else there are too few connections to look
                excess = self.connections.look(connected(self.port), clock())
                if excess:
                    shut_down(set(excess), self.port)
            self.connections.report(clock())

    def _handler(self, kind: type[LaneStream], engine: BookieEngine, facts: BookieFacts) -> Any:
        async def serve(_: Any, context: Any) -> None:
            await self._serve(kind(engine, facts), context)

        return grpc.stream_stream_rpc_method_handler(serve)  # no serializers: messages are bytes

    async def _serve(self, stream: LaneStream, context: Any) -> None:
        """Carry a stream's messages until it ends. If its client takes nothing, the whole connection is ended:
        otherwise gRPC would keep the unwritten messages for as long as the client likes."""
        tasks = [
            asyncio.ensure_future(_read(stream, context)),
            asyncio.ensure_future(_write(stream, context, self._read_stall_s)),
        ]
        stream.on_cut = lambda: [task.cancel() for task in tasks]
        self._streams.add(stream)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(stream)
            stream.end()
            tasks[0].cancel()  # the writer ends by itself, once it has written the queued answers
            _, late = await asyncio.wait(tasks[1:], timeout=GRACE_S)
            tasks[1].cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            stream.on_cut = None
        bugs = [error for error in ends if isinstance(error, Exception)]  # nobody else reports them
        for error in bugs:
            logger.error("stream %d ends by an exception", stream.stream, exc_info=error)
        if stream.writing or late:
            hang_up(context.peer(), self.port)
            raise asyncio.CancelledError
        if stream.was_cut:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, stream.closing)
        if bugs:
            await context.abort(grpc.StatusCode.INTERNAL, f"the bookie failed on this stream: {bugs[0]!r}")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def _read(stream: LaneStream, context: Any) -> None:
    """Receive messages until the client is done or breaks the rules."""
    clock = asyncio.get_running_loop().time
    stream.reading_since = clock()
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            message = await context.read()
        while message is not grpc.aio.EOF:
            stream.reading_since = math.inf
            stream.receive(message)
            del message  # else it is kept until the next one arrives
            await stream.flow.wait()
            if stream.closing:
                return
            stream.reading_since = clock()
            message = await context.read()
    except BookKeeperError as error:
        logger.warning("stream %d: %s", stream.stream, error)
        stream.close(str(error))
    except _GONE as error:
        stream.close(f"the client is gone: {error!r}")


async def _write(stream: LaneStream, context: Any, stall_s: float) -> None:
    """Write queued answers, one message at a time, until the stream closes."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            await stream.wake.wait()
            stream.wake.clear()
            while (message := stream.next_message()) is not None:
                stream.writing = True
                late = loop.call_later(stall_s, stream.stall)
                try:
                    async with asyncio.timeout(WRITE_TIMEOUT_S):
                        await context.write(message)
                finally:
                    late.cancel()
                stream.writing = False
                stream.message_left()
            if stream.closing:
                return
    except TimeoutError:
        stream.cut("the client takes nothing")
    except _GONE as error:
        stream.close(f"the client is gone: {error!r}")
