# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for ever, and nobody waits twice: throttled writers, readers whose first wait was short, second tries
that go on where the first one stood, and one deadline for all attempts together."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, ClientClosedError
from tests.kit.memory_cluster import FAST, memory_cluster


@pytest.mark.rule("P3")
async def test_a_writer_that_was_throttled_by_a_slow_bookie_goes_on_once_it_is_replaced() -> None:
    async with memory_cluster(4) as cluster:
        config = replace(FAST, frame_bytes=500, window_bytes_max=2_000, slow_bookie_bytes_max=4_000)
        writer = await cluster.client(config).create_ledger()
        slow = writer.metadata.last_fragment.ensemble[0]
        cluster.network.bookies[slow].hold_commits()
        async with asyncio.timeout(4):
            for _ in range(60):
                await writer.append(b"x" * 200)
        assert slow not in writer.metadata.last_fragment.ensemble
        await writer.close()


@pytest.mark.rule("P10")
async def test_a_wait_that_ends_early_does_not_keep_a_reader_from_seeing_the_close() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        client = cluster.client()
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        watch = client.store.watch_ledger
        client.store.watch_ledger = lambda *args: (time.sleep(0.05), watch(*args))[1]
        await reader.wait_lac(5, 0.01)
        await writer.close()
        async with asyncio.timeout(3):
            assert [v async for b in reader.tail(0) for v in b.to_list()] == [b"0"]
        await reader.close()


async def test_an_entry_that_another_thread_appends_while_the_writer_closes_is_in_the_ledger() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        has_room = writer._room.has
        writer._room.has = lambda size: (time.sleep(0.1), has_room(size))[1]
        appending = asyncio.create_task(asyncio.to_thread(writer.append_nowait, b"0"))
        await asyncio.sleep(0.03)
        await writer.close()
        async with asyncio.timeout(1):
            await writer.wait_confirmed(await appending)
        assert writer.metadata.last_entry_id == 0


async def test_a_client_that_closes_while_a_ledger_notes_missing_copies_cancels_nobody() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        writer = await client.create_ledger()
        cluster.network.down(writer.metadata.last_fragment.ensemble[2])
        noting, mark = threading.Event(), client.store.mark_underreplicated
        client.store.mark_underreplicated = lambda *args: (noting.set(), time.sleep(0.3), mark(*args))[2]
        await writer.append(b"0")
        closing = asyncio.create_task(writer.close())
        await asyncio.to_thread(noting.wait, 5)
        await asyncio.sleep(0.1)  # the close itself is through
        await writer.abandon()
        with pytest.raises(ClientClosedError):
            await closing


async def test_a_thread_that_gives_up_its_future_takes_no_other_entry_along() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        impatient = asyncio.wrap_future(writer.append_future(b"0"))
        impatient.cancel()
        async with asyncio.timeout(3):
            assert await asyncio.wrap_future(writer.append_future(b"1")) == 1
        await writer.close()


@pytest.mark.parametrize("how", ["read", "tail"])
async def test_a_read_that_fails_half_way_and_is_tried_again_gives_each_entry_once(how: str) -> None:
    async with memory_cluster(1) as cluster:
        config = replace(FAST, frame_bytes=1_000, read_bytes_max=2_000, read_timeout_ms=500)
        client = cluster.client(config)
        wanted = [b"%03d " % n + bytes(400) for n in range(60)]
        async with await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
            await writer.append_batch(EntryBatch.from_list(wanted))
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        tries: list[str] = []
        registered: Any = client.store.writable_bookies

        def comes_back() -> Any:
            tries.append("again")
            cluster.network.up("b0")
            return registered()

        client.store.writable_bookies = comes_back
        found: list[bytes] = []
        async for batch in reader.read(0, 59) if how == "read" else reader.tail(0):
            found += batch.to_list()
            if len(found) > 10 and not tries:
                cluster.network.down("b0")
        assert tries == ["again"]
        assert found == wanted


@pytest.mark.parametrize("recover", [False, True], ids=["LAC", "fence"])
async def test_a_bookie_that_comes_back_and_stays_silent_does_not_get_its_time_twice(recover: bool) -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        for name in cluster.names:
            cluster.network.down(name)

        def back_and_silent() -> None:
            for name in cluster.names:
                cluster.network.hold(name)
                cluster.network.up(name)

        loop = asyncio.get_running_loop()
        loop.call_later(0.7, back_and_silent)
        began = loop.time()
        with pytest.raises(BookKeeperError):
            await cluster.client(replace(FAST, lac_timeout_ms=800)).open_ledger(writer.ledger_id, recover=recover)
        assert 0.75 < loop.time() - began < 1.2
        await writer.abandon()


async def test_one_bookie_that_is_gone_does_not_hold_up_who_opens_a_ledger_that_is_written() -> None:
    """Two of three say how far it is confirmed: nobody waits for the deadline of the third."""

    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        cluster.network.down("b1")
        began = asyncio.get_running_loop().time()
        reader = await cluster.client(FAST).open_ledger(writer.ledger_id, recover=False)
        assert asyncio.get_running_loop().time() - began < FAST.lac_timeout_ms / 1000 / 4
        await reader.close()
        await writer.abandon()
