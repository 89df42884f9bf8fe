# SPDX-License-Identifier: Apache-2.0
"""A cluster of bookies in this process, which can restart under the same id at another address."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bk_cli.local.children import free_ports
from bk_core.client import BookKeeper, ClientConfig, connect
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bookie_server.main import Bookie
from tests.kit.lanes import bookie_config

DOWN_S = 0.3
"""For how many seconds a moving bookie is stopped. This is less than a writer's reconnect budget of two seconds."""


class MovingCluster:
    """Bookies ``b0``, ``b1`` and so on. Each start takes free ports."""

    def __init__(self, path: Path, uri: str, store: MetadataStore, lane: str) -> None:
        self._path, self.uri, self.store, self.lane = path, uri, store, lane
        self.bookies: dict[str, Bookie] = {}

    async def start(self, bookie_id: str, **changes: Any) -> None:
        names = ("port", "direct_port", "grpc_port")
        ports = dict(zip(names, free_ports(len(names)), strict=True))  # outside the clients' range, so usable again
        settings = {"admin_port": 0, **ports, **changes}  # by default it is at a distance from a port: perhaps in use
        config = bookie_config(self._path / bookie_id, self.uri, bookie_id=bookie_id, **settings)
        self.bookies[bookie_id] = await Bookie.start(config)

    async def stop(self, bookie_id: str) -> None:
        await self.bookies.pop(bookie_id).stop()

    async def move(self, bookie_id: str, *, down_s: float = DOWN_S, **changes: Any) -> None:
        """Stop a bookie, and start it again on other ports."""
        await self.stop(bookie_id)
        await asyncio.sleep(down_s)
        await self.start(bookie_id, **changes)

    async def move_all(self, *, down_s: float = DOWN_S) -> None:
        """Move one bookie after the other."""
        for bookie_id in sorted(self.bookies):
            await self.move(bookie_id, down_s=down_s)

    async def client(self, **settings: Any) -> BookKeeper:
        return await connect(self.uri, config=ClientConfig(lanes=self.lane, **settings))

    def marks(self) -> list[int]:
        """The ledgers that are marked as underreplicated."""
        return [ledger_id for ledger_id, _ in self.store.list_underreplicated()]


@contextlib.asynccontextmanager
async def moving_cluster(path: Path, lane: str, *, bookies: int = 3) -> AsyncIterator[MovingCluster]:
    """Run a cluster whose clients use only ``lane``."""
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    cluster = MovingCluster(path, uri, store, lane)
    try:
        for number in range(bookies):
            await cluster.start(f"b{number}")
        yield cluster
    finally:
        for bookie_id in list(cluster.bookies):
            await cluster.stop(bookie_id)
        store.close()
