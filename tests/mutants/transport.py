# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_core/transport`` and ``bookie_server/ports``."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FORK = "tests/e2e/test_fork.py::test_a_forked_child_connects_or_is_refused_at_once_and_never_crashes"
LANES = "tests/transport/test_lanes.py::test_"

_MANY = "test_many_sessions_and_grants_leave_in_several_messages_each_behind_what_it_needs"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a forked child may connect although its parent used gRPC",
        "bk_core/after_fork.py",
        "    if _used_before_fork:\n        raise",
        "    if False:\n        raise",
        (FORK,),
        "a child fails after seven seconds with a misleading error, or dies by a signal",
    ),
    Mutant(
        "a child of a child may connect",
        "bk_core/after_fork.py",
        "_used_before_fork or _used, False",
        "_used, False",
        (FORK,),
        "as above, for those who fork twice",
    ),
    Mutant(
        "a forked child frees what its parent's gRPC made",
        "bk_core/after_fork.py",
        "    if _used_before_fork:\n        for thing",
        "    if False:\n        for thing",
        (FORK,),
        "a child hangs or crashes when it collects garbage or ends",
    ),
)
