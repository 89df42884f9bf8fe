# SPDX-License-Identifier: Apache-2.0
"""What all drivers of a loop share: one callback at the end of a turn, and one timer."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from bk_core.client.running.agenda import Agenda, Timer, agenda_of


async def test_acts_of_a_turn_follow_each_other_although_one_fails_and_what_they_add_has_its_own_turn() -> None:
    told: list[Any] = []
    done: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    agenda = agenda_of(loop)
    assert agenda_of(loop) is agenda

    def first() -> None:
        agenda.soon(lambda: done.append("later"))
        raise ZeroDivisionError

    agenda.soon(first)
    agenda.soon(lambda: done.append("second"))
    await asyncio.sleep(0)
    assert done == ["second"]
    await asyncio.sleep(0)
    assert done == ["second", "later"]
    assert [type(error) for error in told] == [ZeroDivisionError]


def test_an_interrupt_leaves_the_other_acts_and_timers_for_the_next_turn() -> None:
    done: list[str] = []
    loop = asyncio.new_event_loop()
    agenda = Agenda(loop)

    def interrupted() -> None:
        raise KeyboardInterrupt

    agenda.soon(interrupted)
    agenda.soon(lambda: done.append("act"))
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    timers = [Timer(agenda, interrupted), Timer(agenda, lambda: done.append("timer"))]
    for timer in timers:
        timer.set(0)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    assert done == ["act", "timer"]


def test_a_loop_does_not_outlive_its_use() -> None:
    loop = asyncio.new_event_loop()
    Timer(agenda_of(loop), lambda: None).set(60)
    loop.close()
    gone = ref(loop)
    del loop
    gc.collect()
    assert gone() is None
