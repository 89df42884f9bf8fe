# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_core/transport`` and ``bookie_server/ports``."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FORK = "tests/transport/test_after_fork.py::"
LANES = "tests/transport/test_lanes.py::test_"

_MANY = "test_many_sessions_and_grants_leave_in_several_messages_each_behind_what_it_needs"

MUTANTS: tuple[Mutant, ...] = (
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
)
