# SPDX-License-Identifier: Apache-2.0
"""The summaries of sealed segments, in memory: which segments hold frames of a ledger, and where its last entry is in
each.

Rows are sorted by ledger, in chunks of numpy columns, with about 90 bytes for a ledger in a segment. Summaries that are
added together (at a start) are merged together, at the next look-up. One thread, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_rows import I64, LAC_IS_RUN, LAST_IS_RUN, SUMMARY_ROW, Rows

_CHUNK_ROWS = 512
_TOPS_MAX = 16  # segments considered for the last entry; more would be needed only if the top ones are damaged
_LACS_MAX = 1024  # ledgers whose greatest LAC is remembered
_REACHES_MAX = 64  # ledgers whose segments are remembered, with about 200 bytes for each segment
_ROW = np.dtype(
    [
        ("generation", "<i8"), ("first", "<i8"), ("last", "<i8"), ("lac", "<i8"), ("last_offset", "<i8"),
        ("lac_offset", "<i8"), ("bytes", "<i8"), ("last_size", "<u4"), ("lac_size", "<u4"), ("bits", "<u8"),
    ]
)  # fmt: skip
_first_of = attrgetter("first")
_SHARED = [name for name in _ROW.names or () if name != "generation"]


class Reach(NamedTuple):
    """A sealed segment that may hold ids of a ledger from first to last."""

    first: int
    last: int
    generation: int


class _Reaches(NamedTuple):
    """The segments with frames of one ledger, sorted by first id, and the greatest last id up to each of them."""

    sorted: list[Reach]
    peaks: list[int]


@dataclass(slots=True, eq=False)
class _Chunk:
    ledgers: I64
    rows: Rows


class SegmentDirectory:
    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._starts: list[int] = []  # first ledger of each chunk
        self._pending: list[tuple[I64, Rows]] = []
        self._ledgers_of: dict[int, I64] = {}
        self._live: dict[int, int] = {}
        self._lacs: dict[int, int] = {}
        self._reaches: dict[int, _Reaches] = {}

    # --- filling ----------------------------------------------------------------------------------------------------

    def add_segment(self, generation: int, summary: Rows) -> None:
        """Add the summary of a sealed segment, sorted by ledger. It replaces an earlier one of this generation."""
        self.drop_segment(generation)
        self._forget_remembered()
        rows = np.empty(summary.size, dtype=_ROW)
        rows["generation"] = generation
        for name in _SHARED:
            rows[name] = summary[name]
        ledgers = np.ascontiguousarray(summary["ledger"], dtype=np.int64)
        self._ledgers_of[generation] = ledgers
        self._live[generation] = int(rows["bytes"].sum())
        if rows.size:
            self._pending.append((ledgers, rows))

    def drop_segment(self, generation: int) -> None:
        """Remove a segment's summary. Ignored if there is none."""
        ledgers = self._ledgers_of.pop(generation, None)
        if ledgers is None:
            return
        self._forget_remembered()
        self._settle()
        del self._live[generation]
        for k in reversed(self._chunks_of(ledgers)):
            self._keep(k, self._chunks[k].rows["generation"] != generation)

    def forget(self, ledger_id: int, through: int | None = None) -> None:
        """Remove a deleted ledger from all segments. With ``through`` remove it only from segments up to this
        generation."""
        self._lacs.pop(ledger_id, None)
        self._reaches.pop(ledger_id, None)
        self._settle()
        for k in reversed(self._chunks_with(ledger_id)):
            chunk = self._chunks[k]
            gone = chunk.ledgers == ledger_id
            if through is not None:
                gone &= chunk.rows["generation"] <= through
            for generation, size in chunk.rows[gone][["generation", "bytes"]].tolist():
                self._live[generation] -= size
            self._keep(k, ~gone)

    def has(self, ledger_id: int) -> bool:
        """Return whether a segment holds anything of the ledger."""
        self._settle()
        return any((self._chunks[k].ledgers == ledger_id).any() for k in self._chunks_with(ledger_id))

    def _chunks_with(self, ledger_id: int) -> range:
        """Return the numbers of the chunks that may have the ledger."""
        return range(max(bisect_left(self._starts, ledger_id) - 1, 0), bisect_right(self._starts, ledger_id))

    def _chunks_of(self, ledgers: I64) -> list[int]:
        """Return the numbers of the chunks that may have any of these sorted ledgers."""
        starts = np.array(self._starts, dtype=np.int64)
        ends = np.concatenate((starts[1:], [np.iinfo(np.int64).max]))  # a ledger may continue in the next chunk
        low, high = np.searchsorted(ledgers, starts, "left"), np.searchsorted(ledgers, ends[: starts.size], "right")
        return [int(k) for k in np.flatnonzero(low < high)]

    def _keep(self, k: int, keep: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        """Remove rows from a chunk. The rest of a small chunk moves to the chunk before it."""
        if keep.all():
            return
        chunk = self._chunks[k]
        ledgers, rows = chunk.ledgers[keep], chunk.rows[keep]
        before = self._chunks[k - 1] if k else None
        if before is not None and before.ledgers.size + ledgers.size <= _CHUNK_ROWS // 2:
            before.ledgers, before.rows = np.concatenate((before.ledgers, ledgers)), np.concatenate((before.rows, rows))
            ledgers = ledgers[:0]
        if ledgers.size:
            chunk.ledgers, chunk.rows, self._starts[k] = ledgers, rows, int(ledgers[0])
        else:
            del self._chunks[k], self._starts[k]

    def _set(self, chunks: list[_Chunk]) -> None:
        self._chunks = chunks
        self._starts = [int(chunk.ledgers[0]) for chunk in chunks]

    def _settle(self) -> None:
        """Merge the summaries that were added since the last look-up. Only the chunks that change are rebuilt."""
        if not self._pending:
            return
        ledgers = np.concatenate([ledgers for ledgers, _ in self._pending])
        rows = np.concatenate([rows for _, rows in self._pending])
        self._pending.clear()
        order = np.argsort(ledgers, kind="stable")
        ledgers, rows = ledgers[order], rows[order]
        if not self._chunks:
            self._set(_cut(ledgers, rows))
            return
        cuts = np.searchsorted(ledgers, np.array(self._starts[1:], dtype=np.int64), "left").tolist()
        chunks: list[_Chunk] = []
        for chunk, low, high in zip(self._chunks, [0, *cuts], [*cuts, ledgers.size], strict=True):
            if low == high:
                chunks.append(chunk)
                continue
            at = chunk.ledgers.searchsorted(ledgers[low:high], "right")
            grown = np.insert(chunk.ledgers, at, ledgers[low:high]), np.insert(chunk.rows, at, rows[low:high])
            chunks += _cut(*grown)
        self._set(chunks)

    # --- look-ups -----------------------------------------------------------------------------------------------------

    def _rows_of(self, ledger_id: int) -> Rows | None:
        self._settle()
        parts: list[Rows] = []
        for k in self._chunks_with(ledger_id):
            chunk = self._chunks[k]
            low, high = chunk.ledgers.searchsorted(ledger_id), chunk.ledgers.searchsorted(ledger_id, "right")
            if low < high:
                parts.append(chunk.rows[low:high])
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def reaching(self, ledger_id: int, first: int, last: int, segments_max: int) -> tuple[list[Reach], int]:
        """Return the segments that may hold ids from first to last, sorted by first id: all that reach ``first``, and
        at most ``segments_max`` that begin above it. Also return the id up to which this list is complete."""
        reaches, peaks = self._reaches.get(ledger_id) or self._remember_reaches(ledger_id)
        low, end = bisect_left(peaks, first), bisect_right(reaches, last, key=_first_of)
        keep = bisect_right(reaches, first, key=_first_of) + segments_max
        through = min(last, reaches[keep].first - 1) if keep < end else last
        found = reaches[low : min(keep, end)]
        return [reach for reach in found if reach.last >= first and reach.first <= through], through

    def _remember_reaches(self, ledger_id: int) -> _Reaches:
        """Return the segments of a ledger. They are remembered until the summaries change, because sorting them takes
        as long as the rest of a look-up."""
        rows = self._rows_of(ledger_id)
        if rows is None:
            return _Reaches([], [])
        if len(self._reaches) >= _REACHES_MAX:
            self._reaches.clear()
        reaches = sorted(Reach(*bound) for bound in rows[["first", "last", "generation"]].tolist())
        found = self._reaches[ledger_id] = _Reaches(reaches, list(accumulate((each.last for each in reaches), max)))
        return found

    def _forget_remembered(self) -> None:
        self._lacs.clear()
        self._reaches.clear()

    def tops(self, ledger_id: int) -> list[tuple[int, Place]]:
        """Return the greatest last ids and their places, one for each segment, greatest first."""
        return self._tops(ledger_id, "last", LAST_IS_RUN)

    def lacs(self, ledger_id: int) -> list[tuple[int, Place]]:
        """Return the greatest carried LACs that are 0 or more, and their places, one for each segment, greatest
        first."""
        return [(lac, place) for lac, place in self._tops(ledger_id, "lac", LAC_IS_RUN) if lac >= 0]

    def _tops(self, ledger_id: int, field: str, bit: int) -> list[tuple[int, Place]]:
        rows = self._rows_of(ledger_id)
        if rows is None:
            return []
        if rows.size > 1:
            if rows.size > 4 * _TOPS_MAX:
                rows = rows[np.argpartition(-rows[field], _TOPS_MAX)[:_TOPS_MAX]]
            rows = rows[np.argsort(-rows[field], kind="stable")[:_TOPS_MAX]]
        names = [field, "generation", f"{field}_offset", f"{field}_size", "bits"]
        return [
            (value, Place(generation, offset, size, ledger_id if bits & bit else -1))
            for value, generation, offset, size, bits in rows[names].tolist()
        ]

    def greatest_lac(self, ledger_id: int) -> int:
        """Return the greatest carried LAC, or −1 if there is none. It is remembered until the summaries change."""
        lac = self._lacs.get(ledger_id)
        if lac is None:
            rows = self._rows_of(ledger_id)
            if len(self._lacs) >= _LACS_MAX:
                self._lacs.clear()
            lac = self._lacs[ledger_id] = -1 if rows is None else max(-1, int(rows["lac"].max()))
        return lac

    def has_only(self, ledger_id: int, first: int, last: int, size: int, above: int) -> bool:
        """Return whether a segment of a greater generation than ``above`` is known to hold a frame of these bounds.
        That is known only if the segment holds nothing else of the ledger, so False does not mean that there is no such
        frame."""
        rows = self._rows_of(ledger_id)
        if rows is None:
            return False
        same = (rows["first"] == first) & (rows["last"] == last) & (rows["last_size"] == size)
        same &= (rows["bits"] & LAST_IS_RUN == 0) & (rows["bytes"] == size) & (rows["generation"] > above)
        return bool(same.any())

    def __contains__(self, generation: int) -> bool:
        return generation in self._ledgers_of

    def generations(self) -> list[int]:
        return sorted(self._ledgers_of)

    def ledgers_in(self, generation: int) -> I64:
        """Return the ledgers that have frames in the segment, sorted, without those that were removed since."""
        self._settle()
        wanted = self._ledgers_of[generation]
        chunks = [self._chunks[k] for k in self._chunks_of(wanted)]
        here = [chunk.ledgers[chunk.rows["generation"] == generation] for chunk in chunks]
        return np.concatenate(here) if here else wanted[:0]

    def summary(self, generation: int) -> Rows:
        """Return ledger, first, last and bytes of the frames that a segment may still serve, sorted by ledger."""
        self._settle()
        parts = [np.zeros(0, dtype=SUMMARY_ROW)]
        for k in self._chunks_of(self._ledgers_of[generation]):
            chunk = self._chunks[k]
            here = chunk.rows["generation"] == generation
            part = np.zeros(int(np.count_nonzero(here)), dtype=SUMMARY_ROW)
            part["ledger"] = chunk.ledgers[here]
            for name in ("first", "last", "bytes"):
                part[name] = chunk.rows[name][here]
            parts.append(part)
        return np.concatenate(parts)

    def live_bytes(self) -> dict[int, int]:
        """Return for each segment the bytes of frames that may still be served."""
        return dict(self._live)

    def memory_bytes(self) -> int:
        self._settle()
        rows = sum(chunk.ledgers.size for chunk in self._chunks)
        return rows * (_ROW.itemsize + 8) + 400 * len(self._chunks) + 8 * sum(g.size for g in self._ledgers_of.values())

    def __len__(self) -> int:
        """Return the number of rows."""
        self._settle()
        return sum(chunk.ledgers.size for chunk in self._chunks)


def _cut(ledgers: I64, rows: Rows) -> list[_Chunk]:
    """Make chunks of sorted rows. Rows beyond the bound become two or more chunks, with room to grow."""
    if ledgers.size <= _CHUNK_ROWS:
        return [_Chunk(ledgers, rows)]
    step = _CHUNK_ROWS * 3 // 4
    return [_Chunk(ledgers[at : at + step].copy(), rows[at : at + step].copy()) for at in range(0, ledgers.size, step)]


assert set(_SHARED) <= set(SUMMARY_ROW.names or ())
