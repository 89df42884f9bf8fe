# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_core/client`` and of the parts of the blocking client."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "tests/client/writing/test_append_room.py::"
BUDGET = "tests/client/test_process_budget.py::"
CLOSED = "tests/client/test_closed_clients.py::"
AGAIN = "tests/client/test_nobody_waits_for_ever.py::"
BLOCKING = "tests/blocking/test_blocking.py::"
LONE = "tests/client/reading/test_lone_read.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a lone read takes whatever entry comes",
        "bk_core/client/reading/lone_read.py",
        "        if batch is None or batch.first_entry_id != self._entry_id:\n",
        "        if batch is None:\n",
        (LONE + "an_entry_that_was_not_asked_for_is_not_given",),
        "a reader gets another entry than it asked for",
    ),
    Mutant(
        "a lone read believes an answer that is not of its entry",
        "bk_core/client/reading/lone_read.py",
        "len(parts) == 1 and end.answered_through == entry_id and not (end.absent or end.unknown)",
        "len(parts) == 1",
        (LONE + "a_bookie_that_gives_no_good_answer_is_not_believed_and_another_is_asked",),
        "a bookie that contradicts itself is believed",
    ),
    Mutant(
        "others are let past a batch that waits between two of its pieces",
        "bk_core/client/writing/append_room.py",
        "return not self._line and (self._queue.held",
        "return (self._queue.held",
        (ROOM + "test_a_batch_of_many_pieces_stays_together_and_is_told_its_own_last_id",),
        "entries of others in the middle of a batch, whose ids are then not what was told",
    ),
    Mutant(
        "a writer that ends keeps its part of the budget",
        "bk_core/client/writing/append_room.py",
        "            self._held_max = -1\n            self._share.leave()\n",
        "            self._held_max = -1\n",
        (BUDGET + "test_a_writer_that_ends_gives_its_part_back_and_others_go_on",),
        "a process that made many writers writes one entry at a time",
    ),
    Mutant(
        "what is kept for a slow bookie does not count",
        "bk_core/client/writing/append_room.py",
        "self._extra = max(0, retained - self._queue.taken_bytes)",
        "self._extra = 0",
        (BUDGET + "test_what_is_kept_for_a_slow_bookie_counts_and_is_given_back_when_it_has_caught_up",),
        "64 MiB a writer beyond the budget while one bookie hangs",
    ),
    Mutant(
        "room that another writer gives back wakes nobody",
        "bk_core/client/writing/process_budget.py",
        "                loop.call_soon_threadsafe(look_again)\n",
        "                pass\n",
        (BUDGET + "test_a_writer_that_ends_gives_its_part_back_and_others_go_on",),
        "a writer waits for its own confirmations although the budget is free",
    ),
    Mutant(
        "the largest bound of several clients holds",
        "bk_core/client/writing/process_budget.py",
        "            self.decision.resize(min(",
        "            self.decision.resize(max(",
        (BUDGET + "test_forty_writers_of_two_clients_hold_one_budget_and_all_get_through",),
        "a client's bound on memory is exceeded because of another client",
    ),
    Mutant(
        "a client that is collected waits for the lock",
        "bk_core/client/writing/process_budget.py",
        "        return functools.partial(self._closed.append, number)\n",
        "        def close() -> None:\n            with self._lock:\n                self._closed.append(number)\n\n"
        "        return close\n",
        (BUDGET + "test_a_client_that_is_collected_while_its_thread_holds_the_lock_waits_for_nobody",),
        "the garbage collector stops a thread for ever, in the middle of an append",
    ),
    Mutant(
        "the bound of a client that closed goes on to hold",
        "bk_core/client/writing/process_budget.py",
        "            if self._closed:\n                self._resize()\n            return self",
        "            return self",
        (BUDGET + "test_a_client_that_is_collected_while_its_thread_holds_the_lock_waits_for_nobody",),
        "writers stand still for the bound of a client that is gone",
    ),
    Mutant(
        "a block that a forked child leaves hides the exception it leaves by",
        "bk_core/blocking/loop_thread.py",
        "        except ForkedHandleError:\n            if error is None:\n                raise\n",
        "        except ForkedHandleError:\n            raise\n",
        (BLOCKING + "test_a_forked_child_leaves_the_blocks_of_its_parent_by_its_own_exception",),
        "SystemExit of a forked child becomes a traceback about the parent's ledger",
    ),
)
