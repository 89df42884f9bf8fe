# SPDX-License-Identifier: Apache-2.0
"""Makes and checks frames of entries in Apache's layout. A bookie makes them from requests on Apache's wire.

docs/formats.md §1 defines frames. ``frame.py`` has the code that all kinds of frames share.
"""

from __future__ import annotations

import struct

import numpy as np

from bk_core.entries.apache import entry_headers_of
from bk_core.entries.batch import I64, U32, Bytes, byte_view
from bk_core.entries.digest import ENTRY_HEADER, crc32c
from bk_core.entries.frame import (
    APACHE_BYTES,
    APACHE_HEADER_BYTES,
    CHECKED_BYTES,
    DIGEST_NONE,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAME_VERSION,
    I64_MAX,
    FrameHeader,
    FrameKind,
    apache_frame,
    columns_of,
    refuse,
    refuse_size,
)
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX

_ENTRIES = int(FrameKind.ENTRIES)
# The part of the header of a one-entry frame that the header CRC covers: the first 8 bytes of the header as one number;
# ids, LAC and length before; the count of 1 and the 4 bytes of columns as one number; the payload's size; and the
# column with the entry's length.
_CHECKED_OF_ONE = struct.Struct("<QqqqqQII")
_BEGIN_OF_ONE = struct.unpack(
    "<Q", struct.pack("<HBBHBB", FRAME_MAGIC, FRAME_VERSION, _ENTRIES, APACHE_BYTES, DIGEST_NONE, 0)
)[0]
_COUNT_OF_ONE = 1 | 4 << 32
_HEAD_OF_ONE = struct.Struct(f"<{CHECKED_BYTES}sIIII")  # header and column
_new = tuple.__new__  # see ``frame.py``


def encode_apache(ledger_id: int, headers: I64, lengths: I64 | U32, entries: Bytes, *, session: int = 0) -> bytearray:
    """Return a frame that holds whole entries in Apache's layout unchanged. The caller need not know their digest type.
    ``entries`` holds them one after another, and ``headers`` the header of each, as :func:`entry_headers_of` returns
    it. Raises InvalidArgumentError for a frame over FRAME_BYTES_MAX."""
    return apache_frame(ledger_id, entries, lengths, headers[:, 1], int(headers[:, 2].max()), session)


def encode_apache_one(ledger_id: int, entry_id: int, entry: Bytes, session: int) -> tuple[FrameHeader, bytes] | None:
    """Do the same as :func:`encode_apache` for one entry, without numpy's fixed cost. Return the frame's parsed header
    and the frame, which passes every check. Return None if the ids inside the entry differ from ``ledger_id`` and
    ``entry_id``, or if the entry is too short to have ids."""
    size = len(entry)
    if size < APACHE_HEADER_BYTES:
        return None
    ledger_inside, entry_inside, lac, _ = ENTRY_HEADER.unpack_from(entry)
    if ledger_inside != ledger_id or entry_inside != entry_id or not 0 <= entry_id < I64_MAX or ledger_id < 0:
        return None
    if FRAME_HEADER_BYTES + 4 + size > FRAME_BYTES_MAX:
        refuse_size(FRAME_HEADER_BYTES + 4 + size)
    if lac < -1:
        lac = -1
    checked = _CHECKED_OF_ONE.pack(_BEGIN_OF_ONE, ledger_id, entry_id, lac, -1, _COUNT_OF_ONE, size, size)
    of_head, of_entry = crc32c(checked), crc32c(entry)
    fields = (_ENTRIES, APACHE_BYTES, DIGEST_NONE, ledger_id, entry_id, lac, -1, 1, 4, size, of_head, of_entry, session)
    return _new(FrameHeader, fields), _HEAD_OF_ONE.pack(checked, of_head, of_entry, session, size) + entry


def check_apache(header: FrameHeader, buf: Bytes) -> None:
    """Raise IntegrityError unless the header and columns of a frame with APACHE_BYTES agree with its entries about the
    ledger, the ids and the greatest LAC. The ids must be different. The frame has passed :func:`check_header`."""
    payload = byte_view(buf)[FRAME_HEADER_BYTES + header.columns_bytes :]
    if header.count == 1:  # the same as below, without numpy's fixed cost
        ledger_id, entry_id, lac = ENTRY_HEADER.unpack_from(payload)[:3]
        if (ledger_id, entry_id) != (header.ledger_id, header.first_entry_id):
            refuse("ledger or entry ids differ from those inside the entries", header)
        if max(-1, lac) != header.lac:
            refuse("its LAC is not the greatest that its entries carry", header)
        return
    columns = columns_of(header, buf)
    lengths = columns.lengths.astype(np.int64)
    inside = entry_headers_of(payload, lengths.cumsum() - lengths)
    ids = np.arange(header.first_entry_id, header.first_entry_id + header.count) if columns.ids is None else columns.ids
    if bool((inside[:, 0] != header.ledger_id).any()) or not np.array_equal(inside[:, 1], ids):
        refuse("ledger or entry ids differ from those inside the entries", header)
    if columns.ids is not None and np.unique(ids).size < ids.size:
        refuse("an entry id occurs twice", header)
    if max(-1, int(inside[:, 2].max())) != header.lac:
        refuse("its LAC is not the greatest that its entries carry", header)
