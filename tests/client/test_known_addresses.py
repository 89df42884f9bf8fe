# SPDX-License-Identifier: Apache-2.0
"""When a client that opens a ledger reads the registrations of the bookies again."""

from __future__ import annotations

from bk_core.client import BookKeeper
from bk_core.model import LedgerId
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.waiting import eventually

AVAILABLE = "/ledgers/available"


async def written(cluster: MemoryBookKeeper, *, closed: bool) -> LedgerId:
    writer = await cluster.client().create_ledger()
    await writer.append(b"an entry")
    if closed:
        await writer.close()
    return writer.ledger_id


async def lists_read(cluster: MemoryBookKeeper, client: BookKeeper, ledger_id: LedgerId) -> int:
    """Open and read a ledger. Return how often the client read the list of writable bookies for this."""
    before = cluster.cluster.listed[AVAILABLE]
    async with await client.open_ledger(ledger_id, recover=False) as reader:
        async for batch in reader.read(0, reader.last_add_confirmed):
            assert set(batch.to_list()) == {b"an entry"}
    return cluster.cluster.listed[AVAILABLE] - before


async def test_a_closed_ledger_is_opened_without_the_list_of_bookies_until_it_changes() -> None:
    async with memory_cluster() as cluster:
        ledger_id, client = await written(cluster, closed=True), cluster.client()
        assert await lists_read(cluster, client, ledger_id) == 1
        assert await lists_read(cluster, client, ledger_id) == 0
        cluster.store.unregister_bookie("b0")
        await eventually(lambda: client.store.seen_bookies() is None)
        assert await lists_read(cluster, client, ledger_id) == 1


async def test_an_open_ledger_is_opened_with_the_newest_list_of_bookies() -> None:
    async with memory_cluster() as cluster:
        ledger_id, client = await written(cluster, closed=False), cluster.client()
        assert [await lists_read(cluster, client, ledger_id) for _ in range(2)] == [1, 1]
