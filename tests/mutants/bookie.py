# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bookie_server`` outside its machines: threads, storage, start, registration."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_AVAILABILITY = "tests/bookie_server/identity/test_availability.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="vanished-registration-is-left-so",
        path="bookie_server/identity/availability.py",
        old="        if not await self._is_registered():",
        new="        if await self._is_registered() is None:",
        tests=(f"{_AVAILABILITY}registration_that_vanished_is_made_again",),
        breaks="a bookie whose registration somebody took away is invisible for good",
    ),
    Mutant(
        name="another-directory-under-this-id-is-not-noticed",
        path="bookie_server/identity/availability.py",
        old="        if not found.is_of_directory_of(self._info):",
        new="        if False:",
        tests=(f"{_AVAILABILITY}bookie_ends_when_another_directory_took_its_id",),
        breaks="a bookie and its copy answer for one id, and may lie for each other",
    ),
    Mutant(
        name="copy-is-given-up-without-the-lock",
        path="bookie_server/garbage/garbage_thread.py",
        old="if not self._store.lock_underreplicated(ledger_id, self._bookie_id):\n                return False\n",
        new="self._store.lock_underreplicated(ledger_id, self._bookie_id)\n",
        tests=(
            "tests/contracts/test_garbage_contract.py::"
            "test_a_copy_is_given_up_under_the_lock_and_not_while_the_ledger_is_repaired",
        ),
        breaks="a bookie drops what a worker copies to it, just before the record names it",
    ),
    Mutant(
        name="copy-is-given-up-on-an-old-look",
        path="bookie_server/garbage/garbage_thread.py",
        old="            if ledger_id not in self.look((ledger_id,)).elsewhere:\n                return False\n",
        new="",
        tests=(
            "tests/contracts/test_garbage_contract.py::"
            "test_a_copy_is_given_up_under_the_lock_and_not_while_the_ledger_is_repaired",
        ),
        breaks="a bookie drops a copy that a repair has put there since the second look",
    ),
)
