# SPDX-License-Identifier: Apache-2.0
"""Results that several threads make come in the order of their items, and nothing runs after the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

import pytest

from bk_core.client.reading.made_in_order import made_in_order

WAIT_S = 10.0


class Source:
    """A source of numbers. It records how many were taken, and that it was closed."""

    def __init__(self, count: int, *, fails: bool = False) -> None:
        self.taken, self.is_closed, self._count, self._fails = 0, False, count, fails

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._count):
                self.taken += 1
                yield number
            if self._fails:
                raise ValueError("the source failed")
        finally:
            self.is_closed = True


async def collected(made: AsyncGenerator[int, None], found: list[int]) -> None:
    async with aclosing(made) as results:
        async for each in results:
            found.append(each)


async def test_results_come_in_order_although_later_ones_are_made_first() -> None:
    second = threading.Event()

    def make(number: int) -> int:
        if number == 0:
            assert second.wait(WAIT_S), "the second was not made at the same time"
        if number == 1:
            second.set()
        return number * 10

    found = list[int]()
    await collected(made_in_order(Source(5).items(), make, at_once=2), found)
    assert found == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("at_once", [1, 3])
async def test_only_so_many_are_made_at_once(at_once: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def make(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return number

    found = list[int]()
    await collected(made_in_order(Source(12).items(), make, at_once=at_once), found)
    assert found == list(range(12))
    assert most == at_once


async def test_a_result_does_not_wait_for_the_next_item() -> None:
    async def slow() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    made = made_in_order(slow(), lambda number: number, at_once=4)
    async with aclosing(made), asyncio.timeout(WAIT_S):
        assert await anext(made) == 1


async def test_the_next_result_is_made_while_the_consumer_has_one() -> None:
    begun = [threading.Event() for _ in range(3)]

    def make(number: int) -> int:
        begun[number].set()
        return number

    async with aclosing(made_in_order(Source(3).items(), make, at_once=1)) as made:
        assert await anext(made) == 0
        assert await asyncio.to_thread(begun[1].wait, WAIT_S)
        assert not begun[2].is_set()


def failing(wrong: int, number: int) -> int:
    if number == wrong:
        raise ValueError("this one failed")
    return number


@pytest.mark.parametrize(
    ("source", "make", "message"),
    [
        (Source(4, fails=True), partial(failing, -1), "the source failed"),
        (Source(9), partial(failing, 4), "this one failed"),
    ],
)
async def test_an_error_comes_after_the_results_before_it(
    source: Source, make: Callable[[int], int], message: str
) -> None:
    found = list[int]()
    with pytest.raises(ValueError, match=message):
        await collected(made_in_order(source.items(), make, at_once=3), found)
    assert found == [0, 1, 2, 3]
    assert source.is_closed


@pytest.mark.parametrize("leaves", ["by closing", "by cancelling"])
async def test_nothing_runs_after_the_end(leaves: str) -> None:
    source, begun, running = Source(100), threading.Event(), set[int]()

    def make(number: int) -> int:
        running.add(number)
        begun.set()
        if number:
            time.sleep(0.1)
        running.discard(number)
        return number

    made = made_in_order(source.items(), make, at_once=2)
    assert await anext(made) == 0
    if leaves == "by cancelling":
        following = asyncio.create_task(collected(made, []))
        await asyncio.to_thread(begun.wait, WAIT_S)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await made.aclose()
    assert not running
    assert source.is_closed
    assert source.taken < 10
