# SPDX-License-Identifier: Apache-2.0
"""Mutants of a bookie's reports about its own incomplete copies (decision 0053), and of the scrubber that finds
them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_OWN = "tests/bookie_server/autorecovery/test_own_copies.py"
_SCRUB = "tests/bookie_server/storage/maintenance/test_scrub.py"
_DAMAGED = f"{_OWN}::test_damage_that_scrubbing_finds_is_marked_repaired_in_place_and_forgotten"
_LIMBO = f"{_OWN}::test_limbo_is_repaired_in_place_marked_again_while_it_lasts_and_not_once_it_is_over"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "damage is forgotten that was found before the record named the bookie",
        "bookie_server/autorecovery/own_copies.py",
        "            if ledger_id in self.lacking or await self._is_in_limbo(ledger_id):\n",
        "            if True:\n",
        (f"{_OWN}::test_damage_that_was_found_before_the_record_named_the_bookie_is_marked_once_it_does",),
        "a repair names a bookie whose copy went bad meanwhile, and nobody marks it",
    ),
    Mutant(
        "what no record gives the bookie is looked at for ever",
        "bookie_server/autorecovery/suspects.py",
        "        if self._suspects[ledger_id].times > NOT_NAMED_LOOKS:\n",
        "        if False:\n",
        (f"{_OWN}::test_what_no_record_gives_this_bookie_is_forgotten_in_the_end",),
        "a bookie asks the store for each damaged ledger that left it, every hour until the ledger is deleted",
    ),
    Mutant(
        "a mark that vanishes is not made again",
        "bookie_server/autorecovery/own_copies.py",
        "        if not is_there:\n",
        "        if not is_there and not known:\n",
        (f"{_OWN}::test_a_mark_that_vanishes_while_the_copy_is_incomplete_is_made_again_with_back_off",),
        "Apache's worker looks at the first and the last entry, removes the mark, and the hole between them stays",
    ),
    Mutant(
        "a suspect is forgotten once its mark is there",
        "bookie_server/autorecovery/own_copies.py",
        """        if ledger_id in self.lacking and await self._is_marked(ledger_id):
            self.suspects.again(ledger_id, self._clock(), tried=False)
""",
        """        if ledger_id in self.lacking and await self._is_marked(ledger_id):
            self.suspects.forget(ledger_id)
""",
        (f"{_OWN}::test_a_mark_that_vanishes_while_the_copy_is_incomplete_is_made_again_with_back_off", _LIMBO),
        "nobody notices that a mark went before the copy was complete",
    ),
    Mutant(
        "limbo in an open fragment counts as whole",
        "bookie_server/autorecovery/suspects.py",
        "gaps = sorted((*absent, *trailer.unknown), key=lambda gap: gap.first)",
        "gaps = sorted((*absent, *(trailer.unknown if self.last is not None else ())), key=lambda gap: gap.first)",
        (f"{_OWN}::test_only_ids_of_own_write_sets_are_lacking_and_in_an_open_fragment_only_unknown_ones",),
        "an open ledger whose tail a bookie lost is not repaired before a second bookie fails",
    ),
    Mutant(
        "damage stays a secret of the index",
        "bookie_server/storage/index/index.py",
        "        self._damage.add(place)\n        self.suspect((ledger_id,))\n",
        "        self._damage.add(place)\n",
        (f"{_SCRUB}::test_ledgers_that_lost_entries_are_suspects_with_their_entries_in_the_log", _DAMAGED),
        "a damaged copy stays damaged until the weekly check of all ledgers",
    ),
    Mutant(
        "damage is answered as absent",
        "bookie_server/storage/index/search.py",
        "        self.lost.append((first, last))\n\n    # --- the end",
        "\n    # --- the end",
        (f"{_SCRUB}::test_flipped_bit_of_a_frame_is_found_marked_and_told_once_a_pass", _DAMAGED),
        "a recovery takes a damaged entry for one that was never written, and cuts the ledger short",
    ),
    Mutant(
        "a repair in place comes without the recovery flag",
        "bk_core/protocol/replication/copy.py",
        "mode=AttachMode.RECOVER",
        "mode=AttachMode.WRITE",
        (_LIMBO,),
        "a bookie in limbo refuses every entry that would heal it, for ever",
    ),
    Mutant(
        "limbo is not looked at after a start",
        "bookie_server/storage/index/index.py",
        'found: list[int] = rows["ledger"][(rows["flags"] & (NO_ADDS | KEY_CONFLICT) != 0) & ~of_all].tolist()',
        'found: list[int] = rows["ledger"][(rows["flags"] & KEY_CONFLICT != 0) & ~of_all].tolist()',
        (_LIMBO,),
        "a mark that went before a restart is never made again",
    ),
    Mutant(
        "explain takes an unknown entry for a denied one",
        "bk_cli/explain/ledger_findings.py",
        "        if list(said.values()).count(ABSENT) >= needed:\n",
        "        if len(said) - list(said.values()).count(FOUND) >= needed:\n",
        ("tests/cli/explain/test_ledger_findings.py::test_what_a_recovery_would_decide",),
        "an operator is told that a recovery would end the ledger where acked entries may follow",
    ),
)
