# SPDX-License-Identifier: Apache-2.0
"""AppendWaiters wakes each waiter when its entry is confirmed, and fails it when the writer fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

from bk_core.client.writing.append_waiters import AppendWaiters
from bk_core.errors import ClientClosedError


def waiters() -> AppendWaiters:
    return AppendWaiters(threading.Lock())


async def test_each_waiter_is_woken_by_its_entry_and_in_any_order_of_the_calls() -> None:
    made, loop = waiters(), asyncio.get_running_loop()
    waits = {entry_id: loop.create_future() for entry_id in (5, 3, 4)}
    for entry_id, waiter in waits.items():
        made.add(entry_id, waiter)
    again = loop.create_future()
    made.add(3, again)
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    made.add_future(4, future)
    made.confirmed(3, 3)
    assert [waits[entry_id].done() for entry_id in (3, 4, 5)] == [True, False, False]
    assert again.done()
    assert not future.done()
    waits[4].cancel()
    made.confirmed(5, 5)
    assert waits[5].done()
    assert future.result(0) == 4


async def test_a_force_waits_for_the_lac_though_the_entry_is_confirmed() -> None:
    made, forced = waiters(), asyncio.get_running_loop().create_future()
    made.add_force(7, forced)
    made.confirmed(7, 6)
    assert not forced.done()
    made.confirmed(7, 7)
    assert forced.done()


async def test_an_end_fails_all_and_a_close_only_what_is_behind_the_last_entry() -> None:
    made, loop, error = waiters(), asyncio.get_running_loop(), ClientClosedError("closed")
    first, second, forced = (loop.create_future() for _ in range(3))
    futures = [concurrent.futures.Future[int]() for _ in range(2)]
    for entry_id, waiter, future in zip((1, 2), (first, second), futures, strict=True):
        made.add(entry_id, waiter)
        made.add_future(entry_id, future)
    made.add_force(1, forced)
    made.fail(2, error)
    assert second.exception() is futures[1].exception(0) is error
    assert [each.done() for each in (first, futures[0], forced)] == [False] * 3
    made.fail_all(error)
    assert first.exception() is futures[0].exception(0) is forced.exception() is error
    made.confirmed(9, 9)
