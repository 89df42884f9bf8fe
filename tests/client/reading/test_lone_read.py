# SPDX-License-Identifier: Apache-2.0
"""Single entries: one question each, and whatever is wrong with its answer is left to the machine of ranges."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

import pytest

from bk_core.client import BookKeeper
from bk_core.client.reading.batch_iterator import BatchIterator
from bk_core.client.reading.lone_read import RUN_IDS
from bk_core.client.reading.reader import LedgerReader
from bk_core.entries.batch import EntryBatch
from bk_core.errors import ClientClosedError, InvalidArgumentError, NoSuchEntryError, TransportError
from bk_core.model import DigestType
from bk_core.transport.port import ReadPart
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import EntryRange, Reason
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, memory_cluster
from tests.kit.memory_transport import Told, read_through

Answers = AsyncIterator[ReadPart | ReadTrailer]
Change = Callable[[Answers], Answers]


class Watched:
    """A client whose reads are told, and seen: ``asked`` has the bookie and the ids of each. ``change`` is what happens
    to the answers of one bookie; ``instead``: it gives this entry, whatever is asked."""

    def __init__(self, client: BookKeeper) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.change: dict[str, Change] = {}
        self.instead: dict[str, int] = {}
        read_through(client.transport, self._read)

    def _read(
        self, bookie: str, read: Callable[..., Answers], ledger_id: int, first: int, last: int, **rest: Any
    ) -> Told:
        self.asked.append((bookie, first, last))
        if bookie in self.instead:
            return Told(_told_of(first, read(ledger_id, self.instead[bookie], self.instead[bookie], **rest)))
        answers = read(ledger_id, first, last, **rest)
        return Told(self.change.get(bookie, lambda same: same)(answers))


@asynccontextmanager
async def opened(entries: int = 10, **ledger: Any) -> AsyncIterator[tuple[MemoryBookKeeper, LedgerReader, Watched]]:
    """A closed ledger of small entries on three bookies."""
    async with memory_cluster(3) as cluster:
        async with await cluster.client().create_ledger(**ledger) as writer:
            for number in range(entries):
                writer.append_nowait(b"%d" % number)
        client = cluster.client(replace(FAST, speculative_read_ms=100))
        watched = Watched(client)
        async with await client.open_ledger(
            writer.ledger_id, recover=False, password=ledger.get("password", b"")
        ) as reader:
            yield cluster, reader, watched


async def entry(reader: LedgerReader, entry_id: int) -> bytes:
    async with reader.read(entry_id, entry_id) as batches:
        (value,) = [bytes(value) async for batch in batches for value in batch.to_list()]
    return value


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.MAC])
async def test_an_entry_costs_one_question(digest_type: DigestType) -> None:
    async with opened(digest_type=digest_type, password=b"secret") as (_, reader, watched):
        for number in (3, 0, 9):
            assert await entry(reader, number) == b"%d" % number
        assert [(first, last) for _, first, last in watched.asked] == [(3, 3), (0, 0), (9, 9)]


async def test_neighbours_are_asked_of_one_bookie_and_others_of_others() -> None:
    async with opened(3 * RUN_IDS) as (_, reader, watched):
        for number in (0, 5, RUN_IDS, RUN_IDS + 5, 2 * RUN_IDS):
            assert await entry(reader, number) == b"%d" % number
        bookies = [bookie for bookie, _, _ in watched.asked]
        assert bookies[0] == bookies[1]
        assert bookies[2] == bookies[3]
        assert len(set(bookies)) == 3


async def test_a_striped_entry_is_asked_of_its_write_set() -> None:
    async with opened(30, ensemble_size=3, write_quorum_size=2) as (_, reader, watched):
        for number in range(30):
            (batch,) = [batch async for batch in reader.read(number, number)]
            assert (batch.ids, batch.first_entry_id, batch.to_list()) == (None, number, [b"%d" % number])
        assert len(watched.asked) == 30


async def _told_of(entry_id: int, answers: Answers) -> Answers:
    async for answer in answers:
        yield replace(answer, answered_through=entry_id) if isinstance(answer, ReadTrailer) else answer


async def _bent(answers: Answers) -> Answers:
    async for answer in answers:
        if isinstance(answer, ReadPart):
            frames = bytearray(answer.frames)
            frames[-1] ^= 1
            answer = ReadPart(memoryview(bytes(frames)))
        yield answer


_another_entry = partial(_told_of, 7)
"""The right frame, but for somebody else's question."""


async def _broken(answers: Answers) -> Answers:
    raise TransportError("the connection broke")
    yield


@pytest.mark.parametrize("change", [_bent, _another_entry, _broken])
@pytest.mark.rule("P4")
async def test_a_bookie_that_gives_no_good_answer_is_not_believed_and_another_is_asked(change: Change) -> None:
    async with opened() as (_, reader, watched):
        await entry(reader, 3)
        usual = watched.asked.pop()[0]
        watched.change[usual] = change
        assert await entry(reader, 3) == b"3"
        assert {bookie for bookie, _, _ in watched.asked} > {usual}


@pytest.mark.rule("P4")
async def test_an_entry_that_was_not_asked_for_is_not_given() -> None:
    async with opened() as (_, reader, watched):
        await entry(reader, 3)
        watched.instead[watched.asked[0][0]] = 4
        assert await entry(reader, 3) == b"3"


@pytest.mark.parametrize("change", [_bent, _broken])
async def test_a_bookie_that_failed_is_asked_last_from_then_on(change: Change) -> None:
    async with opened() as (_, reader, watched):
        await entry(reader, 3)
        usual = watched.asked[0][0]
        watched.change[usual] = change
        await entry(reader, 3)
        watched.asked.clear()
        assert await entry(reader, 4) == b"4"
        assert len(watched.asked) == 1
        assert watched.asked[0][0] != usual


async def test_a_silent_bookie_costs_one_speculative_delay_once() -> None:
    async with opened() as (cluster, reader, watched):
        await entry(reader, 3)
        usual = watched.asked.pop()[0]
        cluster.network.hold(usual)
        began = time.monotonic()
        for _ in range(5):
            assert await entry(reader, 3) == b"3"
        assert time.monotonic() - began < 1.0
        assert [bookie for bookie, _, _ in watched.asked].count(usual) == 1
        cluster.network.release(usual)


@pytest.mark.rule("MUST 4")
@pytest.mark.parametrize("said", ["absent", "unknown"])
async def test_one_bookie_that_lacks_an_entry_says_nothing_about_the_others(said: str) -> None:
    async def lacks(answers: Answers) -> Answers:
        async for answer in answers:
            if isinstance(answer, ReadTrailer):
                ranges = (EntryRange(3, 3, Reason.REASON_NONE if said == "absent" else Reason.DAMAGED),)
                yield replace(answer, **{said: ranges})

    async with opened() as (_, reader, watched):
        await entry(reader, 3)
        watched.change[watched.asked[0][0]] = lacks
        assert await entry(reader, 3) == b"3"
        watched.change = dict.fromkeys([bookie for bookie, _, _ in watched.asked], lacks)
        watched.change |= dict.fromkeys(["b0", "b1", "b2"], lacks)
        if said == "absent":
            with pytest.raises(NoSuchEntryError):
                await entry(reader, 3)


async def test_a_read_that_is_cancelled_leaves_no_question_behind() -> None:
    async with opened() as (cluster, reader, watched):
        await entry(reader, 3)
        usual = watched.asked[0][0]
        cluster.network.hold(usual)
        reading = asyncio.create_task(entry(reader, 3))
        await asyncio.sleep(0.02)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.sleep(0)
        assert not reader._transport.link(usual).calls
        cluster.network.release(usual)


async def test_single_entries_are_counted() -> None:
    async with opened() as (_, reader, _):
        before = reader._observer.counts.snapshot()
        await entry(reader, 3)
        counts = reader._observer.counts
        assert counts.read_entries - before.read_entries == 1
        assert counts.read_bytes - before.read_bytes == 1
        assert sum(counts.read_seconds.counts) - sum(before.read_seconds.counts) == 1


class Held:
    """Answers that wait for :meth:`asyncio.Event.set` of ``go``. ``ended`` is set when the read was cancelled."""

    def __init__(self) -> None:
        self.go, self.ended = asyncio.Event(), threading.Event()

    async def __call__(self, answers: Answers) -> Answers:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.set()
            raise
        async for answer in answers:
            yield answer


@asynccontextmanager
async def held() -> AsyncIterator[tuple[BatchIterator[EntryBatch], Watched, Held]]:
    """A read of one entry whose answer waits."""
    async with opened() as (cluster, reader, watched):
        answer = Held()
        watched.change = dict.fromkeys(cluster.network.bookies, answer)
        yield reader.read(3, 3), watched, answer


async def cancelled_call(iterator: BatchIterator[EntryBatch]) -> None:
    call = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancelled_call_loses_nothing_and_the_next_call_returns_the_entry_of_the_same_request() -> None:
    async with held() as (iterator, watched, answer):
        await cancelled_call(iterator)
        await cancelled_call(iterator)
        assert not answer.ended.is_set()
        answer.go.set()
        assert (await anext(iterator)).to_list() == [b"3"]
        assert len(watched.asked) == 1
        with pytest.raises(StopAsyncIteration):
            iterator.__anext__().send(None)  # without waiting


async def test_only_one_call_may_wait_for_the_entry() -> None:
    async with held() as (iterator, _, answer):
        call = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0.01)
        with pytest.raises(InvalidArgumentError, match="only one caller"):
            await anext(iterator)
        answer.go.set()
        assert (await call).to_list() == [b"3"]


async def test_closing_ends_the_request_and_the_call_that_waits() -> None:
    async with held() as (iterator, _, answer):
        call = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0.01)
        await iterator.aclose()
        with pytest.raises(ClientClosedError, match="closed while it was waiting"):
            await call
        assert answer.ended.is_set()
        assert await anext(iterator, "the end") == "the end"


@pytest.mark.parametrize("thread", ["the loop's", "another"])
async def test_an_iterator_that_is_dropped_ends_its_request(thread: str) -> None:
    async with held() as (iterator, _, answer):
        await cancelled_call(iterator)
        kept = [iterator]
        del iterator
        if thread == "another":
            await asyncio.to_thread(kept.clear)
        else:
            kept.clear()
        gc.collect()
        assert await asyncio.to_thread(answer.ended.wait, 5)


async def test_an_entry_that_cannot_be_read_says_so_at_each_call() -> None:
    async with opened() as (_, reader, watched):
        iterator = reader.read(10, 10)
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="entries 10 to 10"):
                await anext(iterator)
        assert watched.asked == []


async def test_a_finished_read_keeps_no_memory_until_the_garbage_collector_runs() -> None:
    async with held() as (iterator, _, answer):
        await cancelled_call(iterator)
        lone = ref(iterator._only)
        assert lone() is not None
        gc.disable()
        try:
            answer.go.set()
            assert (await anext(iterator)).to_list() == [b"3"]
            await asyncio.sleep(0.01)
            assert lone() is None
        finally:
            gc.enable()
