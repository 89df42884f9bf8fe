# SPDX-License-Identifier: Apache-2.0
"""Clusters in which one bookie lies. In a cluster of real bookies, a proxy on one of our lanes rewrites the answers of
one bookie. In a cluster of bookies that answer as Apache's do, one bookie changes its own answers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import grpc

from bk_core.client import BookKeeper, ClientConfig
from bk_core.memory.slots import Slots
from bk_core.metadata import open_store
from bk_core.metadata.records import legacy_service_info
from bk_core.model import DIRECT
from bk_core.transport.caller import Caller
from bk_core.transport.lane.direct import DirectLink
from bk_core.transport.lane.grpc import GrpcLink
from bk_core.transport.lane.link import LaneLink
from bk_core.transport.lane.messages import SERVICE
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import Link
from bk_core.transport.whereabouts import At, Whereabouts
from bk_core.wire.lane.direct_messages import PREAMBLE_BYTES, stream_of
from bk_core.wire.lane.grpc_frames import pack, unpack
from bk_core.wire.lane.reasons import LaneMessage
from bookie_server.main import Bookie
from tests.kit.apache_bookie import ApacheServer
from tests.kit.direct_client import HEAD
from tests.kit.lanes import bookie_config, lane_port

HONEST_LATE_S = 0.03

Lie = Callable[[bytes], Iterable[bytes]]
"""Returns the messages to send instead of one message of the real bookie, in the form of the gRPC lane."""


class Raw(bytes):
    """Bytes that are sent unchanged, and not converted to a message of the direct lane."""


class Liar(Protocol):
    """A port that passes everything on to a bookie and back, but rewrites some answers. ``lies`` has a function for
    each method whose answers it rewrites."""

    bookie_id: str
    port: int
    told: int
    """The number of lies that were sent."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class DirectLiar:
    """A liar on the direct lane. It does not change the answer to hello."""

    def __init__(self, bookie_id: str, true_port: int, lies: dict[str, Lie]) -> None:
        self.bookie_id, self.lies, self._true_port = bookie_id, lies, true_port
        self.told = 0
        self._clients: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = asyncio.current_task()
        assert served is not None
        self._clients.add(served)
        served.add_done_callback(self._clients.discard)
        first = await reader.read(PREAMBLE_BYTES)
        if len(first) < PREAMBLE_BYTES:  # the client has given up the connection
            writer.close()
            return
        true_reader, true_writer = await asyncio.open_connection("127.0.0.1", self._true_port)
        true_writer.write(first)
        there = asyncio.ensure_future(_copy(reader, true_writer))
        try:
            await self._lie(stream_of(first), true_reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            there.cancel()
            writer.close()
            true_writer.close()

    async def _lie(self, method: str, true: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lie = None
        while True:
            frames, rest = HEAD.unpack(await true.readexactly(HEAD.size))
            body = await true.readexactly(frames + rest)
            message = pack(LaneMessage(body[frames:], [body[:frames]])) if method == "Read" else body
            self.told += lie is not None
            for said in lie(message) if lie else [message]:
                writer.write(said if isinstance(said, Raw) else _direct(method, said))
                await writer.drain()
            lie = self.lies.get(method)


def _direct(method: str, message: bytes) -> bytes:
    frames, rest = unpack(message) if method == "Read" else (None, message)
    return HEAD.pack(len(frames or b""), len(rest)) + (frames or b"") + rest


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


class GrpcLiar:
    """A liar on the gRPC lane."""

    def __init__(self, bookie_id: str, true_port: int, lies: dict[str, Lie]) -> None:
        self.bookie_id, self.lies, self._target = bookie_id, lies, f"127.0.0.1:{true_port}"
        self.told = 0
        self._server = grpc.aio.server()
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    async def start(self) -> None:
        handlers = {
            method: grpc.stream_stream_rpc_method_handler(self._handler(method))
            for method in ("Add", "Read", "Control")
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    def _handler(self, method: str) -> Any:
        async def serve(_: Any, context: Any) -> None:
            async with grpc.aio.insecure_channel(self._target) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{method}")()
                there = asyncio.ensure_future(_pass_on(context.read, call.write))
                try:
                    await context.write(await call.read())
                    while (answer := await call.read()) is not grpc.aio.EOF:
                        self.told += method in self.lies
                        for said in self.lies[method](answer) if method in self.lies else [answer]:
                            await context.write(said)
                finally:
                    there.cancel()

        return serve


async def _pass_on(read: Any, write: Any) -> None:
    while (message := await read()) is not grpc.aio.EOF:
        await write(message)


class _Late(LaneLink):
    """A link that delivers each answer of its bookie ``HONEST_LATE_S`` later."""

    async def call(self, *args: Any, **call: Any) -> Any:
        answer = await super().call(*args, **call)
        await asyncio.sleep(HONEST_LATE_S)
        return answer

    async def read(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(super().read(*args, **options)) as answers:
            async for answer in answers:
                await asyncio.sleep(HONEST_LATE_S)
                yield answer


class _LateGrpcLink(_Late, GrpcLink): ...


class _LateDirectLink(_Late, DirectLink): ...


def _misled(lane: str, liar: Liar, instance_id: str) -> LaneTransport:
    """Make a transport that uses the liar's address for its bookie, and delivers the answers of all other bookies
    late."""
    slots = Slots()

    def connect(at: At, caller: Caller, whereabouts: Whereabouts) -> Link:
        if at.info.bookie_id == liar.bookie_id:
            at = At(at.info, replace(at.endpoint, host="127.0.0.1", port=liar.port, extensions=()))
            return DirectLink(at, caller, whereabouts, slots) if lane == DIRECT else GrpcLink(at, caller, whereabouts)
        if lane == DIRECT:
            return _LateDirectLink(at, caller, whereabouts, slots)
        return _LateGrpcLink(at, caller, whereabouts)

    return LaneTransport(Caller(instance_id, connect_timeout_s=2), {lane: lambda: connect})


@contextlib.asynccontextmanager
async def cluster_with_a_liar(
    lane: str, data_dir: Path, lies: dict[str, Lie], config: ClientConfig, *, bookies: int = 4
) -> AsyncIterator[tuple[BookKeeper, Liar]]:
    """Yield a client of ``bookies`` bookies over ``lane``; the first one lies."""
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(store.close)
        servers = [await Bookie.start(bookie_config(data_dir / f"{n}", uri)) for n in range(bookies)]
        for server in servers:
            stack.push_async_callback(server.stop)
        liar: Liar
        if lane == DIRECT:
            liar = DirectLiar(servers[0].bookie_id, lane_port(servers[0], lane), lies)
        else:
            liar = GrpcLiar(servers[0].bookie_id, lane_port(servers[0], lane), lies)
        await liar.start()
        stack.push_async_callback(liar.stop)
        mine = open_store(uri)
        transport = _misled(lane, liar, store.instance_id())
        client = BookKeeper(mine, transport, instance_id=store.instance_id(), config=config)
        async with client:
            yield client, liar


@contextlib.asynccontextmanager
async def apache_cluster_with_a_liar(
    lie: Lie, config: ClientConfig, *, bookies: int = 4, batches: bool = False
) -> AsyncIterator[tuple[BookKeeper, ApacheLiar]]:
    """Yield a client of bookies on Apache's wire, the first of which lies. ``lie`` gets each frame that it answers.
    With ``batches`` these are frames of batch reads; without it, there are no batch reads."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.initialize_cluster()
    async with contextlib.AsyncExitStack() as stack:
        servers = [await ApacheServer().start() for _ in range(bookies)]
        for server in servers:
            stack.push_async_callback(server.stop)
            store.register_bookie(legacy_service_info(f"127.0.0.1:{server.port}"))
        liar = ApacheLiar(servers[0], lie, batches=batches)
        transport = LaneTransport(Caller(store.instance_id(), connect_timeout_s=2, batch_reads=batches))
        async with BookKeeper(store, transport, instance_id=store.instance_id(), config=config) as client:
            yield client, liar


class ApacheLiar:
    """Changes the answers of a bookie, except those about disk space. ``told`` counts the lies."""

    def __init__(self, server: ApacheServer, lie: Lie, *, batches: bool) -> None:
        self.bookie_id, self.told, self._lie = f"127.0.0.1:{server.port}", 0, lie
        if batches:
            server.lie_2 = self._tell
        else:
            server.lie = self._tell

    def _tell(self, frame: bytes) -> list[bytes]:
        said = list(self._lie(frame))
        self.told += said != [frame]
        return said
