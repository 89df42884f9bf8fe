# SPDX-License-Identifier: Apache-2.0
"""Parts of extents: what a read of some offsets covers, and how large it is."""

from __future__ import annotations

from bk_core.logs.model.head import Extent
from bk_core.logs.reading import BYTES_MAX, ExtentPart, parts_of

SEALED = Extent(ledger_id=1, entry_count=10, size_bytes=1_005, base_offset=100, first_entry_id=3)
OPEN = Extent(ledger_id=2, base_offset=110, is_open=True)


def test_a_part_of_an_extent_has_its_share_of_the_bytes() -> None:
    assert ExtentPart(SEALED, 100, 110).bytes == 1_005
    assert ExtentPart(SEALED, 100, 101).bytes == 100
    assert ExtentPart(SEALED, 102, 109).bytes == 703
    assert ExtentPart(SEALED, 100, 110).entry_bytes == 100
    assert ExtentPart(SEALED, 100, 110).shift == 97


def test_an_open_extent_counts_as_large_and_says_nothing_about_its_entries() -> None:
    assert ExtentPart(OPEN, 110, 120).bytes == BYTES_MAX
    assert ExtentPart(OPEN, 110, 120).entry_bytes == 0


def test_a_read_covers_the_wanted_offsets_of_each_extent_and_nothing_else() -> None:
    extents = [SEALED, OPEN]
    assert parts_of(extents, 100, 115) == [ExtentPart(SEALED, 100, 110), ExtentPart(OPEN, 110, 115)]
    assert parts_of(extents, 104, 105) == [ExtentPart(SEALED, 104, 105)]
    assert parts_of(extents, 110, 111) == [ExtentPart(OPEN, 110, 111)]
    assert parts_of(extents, 110, 110) == []
    assert parts_of(extents, 109, 110) == [ExtentPart(SEALED, 109, 110)]
