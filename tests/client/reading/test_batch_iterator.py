# SPDX-License-Identifier: Apache-2.0
"""Reads and tails survive a cancelled or interrupted call: nothing is lost, nothing comes twice, and closing one ends
its work."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

import pytest

from bk_core.blocking import BookKeeper as BlockingBookKeeper
from bk_core.blocking.loop_thread import AheadIterator, BlockingIterator, LoopThread
from bk_core.client import BookKeeper, LedgerWriter
from bk_core.client.reading.batch_iterator import BatchIterator
from bk_core.errors import ClientClosedError, EntryUnreadableError, InvalidArgumentError
from bk_core.logs.named_log import NamedLog
from tests.kit.memory_cluster import blocking_cluster, memory_cluster
from tests.kit.waiting import in_thread

WAIT_S = 10.0
Values = list[bytes]


class Ticks:
    """A source that gives the next number for each :meth:`tick`, and tells when it ends."""

    def __init__(self) -> None:
        self.wanted: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.ended = threading.Event()

    async def __call__(self) -> AsyncGenerator[int, None]:
        number = 0
        try:
            while (error := await self.wanted.get()) is None:
                yield number
                number += 1
            raise error
        finally:
            self.ended.set()

    def tick(self, error: Exception | None = None) -> None:
        self.wanted.put_nowait(error)


async def cancelled(iterator: BatchIterator[Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(iterator), 0.01)


# --- every public iterator of the asyncio client -------------------------------------------------------------------


async def ledger_tail(bookkeeper: BookKeeper) -> tuple[BatchIterator[Any], LedgerWriter]:
    writer = await bookkeeper.create_ledger()
    return (await bookkeeper.open_ledger(writer.ledger_id, recover=False)).tail(), writer


async def test_a_tail_whose_wait_was_cancelled_goes_on_where_it_was() -> None:
    async with memory_cluster(3) as cluster, cluster.client() as bookkeeper:
        tail, writer = await ledger_tail(bookkeeper)
        found: Values = []
        for number in range(5):
            await cancelled(tail)
            await writer.append(b"%d" % number)
            found += [bytes(each) for each in (await anext(tail)).to_list()]
        await cancelled(tail)
        await writer.close()
        found += [bytes(each) async for batch in tail for each in batch.to_list()]
        assert found == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_tail_of_a_log_whose_wait_was_cancelled_goes_on_where_it_was() -> None:
    async with memory_cluster(3) as cluster, cluster.client() as bookkeeper:
        log = NamedLog(bookkeeper, "events")
        async with await log.lead() as leader, log.tail(0) as tail:
            found: list[tuple[int, Values]] = []
            for number in range(3):
                await cancelled(tail)
                await leader.append(b"%d" % number)
                offset, batch = await anext(tail)
                found.append((offset, [bytes(each) for each in batch.to_list()]))
            assert found == [(0, [b"0"]), (1, [b"1"]), (2, [b"2"])]


@pytest.mark.parametrize("what", ["ledger", "log"])
async def test_a_read_that_is_cancelled_again_and_again_gives_each_entry_once(what: str) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as bookkeeper:
        log = NamedLog(bookkeeper, "events")
        async with await log.lead() as leader:
            for number in range(200):
                await leader.append(b"%d" % number)
        (extent,) = await log.extents()
        reads: BatchIterator[Any] = log.read(0, 200)
        if what == "ledger":
            reads = (await bookkeeper.open_ledger(extent.ledger_id, recover=True)).read(0, 199)
        found: Values = []
        async with reads:
            while len(found) < 200:
                asked = asyncio.ensure_future(anext(reads))
                for _ in range(len(found) % 3 + 1):
                    await asyncio.sleep(0)
                asked.cancel()
                (answer,) = await asyncio.gather(asked, return_exceptions=True)
                if isinstance(answer, asyncio.CancelledError):
                    answer = await anext(reads)
                batch = answer if what == "ledger" else answer[1]
                found += [bytes(each) for each in batch.to_list()]
        assert found == [b"%d" % number for number in range(200)]


# --- the iterator itself -------------------------------------------------------------------------------------------


async def test_a_result_that_came_while_nobody_waited_is_kept_for_the_next_call() -> None:
    ticks = Ticks()
    iterator = BatchIterator(ticks())
    await cancelled(iterator)
    ticks.tick()
    await asyncio.sleep(0.01)
    ticks.tick()
    assert [await anext(iterator), await anext(iterator)] == [0, 1]


async def test_two_calls_at_once_are_refused_and_the_first_one_goes_on() -> None:
    ticks = Ticks()
    iterator = BatchIterator(ticks())
    first = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0)
    with pytest.raises(InvalidArgumentError, match="only one caller at a time"):
        await anext(iterator)
    ticks.tick()
    assert await first == 0


async def test_what_ended_an_iterator_is_raised_by_each_later_call() -> None:
    ticks = Ticks()
    iterator = BatchIterator(ticks())
    ticks.tick(EntryUnreadableError("entry 7 cannot be read"))
    for _ in range(3):
        with pytest.raises(EntryUnreadableError, match="entry 7"):
            await anext(iterator)
    await iterator.aclose()


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_closing_ends_the_step_that_is_under_way(is_waiting: bool) -> None:
    ticks = Ticks()
    iterator = BatchIterator(ticks())
    await cancelled(iterator)
    waiting = asyncio.ensure_future(anext(iterator)) if is_waiting else None
    await asyncio.sleep(0)
    await asyncio.gather(iterator.aclose(), iterator.aclose())
    assert ticks.ended.is_set()
    assert asyncio.all_tasks() <= {asyncio.current_task(), waiting}
    if waiting is not None:
        with pytest.raises(ClientClosedError, match="closed while it was waiting"):
            await waiting
    assert await anext(iterator, "the end") == "the end"


async def test_closing_between_two_steps_ends_the_source() -> None:
    ticks = Ticks()
    async with BatchIterator(ticks()) as iterator:
        ticks.tick()
        assert await anext(iterator) == 0
        assert not ticks.ended.is_set()
    assert ticks.ended.is_set()


@pytest.mark.parametrize("thread", ["the loop's", "another"])
@pytest.mark.parametrize("is_under_way", [False, True])
def test_an_iterator_that_is_dropped_ends_its_work_in_silence(
    thread: str, is_under_way: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        ticks = Ticks()
        kept = [BatchIterator(ticks())]
        ticks.tick()
        await anext(kept[0])
        if is_under_way:
            await cancelled(kept[0])
        if thread == "another":
            await asyncio.to_thread(kept.clear)
        else:
            kept.clear()
        gc.collect()
        assert await asyncio.to_thread(ticks.ended.wait, WAIT_S)

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(work())
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


# --- without await -------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Iterator[BlockingBookKeeper]:
    with blocking_cluster(3) as (client, _):
        yield client


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("iterators")
    yield made
    made.stop()


class Interrupts:
    """Raises KeyboardInterrupt at each place where a call of the client may be interrupted, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, thread: LoopThread) -> None:
        self._call, self.armed = thread.call, False
        monkeypatch.setattr(thread, "call", self._interrupted)
        self._is_late = False

    def _interrupted(self, work: Coroutine[Any, Any, Any]) -> Any:
        if not self.armed:
            return self._call(work)
        self.armed, self._is_late = False, not self._is_late
        if self._is_late:
            self._call(work)  # the item has left the source, and the caller gets none
        else:
            work.close()
        raise KeyboardInterrupt


def test_an_interrupted_wait_of_a_blocking_iterator_loses_nothing(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(20):
            yield number

    interrupts = Interrupts(monkeypatch, thread)
    items = BlockingIterator(thread, BatchIterator(numbers()))
    found = []
    for number in range(20):
        interrupts.armed = number % 2 == 0
        try:
            found.append(next(items))
        except KeyboardInterrupt:
            found.append(next(items))
    assert found == list(range(20))
    with pytest.raises(StopIteration):
        next(items)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts raise KeyboardInterrupt, also in a job that a shell runs in the background and that ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_blocking_tail_whose_wait_was_interrupted_goes_on_where_it_was(client: BlockingBookKeeper) -> None:
    with client.create_ledger() as writer, client.open_ledger(writer.ledger_id, recover=False) as reader:
        with reader.tail() as tail:
            found: Values = []
            for number in range(3):
                timer = threading.Timer(0.05, lambda: signal_main())
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    next(tail)
                writer.append(b"%d" % number)
                found += [bytes(each) for each in next(tail).to_list()]
            assert found == [b"0", b"1", b"2"]
        assert next(tail, None) is None


def signal_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
def test_ranges_that_are_read_ahead_survive_an_interrupt(thread: LoopThread) -> None:
    more = threading.Event()

    async def lists() -> AsyncGenerator[list[int], None]:
        yield [0, 1]
        await asyncio.to_thread(more.wait)
        yield [2]

    items = AheadIterator(thread, BatchIterator(lists()), len, 100)
    assert [next(items), next(items)] == [0, 1]
    timer = threading.Timer(0.05, signal_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(items)
    more.set()
    assert list(items) == [2]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_second_thread_is_refused_and_a_close_wakes_the_first(thread: LoopThread, is_ahead: bool) -> None:
    async def never() -> AsyncGenerator[list[int], None]:
        await asyncio.Event().wait()
        yield []

    source = BatchIterator(never())
    items: Any = AheadIterator(thread, source, len, 100) if is_ahead else BlockingIterator(thread, source)
    waiting = in_thread(next, items)
    while not items._is_awaited:
        pass
    with pytest.raises(InvalidArgumentError, match="two threads"):
        next(items)
    threading.Event().wait(0.05)
    items.close()
    assert type(waiting.exception(WAIT_S)) is ClientClosedError
    with pytest.raises(StopIteration):
        next(items)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_leaving_a_loop_early_ends_the_source(thread: LoopThread, is_ahead: bool) -> None:
    ended = threading.Event()

    async def numbers() -> AsyncGenerator[list[int], None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield [1]
        finally:
            ended.set()

    source = BatchIterator(numbers())
    items: Any = AheadIterator(thread, source, len, 100) if is_ahead else BlockingIterator(thread, source)
    del source
    for _ in items:
        break
    del items
    assert ended.wait(WAIT_S)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 on warns of exactly what is tested
def test_a_forked_child_that_closes_an_iterator_leaves_the_source_of_its_parent_alone() -> None:
    ticks, loop = Ticks(), asyncio.new_event_loop()

    async def begun() -> BatchIterator[int]:
        ticks.tick()
        iterator = BatchIterator(ticks())
        assert await anext(iterator) == 0
        return iterator

    iterator = loop.run_until_complete(begun())
    child = os.fork()
    if not child:
        code = 2
        try:
            asyncio.run(iterator.aclose())
            code = int(ticks.ended.is_set())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.run_until_complete(iterator.aclose())
    assert ticks.ended.is_set()
    loop.close()
