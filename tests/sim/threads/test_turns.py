# SPDX-License-Identifier: Apache-2.0
"""The scheduler of threads finds what it is there for, and repeats it: races, lost wake-ups, deadlocks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from random import Random
from types import ModuleType

import pytest

from tests.sim.threads.baton import Turns
from tests.sim.threads.engines import EveryPath, PriorityEngine, RandomEngine
from tests.sim.threads.loop import run_under
from tests.sim.threads.stand_ins import Condition, Lock, Thread, replaced

HERE = (sys.modules[__name__],)
Body = Callable[[Turns], None]


def failures(body: Body, seeds: int, *, lines_of: Sequence[ModuleType] = ()) -> dict[int, str]:
    found = {}
    for seed in range(seeds):
        random = Random(seed)
        turns = Turns(RandomEngine(random) if seed % 2 else PriorityEngine(random, horizon=60), lines_of=lines_of)
        with replaced(turns):
            turns.run(lambda turns=turns: body(turns))
        if turns.failures:
            found[seed] = turns.failures[0]
    return found


def counting(turns: Turns, *, locked: bool) -> None:
    """Two threads count to two together."""
    lock, counter = Lock(turns), [0]

    def count() -> None:
        if locked:
            lock.acquire()
        seen = counter[0]
        counter[0] = seen + 1
        if locked:
            lock.release()

    threads = [Thread(turns, count, name) for name in ("one", "two")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert counter == [2]


@pytest.mark.long
def test_an_update_outside_the_lock_is_lost_in_some_order_and_never_inside() -> None:
    lost = failures(lambda turns: counting(turns, locked=False), 200, lines_of=HERE)
    assert lost
    assert failures(lambda turns: counting(turns, locked=True), 100, lines_of=HERE) == {}


@pytest.mark.long
def test_every_way_through_a_tiny_case_is_tried_once_and_finds_the_lost_update() -> None:
    ways = EveryPath(preemptions=2, limit=100_000)
    lost = 0
    for engine in ways.engines():
        turns = Turns(engine, lines_of=HERE)
        turns.run(lambda turns=turns: counting(turns, locked=False))
        lost += bool(turns.failures)
    assert ways.exhausted
    assert ways.count > lost > 0


def test_a_seed_repeats_what_it_found() -> None:
    def digest(seed: int) -> tuple[int, list[str]]:
        turns = Turns(RandomEngine(Random(seed)), lines_of=HERE)
        turns.run(lambda: counting(turns, locked=False))
        return turns.digest, [failure.splitlines()[0] for failure in turns.failures]

    first = [digest(seed) for seed in range(40)]
    assert first == [digest(seed) for seed in range(40)]
    assert len({number for number, _ in first}) > 5


@pytest.mark.long
def test_a_flag_that_is_looked_at_before_the_lock_loses_its_wake_up() -> None:
    def body(turns: Turns) -> None:
        condition, flag = Condition(turns), [False]

        def waits() -> None:
            if not flag[0]:
                with condition:
                    condition.wait()

        def tells() -> None:
            with condition:
                flag[0] = True
                condition.notify()

        Thread(turns, waits, "waits").start()
        Thread(turns, tells, "tells").start()

    lost = failures(body, 200)
    assert lost
    assert all("nobody can go on" in what and "waits waits for a condition" in what for what in lost.values())


def test_a_deadlock_is_told_with_the_stacks_of_all_who_wait() -> None:
    def body(turns: Turns) -> None:
        one, two = Lock(turns), Lock(turns)

        def first_then(first: Lock, second: Lock) -> None:
            with first, second:
                pass

        Thread(turns, first_then, "ab", (one, two)).start()
        Thread(turns, first_then, "ba", (two, one)).start()

    found = failures(body, 100)
    assert found
    assert all(what.count("in first_then") >= 2 for what in found.values())


@pytest.mark.parametrize("seed", range(30))
def test_futures_of_the_standard_library_loop_and_time_take_turns(seed: int) -> None:
    turns = Turns(RandomEngine(Random(seed)))
    told: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        answers: list[Future[int]] = [Future() for _ in range(3)]

        def answer() -> None:
            for number, each in enumerate(answers):
                each.set_result(number)
            loop.call_soon_threadsafe(told.append, "soon")

        def waits() -> list[int]:
            done, late = wait(answers, 5)
            assert not late
            return sorted(each.result() for each in done)

        Thread(turns, answer, "answers").start()
        assert await asyncio.to_thread(waits) == [0, 1, 2]
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        assert loop.time() - began >= 3600
        assert told == ["soon"]

    run_under(turns, main)
    assert turns.failures == []
