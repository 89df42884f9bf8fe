# SPDX-License-Identifier: Apache-2.0
"""Computes which entry ids a frame holds, for a bookie's index, at the least cost for each kind of frame."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bk_core.entries.batch import I64, Bytes
from bk_core.entries.frame_layout import IDS, LACS, STRIPED, FrameHeader, FrameKind, columns_of, parse_header


class FrameExtent(NamedTuple):
    """What an index needs of a frame: the ``first`` and ``last`` id, whether every id between them is present
    (``dense``), and the greatest LAC."""

    first: int
    last: int
    dense: bool
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    max_lac: int


def frame_extent(buf: Bytes, header: FrameHeader | None = None) -> FrameExtent:
    """The extent of a checked frame; for a plain frame its header is enough. A record has the extent (−1, −1)."""
    header = parse_header(buf) if header is None else header
    flags, count, first = header.flags, header.count, header.first_entry_id
    if header.kind != FrameKind.ENTRIES:
        return FrameExtent(-1, -1, False, 0, -1)
    if not flags & (STRIPED | IDS | LACS):
        return FrameExtent(first, first + count - 1, True, count, header.lac)
    columns = columns_of(header, buf)
    last = first + count - 1
    dense = True
    if columns.stripe is not None:
        first, last = columns.stripe.extent(first)
        dense = last - first + 1 == count
    elif columns.ids is not None:
        first, last = int(columns.ids.min()), int(columns.ids.max())
        dense = last - first + 1 == count and bool((np.diff(np.sort(columns.ids)) == 1).all())
    lac = header.lac if columns.lacs is None else max(header.lac, int(columns.lacs.max()))
    return FrameExtent(first, last, dense, count, lac)


def entry_ids_of(header: FrameHeader, buf: Bytes) -> I64:
    """The id of each entry in a checked frame."""
    columns = columns_of(header, buf)
    if columns.ids is not None:
        return columns.ids
    if columns.present is not None:
        return header.first_entry_id + np.flatnonzero(columns.present)
    return np.arange(header.first_entry_id, header.first_entry_id + header.count, dtype=np.int64)
