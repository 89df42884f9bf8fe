# SPDX-License-Identifier: Apache-2.0
"""The scheduler of threads finds what it is there for, and repeats it: races, lost wake-ups, deadlocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random
from types import ModuleType

import pytest

from tests.sim.threads.baton import Turns
from tests.sim.threads.engines import PriorityEngine, RandomEngine
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
