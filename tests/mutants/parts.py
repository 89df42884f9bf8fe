# SPDX-License-Identifier: Apache-2.0
"""Defects of reads of parts of entries: what a bookie cuts, what a reader takes for it, and what it skips."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PARTS, _PURE = "bk_core/entries/parts.py", "tests/entries/test_parts.py::"
_LIES = _PURE + "test_no_other_bytes_pass_for_a_part"
_LANES, _READS = "tests/contracts/test_transport_contract.py::", "tests/logs/test_column_reads.py::"

MUTANTS = (
    Mutant(
        name="a directory is not compared with the digest of its entry",
        path=_PARTS,
        old='if digests is not None and crc.to_bytes(4, "big") != digests[k].tobytes():',
        new="if False:",
        tests=(_LIES,),
        breaks="columns of another entry, or of one that was never written, are taken for those of this one",
    ),
    Mutant(
        name="columns are not compared with their directory",
        path=_PARTS,
        old="            directory.check_column(k, region)\n",
        new="            pass\n",
        tests=(_LIES,),
        breaks="wrong values that nobody notices",
    ),
    Mutant(
        name="the head of a message is not compared with its directory",
        path=_PARTS,
        old="        directory.check_head(head)\n",
        new="",
        tests=("tests/protocol/test_parts_against_a_model.py",),
        breaks="buffers are taken from wrong places of a column",
    ),
    Mutant(
        name="other parts than were asked for are taken",
        path=_PARTS,
        old="        if kept != sum(stop - start for start, stop in cut.spans(entry_id, length)):\n",
        new="        if False:\n",
        tests=(_LIES,),
        breaks="a part is decoded as what it is not",
    ),
    Mutant(
        name="a bookie cuts entries whose digests cannot vouch for parts",
        path=_PARTS,
        old="    can_be = header.kind == FrameKind.ENTRIES and header.digest_type in PARTS_FOR and",
        new="    can_be = header.kind == FrameKind.ENTRIES and",
        tests=(_PURE + "test_entries_whose_digests_cannot_vouch_for_parts_come_whole",),
        breaks="ledgers of such digests have no checked columns, and are read twice",
    ),
    Mutant(
        name="a recovery read gets parts",
        path="bookie_server/machine/reads.py",
        old='return "a recovery read of parts" if event.fence_key is not None else',
        new="return",
        tests=(_LANES + "test_parts_that_cannot_be_are_refused",),
        breaks="recovery could write back what a bookie left out as if it were the entry",
    ),
    Mutant(
        name="what is read and not sent costs nothing",
        path="bookie_server/machine/reads.py",
        old="        request.budget -= max(size, cost)\n",
        new="        request.budget -= size\n",
        tests=(_LANES + "test_what_is_read_and_not_sent_counts_towards_the_limit_too",),
        breaks="one request reads a whole ledger from the disk",
    ),
    Mutant(
        name="every bookie is asked for parts",
        path="bk_core/transport/lane_streams.py",
        old="        if not self.takes_cuts:\n",
        new="        if False:\n",
        tests=("tests/transport/test_cuts_on_the_lane.py",),
        breaks="a field that only some peers know is sent to all of them",
    ),
    Mutant(
        name="where parts cannot be had, nothing is read",
        path="bk_core/client/columns.py",
        old="    with suppress(EntryUnreadableError, NoSuchEntryError, IntegrityError):\n",
        new="    with suppress(NoSuchEntryError, IntegrityError):\n",
        tests=("tests/client/test_column_ranges.py",),
        breaks="an entry that is corrupt for one codec can be read by nobody",
    ),
    Mutant(
        name="an entry whose least value is the one looked for is skipped",
        path="bk_core/columns/where.py",
        old='        case "<=":\n            return low is None or low <= key\n',
        new='        case "<=":\n            return low is None or low < key\n',
        tests=(_READS + "test_rows_are_those_that_meet_all_conditions_and_few_entries_are_read",),
        breaks="rows are missing from the answer to a query",
    ),
)
