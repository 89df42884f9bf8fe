# SPDX-License-Identifier: Apache-2.0
"""Compares the frames that a scan of a segment found with the records of its ``.idx``, in numpy. The scrubber, the
offline check and the rebuilding of an index use it (RULES S2, S5, S7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bk_core.entries.frame import FrameKind
from bookie_server.storage.bytes.index_rows import I64, INDEX_ROW, RUN, Rows
from bookie_server.storage.bytes.scan import ScannedSegment
from bookie_server.storage.bytes.segment import FRAME_ALIGNMENT

Mask = npt.NDArray[np.bool_]


class FoundFrames:
    """The frames of entries that a scan found, for comparison with index records. It takes about 100 bytes for each
    frame besides the scan's 64; no Python code runs for each frame."""

    def __init__(self, scan: ScannedSegment) -> None:
        rows = np.frombuffer(scan.rows, INDEX_ROW)
        self.rows = rows = rows[np.lexsort((rows["offset"], rows["ledger"]))]
        """The frames' index records, sorted by ledger and offset."""
        by_offset = np.argsort(rows["offset"], kind="stable")
        self._position = by_offset.astype(np.int64)  # position in ``rows`` of each frame in order of offset
        self._offsets = rows["offset"][by_offset].astype(np.int64)
        self._ends = self._offsets + rows["size"][by_offset]
        breaks = np.ones(rows.size, dtype=bool)  # whether a frame does not continue the one before it
        if rows.size:
            breaks[1:] = (np.diff(rows["ledger"]) != 0) | (rows["first"][1:] != rows["last"][:-1] + 1)
        self._breaks = np.cumsum(breaks)
        # +1 where a record begins to name frames, −1 behind the last frame that it names
        self._named = np.zeros(rows.size + 1, dtype=np.int32)

    def confirm(self, records: Rows) -> Mask:
        """Return for each index record whether the frames that it names are exactly where it says, with its ids. For a
        run all frames must be there."""
        if not self.rows.size or not records.size:
            return np.zeros(records.size, dtype=bool)
        offsets = records["offset"].astype(np.int64)
        low, begins = _found(self._offsets, offsets)
        high, ends = _found(self._ends, offsets + records["size"])
        low, high = self._position[low], self._position[high]
        rows, is_run = self.rows, records["bits"] & RUN != 0
        right: Mask = begins & ends & (low <= high) & (is_run | (low == high))
        right &= self._breaks[low] == self._breaks[high]
        right &= (rows["ledger"][low] == records["ledger"]) & (rows["first"][low] == records["first"])
        right &= (rows["ledger"][high] == records["ledger"]) & (rows["last"][high] == records["last"])
        low, high = low[right], high[right]
        np.add.at(self._named, low, 1)
        np.add.at(self._named, high + 1, -1)
        return right

    def inside(self, runs: Rows) -> Mask:
        """Return which of :attr:`rows` lie in one of these runs, and so belong to it."""
        hit = np.zeros(self.rows.size, dtype=bool)
        ledgers, offsets = self.rows["ledger"], self.rows["offset"]
        for ledger_id, offset, size in runs[["ledger", "offset", "size"]].tolist():
            low, high = np.searchsorted(ledgers, ledger_id), np.searchsorted(ledgers, ledger_id, "right")
            begin, end = np.searchsorted(offsets[low:high], (offset, offset + size))
            hit[low + begin : low + end] = True
        return hit

    @property
    def unnamed(self) -> Mask:
        """A mask of the :attr:`rows` that no confirmed record has named so far."""
        named: Mask = np.cumsum(self._named)[:-1] == 0
        return named


def _found(values: I64, wanted: I64) -> tuple[I64, Mask]:
    """Return the position of each wanted value among ``values`` (sorted, not empty), and whether it is there."""
    at = np.minimum(np.searchsorted(values, wanted), values.size - 1)
    return at, values[at] == wanted


def bad_ranges(scan: ScannedSegment) -> list[tuple[int, int]]:
    """Return the offset and size of each damaged part."""
    ranges = [(offset, max(size, 1)) for offset, size, _ in scan.damage]
    return ranges + [(frame.place.offset, frame.place.size) for frame in scan.bad_frames]


def describe(scan: ScannedSegment) -> list[str]:
    """Return a line for each damaged part, without the segment's name."""
    lines = [f"{size} bytes at {offset}: {what}" for offset, size, what in scan.damage]
    for frame in scan.bad_frames:
        header = frame.header
        kind = f"a frame of {header.count} entries from {header.first_entry_id}"
        kind = kind if header.kind == FrameKind.ENTRIES else "a record"
        what = f"{kind} of ledger {header.ledger_id} has a bad payload"
        lines.append(f"{frame.place.size} bytes at {frame.place.offset}: {what}")
    return lines


def entries_lost(rows: Rows, ledgers_max: int = 3) -> str:
    """Return a text with the entries that these index records name."""
    ledgers = np.unique(rows["ledger"])
    own = [rows[rows["ledger"] == ledger_id] for ledger_id in ledgers[:ledgers_max]]
    parts = [f"entries {one['first'].min()} to {one['last'].max()} of ledger {one['ledger'][0]}" for one in own]
    more = [f"{ledgers.size - ledgers_max} ledgers more"] if ledgers.size > ledgers_max else []
    return ", ".join(parts + more)


def refused_words(scan: ScannedSegment) -> str:
    """Return the message about blocks that the disk refused."""
    return (
        f"the disk refused {scan.refused} reads of it (EIO), so what is there is not known: see the kernel's log; it "
        "may be readable again on a later try"
    )


def overlapping(rows: Rows, ranges: Sequence[tuple[int, int]]) -> Mask:
    """Return which records have bytes in one of the ranges."""
    hit = np.zeros(rows.size, dtype=bool)
    if not ranges:
        return hit
    begins = np.array(sorted(offset for offset, _ in ranges), dtype=np.int64)
    order = sorted(ranges)
    reach = np.maximum.accumulate(np.array([offset + size for offset, size in order], dtype=np.int64))
    offsets = rows["offset"].astype(np.int64)
    before = np.searchsorted(begins, offsets + rows["size"], "left")  # ranges that begin below the record's end
    hit[before > 0] = reach[before[before > 0] - 1] > offsets[before > 0]
    return hit


def names_damage(rows: Rows) -> Mask:
    """Return which records stand for entries that were lost earlier. Such a record has an offset at which no frame can
    be (``reindex.py``)."""
    is_lost: Mask = rows["offset"] % FRAME_ALIGNMENT != 0
    return is_lost
