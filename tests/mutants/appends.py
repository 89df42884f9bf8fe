# SPDX-License-Identifier: Apache-2.0
"""Mutants of threads and tasks that append to a ledger or to a log; controlled schedules see them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WRITER = ("tests/sim/threads/test_append_threads.py::test_many_orders_of_threads_that_append_to_a_ledger",)
APPENDER = ("tests/sim/threads/test_append_threads.py::test_many_orders_of_threads_that_append_to_a_log_that_rolls",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "an entry is queued outside the lock",
        "bk_core/client/writer.py",
        "        with self._queue.lock:\n            return self._put(payload, entry_id)\n",
        "        return self._put(payload, entry_id)\n",
        WRITER,
        "two threads are told one id",
        "P1",
    ),
    Mutant(
        "a future is noted after the lock was released",
        "bk_core/client/writer.py",
        "            entry_id = self._put(payload, entry_id)\n            insort(self._futures, (entry_id, future))\n",
        "            entry_id = self._put(payload, entry_id)\n        insort(self._futures, (entry_id, future))\n",
        WRITER,
        "a thread waits for ever for an entry that was confirmed a moment too early",
    ),
    Mutant(
        "futures are taken outside the lock at the end",
        "bk_core/client/writer.py",
        "        with self._queue.lock:  # _put sees the end under this lock, so no such future is added later\n"
        "            futures = [",
        "        if True:\n            futures = [",
        (),
        "a thread that appends while the writer ends waits for ever",
        equivalent="the queue was cleared just before, under the same lock and behind the error: who had passed the "
        "check has added its future by then",
    ),
    Mutant(
        "a close is not told under the lock",
        "bk_core/client/writer.py",
        "        with self._queue.lock:  # so every entry that got an id on another thread is queued\n"
        "            self._closing = True\n",
        "        self._closing = True\n",
        (),
        "an entry whose id was told is not in the ledger that was closed in order",
        "P1",
        equivalent="the line of those who wait is refused next, under the same lock: who had passed the check has "
        "queued its entry by then",
    ),
    Mutant(
        "the loop is not woken by a thread that appends",
        "bk_core/client/writer.py",
        "                self._loop.call_soon_threadsafe(self._flush)\n",
        "                self._loop.call_soon(self._flush)\n",
        WRITER,
        "an append waits until something else wakes the loop",
    ),
    Mutant(
        "a flush that ran still counts as scheduled",
        "bk_core/client/writer.py",
        "        self._flush_scheduled = False\n        while self._queue",
        "        while self._queue",
        WRITER,
        "an append waits until something else makes the writer look",
    ),
    Mutant(
        "the queue is taken from without the lock",
        "bk_core/client/append_queue.py",
        "        with self.lock:\n            head = self._items[0]\n",
        "        if self._items:\n            head = self._items[0]\n",
        WRITER,
        "an entry that was queued while the one before it left is lost, and all after it get its id",
        "P1",
    ),
    Mutant(
        "an offset is made outside the lock",
        "bk_core/logs/appender.py",
        "        with self._lock:\n            self._check()\n",
        "        with threading.Lock():\n            self._check()\n",
        APPENDER,
        "an entry is told an offset of the ledger before or after it",
        "N7",
    ),
    Mutant(
        "a switch does not wait for batches under way",
        "bk_core/logs/appender.py",
        "        await self._no_batches.wait()\n",
        "",
        APPENDER,
        "a batch and the entries behind it are told the same offsets",
        "N7",
    ),
)
