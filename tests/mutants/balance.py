# SPDX-License-Identifier: Apache-2.0
"""Mutants of plans that move copies, and of the reasons why a bookie cannot leave."""

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
    ),
)
