# SPDX-License-Identifier: Apache-2.0
"""Mutants of the client's lane over Apache's wire."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

EXCHANGE = "tests/transport/test_bookie_rpc_exchange.py::test_"
BATCH = "tests/transport/test_bookie_rpc_batches.py::test_"
LINK = "tests/transport/test_bookie_rpc_link.py::test_"
PREFIX = (EXCHANGE + "the_acked_frames_are_whole_and_a_prefix_whatever_the_order",)
EVERY_ID = (EXCHANGE + "every_id_is_found_absent_or_unknown",)
NONSENSE = (EXCHANGE + "nonsense_loses_the_connection",)
FOLDER = "bk_core/transport/bookie_rpc/"
ADDS, READS, BATCHES, PACKING, EXCHANGE_PY, LACS, LINK_PY, CONNECTION = (
    f"{FOLDER}{name}.py" for name in ("adds", "reads", "batches", "packing", "exchange", "lac", "link", "connection")
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a frame is acked by its first answer",
        ADDS,
        "            while session.frames and session.frames[0] == 0:\n",
        "            while session.frames and session.frames[0] <= 1:\n",
        PREFIX,
        "an entry is acknowledged that no bookie has",
    ),
    Mutant(
        "frames are acked out of order",
        ADDS,
        "            while session.frames and session.frames[0] == 0:\n                session.frames.popleft()\n",
        "            while 0 in session.frames:\n                session.frames.remove(0)\n",
        (EXCHANGE + "one_missing_answer_holds_back_its_frame_and_all_behind_it",),
        "an ack covers a hole",
    ),
    Mutant(
        "a refused add is taken for an ack",
        ADDS,
        "            taken = said == Status.EOK\n",
        "            taken = said != Status.EFENCED\n",
        PREFIX,
        "an entry is acknowledged that the bookie refused",
    ),
    Mutant(
        "the last frame that was refused counts",
        ADDS,
        "        if self.refused_at is None or frame < self.refused_at:\n",
        "        if self.refused_at is None or frame > self.refused_at:\n",
        PREFIX,
        "a session waits for ever for a frame that was refused",
    ),
    Mutant(
        "a busy bookie is never left in peace",
        ADDS,
        "        if self.pauses <= PAUSES_MAX:\n",
        "        if True:\n",
        (EXCHANGE + "a_bookie_that_has_too_much_to_do_for_ever_ends_the_session",),
        "a writer retries without end",
    ),
    Mutant(
        "ids of an add's answer are not compared",
        ADDS,
        "            if wrong.any() and bool(",
        "            if False and bool(",
        NONSENSE,
        "an answer about another entry is an ack",
    ),
    Mutant(
        "answers count twice",
        PACKING,
        "    if before - int(np.count_nonzero(open_places)) != places.size:\n",
        "    if False:\n",
        NONSENSE,
        "an ack covers an entry that was never answered",
    ),
    Mutant(
        "a status of trouble is ABSENT",
        READS,
        "            if status in _ABSENT:\n",
        "            if status != Status.EOK:\n",
        EVERY_ID,
        "an entry is denied that a bookie only could not read",
    ),
    Mutant(
        "no such ledger is UNKNOWN",
        READS,
        "_ABSENT = (int(Status.ENOENTRY), int(Status.ENOLEDGER))\n",
        "_ABSENT = (int(Status.ENOENTRY),)\n",
        EVERY_ID,
        "a recovery of a ledger that a bookie never saw has no end",
    ),
    Mutant(
        "an entry that says that it is another one is believed",
        READS,
        "        right = (inside[:, 0] == self.ledger_id) & (inside[:, 1] == run.first + places)\n",
        "        right = inside[:, 0] >= 0\n",
        (EXCHANGE + "an_answer_that_is_no_such_entry_is_unknown",),
        "one bad entry takes the good ones beside it",
    ),
    Mutant(
        "a range goes on beyond an entry that is not answered",
        READS,
        "            open_places = np.flatnonzero(run.statuses[start:] == _OPEN)\n",
        "            open_places = np.flatnonzero(run.statuses[start:] == -9)\n",
        EVERY_ID,
        "an answer covers ids that nobody answered",
    ),
    Mutant(
        "the limit of bytes is not kept",
        READS,
        "        if cut < at.size:\n            cut =",
        "        if False:\n            cut =",
        (EXCHANGE + "reads_stop_at_the_limit_and_ask_for_little_beyond_it",),
        "a read takes memory without a bound",
    ),
    Mutant(
        "what comes before its turn is kept without a bound",
        READS,
        "        if self.held_bytes + size > self.bytes_max + 2 * PART_BYTES and",
        "        if False and",
        (EXCHANGE + "what_comes_before_its_turn_is_kept_within_a_bound",),
        "one late answer fills the memory with thousands of others",
    ),
    Mutant(
        "a fence that found nothing is believed at once",
        READS,
        "                force(asked.ledger_id, forced)\n",
        "                asked.fencing = False\n",
        (EXCHANGE + "a_fencing_read_that_finds_nothing_is_answered_when_the_fence_is_on_disk",),
        "a bookie restarts, forgets the fence, and acks an add that recovery was denied",
    ),
    Mutant(
        "a fencing range reads before it has fenced",
        READS,
        "        if self.over or self.fencing or not left:\n",
        "        if self.over or not left:\n",
        (EXCHANGE + "a_fencing_read_that_finds_nothing_is_answered_when_the_fence_is_on_disk",),
        "an entry is denied that is added a moment later",
    ),
    Mutant(
        "whether the log was forced does not matter",
        READS,
        "            if status is Status.EOK:\n                asked.fencing = False\n            else:\n",
        "            if True:\n                asked.fencing = False\n            else:\n",
        (EXCHANGE + "a_range_that_could_not_fence_fails",),
        "as above, where the disk of the bookie has failed",
    ),
    Mutant(
        "a fence is believed before it is on disk",
        LACS,
        "            if status in _NOTHING:\n                self._exchange.force(ledger_id, forced)\n            elif",
        "            if status in _NOTHING:\n                forced(Status.EOK)\n            elif",
        (LINK + "a_fence_that_finds_nothing_is_answered_when_it_is_on_disk",),
        "a bookie restarts, forgets the fence, and acks an add that recovery was denied",
    ),
    Mutant(
        "a watch does not ask for the writer's LAC",
        LACS,
        "            elif lac > max(previous_lac, _lac_in(body)):\n",
        "            elif False:\n",
        (LINK + "explicit_lacs_are_asked_for_when_a_watch_hears_of_one",),
        "a tail does not see the last entries of an idle writer",
    ),
    Mutant(
        "what a batch did not give is not asked for again",
        BATCHES,
        "            self._rests.append(rest)\n",
        "            pass\n",
        (BATCH + "batches_answer_every_id_as_single_reads_do",),
        "a range has no end",
    ),
    Mutant(
        "what stands behind a short batch is taken for its rest",
        READS,
        "        self.asked.insert(at + bool(count), rest)\n",
        "        self.asked.append(rest)\n",
        (BATCH + "batches_answer_every_id_as_single_reads_do",),
        "entries come out of order",
    ),
    Mutant(
        "the ids of a batch's answer are not compared",
        BATCHES,
        "    if (answer.ledger_id, answer.first_entry_id) != (batch.ledger_id, batch.first_entry_id):\n",
        "    if False:\n",
        (BATCH + "nonsense_ends_the_second_connection_and_the_range_goes_on",),
        "a bookie that mixes up its answers is believed",
    ),
    Mutant(
        "a batch may be of any size",
        BATCHES,
        "    if count > most or (count > 1 and size + LENGTH_BYTES * count > batch.max_bytes):\n",
        "    if count > most:\n",
        (BATCH + "nonsense_ends_the_second_connection_and_the_range_goes_on",),
        "memory for as much as a bookie likes to send",
    ),
    Mutant(
        "a batch may have more entries than were asked for",
        BATCHES,
        "    if count > most or (count",
        "    if (count",
        (BATCH + "nonsense_ends_the_second_connection_and_the_range_goes_on",),
        "an answer ends the client's loop",
    ),
    Mutant(
        "other entries of a batch are taken for unknown ones",
        READS,
        "        right = (inside[:, 0] == self.ledger_id) & (inside[:, 1] == run.first + np.arange(len(bodies)))\n",
        "        right = inside[:, 0] == self.ledger_id\n",
        (BATCH + "entries_that_nobody_asked_for_are_none",),
        "one wrong entry of a batch costs all behind it",
    ),
    Mutant(
        "a range that fences is read in batches",
        BATCHES,
        "not self.over and asked.fence_key is None and",
        "not self.over and",
        (BATCH + "a_fencing_range_and_a_short_one_are_read_one_by_one",),
        "an entry is read before the ledger is fenced",
    ),
    Mutant(
        "batches are asked for of a bookie that has none",
        BATCHES,
        "        self.over = True\n",
        "",
        (BATCH + "a_bookie_that_knows_no_batch_reads_is_asked_once",),
        "a read of an old bookie never ends",
    ),
    Mutant(
        "what the second connection owed is lost with it",
        BATCHES,
        "                self._read_singly(run.owner, run.owner.cut(run, 0))\n",
        "                pass\n",
        (BATCH + "batches_answer_every_id_as_single_reads_do",),
        "a range has no end",
    ),
)
