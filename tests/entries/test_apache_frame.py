# SPDX-License-Identifier: Apache-2.0
"""Frames of entries in Apache's layout: one made alone is as one of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.apache_frame import check_apache, encode_apache, encode_apache_one
from bk_core.entries.digest import ENTRY_HEADER
from bk_core.entries.frame import check_frame, parse_header
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX
from tests.kit.amount import examples


@examples(1)
@given(st.binary(max_size=30), st.integers(0, (1 << 63) - 2), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 9))
def test_an_apache_entry_alone_is_framed_as_in_a_batch_and_its_header_is_what_a_reader_parses(
    payload: bytes, entry_id: int, lac: int, session: int
) -> None:
    entry = ENTRY_HEADER.pack(3, entry_id, lac, 50) + payload
    made = encode_apache_one(3, entry_id, memoryview(entry), session)
    assert made is not None
    header, frame = made
    inside = np.array([ENTRY_HEADER.unpack_from(entry)])
    lengths = np.array([len(entry)], dtype=np.uint32)
    assert frame == encode_apache(3, inside, lengths, entry, session=session)
    assert header == parse_header(frame)
    check_frame(frame)
    check_apache(header, frame)


def test_an_apache_entry_that_says_other_ids_or_none_is_not_framed() -> None:
    entry = ENTRY_HEADER.pack(3, 5, 4, 50)
    assert encode_apache_one(3, 5, entry, 1) is not None
    for ledger_id, entry_id, body in ((4, 5, entry), (3, 6, entry), (3, 5, entry[:-1]), (3, 5, b"")):
        assert encode_apache_one(ledger_id, entry_id, body, 1) is None
    last = ENTRY_HEADER.pack(3, (1 << 63) - 1, 4, 50)
    assert encode_apache_one(3, (1 << 63) - 1, last, 1) is None
    with pytest.raises(InvalidArgumentError, match="a frame may have"):
        encode_apache_one(3, 5, entry + bytes(FRAME_BYTES_MAX), 1)
