# SPDX-License-Identifier: Apache-2.0
"""What a client knows about bookies: which it chooses for a new ledger, and when it reads their addresses again."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.client import BookKeeper
from bk_core.errors import BookieUnreachableError, NotEnoughBookiesError
from bk_core.model import LedgerId
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.memory_store import MemoryStore
from tests.kit.waiting import eventually


def requests_of(client: BookKeeper) -> list[str]:
    """The names of the calls that the client makes to its store from now on."""
    assert isinstance(client.store, MemoryStore)
    tree, seen = client.store.tree, list[str]()

    def counted(name: str) -> Any:
        real = getattr(tree, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            seen.append(name)
            return real(*arguments, **keywords)

        return call

    for name in ("get", "get_many", "exists", "children", "sync", "create", "delete", "set", "multi"):
        setattr(tree, name, counted(name))
    return seen


async def ensemble(client: BookKeeper) -> set[str]:
    async with await client.create_ledger() as writer:
        await writer.append(b"a")
        return set(writer.metadata.last_fragment.ensemble)


async def test_another_ledger_costs_three_requests() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        await ensemble(client)
        requests = requests_of(client)
        await ensemble(client)
        assert requests == ["create", "multi", "set"], "the id; the record, without the node of the id; the close"


async def test_bookies_that_come_and_go_are_seen_by_the_next_ledger() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        assert await ensemble(client) == {"b0", "b1", "b2"}
        cluster.network.add("b7")
        cluster.register("b7")
        cluster.kill("b0")
        assert await ensemble(client) == {"b1", "b2", "b7"}
        cluster.kill("b1")
        with pytest.raises(NotEnoughBookiesError):
            await ensemble(client)


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


async def test_a_reader_finds_bookies_that_registered_after_it_was_opened() -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        client = cluster.client()
        known: set[str] = set()
        link = client.transport.link
        client.transport.update_bookies = lambda infos: known.update(i.bookie_id for i in infos)

        def checked(bookie: str) -> object:
            if bookie not in known:
                raise BookieUnreachableError(f"no address of {bookie}")
            return link(bookie)

        client.transport.link = checked
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        for name in ("b3", "b4", "b5"):
            cluster.network.add(name)
            cluster.register(name)
        for name in ("b0", "b1", "b2"):
            cluster.kill(name)
            await writer.append(b"1")
        await writer.append(b"2")
        await writer.close()
        await reader.refresh_lac()
        got = [v async for b in reader.read(3, 4) for v in b.to_list()]
        assert got == [b"1", b"2"]
        await reader.close()
