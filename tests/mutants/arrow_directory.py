# SPDX-License-Identifier: Apache-2.0
"""Defects of entries of codec arrow: their directories, bounds and checks, and of frames with reserved flags."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PURE = "tests/entries/test_arrow_directory.py::"
_ENTRIES = "tests/columns/test_arrow_entries.py::"
_BOUNDS = _ENTRIES + "test_no_value_is_outside_of_its_columns_bounds"
_FLIP = _ENTRIES + "test_a_flipped_byte_is_noticed_by_who_reads_its_region"
_OUTWARD = _PURE + "test_bounds_are_outward_and_as_near_as_their_length_allows"
_COMBINED = _PURE + "test_regions_cover_the_entry_and_their_checksums_make_its_digest"
_DIRECTORY, _WRITE, _READ = (
    "bk_core/entries/arrow_directory.py",
    "bk_core/columns/arrow_entries.py",
    "bk_core/columns/arrow_rows.py",
)

MUTANTS = (
    # --- regions and checksums ---
    Mutant(
        name="regions may leave a rest of the entry uncovered",
        path=_DIRECTORY,
        old="if offsets[-1] != entry_bytes or",
        new="if offsets[-1] > entry_bytes or",
        tests=(_PURE + "test_every_cut_and_every_extra_byte_is_refused",),
        breaks="bytes that no checksum covers, in an entry that is called checked",
    ),
    Mutant(
        name="a directory is not checked",
        path=_DIRECTORY,
        old="    if crc32c(whole[_CRC_AT + 4 :], crc32c(whole[:_CRC_AT])) != crc:\n",
        new="    if False:\n",
        tests=(_PURE + "test_every_flipped_bit_is_noticed_by_the_check_of_its_region",),
        breaks="an entry is skipped for a bound with a flipped bit",
    ),
    Mutant(
        name="a column's checksum is not compared",
        path=_DIRECTORY,
        old="len(region) != self.columns[k].size or crc32c(region) != self.columns[k].crc",
        new="len(region) != self.columns[k].size",
        tests=(_PURE + "test_every_flipped_bit_is_noticed_by_the_check_of_its_region",),
        breaks="wrong values, once only some columns are fetched",
    ),
    Mutant(
        name="the message's head is not checked",
        path=_DIRECTORY,
        old="len(region) != self.offsets[0] - self.size or crc32c(region) != self.head_crc",
        new="len(region) != self.offsets[0] - self.size",
        tests=(_PURE + "test_every_flipped_bit_is_noticed_by_the_check_of_its_region",),
        breaks="buffers are taken from wrong places of a column",
    ),
    Mutant(
        name="a reader checks no column",
        path=_READ,
        old="        directory.check_column(k, region)\n",
        new="",
        tests=(_FLIP,),
        breaks="wrong values, once only some columns are fetched",
    ),
    Mutant(
        name="a reader checks no head",
        path=_READ,
        old="        directory.check_head(head)\n",
        new="",
        tests=(_FLIP,),
        breaks="buffers are taken from wrong places of a column",
    ),
    Mutant(
        name="a buffer may lie in another column",
        path=_READ,
        old="if any(offset < start or size < 0 or offset + size > stop for",
        new="if any(offset < 0 or size < 0 or offset + size > len(body) for",
        tests=(_ENTRIES + "test_a_buffer_that_points_into_another_column_is_corrupt",),
        breaks="a column is checked and another one's bytes are its values",
    ),
    Mutant(
        name="pieces are combined as if each were the last",
        path="bk_core/entries/gf2.py",
        old="behind = int(lengths.sum()) - np.cumsum(lengths)",
        new="behind = np.zeros_like(lengths)",
        tests=(_COMBINED,),
        breaks="no part of an entry can be bound to its ledger and id",
    ),
    Mutant(
        name="the directory itself is left out of the combination",
        path=_DIRECTORY,
        old="crcs = np.array([self.crc, self.head_crc,",
        new="crcs = np.array([0, self.head_crc,",
        tests=(_COMBINED,),
        breaks="the directory of another entry is taken for this one's",
    ),
    # --- bounds ---
    Mutant(
        name="a long greatest value is cut and not raised",
        path=_DIRECTORY,
        old="high, bits = high[:-1] + bytes([high[-1] + 1]), bits | MAX_RAISED",
        new="high, bits = high, bits | MAX_RAISED",
        tests=(_OUTWARD,),
        breaks="a query skips entries that hold its rows",
    ),
    Mutant(
        name="a greatest value that cannot be raised is taken as it is",
        path=_DIRECTORY,
        old="            return Bounds(low, None, bits)\n",
        new="            return Bounds(low, greatest[:BOUND_BYTES_MAX], bits | HAS_MAX)\n",
        tests=(_PURE + "test_a_greatest_value_is_cut_and_raised",),
        breaks="a query skips entries that hold its rows",
    ),
    Mutant(
        name="a byte over the longest bound is not seen",
        path=_WRITE,
        old="bytes(greatest[: BOUND_BYTES_MAX + 1]))",
        new="bytes(greatest[:BOUND_BYTES_MAX]))",
        tests=(_ENTRIES + "test_text_and_bytes_at_the_longest_bound",),
        breaks="a query skips entries that hold its rows",
    ),
    Mutant(
        name="columns with a NaN have bounds",
        path=_WRITE,
        old="    if np.isnan(low):",
        new="    if False:",
        tests=(_ENTRIES + "test_where_one_value_is_nan_nothing_is_said",),
        breaks="a query for NaN, which Spark finds greater than all else, skips entries that have one",
    ),
    Mutant(
        name="nulls count as values",
        path=_WRITE,
        old="return find(column.drop_null() if nulls else column)",
        new="return find(column)",
        tests=(_BOUNDS,),
        breaks="bounds too wide, made of whatever lies under a null",
    ),
    Mutant(
        name="decimals are compared by their lower half as with a sign",
        path=_WRITE,
        old="least, greatest = lower[upper == low].min(), lower[upper == high].max()",
        new="lower = lower.view(_I64)\n    least, greatest = lower[upper == low].min(), lower[upper == high].max()",
        tests=(_ENTRIES + "test_decimals_that_differ_in_their_lower_half_have_right_bounds",),
        breaks="a query skips entries that hold its rows",
    ),
    Mutant(
        name="values of a slice are those of its whole",
        path=_WRITE,
        old="start, stop = each * column.offset, each * (column.offset + len(column))",
        new="start, stop = 0, each * len(column)",
        tests=(_BOUNDS,),
        breaks="bounds of other rows: a query skips entries that hold its rows",
    ),
    Mutant(
        name="a zero bound has the sign it was found with",
        path=_WRITE,
        old="(-abs(low) if low == 0 else low).tobytes()",
        new="low.tobytes()",
        tests=(_ENTRIES + "test_a_zero_bound_has_the_sign_that_is_outside",),
        breaks="readers that order floats by their bits skip entries that hold −0.0",
    ),
    # --- where bytes are ---
    Mutant(
        name="buffers that are not compressed lie anywhere",
        path=_WRITE,
        old="padding = -size % BUFFER_UNIT",
        new="padding = -size % 8",
        tests=(_ENTRIES + "test_buffers_that_are_not_compressed_lie_where_they_can_be_used",),
        breaks="readers copy each buffer that they could have used in place",
    ),
    # --- frames ---
    Mutant(
        name="partial frames are taken",
        path="bk_core/entries/frame.py",
        old="    if flags & ~flags_known:\n",
        new="    if flags & ~(flags_known | PARTIAL):\n",
        tests=("tests/entries/test_parts.py::test_nobody_else_takes_a_frame_of_parts",),
        breaks="recovery writes back what a bookie left out as if it were the entry",
    ),
)
