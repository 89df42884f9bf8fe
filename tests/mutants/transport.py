# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_core/transport`` and ``bookie_server/services``."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FORK = "tests/transport/test_after_fork.py::"
LANES = "tests/transport/test_lanes.py::test_"

_MANY = "test_many_sessions_and_grants_leave_in_several_messages_each_behind_what_it_needs"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a session goes before its grant",
        "bk_core/transport/lane_streams.py",
        "count = 0 if self._grants else NAMED_MAX",
        "count = NAMED_MAX",
        (f"tests/transport/test_lane_streams.py::{_MANY}",),
        "who opens many ledgers at once is refused",
    ),
    Mutant(
        "frames go before their session",
        "bk_core/transport/lane_streams.py",
        "frames = [] if self._attaches else self._next_frames()",
        "frames = self._next_frames()",
        (f"tests/transport/test_lane_streams.py::{_MANY}",),
        "who opens many ledgers at once is refused",
    ),
    Mutant(
        "a forked child may connect although its parent used gRPC",
        "bk_core/after_fork.py",
        "    if _used_before_fork:\n        raise",
        "    if False:\n        raise",
        (FORK + "test_a_child_is_refused_if_grpc_was_used_before_the_fork_and_ends_like_any_program",),
        "a child fails after seven seconds with a misleading error, or dies by a signal",
        "K4",
    ),
    Mutant(
        "a child of a child may connect",
        "bk_core/after_fork.py",
        "_used_before_fork or _used, False",
        "_used, False",
        (FORK + "test_a_child_is_refused_if_grpc_was_used_before_the_fork_and_ends_like_any_program",),
        "as above, for those who fork twice",
        "K4",
    ),
    Mutant(
        "a forked child frees what its parent's gRPC made",
        "bk_core/after_fork.py",
        "    if _used_before_fork:\n        for thing",
        "    if False:\n        for thing",
        (FORK + "test_a_child_is_refused_if_grpc_was_used_before_the_fork_and_ends_like_any_program",),
        "a child hangs or crashes when it collects garbage or ends",
        "K4",
    ),
    Mutant(
        "a broken link is used again",
        "bk_core/transport/lanes.py",
        "        if link is None or link.broken:\n",
        "        if link is None:\n",
        (LANES + "a_broken_link_is_replaced_on_the_next_call_by_one_to_the_newest_address",),
        "a client never finds a bookie again that was started anew",
    ),
    Mutant(
        "the last lane is taken that a bookie offers",
        "bk_core/transport/lanes.py",
        "next((endpoint for lane in lanes if",
        "next((endpoint for lane in reversed(lanes) if",
        (LANES + "the_first_lane_of_the_client_that_a_bookie_offers_is_taken",),
        "a slower lane is used although there is a faster one",
    ),
    Mutant(
        "a frame is sent although there is no link to the bookie",
        "bk_core/client/driver.py",
        "        if effect.index in self._open:  # else there is no link, and the machine will hear of it\n",
        "        if True:\n",
        ("tests/client/test_driver.py::test_a_session_with_an_unknown_bookie_breaks_later_and_its_frames_go_nowhere",),
        "a writer ends with an internal error because one bookie is not registered",
    ),
)
