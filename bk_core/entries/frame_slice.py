# SPDX-License-Identifier: Apache-2.0
"""Cuts frames out of frames, so that a bookie can answer a read of a few entries although it cannot digest them."""

from __future__ import annotations

import numpy as np

from bk_core.entries.apache import entry_lacs_of
from bk_core.entries.batch import I64, Bytes, EntryBatch, byte_view
from bk_core.entries.frame_extents import frame_extent
from bk_core.entries.frame_layout import (
    APACHE_BYTES,
    FRAME_HEADER_BYTES,
    LEDGER_LENGTHS,
    STRIPE_PREFIX,
    Columns,
    FrameHeader,
    FrameKind,
    assemble,
    check_frame,
    check_header,
    column_bytes,
    columns_of,
)


def slice_frame(buf: Bytes, first: int, last: int) -> Bytes | None:
    """A frame of the entries with ids ``first`` to ``last``, both inclusive; None if there are none.

    If that is all of them, returns the frame itself with its tag. Otherwise makes a new frame with tag 0 and new CRCs.
    It keeps the digests, by which the reader must verify each entry. The payload's CRC is checked only if the frame has
    no digests (DUMMY, APACHE_BYTES); header and columns are always checked. Raises IntegrityError if a check fails.
    """
    header = check_header(buf)
    extent = frame_extent(buf, header)
    if header.kind != FrameKind.ENTRIES or first > extent.last or last < extent.first or first > last:
        return None
    if first <= extent.first and extent.last <= last:
        return buf
    if header.digest_bytes == 0:
        check_frame(buf)
    columns = columns_of(header, buf)
    at = _positions(header, columns, first, last)
    if at is None:
        return None
    payload = byte_view(buf)[FRAME_HEADER_BYTES + header.columns_bytes :]
    whole = EntryBatch(lengths=columns.lengths, payload=payload)
    lengths = columns.lengths[at]
    header, columns = _with_ledger_lengths(header, columns)
    rest = [column_bytes(columns.digests[at], "u1")]
    rest += [column_bytes(numbers[at], "<i8") for numbers in columns[-3:] if numbers is not None]
    part = whole.slice(at.start, at.stop) if isinstance(at, slice) else whole.select(at)
    head, out = _sliced_head(header, columns, at, part, (first, last))
    return assemble((*head, int(lengths.size)), [*out, *rest], part.payload, 0)


def _with_ledger_lengths(header: FrameHeader, columns: Columns) -> tuple[FrameHeader, Columns]:
    """Adds the ledger length of each entry to a frame with listed ids: its entries may be taken from any place."""
    if columns.ids is None or columns.ledger_lengths is not None or header.flags & APACHE_BYTES:
        return header, columns
    ledger_lengths = header.length_before + np.cumsum(columns.lengths, dtype=np.int64)
    header = header._replace(flags=header.flags | LEDGER_LENGTHS)
    return header, columns._replace(ledger_lengths=ledger_lengths)


def _positions(header: FrameHeader, columns: Columns, first: int, last: int) -> slice | I64 | None:
    """The positions of the entries with ids ``first`` to ``last``; None if there are none."""
    low, high = max(first - header.first_entry_id, 0), min(last + 1 - header.first_entry_id, header.span)
    if columns.ids is not None:
        at = np.flatnonzero((columns.ids >= first) & (columns.ids <= last)).astype(np.int64, copy=False)
        return at if at.size else None
    if columns.present is not None:
        low, high = int(np.count_nonzero(columns.present[:low])), int(np.count_nonzero(columns.present[:high]))
    return slice(low, high) if low < high else None


def _sliced_head(
    header: FrameHeader, columns: Columns, at: slice | I64, part: EntryBatch, wanted: tuple[int, int]
) -> tuple[tuple[int, int, int, int, int, int, int], list[bytes]]:
    """The header fields of a slice without its count, and the columns before the digests."""
    first, lac, before, span_lengths = header.first_entry_id, header.lac, header.length_before, part.lengths
    out = []
    lac = lac if columns.lacs is None else int(columns.lacs[at].max())
    if columns.ids is not None:
        first = int(columns.ids[at].min())
    else:
        low, high = max(wanted[0] - first, 0), min(wanted[1] + 1 - first, header.span)
        span_lengths = columns.span_lengths[low:high]
        first += low
        before += int(columns.span_lengths[:low].sum()) if before >= 0 else 0
        if columns.stripe is not None:
            out.append(STRIPE_PREFIX.pack(*columns.stripe[:3], 0, high - low))
    if columns.ledger_lengths is not None:
        before = int(columns.ledger_lengths[at][0]) - int(part.lengths[0])
    if header.flags & APACHE_BYTES:
        lac = max(-1, int(entry_lacs_of(part.payload, part.offsets()).max()))
    head = (1, header.flags, header.digest_type, header.ledger_id, first, lac, before)
    return head, [*out, column_bytes(span_lengths, "<u4")]
