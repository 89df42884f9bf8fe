# SPDX-License-Identifier: Apache-2.0
"""Room for appends: batches stay in one piece; who waits is served in turn, or told that it waits for nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bk_core.client import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import ClientClosedError, LedgerClosedError, Outcome, WindowFullError
from tests.kit.memory_cluster import blocking_cluster, hold, memory_cluster, read_ledger, release
from tests.kit.waiting import eventually, in_thread, until

SMALL = ClientConfig(
    frame_bytes=1_000,
    window_bytes_max=4_000,
    slow_bookie_bytes_max=64_000,
    add_timeout_ms=60_000,
    add_quorum_timeout_ms=60_000,
    explicit_lac_delay_ms=30_000,  # so that only acks can make a queued entry go
    lac_stall_ms=30_000,
)


def batch_of(mark: str, count: int) -> EntryBatch:
    return EntryBatch.from_list([f"{mark}{n:03} ".encode() + bytes(400) for n in range(count)])


async def test_a_batch_of_many_pieces_stays_together_and_is_told_its_own_last_id() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client(SMALL).create_ledger()
        stop = threading.Event()
        told: dict[int, bytes] = {}

        def hot() -> None:
            count = 0
            while not stop.is_set():
                payload = b"nowait %d" % count
                try:
                    told[writer.append_nowait(payload)] = payload
                    count += 1
                except WindowFullError:
                    stop.wait(0.0005)

        appending = in_thread(hot)
        batches = {mark: batch_of(mark, 60) for mark in "abc"}
        ends = await asyncio.gather(*(writer.append_batch(batch) for batch in batches.values()))
        stop.set()
        await asyncio.wrap_future(appending)
        await writer.flush()
        found = await read_ledger(cluster.client(), writer.ledger_id, recover=True)
        for end, batch in zip(ends, batches.values(), strict=True):
            assert found[end - 59 : end + 1] == batch.to_list()
        assert told
        assert {number: found[number] for number in told} == told


async def test_who_waits_is_served_before_who_comes_later() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client(SMALL).create_ledger()
        hold(cluster)
        batch = asyncio.create_task(writer.append_batch(batch_of("a", 20)))
        await eventually(lambda: writer.last_add_pushed >= 5)
        with pytest.raises(WindowFullError):
            writer.append_nowait(b"")  # it would fit the window's last bytes
        single = asyncio.create_task(writer.append(b"single"))
        await asyncio.sleep(0)
        second = asyncio.create_task(writer.append_batch(batch_of("b", 10)))
        await asyncio.sleep(0)
        release(cluster)
        assert [await batch, await single, await second] == [19, 20, 30]
        await writer.close()


async def test_a_batch_that_is_given_up_lets_the_next_one_in() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client(SMALL).create_ledger()
        hold(cluster)
        batch = asyncio.create_task(writer.append_batch(batch_of("a", 20)))
        await eventually(lambda: writer.last_add_pushed >= 5)
        behind = asyncio.create_task(writer.append(b"behind"))
        await asyncio.sleep(0)
        queued = writer.last_add_pushed
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)
        await eventually(lambda: writer.last_add_pushed == queued + 1)  # nothing was confirmed meanwhile
        release(cluster)
        assert await behind == queued + 1 < 19
        writer.append_nowait(b"nobody is in the way")
        await writer.close()
        found = await read_ledger(cluster.client(), writer.ledger_id, recover=True)
        assert found[-2:] == [b"behind", b"nobody is in the way"]


async def test_an_entry_larger_than_the_window_is_sent_once_nothing_else_is_held() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client(SMALL).create_ledger()
        large = [asyncio.create_task(writer.append(bytes(10_000))) for _ in range(3)]
        assert [await each for each in large] == [0, 1, 2]
        await writer.close()


async def test_an_entry_queued_behind_one_in_flight_is_sent_once_that_one_is_confirmed() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client(SMALL).create_ledger()
        hold(cluster)
        first = asyncio.create_task(writer.append(b"first"))
        await eventually(lambda: writer._machine.lap == 0)
        second = writer.append_nowait(b"second")
        await asyncio.sleep(0.01)
        assert writer._machine.lap == 0
        release(cluster)
        async with asyncio.timeout(20):
            assert await first == 0
            await writer.wait_confirmed(second)
        await writer.close()


@pytest.mark.parametrize("how", ["abandon", "close", "client"])
async def test_producers_that_wait_for_room_are_told_when_the_writer_ends(how: str) -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(SMALL)
        writer = await client.create_ledger()
        hold(cluster)
        begun = asyncio.create_task(writer.append_batch(batch_of("a", 20)))
        await eventually(lambda: writer.last_add_pushed >= 5)
        waiting = asyncio.create_task(writer.append(b"waiting"))
        await asyncio.sleep(0)
        ending = asyncio.create_task({"abandon": writer.abandon, "close": writer.close, "client": client.close}[how]())
        wanted = LedgerClosedError if how == "close" else ClientClosedError
        with pytest.raises(wanted) as caught:
            await begun
        assert caught.value.outcome is Outcome.UNKNOWN  # its first entries may be in the ledger
        with pytest.raises(wanted) as caught:
            await waiting
        if how == "close":
            assert caught.value.outcome is Outcome.NOT_APPLIED
        release(cluster)
        await ending


def test_threads_that_wait_for_room_are_told_when_the_client_closes() -> None:
    with blocking_cluster(4, SMALL) as (bookkeeper, cluster):
        ledger = bookkeeper.create_ledger()
        hold(cluster)
        waiting = [in_thread(ledger.append, bytes(2_000)) for _ in range(8)]
        until(lambda: len(ledger._inner._room._line) >= 7)  # one or two are in the window
        bookkeeper.close()
        assert {type(each.exception(5)) for each in waiting} == {ClientClosedError}
