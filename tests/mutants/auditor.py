# SPDX-License-Identifier: Apache-2.0
"""Mutants of the auditor's times to check all ledgers, and all copies."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS = "tests/bookie_server/autorecovery/test_autorecovery.py::test_"
_AUDITS = "tests/bookie_server/autorecovery/test_auditor.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="a bookie is lost only once",
        path="bookie_server/autorecovery/auditor.py",
        old="tuple(each for each in self._scanned[0] if each in wanted), self._scanned[1]\n",
        new="tuple(self._scanned[0]), self._scanned[1]\n",
        tests=(f"{_TESTS}bookie_that_came_back_and_is_lost_again_is_marked_again",),
        breaks="a bookie that came back and then dies for good has its ledgers marked up to an hour later",
    ),
    Mutant(
        name="one audit is enough for a new reason",
        path="bookie_server/autorecovery/auditor.py",
        old="else now + AGAIN_S\n",
        new="else None\n",
        tests=(f"{_AUDITS}a_reason_is_audited_at_once_and_a_minute_later_and_then_only_with_the_rescan",),
        breaks="a ledger made on a bookie that has not read yet that it is drained holds up the drain for an hour",
    ),
)
