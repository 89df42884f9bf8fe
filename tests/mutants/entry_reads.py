# SPDX-License-Identifier: Apache-2.0
"""Mutants of the checks of reads of single entries."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MACHINE = "bookie_server/machine/entry_reads.py"
_TURNS = "bookie_server/machine/turns.py"
_REQUESTS = "bookie_server/machine/requests.py"
_DIRECTORY = "bookie_server/storage/index/segment_directory.py"
_READER = "bookie_server/storage/log/segment_reader.py"
_STREAMS = "bookie_server/ports/lane/streams.py"
_TEST = "tests/bookie_server/machine/test_entry_reads.py::test_"
_CUTS_TEST = "tests/bookie_server/storage/log/test_entry_cuts.py::test_"
_HOLDINGS_TEST = "tests/bookie_server/engine/test_holdings.py::test_"
_LANE_TEST = "tests/bookie_server/ports/lane/test_direct.py::test_"
_BOUNDS_TEST = "tests/bookie_server/ports/bounds/test_memory_bounds.py::test_"
_INDEX_TEST = "tests/bookie_server/storage/index/test_index.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a fencing read of one entry is answered before its fence",
        _MACHINE,
        "event.first == event.last and event.fence_key is None and",
        "event.first == event.last and",
        (f"{_TEST}any_other_read_goes_the_ordinary_way",),
        "a recovery reads from a bookie that still takes the old writer's adds",
    ),
    Mutant(
        "a read of parts of one entry is answered with the entry",
        _MACHINE,
        " and event.cut is None and not event.ids_only",
        " and not event.ids_only",
        (f"{_TEST}any_other_read_goes_the_ordinary_way",),
        "a client that wants the head of a large entry gets all of it",
    ),
    Mutant(
        "a request for ids is answered with the entry",
        _MACHINE,
        " and event.cut is None and not event.ids_only",
        " and event.cut is None",
        (f"{_TEST}any_other_read_goes_the_ordinary_way",),
        "a client that checks which entries are here gets their bytes",
    ),
    Mutant(
        "an id that no ledger has is looked up",
        _MACHINE,
        "0 <= ledger_id <= LEDGER_ID_MAX and 0 <= entry_id <= ID_MAX",
        "True",
        (
            f"{_TEST}ids_that_no_entry_has_are_answered_as_before",
            f"{_TEST}every_read_has_the_answer_of_the_ordinary_way",
        ),
        "a client's negative id ends the bookie",
    ),
    Mutant(
        "a number in use is answered again",
        _MACHINE,
        "not requests.uses((stream, number))",
        "number >= 0",
        (f"{_TEST}a_number_in_use_is_refused",),
        "two answers with one number confuse a client",
    ),
    Mutant(
        "reads in one step pass those that wait for their turn",
        _MACHINE,
        "if not (requests.has_room() and self._reads.may_pass()):",
        "if not requests.has_room():",
        (f"{_TEST}no_read_passes_another_that_waits_for_its_turn",),
        "a client that asks for ranges waits for ever behind one that asks for entries",
    ),
    Mutant(
        "reads in one step ignore the bound on requests",
        _REQUESTS,
        "return self._core.failed is None and len(self._by_id) - self.watches < self._core.limits.requests_max",
        "return self._core.failed is None",
        (f"{_TEST}no_read_is_answered_at_once_while_too_many_requests_are_under_way",),
        "a bookie at its bound takes more",
    ),
    Mutant(
        "entries are answered after a failed sync",
        _REQUESTS,
        "return self._core.failed is None and len(self._by_id)",
        "return len(self._by_id)",
        (f"{_TEST}after_a_failed_sync_and_of_a_deleted_ledger_nothing_is_answered",),
        "a bookie whose disk failed goes on",
    ),
    Mutant(
        "the weight of a stream's answers is not bounded",
        _TURNS,
        "        weight = min(weight_max - self._weight, self._limits.reads_per_stream_max * WHOLE - held)\n",
        "        weight = weight_max - self._weight\n",
        (f"{_TEST}answers_that_are_not_sent_bound_those_of_their_stream",),
        "one client uses the room of all",
    ),
    Mutant(
        "the bytes of answers are not bounded",
        _TURNS,
        "        size = min([bytes_max - self._bytes, ",
        "        size = min([1 << 60, ",
        (f"{_TEST}answers_that_are_not_sent_bound_those_of_all_streams",),
        "a client that reads nothing fills the bookie's memory",
    ),
    Mutant(
        "the bytes of an owner's answers are not bounded",
        _TURNS,
        "*(o.bytes_max - o.answers for o in self._owners.of(stream))",
        "*(o.bytes_max for o in self._owners.of(stream))",
        (f"{_TEST}an_owner_has_no_more_answers_in_memory_than_its_bound",),
        "a client with several connections has more than its share",
    ),
    Mutant(
        "a stream that is closed keeps the room of its entries",
        _TURNS,
        "        self.entries_sent(stream, len(self._entries.get(stream, ())))\n",
        "",
        (f"{_TEST}the_room_is_free_again_once_everything_is_sent",),
        "each client that goes away takes room from the others for good",
    ),
    Mutant(
        "a client that takes entries again counts as stalled",
        _TURNS,
        "map(self.weight_of, sizes)))\n        self.stalled.pop(stream, None)\n",
        "map(self.weight_of, sizes)))\n",
        (f"{_TEST}a_stream_whose_client_takes_entries_again_is_not_ended_for_others",),
        "a bookie ends the connection of a client that was slow once",
    ),
    Mutant(
        "a remembered LAC outlives its segment",
        _DIRECTORY,
        "        if ledgers is None:\n            return\n        self._forget_remembered()\n",
        "        if ledgers is None:\n            return\n",
        (f"{_INDEX_TEST}the_greatest_lac_follows_the_segments",),
        "a bookie tells a LAC for which it has no evidence",
    ),
    Mutant(
        "a remembered LAC hides that of a new segment",
        _DIRECTORY,
        "        self.drop_segment(generation)\n        self._forget_remembered()\n",
        "        self.drop_segment(generation)\n",
        (f"{_INDEX_TEST}the_greatest_lac_follows_the_segments",),
        "a tail learns late of confirmed entries",
    ),
    Mutant(
        "a remembered LAC outlives its copy",
        _DIRECTORY,
        "        self._lacs.pop(ledger_id, None)\n",
        "",
        (f"{_INDEX_TEST}the_greatest_lac_follows_the_segments",),
        "a bookie tells a LAC for which it has no evidence",
    ),
    Mutant(
        "a small frame of another ledger is sent",
        _READER,
        "check_stored_frame(data, place, self._incarnation, ledger_id)\n                is_this",
        "check_stored_frame(data, place, self._incarnation)\n                is_this",
        (f"{_CUTS_TEST}every_byte_of_a_small_frame_is_checked_before_it_is_read_at_once",),
        "a wrong index makes a bookie send another ledger's entry",
    ),
    Mutant(
        "a small frame is sent unchecked",
        _READER,
        "                header = check_stored_frame(data, place, self._incarnation, ledger_id)\n",
        "                import bk_core.entries.frame as f\n\n                header = f.parse_header(data)\n",
        (f"{_CUTS_TEST}every_byte_of_a_small_frame_is_checked_before_it_is_read_at_once",),
        "a flipped bit on a disk reaches clients, who must find it",
    ),
    Mutant(
        "a small frame of other entries is sent",
        _READER,
        "header.count == 1 and first == last == header.first_entry_id and",
        "header.count == 1 and",
        (f"{_CUTS_TEST}every_byte_of_a_small_frame_is_checked_before_it_is_read_at_once",),
        "a wrong index makes a bookie send another entry",
    ),
    Mutant(
        "reads behind which a stream ends are given to the machine",
        _STREAMS,
        "        super().end()\n        self._arrived = []\n",
        "        super().end()\n",
        (f"{_BOUNDS_TEST}reads_of_one_burst_are_given_to_the_machine_together_unless_their_stream_has_ended",),
        "a stream that is gone takes room for answers, for good",
    ),
    Mutant(
        "a cancel passes the reads that came before it",
        _STREAMS,
        "            self._ask_arrived()\n            self._cancel(",
        "            self._cancel(",
        (f"{_LANE_TEST}a_read_that_is_cancelled_in_the_same_burst_is_not_answered_and_holds_no_room",),
        "a client gets the answer to a read that it has cancelled",
    ),
    Mutant(
        "any number of reads is answered in one step",
        _STREAMS,
        "            elif len(arrived) >= _TOGETHER_MAX:\n                self._ask_arrived()\n",
        "",
        (f"{_LANE_TEST}more_reads_than_the_machine_takes_at_once_are_all_answered",),
        "one client holds up all others for as long as its requests take",
    ),
    Mutant(
        "a part of an answer gives the bookie no time for the next one",
        "bk_core/transport/lane/streams.py",
        "            call.put_off()\n",
        "",
        ("tests/transport/lane/test_streams.py::test_each_read_has_its_own_deadline_which_each_part_puts_off",),
        "a long answer that comes steadily is given up",
    ),
    Mutant(
        "the digest of a lone entry is not verified",
        "bk_core/entries/digest.py",
        "            return self.digest(header, batch.payload) == batch.digests.tobytes()\n",
        "            return True\n",
        (
            "tests/entries/test_verified.py::"
            "test_digests_of_our_frames_are_verified_if_the_bookie_may_have_made_the_checksums",
            "tests/client/reading/test_lone_read.py::"
            "test_a_bookie_that_gives_no_good_answer_is_not_believed_and_another_is_asked",
        ),
        "a client believes what a bookie made up",
    ),
    Mutant(
        "the digest of a lone entry covers another ledger length",
        "bk_core/entries/digest.py",
        "batch.lac, batch.length_before + size)",
        "batch.lac, size)",
        ("tests/entries/test_digest.py::test_one_entry_is_verified_as_many_are",),
        "a client refuses entries that are right, and believes a wrong length of the ledger",
    ),
    Mutant(
        "a lone entry is taken although its digest is wrong",
        "bk_core/entries/lone_frames.py",
        " != digest\n    ):",
        " == b''\n    ):",
        ("tests/entries/test_lone_frames.py::test_an_entry_of_another_ledger_or_with_a_wrong_digest_is_refused",),
        "a reader gets a damaged entry",
    ),
)
