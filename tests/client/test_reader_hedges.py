# SPDX-License-Identifier: Apache-2.0
"""Readers and bookies that hang, readers that stop early, and copies that moved since a ledger was opened."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from bk_core.errors import NoSuchLedgerError
from tests.kit.memory_cluster import FAST, collect, memory_cluster
from tests.kit.memory_store import MemoryStore
from tests.kit.waiting import eventually


async def test_a_hanging_bookie_costs_one_speculative_delay_and_is_asked_last_from_then_on() -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        for i in range(10):
            await writer.append(b"%d" % i)
        await writer.close()
        reader = await cluster.client(replace(FAST, speculative_read_ms=100)).open_ledger(
            writer.ledger_id, recover=False
        )
        for name in cluster.names:
            cluster.network.hold(name)
            began = time.monotonic()
            for _ in range(3):
                assert [v async for b in reader.read(0, 9) for v in b.to_list()] == [b"%d" % i for i in range(10)]
            assert time.monotonic() - began < 1.0  # the deadline of a read is two seconds
            cluster.network.release(name)
            reader._slow.note(cluster.names, -1)
        await reader.close()


@pytest.mark.long
async def test_a_slow_consumer_makes_no_bookie_late() -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        for _ in range(30):
            await writer.append(bytes(1000))
        await writer.close()
        config = replace(FAST, speculative_read_ms=200, read_bytes_max=5_000)
        reader = await cluster.client(config).open_ledger(writer.ledger_id, recover=False)
        got = 0
        async for batch in reader.read(0, 29):
            got += len(batch)
            await asyncio.sleep(0.25)
        assert got == 30
        assert reader._slow.now() == ()
        await reader.close()


@pytest.mark.rule("P10")
async def test_a_reader_that_closes_while_its_watch_is_being_set_leaves_none_behind() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        client = cluster.client()
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        watch, began, go_on, ended = client.store.watch_ledger, *(threading.Event() for _ in range(3))
        cancelled = []

        def slowly(*args: object) -> object:
            began.set()
            go_on.wait(2)
            cancel = watch(*args)
            ended.set()
            return lambda: (cancelled.append(1), cancel())

        client.store.watch_ledger = slowly
        await reader.wait_lac(5, 0.01)
        await eventually(began.is_set)
        await reader.close()
        go_on.set()
        await eventually(lambda: cancelled == [1])
        assert ended.is_set()
        await writer.abandon()


async def test_a_tail_of_a_ledger_that_is_deleted_ends_with_an_error() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
        got = list[bytes]()
        tail = asyncio.create_task(collect(reader.tail(0), got))
        await eventually(lambda: got == [b"0"])
        await cluster.client().delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            async with asyncio.timeout(3):
                await tail
        await reader.close()
        await writer.abandon()


async def test_entries_whose_copies_moved_since_the_ledger_was_opened_are_found_at_their_new_place() -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        await writer.close()
        reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
        record = cluster.store.read_ledger(writer.ledger_id)
        (fragment,) = record.value.fragments
        for name in ("b7", "b8", "b9"):
            cluster.network.add(name)
            cluster.register(name)
            cluster.network.bookies[name].store.ledgers.update(cluster.network.bookies["b0"].store.ledgers)
        for name in fragment.ensemble:
            cluster.network.bookies[name].store.ledgers.clear()
        moved = replace(record.value, fragments=(replace(fragment, ensemble=("b7", "b8", "b9")),))
        MemoryStore(cluster.cluster).write_ledger(writer.ledger_id, moved, record.version)
        assert [v async for b in reader.read(0, 0) for v in b.to_list()] == [b"0"]
        await reader.close()
