# SPDX-License-Identifier: Apache-2.0
"""Mutants of reads of Pulsar's topics: where an open topic ends (``readMode=quorum``), and the messages of batches."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PATH = "bk_core/pulsar/lookup/settled_end.py"
_TESTS = "tests/pulsar/test_settled_end.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="search-goes-on-when-the-lac-moves",
        path=_PATH,
        old="        if lac > self._lac:\n            self._cancel()\n",
        new="        if lac > self._lac:\n",
        tests=(f"{_TESTS}search_in_the_background_is_given_up_when_the_lac_moves",),
        breaks="the last message of a topic is shown a settle time late, and busy topics are searched",
    ),
    Mutant(
        name="end-of-the-ledger-before",
        path=_PATH,
        old="if self._ledger_id != reader.ledger_id:",
        new="if self._ledger_id is None:",
        tests=(f"{_TESTS}end_of_one_ledger_says_nothing_of_the_next",),
        breaks="entries of the next ledger are read that no ack quorum has",
    ),
    Mutant(
        name="search-that-failed-is-the-last",
        path=_PATH,
        old="            search, self._search = self._search, None\n            self._take(search)\n",
        new="            self._take(self._search)\n",
        tests=(
            f"{_TESTS}search_in_the_background_is_given_up_when_the_lac_moves",
            f"{_TESTS}failed_search_in_the_background_is_repeated",
        ),
        breaks="after one failure a tail never shows the last message of an idle topic",
    ),
    Mutant(
        name="available-now-ends-at-the-lac",
        path="bk_spark/topics/stream_reader.py",
        old="        settles = self._available_now and self._target is None\n",
        new="        settles = False\n",
        tests=("tests/spark/topics/test_quorum.py::test_available_now_waits_for_the_end_once",),
        breaks="runs with trigger(availableNow=True) never read the last message of an idle topic",
    ),
    Mutant(
        name="read-that-ends-earlier-waits",
        path="bk_core/pulsar/planning.py",
        old="        if end is None or end > EntryPosition(last.ledger_id, reader.last_add_confirmed):\n",
        new="        if end is not None or end is None:\n",
        tests=(f"{_TESTS}read_that_ends_where_the_lac_is_does_not_wait",),
        breaks="a read of confirmed messages takes a settle time longer",
    ),
    Mutant(
        name="payload-beyond-its-batch",
        path="bk_core/pulsar/messages/batches.py",
        old="    if at > end:\n",
        new="    if False:\n",
        tests=("tests/pulsar/test_many_batches.py::test_a_walk_finds_what_protobuf_parses",),
        breaks="bytes of the next entry are delivered in a message",
    ),
    Mutant(
        name="field-beyond-its-message",
        path="bk_core/pulsar/messages/scan.py",
        old="        following = after + number_value\n        is_bad |= following > stop\n",
        new="        following = after + number_value\n",
        tests=("tests/pulsar/test_scan.py::test_messages_of_one_layout_are_read_as_one_by_one",),
        breaks="a key of a damaged message has bytes of another message",
    ),
    Mutant(
        name="word-with-bytes-behind-a-varint",
        path="bk_core/pulsar/messages/scan.py",
        old="    bits = words & below & _LOW_BITS\n",
        new="    bits = words & _LOW_BITS\n",
        tests=("tests/pulsar/test_scan.py::test_varints_read_together_are_those_read_alone",),
        breaks="publish times are wrong",
    ),
    Mutant(
        name="varints-longer-than-a-word-are-cut",
        path="bk_core/pulsar/messages/scan.py",
        old="        left = np.concatenate((rows[~ended], more[~fits]))\n",
        new="        left = more[~fits]\n",
        tests=("tests/pulsar/test_scan.py::test_varints_read_together_are_those_read_alone",),
        breaks="negative numbers and bad varints are read as others",
    ),
    Mutant(
        name="crcs-of-entries-with-a-head-of-the-broker",
        path="bk_core/pulsar/messages/heads.py",
        old="    if known is not None and rows.size and bool((begin == heads.begin[rows] + _CHECKSUM_HEAD).all()):\n",
        new="    if known is not None and rows.size:\n",
        tests=("tests/pulsar/test_checksums.py::test_checksums_fail_alike_with_and_without_known_crcs",),
        breaks="intact messages of brokers that write heads are refused",
    ),
    Mutant(
        name="known-crcs-are-not-compared",
        path="bk_core/pulsar/messages/heads.py",
        old="    for row in rows[computed != stored[rows]].tolist():\n",
        new="    for row in rows[(computed != stored[rows]) & (known is None)].tolist():\n",
        tests=("tests/pulsar/test_checksums.py::test_a_wrong_checksum_under_a_right_digest_is_found",),
        breaks="a message that was damaged between its producer and the broker is delivered",
    ),
    Mutant(
        name="crcs-of-joined-batches-shift",
        path="bk_core/pulsar/gathering.py",
        old="        payload_crcs=np.concatenate(crcs) if len(crcs) == len(batches) else None,\n",
        new="        payload_crcs=np.concatenate(crcs) if crcs else None,\n",
        tests=("tests/pulsar/test_checksums.py::test_batches_of_which_one_has_no_crcs_have_none_together",),
        breaks="intact messages are refused",
    ),
)
