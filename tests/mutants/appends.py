# SPDX-License-Identifier: Apache-2.0
"""Mutants of threads and tasks that append to a ledger or to a log. Controlled schedules find them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WRITER = ("tests/sim/threads/test_append_threads.py::test_many_orders_of_threads_that_append_to_a_ledger",)
ONE_BY_ONE = "tests/client/test_entries_one_by_one.py::test_"
APPENDER = ("tests/sim/threads/test_append_threads.py::test_many_orders_of_threads_that_append_to_a_log_that_rolls",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "an entry is queued outside the lock",
        "bk_core/client/writing/writer.py",
        "            with queue.lock:\n                held = queue.held",
        "            if True:\n                held = queue.held",
        WRITER,
        "two threads are told one id",
    ),
    Mutant(
        "an entry is queued after the close",
        "bk_core/client/writing/append_room.py",
        "self._queue.free_to = -1 if self._line or self._shut else held_max",
        "self._queue.free_to = -1 if self._line else held_max",
        (f"{ONE_BY_ONE}none_is_queued_once_the_writer_has_ended",),
        "an id is told of an entry that no ledger has",
    ),
    Mutant(
        "a forked child queues an entry",
        "bk_core/client/writing/writer.py",
        "and size <= ENTRY_BYTES_MAX and self._guard.made_in == fork.generation:",
        "and size <= ENTRY_BYTES_MAX:",
        (f"{ONE_BY_ONE}none_is_queued_in_a_forked_child",),
        "a child waits for ever for an entry that the parent's loop would send",
    ),
    Mutant(
        "an entry over the limit is queued where there is room",
        "bk_core/client/writing/writer.py",
        "if held <= queue.free_to and size <= ENTRY_BYTES_MAX and",
        "if held <= queue.free_to and",
        (f"{ONE_BY_ONE}none_is_queued_that_no_frame_can_hold_however_much_room_there_is",),
        "one entry that no frame holds ends the writer",
    ),
    Mutant(
        "the queue is taken from without the lock",
        "bk_core/client/writing/append_queue.py",
        "        with self.lock:\n            head = self._items[0] if",
        "        if True:\n            head = self._items[0] if",
        WRITER,
        "an entry that was queued while the one before it left is lost, and all after it get its id",
    ),
    Mutant(
        "an offset is made outside the lock",
        "bk_core/logs/leading/appender.py",
        "        with self._lock:\n            self._check()\n",
        "        with threading.Lock():\n            self._check()\n",
        APPENDER,
        "an entry is told an offset of the ledger before or after it",
    ),
    Mutant(
        "a switch does not wait for batches under way",
        "bk_core/logs/leading/appender.py",
        "        await self._no_batches.wait()\n",
        "",
        APPENDER,
        "a batch and the entries behind it are told the same offsets",
    ),
)
