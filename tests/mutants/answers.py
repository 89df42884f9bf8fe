# SPDX-License-Identifier: Apache-2.0
"""Mutants of the checks of frames in a bookie's answer."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_VERIFIED, _APACHE = "bk_core/entries/verified.py", "bk_core/entries/apache.py"
_TESTS = "tests/entries/test_verified.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "frames of a run are not checked",
        _VERIFIED,
        "        check(frame, header)\n",
        "",
        (_TESTS + "each_bit_that_flips_in_a_run_of_frames_is_found",),
        "a damaged header or column is believed",
    ),
    Mutant(
        "payloads without digests are not checked",
        _VERIFIED,
        "    check = check_header if digester.digest_bytes else check_frame\n",
        "    check = check_header\n",
        (_TESTS + "each_bit_that_flips_in_a_payload_without_digests_is_found",),
        "a damaged entry of a ledger without digests is delivered",
    ),
    Mutant(
        "a run goes on over a gap",
        _VERIFIED,
        "        and before.first_entry_id + before.count == header.first_entry_id\n",
        "",
        (_TESTS + "frames_with_a_gap_between_them_stay_apart",),
        "a bookie's right answer is refused",
    ),
    Mutant(
        "the ids inside the entries of a run are not compared",
        _VERIFIED,
        "    if batch.ids is not None or batch.first_entry_id != first.first_entry_id:\n",
        "    if False:\n",
        (_TESTS + "entries_under_other_ids_than_their_own_are_refused",),
        "an entry is delivered under the id of another one",
    ),
    Mutant(
        "the first id of a run is not compared",
        _VERIFIED,
        "    if batch.ids is not None or batch.first_entry_id != first.first_entry_id:\n",
        "    if batch.ids is not None:\n",
        (_TESTS + "all_entries_under_other_ids_than_their_own_are_refused",),
        "entries are delivered under the ids of others",
    ),
    Mutant(
        "digests of Apache's entries are not compared",
        _APACHE,
        "    if not right.all():\n",
        "    if False:\n",
        (_TESTS + "a_wrong_digest_in_a_frame_with_right_checksums_is_found_and_its_entry_named",),
        "a damaged entry is delivered",
    ),
)
