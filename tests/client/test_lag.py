# SPDX-License-Identifier: Apache-2.0
"""The metadata server of a client may lag. It then lacks ledgers and bookies that another client has already made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.model import LedgerState
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.metadata_worlds import tree_of
from tests.kit.waiting import eventually

pytestmark = pytest.mark.rule("M5")


async def two_clients(cluster: MemoryBookKeeper) -> tuple[BookKeeper, BookKeeper]:
    """One that does something, and one whose server hears of it only when asked."""
    writing, reading = cluster.client(), cluster.client()
    tree_of(reading.store).lag()
    return writing, reading


async def test_ledger_that_was_closed_a_moment_ago_is_read_to_its_last_entry() -> None:
    """Through a record that says OPEN it would end at the LAC, which the last entry does not carry."""

    async with memory_cluster() as cluster:
        writing, reading = cluster.client(), cluster.client()
        writer = await writing.create_ledger()
        tree_of(reading.store).lag()
        await writer.append_batch(EntryBatch.from_list([b"a", b"b"]))
        await writer.close()
        found = reading.store.read_ledger(writer.ledger_id)
        assert found.value.state is LedgerState.OPEN, "a bare read is old"
        assert (await reading.read_metadata(writer.ledger_id)).value.is_closed
        tree_of(reading.store).lag()
        reader = await reading.open_ledger(writer.ledger_id, recover=False)
        assert reader.is_closed
        assert reader.last_add_confirmed == 1
        await reader.close()


async def test_ledger_that_was_created_a_moment_ago_can_be_opened() -> None:
    async with memory_cluster() as cluster:
        writing, reading = await two_clients(cluster)
        writer = await writing.create_ledger()
        await writer.close()
        assert tree_of(reading.store).lags
        async with await reading.open_ledger(writer.ledger_id, recover=False) as reader:
            assert reader.is_closed


async def test_who_asks_how_far_a_ledger_is_confirmed_hears_that_it_was_closed() -> None:
    async with memory_cluster() as cluster:
        writing, reading = cluster.client(), cluster.client()
        writer = await writing.create_ledger()
        async with await reading.open_ledger(writer.ledger_id, recover=False) as reader:
            tree_of(reading.store).lag()
            await writer.append(b"a")
            await writer.close()
            assert await reader.refresh_lac() == 0
            assert reader.is_closed


async def test_bookies_that_registered_a_moment_ago_are_enough_for_a_ledger() -> None:
    async with memory_cluster(2) as cluster:
        client = cluster.client()
        tree_of(client.store).lag()
        cluster.network.add("b7")
        cluster.register("b7")
        assert len(client.store.writable_bookies()) == 2, "a bare list is old"
        writer = await client.create_ledger()
        assert "b7" in writer.metadata.last_fragment.ensemble
        await writer.close()


async def test_bookie_that_registered_a_moment_ago_takes_the_place_of_one_that_failed() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        writer = await client.create_ledger()
        await writer.append(b"a")
        tree_of(client.store).lag()
        cluster.network.add("b7")
        cluster.register("b7")
        cluster.kill("b0")
        await writer.append(b"b")
        await eventually(lambda: "b7" in writer.metadata.last_fragment.ensemble)
        await writer.close()


async def test_entries_whose_copies_moved_a_moment_ago_are_found_at_their_new_place() -> None:
    async with memory_cluster(6) as cluster:
        writing, reading = cluster.client(), cluster.client()
        writer = await writing.create_ledger()
        await writer.append(b"a")
        await writer.close()
        async with await reading.open_ledger(writer.ledger_id, recover=False) as reader:
            tree_of(reading.store).lag()
            record = writing.store.read_ledger(writer.ledger_id)
            fragment = record.value.last_fragment
            moved = replace(record.value, fragments=(replace(fragment, ensemble=("b7", "b8", "b9")),))
            writing.store.write_ledger(writer.ledger_id, moved, record.version)
            await reader._follower.refresh_record()
            assert reader.metadata.last_fragment.ensemble == ("b7", "b8", "b9")
