# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_core/client`` and ``bk_core/blocking*.py``."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "tests/client/test_room.py::"
BUDGET = "tests/client/test_process_budget.py::"
CLOSED = "tests/client/test_closed_clients.py::"
AGAIN = "tests/client/test_second_tries.py::"
INTERRUPTS = "tests/client/test_interrupts.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "others are let past a batch that waits between two of its pieces",
        "bk_core/client/room.py",
        "return not self._line and (self._queue.held",
        "return (self._queue.held",
        (ROOM + "test_a_batch_of_many_pieces_stays_together_and_is_told_its_own_last_id",),
        "entries of others in the middle of a batch, whose ids are then not what was told",
        "P3",
    ),
    Mutant(
        "a batch is told the last id pushed by anybody",
        "bk_core/client/writer.py",
        "        self._flush()\n        return await last\n",
        "        self._flush()\n        await last\n        return self.last_add_pushed\n",
        (ROOM + "test_who_waits_is_served_before_who_comes_later",),
        "a leader hands out the offset of another's entry",
    ),
    Mutant(
        "a batch that was given up stays at the head of the line",
        "bk_core/client/room.py",
        "lambda done: self.serve() if done.cancelled() else None",
        "lambda done: None",
        (ROOM + "test_a_batch_that_is_given_up_lets_the_next_one_in",),
        "every producer of the ledger stands still after one was cancelled",
    ),
    Mutant(
        "who waits for room is not told that the writer ended",
        "bk_core/client/writer.py",
        "        self._waiters.clear()\n        self._room.refuse_all(error)\n",
        "        self._waiters.clear()\n",
        (ROOM + "test_producers_that_wait_for_room_are_told_when_the_writer_ends",),
        "producers hang after abandon or a failure",
    ),
    Mutant(
        "who waits for room is not told that the ledger is closed",
        "bk_core/client/writer.py",
        "        self._room.refuse_all(self._closed_error())\n",
        "",
        (ROOM + "test_producers_that_wait_for_room_are_told_when_the_writer_ends",),
        "producers hang after close",
    ),
    Mutant(
        "a batch that was queued in part is said not to be applied",
        "bk_core/client/room.py",
        "                head.begun = True\n",
        "",
        (ROOM + "test_producers_that_wait_for_room_are_told_when_the_writer_ends",),
        "a batch of which entries are in the ledger is written again",
    ),
    Mutant(
        "a writer that ends keeps its part of the budget",
        "bk_core/client/room.py",
        "            self._held_max = -1\n            self._share.leave()\n",
        "            self._held_max = -1\n",
        (BUDGET + "test_a_writer_that_ends_gives_its_part_back_and_others_go_on",),
        "a process that made many writers writes one entry at a time",
        "P3",
    ),
    Mutant(
        "what is kept for a slow bookie does not count",
        "bk_core/client/room.py",
        "self._extra = max(0, retained - unconfirmed)",
        "self._extra = 0",
        (BUDGET + "test_what_is_kept_for_a_slow_bookie_counts_and_is_given_back_when_it_has_caught_up",),
        "64 MiB a writer beyond the budget while one bookie hangs",
        "P3",
    ),
    Mutant(
        "room that another writer gives back wakes nobody",
        "bk_core/client/budget.py",
        "                loop.call_soon_threadsafe(look_again)\n",
        "                pass\n",
        (BUDGET + "test_a_writer_that_ends_gives_its_part_back_and_others_go_on",),
        "a writer waits for its own confirmations although the budget is free",
        "P3",
    ),
    Mutant(
        "the largest bound of several clients holds",
        "bk_core/client/budget.py",
        "            self.decision.resize(min(",
        "            self.decision.resize(max(",
        (BUDGET + "test_forty_writers_of_two_clients_hold_one_budget_and_all_get_through",),
        "a client's bound on memory is exceeded because of another client",
        "P3",
    ),
    Mutant(
        "a client that is collected waits for the lock",
        "bk_core/client/budget.py",
        "        return functools.partial(self._closed.append, number)\n",
        "        def close() -> None:\n            with self._lock:\n                self._closed.append(number)\n\n"
        "        return close\n",
        (BUDGET + "test_a_client_that_is_collected_while_its_thread_holds_the_lock_waits_for_nobody",),
        "the garbage collector stops a thread for ever, in the middle of an append",
        "P3",
    ),
    Mutant(
        "the bound of a client that closed goes on to hold",
        "bk_core/client/budget.py",
        "            if self._closed:\n                self._resize()\n            return self",
        "            return self",
        (BUDGET + "test_a_client_that_is_collected_while_its_thread_holds_the_lock_waits_for_nobody",),
        "writers stand still for the bound of a client that is gone",
        "P3",
    ),
    Mutant(
        "a read that is tried again begins at the beginning",
        "bk_core/client/reader.py",
        "aclosing(self._range(position, last))",
        "aclosing(self._range(first, last))",
        (AGAIN + "test_a_read_that_fails_half_way_and_is_tried_again_gives_each_entry_once",),
        "entries are read twice",
    ),
    Mutant(
        "each attempt to ask a bookie has the whole time",
        "bk_core/client/lac.py",
        "return await call(end - loop.time())",
        "return await call(deadline_s)",
        (AGAIN + "test_a_bookie_that_comes_back_and_stays_silent_does_not_get_its_time_twice",),
        "opening and recovering take twice their deadline",
    ),
    Mutant(
        "a reader that is closed wakes nobody",
        "bk_core/client/lac.py",
        "        self._changed.set()\n        for caller in self._waiting:\n",
        "        for caller in self._waiting:\n",
        (CLOSED + "test_a_tail_of_an_open_ledger_ends_when_its_reader_or_client_is_closed",),
        "a tail waits for ever",
    ),
    Mutant(
        "readers do not end with their client",
        "bk_core/client/connect.py",
        "        return self._keep(reader)\n",
        "        return reader\n",
        (CLOSED + "test_no_task_and_no_watch_outlives_the_close",),
        "tails and watches go on after the client was closed",
    ),
    Mutant(
        "a recovery does not end with its client",
        "bk_core/client/connect.py",
        "        self._recoveries.add(driver)\n",
        "",
        (CLOSED + "test_a_recovery_that_is_under_way_is_told_and_leaves_nothing_behind",),
        "who waits for a recovery is told nonsense, seconds later",
    ),
    Mutant(
        "an interrupt leaves its work running",
        "bk_core/client/loop_thread.py",
        "        except BaseException:\n            future.cancel()\n            raise\n",
        "        except BaseException:\n            raise\n",
        (INTERRUPTS + "test_an_interrupted_batch_queues_nothing_more",),
        "entries are appended after Ctrl-C",
    ),
    Mutant(
        "work is begun behind the last thing that a loop does",
        "bk_core/client/loop_thread.py",
        "            self._stopping = True\n",
        "            self._stopping = False\n",
        (INTERRUPTS + "test_what_is_called_while_the_loop_ends_is_refused_at_once",),
        "a thread that calls while another closes the client waits for ever",
    ),
)
