# SPDX-License-Identifier: Apache-2.0
"""Another thread gets all items in order, and the loop goes ahead of it no further than it may."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterator

import pytest

from bk_core.blocking.loop_thread import AheadIterator, LoopThread
from bk_core.client.reading.batch_iterator import BatchIterator
from bk_core.errors import ClientClosedError, NoSuchEntryError

WAIT_S = 10.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("handover")
    yield made
    made.stop()


class Numbers:
    """Gives 0 to ``count`` − 1, then raises ``error`` if there is one."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.given = 0
        self.closed = threading.Event()

    async def __call__(self) -> AsyncGenerator[list[int], None]:
        try:
            for number in range(self.count):
                self.given += 1
                yield [number]
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()


def size_of(_: list[int]) -> int:
    return 10


def settled(numbers: Numbers) -> int:
    """How many were given once no more are."""
    deadline, before = time.monotonic() + WAIT_S, -1
    while numbers.given != before and time.monotonic() < deadline:
        before = numbers.given
        time.sleep(0.05)
    return numbers.given


@pytest.mark.parametrize("bytes_max", [1, 35, 10**6])
def test_all_items_come_in_order(thread: LoopThread, bytes_max: int) -> None:
    assert list(AheadIterator(thread, BatchIterator(Numbers(1_000)()), size_of, bytes_max)) == list(range(1_000))


def test_the_loop_goes_ahead_up_to_the_bound(thread: LoopThread) -> None:
    numbers = Numbers(1_000)
    items = AheadIterator(thread, BatchIterator(numbers()), size_of, 100)

    assert next(items) == 0
    assert settled(numbers) in (11, 12)  # 110 bytes wait, beside the one that was taken before or after they did
    taken = [next(items) for _ in range(3)]
    assert settled(numbers) in (11, 12)  # it is woken once half of them were taken, not for each
    taken += [next(items) for _ in range(4)]
    assert taken == list(range(1, 8))
    assert settled(numbers) > 12
    items.close()


def test_an_error_comes_behind_the_items_before_it(thread: LoopThread) -> None:
    items = AheadIterator(thread, BatchIterator(Numbers(3, NoSuchEntryError("entry 3 is lost"))()), size_of, 10**6)

    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(NoSuchEntryError, match="entry 3 is lost"):
        next(items)


@pytest.mark.parametrize("bytes_max", [50, 10**6])
def test_who_stops_early_ends_the_source(thread: LoopThread, bytes_max: int) -> None:
    numbers = Numbers(10**9)
    items = AheadIterator(thread, BatchIterator(numbers()), size_of, bytes_max)

    assert next(items) == 0
    items.close()

    assert numbers.closed.wait(WAIT_S)


def test_who_waits_hears_that_the_client_was_closed(thread: LoopThread) -> None:
    async def never() -> AsyncGenerator[list[int], None]:
        yield [0]
        await asyncio.Event().wait()

    items = AheadIterator(thread, BatchIterator(never()), size_of, 100)
    assert next(items) == 0
    closing = threading.Timer(0.1, thread.stop)
    closing.start()

    with pytest.raises(ClientClosedError):
        next(items)
    closing.join(WAIT_S)
