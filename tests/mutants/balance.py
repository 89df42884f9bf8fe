# SPDX-License-Identifier: Apache-2.0
"""Mutants of plans that move copies, and of what says why a bookie cannot leave."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PATH = "bk_core/protocol/replication/balance.py"
_TESTS = "tests/protocol/replication/test_balance.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="move-to-a-member",
        path=_PATH,
        old="    if target in fragment.ensemble:\n        return False\n",
        new="",
        tests=(f"{_TESTS}target_takes_no_second_copy_of_any_fragment",),
        breaks="two copies of an entry are on one bookie, and one of them is given up",
        rule="I4",
    ),
    Mutant(
        name="racks-are-given-up-for-space",
        path=_PATH,
        old="    if landscape.is_flat:\n        return True\n",
        new="    return True\n",
        tests=(f"{_TESTS}racks_are_not_given_up_for_space",),
        breaks="after a rebalance all copies of a ledger stand in one rack",
    ),
    Mutant(
        name="two-bookies-are-turned-about",
        path=_PATH,
        old="        held = self._of[source]\n        for at in range(bisect_left(held, (-most, -1)), len(held)):",
        new="        held = self._of[source]\n        for at in range(len(held)):",
        tests=(f"{_TESTS}largest_move_that_helps_goes_first_and_none_turns_two_bookies_about",),
        breaks="the full bookie is the empty one afterwards, and the next run moves all of it back",
    ),
    Mutant(
        name="a-ledger-is-planned-twice",
        path=_PATH,
        old="            if ledger_id in self._done:\n                continue\n",
        new="",
        tests=(f"{_TESTS}new_bookie_gets_its_part_and_the_second_plan_is_empty",),
        breaks="a plan counts on space that the first of its moves has taken already",
    ),
    Mutant(
        name="last-copy-is-not-looked-for",
        path="bk_core/protocol/replication/copies.py",
        old="        if not any(member in others for member in members):\n            return False\n",
        new="        if any(member in others for member in members):\n            return True\n",
        tests=("tests/protocol/replication/test_copies.py::test_bookie_that_is_away_may_have_the_last_copy",),
        breaks="a drain of a bookie that is away is begun although it alone has entries",
    ),
)
