# SPDX-License-Identifier: Apache-2.0
"""Rows of a segment's index as numpy columns: sorting, runs, sparse and summary records.

docs/formats.md §3.5 is the specification; ``index_file.py`` puts the rows into checked blocks. Only :func:`index_row`
runs Python for each frame; the commit side and the scanner call it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64 as I64
from bk_core.entries.batch import Bytes
from bk_core.entries.frame import BEYOND_HEADER, FRAME_HEADER_BYTES, IDS, STRIPED, FrameHeader, frame_extent
from bookie_server.storage.bytes.blocks import Rows as Rows
from bookie_server.storage.bytes.membership import Striping, striping_of
from bookie_server.storage.bytes.segment import LARGE_FRAME_BYTES
from bookie_server.storage.disk.files import BLOCK

DENSE, RUN, STRIPE = 1, 2, 4
"""The bits of an index record. DENSE: every id from first to last is present. RUN: the record stands for several small
frames. STRIPE: ``count`` encodes a striping."""
LAST_IS_RUN, LAC_IS_RUN = 1, 2
"""The bits of a summary record: whether the place of the last entry, or of the greatest LAC, is a run."""
RUN_BYTES_MAX = LARGE_FRAME_BYTES
RUN_GAP_MAX = BLOCK
"""The maximum number of bytes between two frames of a run, because a read of the run also reads these bytes."""
_STRIPE_BITS = 10
_STRIPE_MASK = (1 << _STRIPE_BITS) - 1

INDEX_ROW = np.dtype(
    [
        ("ledger", "<i8"), ("first", "<i8"), ("last", "<i8"), ("max_last", "<i8"), ("lac", "<i8"), ("offset", "<u8"),
        ("size", "<u4"), ("count", "<u4"), ("flags", "<u2"), ("digest_type", "u1"), ("bits", "u1"), ("zero", "<u4"),
    ]
)  # fmt: skip
SPARSE_ROW = np.dtype([("ledger", "<i8"), ("first", "<i8"), ("last_ledger", "<i8"), ("max_last", "<i8")])
SUMMARY_ROW = np.dtype(
    [
        ("ledger", "<i8"), ("first", "<i8"), ("last", "<i8"), ("lac", "<i8"), ("last_offset", "<u8"),
        ("lac_offset", "<u8"), ("bytes", "<u8"), ("last_size", "<u4"), ("lac_size", "<u4"), ("rows", "<u4"),
        ("bits", "<u4"),
    ]
)  # fmt: skip
_ROW = struct.Struct("<qqqqqQIIHBB4x")
assert (_ROW.size, INDEX_ROW.itemsize, SPARSE_ROW.itemsize, SUMMARY_ROW.itemsize) == (64, 64, 32, 72)


def index_row(frame: Bytes, header: FrameHeader, offset: int) -> bytes:
    """Return the index record of a checked frame of entries. ``sorted_rows`` fills in the running maximum."""
    _, flags, digest_type, ledger_id, first, lac, _, count, columns_bytes, payload_bytes, _, _, _ = header
    last, bits = first + count - 1, DENSE
    if flags & BEYOND_HEADER:
        first, last, dense, _, lac = frame_extent(frame, header)
        if not dense:
            bits, count = _sparse(count, striping_of(frame, header))
    size = FRAME_HEADER_BYTES + columns_bytes + payload_bytes
    return _ROW.pack(ledger_id, first, last, 0, lac, offset, size, count, flags, digest_type, bits)


def _sparse(count: int, striping: Striping | None) -> tuple[int, int]:
    """Return ``bits`` and ``count`` of a frame that lacks some ids. If it has no striping that fits into ``count``, the
    frame itself must be read to find its ids."""
    if striping is None or max(striping) > _STRIPE_MASK:
        return 0, count
    return STRIPE, striping.ensemble_size << 2 * _STRIPE_BITS | striping.write_quorum << _STRIPE_BITS | striping.index


def striping_of_count(count: int) -> Striping:
    """Return the striping in ``count`` of a record with the STRIPE bit."""
    return Striping(count >> 2 * _STRIPE_BITS, count >> _STRIPE_BITS & _STRIPE_MASK, count & _STRIPE_MASK)


def sorted_rows(rows: bytes | bytearray | Rows) -> Rows:
    """Return the index records sorted by ledger, first, last and offset, with the running maximum of last within each
    ledger."""
    array = np.frombuffer(rows, dtype=INDEX_ROW) if isinstance(rows, bytes | bytearray) else rows
    order = np.lexsort((array["offset"], array["last"], array["first"], array["ledger"]))
    array = array[order]
    if not array.size:
        return array
    # The running maximum must restart with each ledger: take it of (ledger's rank, rank of last), then map it back to
    # last.
    lasts, rank = np.unique(array["last"], return_inverse=True)
    ledger_rank = np.cumsum(np.concatenate(([0], np.diff(array["ledger"]) != 0)))
    peak = np.maximum.accumulate(ledger_rank * lasts.size + rank)
    array["max_last"] = lasts[peak - ledger_rank * lasts.size]
    return array


class JoinedRows(NamedTuple):
    """Index records with runs, and the total size of the frames of each."""

    rows: Rows
    frame_bytes: I64


def joined_rows(rows: Rows) -> JoinedRows:
    """Join adjacent small frames of a ledger into runs (RULES S7). ``rows`` come from :func:`sorted_rows`. Frames are
    joined only if they are adjacent both by id and by place, so that no other frame of the ledger lies inside a run."""
    sizes = rows["size"].astype(np.int64)
    if rows.size < 2:
        return JoinedRows(rows, sizes)
    offsets = rows["offset"].astype(np.int64)
    ends = offsets + sizes
    starts = np.flatnonzero(np.concatenate(([True], ~_joins(rows, offsets, ends, sizes))))
    tails = np.concatenate((starts[1:], [rows.size])) - 1
    joined = rows[starts]
    joined["last"], joined["max_last"] = rows["last"][tails], rows["max_last"][tails]
    joined["lac"] = np.maximum.reduceat(rows["lac"], starts)
    joined["size"] = ends[tails] - offsets[starts]
    several = tails > starts
    joined["count"] = np.where(several, np.add.reduceat(rows["count"], starts), joined["count"])
    joined["bits"] |= np.where(several, RUN, 0).astype(np.uint8)
    return JoinedRows(joined, np.add.reduceat(sizes, starts))


def _joins(rows: Rows, offsets: I64, ends: I64, sizes: I64) -> npt.NDArray[np.bool_]:
    """Return for each row but the first whether it joins the one before it."""
    rank = np.empty(rows.size, dtype=np.int64)
    rank[np.lexsort((offsets, rows["ledger"]))] = np.arange(rows.size)
    plain = (rows["bits"] == DENSE) & (rows["flags"] & (STRIPED | IDS) == 0)  # the header alone gives the ids
    small = plain & (sizes < LARGE_FRAME_BYTES)
    gaps = offsets[1:] - ends[:-1]
    joins: npt.NDArray[np.bool_] = small[1:] & small[:-1] & (np.diff(rank) == 1) & (gaps >= 0) & (gaps <= RUN_GAP_MAX)
    joins &= rows["first"][1:] == rows["last"][:-1] + 1
    for field in ("ledger", "flags", "digest_type"):
        joins &= rows[field][1:] == rows[field][:-1]
    # All frames of a run lie in one aligned window: this bounds the run's size without a loop over runs.
    joins &= offsets[:-1] // RUN_BYTES_MAX == (ends[1:] - 1) // RUN_BYTES_MAX
    return joins


def sparse_of(rows: Rows, records_per_block: int) -> Rows:
    """Return the sparse records: one for each block of the index section."""
    heads = np.arange(0, rows.size, records_per_block)
    tails = np.minimum(heads + records_per_block, rows.size) - 1
    sparse = np.zeros(heads.size, dtype=SPARSE_ROW)
    sparse["ledger"], sparse["first"] = rows["ledger"][heads], rows["first"][heads]
    sparse["last_ledger"], sparse["max_last"] = rows["ledger"][tails], rows["max_last"][tails]
    return sparse


def summary_of(rows: Rows, frame_bytes: I64 | None = None) -> Rows:
    """Return the summary: one record for each ledger. ``rows`` are index records with their runs; ``frame_bytes`` comes
    from :func:`joined_rows`. Without it the bytes between a run's frames count, too."""
    if not rows.size:
        return np.zeros(0, dtype=SUMMARY_ROW)
    sizes = rows["size"].astype(np.int64) if frame_bytes is None else frame_bytes
    order = np.argsort(rows["ledger"], kind="stable")
    ledgers = rows["ledger"][order]
    heads = np.flatnonzero(np.concatenate(([True], np.diff(ledgers) != 0)))
    tails = np.concatenate((heads[1:], [rows.size])) - 1
    summary = np.zeros(heads.size, dtype=SUMMARY_ROW)
    summary["ledger"] = ledgers[heads]
    summary["first"] = np.minimum.reduceat(rows["first"][order], heads)
    summary["bytes"] = np.add.reduceat(sizes[order], heads)
    summary["rows"] = tails - heads + 1
    for field, bit in (("last", LAST_IS_RUN), ("lac", LAC_IS_RUN)):
        top = np.lexsort((rows[field], rows["ledger"]))[tails]  # the row with the greatest of each
        summary[field], summary[f"{field}_offset"] = rows[field][top], rows["offset"][top]
        summary[f"{field}_size"] = rows["size"][top]
        summary["bits"] |= np.where(rows["bits"][top] & RUN, bit, 0).astype(np.uint32)
    return summary
