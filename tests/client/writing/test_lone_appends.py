# SPDX-License-Identifier: Apache-2.0
"""Single entries of many ledgers that are sent together."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from bk_core.client import BookKeeper, LedgerWriter
from bk_core.client.writing import lone_appends
from bk_core.client.writing.lone_appends import LONE_BYTES_MAX
from bk_core.client.writing.process_budget import process_budget
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    LedgerFencedError,
    LocalProtocolError,
    Outcome,
    WindowFullError,
)
from bk_core.protocol.lone_entries import LAG_ENTRIES_MAX, LoneEntries
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, hold, memory_cluster, release
from tests.kit.waiting import eventually, in_thread

MANY = 40
CALM = replace(FAST, add_timeout_ms=60_000, add_quorum_timeout_ms=60_000)


@pytest.fixture(autouse=True)
def crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many appends always come, however slow the machine is."""
    monkeypatch.setattr(lone_appends, "CROWD_S", math.inf)


def sits(writer: LedgerWriter) -> bool:
    return writer._seat.slot is not None


async def ledgers(client: BookKeeper, count: int = MANY) -> list[LedgerWriter]:
    return [await client.create_ledger() for _ in range(count)]


async def append_to_all(writers: Sequence[LedgerWriter], rounds: int = 3) -> None:
    """Append one entry after another to each ledger, to all ledgers at once."""

    async def appends(writer: LedgerWriter) -> None:
        for _ in range(rounds):
            await writer.append(b"entry %d" % (writer.last_add_pushed + 1))

    await asyncio.gather(*map(appends, writers))


async def seated(client: BookKeeper, count: int = MANY) -> list[LedgerWriter]:
    """Return writers that all sit in the table."""
    writers = await ledgers(client, count)
    await append_to_all(writers)
    assert all(map(sits, writers))
    return writers


async def entries_of(client: BookKeeper, writer: LedgerWriter) -> list[bytes]:
    async with await client.open_ledger(writer.ledger_id, recover=True) as reader:
        found = reader.read(0, reader.last_add_confirmed)
        return [bytes(entry) async for batch in found for entry in batch.to_list()]


async def end(writers: Sequence[LedgerWriter]) -> None:
    await asyncio.gather(*(writer.close() for writer in writers))


async def test_each_ledger_gets_its_entries_and_the_client_counts_them() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(CALM)
        writers = await seated(client)
        await append_to_all(writers, 4)
        assert all(map(sits, writers))
        assert {(w.last_add_confirmed, w.last_add_pushed, w.length) for w in writers} == {(6, 6, 7 * 7)}
        found = client.metrics()
        assert (found.appended_entries, found.confirmed_entries, found.appended_frames) == (7 * MANY,) * 3
        assert found.appended_bytes == 49 * MANY
        assert sum(found.append_seconds.counts) == 7 * MANY
        await end(writers)
        assert {(w.last_add_confirmed, w.length) for w in writers} == {(6, 49)}
        for writer in writers:
            assert await entries_of(client, writer) == [b"entry %d" % n for n in range(7)]
        assert process_budget().decision.bytes == 0


async def test_few_writers_do_not_sit() -> None:
    async with memory_cluster() as cluster:
        writers = await ledgers(cluster.client(CALM), 2)
        await append_to_all(writers, 50)
        assert not any(map(sits, writers))
        await end(writers)


async def test_nobody_sits_while_few_appends_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lone_appends, "CROWD_S", -1.0)
    async with memory_cluster() as cluster:
        writers = await ledgers(cluster.client(CALM))
        await append_to_all(writers)
        assert not any(map(sits, writers))
        await end(writers)


@pytest.mark.rule("P3")
async def test_a_dead_bookie_is_replaced_and_no_entry_is_lost() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client()
        writers = await seated(client)
        cluster.kill("b0")
        await append_to_all(writers)
        hurt = [writer for writer in writers if "b0" in writer.metadata.fragments[0].ensemble]
        assert hurt
        await eventually(lambda: all(len(writer.metadata.fragments) == 2 for writer in hurt))
        async with asyncio.timeout(10):  # also with a new bookie
            while not all(map(sits, writers)):
                await append_to_all(writers)
        await end(writers)
        for writer in writers:
            assert await entries_of(client, writer) == [b"entry %d" % n for n in range(writer.last_add_confirmed + 1)]
            assert writer.last_add_confirmed >= 8


@pytest.mark.rule("P3")
async def test_a_bookie_that_acks_nothing_is_replaced_at_the_add_deadline() -> None:
    async with memory_cluster() as cluster:
        writers = await seated(cluster.client())
        cluster.network.bookies["b0"].hold_commits()
        await append_to_all(writers, 1)
        held = [writer for writer in writers if "b0" in writer.metadata.fragments[0].ensemble]
        await eventually(lambda: all("b0" not in writer.metadata.last_fragment.ensemble for writer in held))
        await end(writers)


@pytest.mark.rule("P3")
async def test_a_slow_bookie_catches_up_and_keeps_few_frames_in_the_table() -> None:
    async with memory_cluster(3) as cluster:
        writers = await seated(cluster.client(CALM))
        cluster.network.bookies["b1"].hold_commits()
        await append_to_all(writers, LAG_ENTRIES_MAX + 5)
        assert not any(map(sits, writers))
        assert {writer.last_add_confirmed for writer in writers} == {LAG_ENTRIES_MAX + 7}
        cluster.network.bookies["b1"].release_commits()
        await end(writers)
        assert process_budget().decision.bytes == 0
        for writer in writers:
            frames = cluster.network.bookies["b1"].frames_of(writer.ledger_id)
            assert {frame.extent.first for frame in frames} >= set(range(LAG_ENTRIES_MAX + 8))


@pytest.mark.rule("P9")
async def test_bookies_get_the_lac_of_a_writer_that_stays_idle() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(CALM)
        writers = await seated(client)
        reader = await client.open_ledger(writers[0].ledger_id, recover=False)
        last = writers[0].last_add_confirmed
        assert await reader.wait_lac(last - 1, timeout_s=5) == last
        assert all(map(sits, writers))
        await end(writers)


async def test_every_call_that_needs_the_machine_finds_it() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(CALM)
        one, two, three, four, five, *rest = await seated(client)
        assert await one.append_batch(EntryBatch.from_list([b"a", b"b"])) == 4
        assert await asyncio.wrap_future(in_thread(lambda: two.append_nowait(b"c"))) == 3
        assert await two.append(b"d") == 4
        assert await three.write_lac() == 2
        await four.wait_confirmed(2)
        five.hold()
        waiting = asyncio.create_task(five.append(b"e"))
        await append_to_all(rest, 2)
        assert not waiting.done()
        assert five.last_add_confirmed == 2
        five.release()
        assert await waiting == 3
        assert await five.append(bytes(LONE_BYTES_MAX + 1)) == 4
        assert not sits(five)
        await end([one, two, three, four, five, *rest])
        assert await entries_of(client, one) == [b"entry 0", b"entry 1", b"entry 2", b"a", b"b"]
        assert await entries_of(client, two) == [b"entry 0", b"entry 1", b"entry 2", b"c", b"d"]


async def test_calls_for_one_ledger_at_once_get_ids_in_their_order() -> None:
    async with memory_cluster() as cluster:
        writers = await seated(cluster.client(CALM))
        hold(cluster)
        waiting = [asyncio.create_task(writer.append(b"%d" % n)) for n in range(4) for writer in writers]
        await asyncio.sleep(0.05)
        release(cluster)
        assert await asyncio.gather(*waiting) == [3 + n for n in range(4) for _ in writers]
        await end(writers)


async def test_a_cancelled_append_does_not_disturb_the_next() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(CALM)
        writers = await seated(client)
        hold(cluster)
        waiting = [asyncio.create_task(writer.append(b"cancelled")) for writer in writers]
        await asyncio.sleep(0.05)
        for each in waiting:
            each.cancel()
        await asyncio.sleep(0)
        release(cluster)
        await append_to_all(writers, 1)
        await end(writers)
        assert (await entries_of(client, writers[0]))[3:] == [b"cancelled", b"entry 4"]


async def fails(append: asyncio.Task[int]) -> BookKeeperError:
    with pytest.raises(BookKeeperError) as caught:
        await append
    return caught.value


async def in_flight(cluster: MemoryBookKeeper, writers: Sequence[LedgerWriter]) -> list[asyncio.Task[int]]:
    """Append an entry to each ledger that no bookie makes durable."""
    hold(cluster)
    waiting = [asyncio.create_task(writer.append(b"x")) for writer in writers]
    await asyncio.sleep(0.05)
    assert all(map(sits, writers))
    return waiting


@pytest.mark.rule("P3")
async def test_a_fenced_writer_fails_what_waits_with_an_unknown_outcome() -> None:
    async with memory_cluster() as cluster:
        writers = await seated(cluster.client())
        waiting = await in_flight(cluster, writers)
        release(cluster)
        async with await cluster.client().open_ledger(writers[0].ledger_id, recover=True):
            pass
        await asyncio.gather(*waiting[1:])
        assert await waiting[0] == 3
        error = await fails(asyncio.create_task(writers[0].append(b"y")))
        assert isinstance(error, LedgerFencedError)
        assert error.outcome is Outcome.UNKNOWN
        await end(writers[1:])


async def test_the_end_of_a_writer_or_of_the_client_ends_what_waits() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(CALM)
        writers = await seated(client)
        waiting = await in_flight(cluster, writers)
        await writers[0].abandon()
        assert isinstance(await fails(waiting[0]), ClientClosedError)
        assert not any(each.done() for each in waiting[1:])
        await client.close()
        assert {type(await fails(each)) for each in waiting[1:]} == {ClientClosedError}
        assert process_budget().decision.bytes == 0


@pytest.mark.rule("P3")
async def test_the_table_takes_no_more_bytes_than_the_process_has() -> None:
    config = replace(CALM, process_window_bytes_max=256 << 10, window_bytes_max=256 << 10, frame_bytes=64 << 10)
    async with memory_cluster() as cluster:
        writers = await seated(cluster.client(config), 100)
        hold(cluster)
        waiting = [asyncio.create_task(writer.append(bytes(4_000))) for writer in writers]
        await asyncio.sleep(0.05)
        sitting = sum(map(sits, writers))
        assert 0 < sitting < len(writers)
        # a writer that holds nothing is never refused
        assert process_budget().decision.bytes <= (256 << 10) + (len(writers) - sitting) * 4_200
        with pytest.raises(WindowFullError):
            writers[-1].append_nowait(bytes(4_000))
        release(cluster)
        await asyncio.gather(*waiting)
        await end(writers)
        assert process_budget().decision.bytes == 0


async def test_an_ack_of_frames_that_were_never_sent_ends_the_use_of_its_bookie() -> None:
    async with memory_cluster() as cluster:
        writers = await seated(cluster.client())
        writer = writers[0]
        liar = writer.metadata.last_fragment.ensemble[0]
        session = writer._machine.delivery.common_session
        writer._frames_acked(0, session, 99)
        await eventually(lambda: liar not in writer.metadata.last_fragment.ensemble)
        assert writer.last_add_confirmed == 2
        assert [sits(each) for each in writers[1:]] == [True] * (MANY - 1)
        await append_to_all(writers, 1)
        await end(writers)


async def test_a_slow_append_is_logged_with_what_each_bookie_has_acked(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_cluster(3) as cluster:
        writers = await seated(cluster.client(replace(CALM, slow_operation_ms=400)))
        waiting = await in_flight(cluster, writers)
        await asyncio.sleep(0.5)
        release(cluster)
        await asyncio.gather(*waiting)
        lines = [record.getMessage() for record in caplog.records if record.name == "bk_core.client.slow"]
        assert any("entries 3 to 3, 1 bytes: " in line and line.count("acked to 3") >= 2 for line in lines), lines
        await end(writers)


async def test_a_bug_in_the_table_ends_its_writers_and_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(CALM)
        writers = await seated(client)
        waiting = await in_flight(cluster, writers)

        def fails_to_count(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(LoneEntries, "acked", fails_to_count)
        release(cluster)
        errors = [await fails(each) for each in waiting]
        assert {(type(error), error.outcome) for error in errors} == {(LocalProtocolError, Outcome.UNKNOWN)}
        monkeypatch.undo()
        assert all(writer.is_failed for writer in writers)
        others = await ledgers(client)
        await append_to_all(others)
        await end(others)
        assert process_budget().decision.bytes == 0


@pytest.fixture
def traced() -> Iterator[None]:
    logger = logging.getLogger("bk_core.client")
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("traced")
async def test_nobody_sits_while_events_are_logged() -> None:
    async with memory_cluster() as cluster:
        writers = await ledgers(cluster.client(CALM))
        await append_to_all(writers)
        assert not any(map(sits, writers))
        await end(writers)
