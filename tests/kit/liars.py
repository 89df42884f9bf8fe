# SPDX-License-Identifier: Apache-2.0
"""Clusters with a bookie that lies: real bookies, one of which stands behind a proxy on the gRPC lane that rewrites
what it answers, or bookies that answer as Apache's do, one of which changes what leaves it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from bk_core.client import BookKeeper, ClientConfig
from bk_core.metadata import open_store
from bk_core.metadata.records import legacy_service_info
from bk_core.model import BookieServiceInfo, Endpoint
from bk_core.transport.grpc import GrpcLink
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.messages import SERVICE
from bk_core.transport.port import Caller, Link
from bookie_server.main import Bookie
from tests.kit.apache_bookie import ApacheServer
from tests.kit.lanes import bookie_config, grpc_port

HONEST_LATE_S = 0.03

Lie = Callable[[bytes], Iterable[bytes]]
"""What is answered instead of one message of the true bookie."""


class Liar:
    """A port that passes all on to ``true_port`` and back. ``lies``: by method; the answer to hello is left as it is.
    ``told`` counts the lies."""

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


class _LateLink(GrpcLink):
    """Hears a bookie ``HONEST_LATE_S`` later."""

    async def call(self, *args: Any, **call: Any) -> Any:
        answer = await super().call(*args, **call)
        await asyncio.sleep(HONEST_LATE_S)
        return answer

    async def read(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(super().read(*args, **options)) as answers:
            async for answer in answers:
                await asyncio.sleep(HONEST_LATE_S)
                yield answer


def _misled(liar: Liar, instance_id: str) -> LaneTransport:
    """Takes the liar's address for that of its bookie, and hears the others late."""

    def connect(info: BookieServiceInfo, endpoint: Endpoint, caller: Caller) -> Link:
        if info.bookie_id == liar.bookie_id:
            return GrpcLink(info, replace(endpoint, host="127.0.0.1", port=liar.port), caller)
        return _LateLink(info, endpoint, caller)

    return LaneTransport(Caller(instance_id, connect_timeout_s=2), {"grpc": lambda: connect})


@contextlib.asynccontextmanager
async def cluster_with_a_liar(
    data_dir: Path, lies: dict[str, Lie], config: ClientConfig, *, bookies: int = 4
) -> AsyncIterator[tuple[BookKeeper, Liar]]:
    """A client of ``bookies`` bookies; the first one lies."""
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(store.close)
        servers = [await Bookie.start(bookie_config(data_dir / f"{n}", uri)) for n in range(bookies)]
        for server in servers:
            stack.push_async_callback(server.stop)
        liar = Liar(servers[0].bookie_id, grpc_port(servers[0]), lies)
        await liar.start()
        stack.push_async_callback(liar.stop)
        mine = open_store(uri)
        transport = _misled(liar, store.instance_id())
        client = BookKeeper(mine, transport, instance_id=store.instance_id(), config=config)
        async with client:
            yield client, liar


@contextlib.asynccontextmanager
async def apache_cluster_with_a_liar(
    lie: Lie, config: ClientConfig, *, bookies: int = 4, batches: bool = False
) -> AsyncIterator[tuple[BookKeeper, ApacheLiar]]:
    """The same on Apache's wire. ``lie`` gets each frame that the first bookie answers; with ``batches`` those of batch
    reads, else there are none."""
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
    """Changes what a bookie answers, unless it is about space; ``told`` counts that."""

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
