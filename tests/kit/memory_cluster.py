# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in this process: bookies that run the real machine, the memory store, and clients."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from bk_core import blocking
from bk_core.client import BookKeeper, ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.model import BookieServiceInfo, LedgerId
from tests.kit.memory_bookie import MemoryNetwork
from tests.kit.memory_store import MemoryCluster, MemoryStore

FAST = ClientConfig(
    add_timeout_ms=400,
    reconnect_budget_ms=100,
    close_linger_ms=200,
    read_timeout_ms=2_000,
    lac_timeout_ms=2_000,
    lac_stall_ms=200,
    watch_timeout_ms=1_000,
    close_timeout_ms=5_000,
    quarantine_ms=5_000,
)
"""Settings that shorten each wait of production to a fraction of a second."""


class MemoryBookKeeper:
    """Bookies ``b0``, ``b1`` and so on with their registrations, and any number of clients. ``clock_ms`` is the store's
    clock."""

    def __init__(self, bookies: int, clock_ms: Callable[[], int] | None = None) -> None:
        self.names = [f"b{i}" for i in range(bookies)]
        self.network = MemoryNetwork(*self.names)
        self.cluster = MemoryCluster() if clock_ms is None else MemoryCluster(clock_ms)
        self.store = MemoryStore(self.cluster)
        self.store.initialize_cluster()
        for name in self.names:
            self.register(name)
        self._clients: list[BookKeeper] = []

    def register(self, name: str) -> None:
        self.store.register_bookie(BookieServiceInfo(name))

    def client(self, config: ClientConfig = FAST) -> BookKeeper:
        store = MemoryStore(self.cluster)
        made = BookKeeper(store, self.network.transport(), instance_id=store.instance_id(), config=config)
        self._clients.append(made)
        return made

    def kill(self, name: str) -> None:
        """Kill a bookie, and end its registration as ZooKeeper would."""
        self.network.kill(name)
        self.store.unregister_bookie(name)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self.store.close()


@asynccontextmanager
async def memory_cluster(
    bookies: int = 4, clock_ms: Callable[[], int] | None = None
) -> AsyncIterator[MemoryBookKeeper]:
    cluster = MemoryBookKeeper(bookies, clock_ms)
    try:
        yield cluster
    finally:
        await cluster.close()


@contextmanager
def blocking_cluster(
    bookies: int = 4, config: ClientConfig = FAST
) -> Iterator[tuple[blocking.BookKeeper, MemoryBookKeeper]]:
    """Run a blocking client, which has a thread for its loop, and the bookies on that loop."""
    made: list[MemoryBookKeeper] = []

    async def make() -> BookKeeper:
        made.append(MemoryBookKeeper(bookies))
        return made[0].client(config)

    with blocking.BookKeeper(make) as client:
        yield client, made[0]
    made[0].store.close()


def hold(cluster: MemoryBookKeeper) -> None:
    """Let no bookie confirm anything from now on."""
    for bookie in cluster.network.bookies.values():
        bookie.hold_commits()


def release(cluster: MemoryBookKeeper) -> None:
    """End the effect of :func:`hold`."""
    for bookie in cluster.network.bookies.values():
        bookie.release_commits()


async def read_ledger(client: BookKeeper, ledger_id: LedgerId, *, recover: bool, password: bytes = b"") -> list[bytes]:
    """Open a ledger and return its entries up to the LAC."""
    async with await client.open_ledger(ledger_id, recover=recover, password=password) as reader:
        return [entry async for batch in reader.read(0, reader.last_add_confirmed) for entry in batch.to_list()]


async def collect(batches: AsyncIterable[EntryBatch], seen: list[bytes]) -> None:
    """Add the entries of batches to ``seen`` while they come, for a test that follows a ledger in a task."""
    async for batch in batches:
        seen += batch.to_list()
