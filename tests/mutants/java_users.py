# SPDX-License-Identifier: Apache-2.0
"""Mutants of features for users of the Java client: entry ids of the caller, deferred syncs, placement."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WORLD = "tests/protocol/test_deferred_sync.py::test_"
RESENT = (WORLD + "what_a_broken_session_left_unforced_is_sent_again_and_forced_anew",)
ACKS_TELL = (WORLD + "acks_tell_who_appends_and_only_forces_move_the_lac",)
OVER_SOCKETS = "tests/client/test_deferred_sync.py::test_"
IDS = "tests/client/test_explicit_ids.py::test_"
DELIVERY, WRITER = "bk_core/protocol/delivery.py", "bk_core/protocol/writer.py"
LINK, ADDS, QUEUE, HANDLE = (
    "bk_core/transport/bookie_rpc/link.py",
    "bk_core/transport/bookie_rpc/adds.py",
    "bk_core/client/writing/append_queue.py",
    "bk_core/client/writing/writer.py",
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "acks that were not forced outlive their session",
        DELIVERY,
        "            lane.watermark, lane.forcing = lane.durable, None\n",
        "            lane.forcing = None\n",
        RESENT,
        "a bookie that crashed counts with entries that it forgot",
    ),
    Mutant(
        "the answer to a force of an earlier session counts",
        DELIVERY,
        "        if self.is_current(event.index, event.session) and lane.forcing is not None:\n",
        "        if lane.forcing is not None:\n",
        RESENT,
        "a bookie that crashed counts with entries that it forgot",
    ),
    Mutant(
        "a force covers what was acked since it was sent",
        DELIVERY,
        "            lane.durable, lane.forcing = lane.forcing, None\n",
        "            lane.durable, lane.forcing = lane.watermark, None\n",
        (WORLD + "a_force_covers_what_was_acked_when_it_was_sent",),
        "an entry is confirmed that is on no disk",
    ),
    Mutant(
        "acks move the LAC of a writer with deferred syncs",
        DELIVERY,
        "[lane.durable if self.deferred else lane.watermark for lane in self.lanes]",
        "[lane.watermark for lane in self.lanes]",
        ACKS_TELL,
        "an entry is confirmed that is on no disk",
    ),
    Mutant(
        "a force over another connection than the session's counts",
        LINK,
        "        if not self._exchange.adds.has(session):\n",
        "        if False:\n",
        ("tests/transport/test_bookie_rpc_link.py::test_a_force_needs_the_session_that_it_speaks_of",),
        "a bookie that restarted counts with entries that it forgot",
    ),
    Mutant(
        "what is not forced fills the window for ever",
        HANDLE,
        "            if self._room.is_waited_for or self._machine.retained_bytes > self._config.window_bytes_max:\n",
        "            if False:\n",
        (OVER_SOCKETS + "the_window_bounds_what_is_not_forced",),
        "a writer that never forces takes the memory of all others",
    ),
    Mutant(
        "an entry above a gap is taken",
        QUEUE,
        "        if entry_id != self.next_id:\n",
        "        if entry_id < self.next_id:\n",
        (IDS + "entries_are_confirmed_in_the_order_of_their_ids",),
        "entries get other ids than the caller gave",
    ),
    Mutant(
        "racks do not count when a place is filled",
        "bk_core/placement.py",
        "            return bookie in avoid, lacking, same\n",
        "            return bookie in avoid, 0, 0\n",
        ("tests/protocol/test_placement.py::test_striped_write_sets_span_two_racks_around_the_ring",),
        "all copies of every fourth entry stand in one rack",
    ),
    Mutant(
        "a spare is taken wherever it stands",
        "bk_core/placement.py",
        "    if landscape.is_flat:\n        for index, bookie",
        "    if True:\n        for index, bookie",
        ("tests/protocol/test_placement.py::test_the_spare_restores_the_racks",),
        "after a bookie was lost all copies stand in one rack",
    ),
    Mutant(
        "enforced racks are not enforced",
        "bk_core/placement.py",
        "    if landscape.enforced and most < wanted:\n",
        "    if False:\n",
        ("tests/protocol/test_placement.py::test_too_few_racks_are_refused_where_they_are_enforced",),
        "ledgers lie in one rack though that was forbidden",
    ),
    Mutant(
        "free space is not bounded",
        "bk_core/placement.py",
        "min(max(weights.get(bookie, middle), 1), WEIGHT_MULTIPLE_MAX * middle)",
        "max(weights.get(bookie, middle), 1)",
        ("tests/protocol/test_placement.py::test_more_free_space_is_chosen_more_often_and_no_bookie_always",),
        "the new bookie gets every ledger",
    ),
)
