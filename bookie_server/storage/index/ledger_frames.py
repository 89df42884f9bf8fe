# SPDX-License-Identifier: Apache-2.0
"""Frames sorted by first id, in flat arrays that take 56 bytes a frame and have no object for each frame (RULES S2).

:class:`LedgerFrames` has the frames of a ledger in an unsealed segment, :class:`BlockFrames` those of one block of a
sealed segment's ``.idx``. ``_peaks[k]`` is the greatest last id among the ledger's frames up to k. It never decreases,
so bisection finds the first frame that can reach an id, and no frame before it matters. So every frame that could hold
an id is found without a search to the left.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from bk_core.entries.frame import FrameExtent
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_rows import DENSE, RUN, STRIPE, Rows, striping_of_count
from bookie_server.storage.bytes.intervals import IntervalSet
from bookie_server.storage.bytes.membership import Striping
from bookie_server.storage.index.search import DENSE_CODE, RUN_CODE, UNRESOLVED_CODE, Search, code_of

STRIDE = 4  # numbers of a row: generation, offset, size | code << 32, carried LAC
_ROW = struct.Struct(f"={STRIDE}q")
_ROW_BYTES = 8 * (3 + STRIDE)
_SIZE_MASK = (1 << 32) - 1
_FEW = 16  # rows
_new = tuple.__new__  # costs less than the constructor of a named tuple


def columns_of_rows(generation: int, index_rows: Rows) -> npt.NDArray[np.int64]:
    """Return the ``_rows`` column for index records of one segment: STRIDE numbers for each record."""
    bits = index_rows["bits"]
    code = np.where(bits & DENSE, DENSE_CODE, UNRESOLVED_CODE).astype(np.int64)
    code[bits & RUN != 0] = RUN_CODE
    striped = bits & STRIPE != 0
    for count in np.unique(index_rows["count"][striped]).tolist():
        code[striped & (index_rows["count"] == count)] = code_of(striping_of_count(count))
    rows = np.empty((index_rows.size, STRIDE), dtype=np.int64)
    rows[:, 0] = generation
    rows[:, 1] = index_rows["offset"]
    rows[:, 2] = index_rows["size"].astype(np.int64) | code << 32
    rows[:, 3] = index_rows["lac"]
    return rows


class _Frames:
    """The columns of frames, and the search in them."""

    __slots__ = ("_firsts", "_lasts", "_peaks", "_rows")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        self._peaks = array("q")
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    def place(self, k: int, ledger_id: int) -> Place:
        generation, offset, packed = self._rows[k * STRIDE : k * STRIDE + 3]
        run_of = ledger_id if packed >> 32 == RUN_CODE else -1
        return _new(Place, (generation, offset, packed & _SIZE_MASK, run_of))

    def _candidates(self, search: Search, start: int, stop: int) -> None:
        """Give the search every frame among rows start to stop, which are of one ledger, that may hold an id from
        ``search.first`` to ``search.through``, which this may lower."""
        firsts, lasts, rows = self._firsts, self._lasts, self._rows
        first = search.first
        low = bisect_left(self._peaks, first, start, stop)
        end = bisect_right(firsts, search.through, start, stop)
        cut = min(end, max(low + search.frames_max, bisect_right(firsts, first, start, stop)))
        if cut < end:
            search.cut(firsts[cut] - 1)
        for k in range(low, cut):
            begin = firsts[k]
            if begin > search.through or search.is_full:
                break
            if begin > first and search.has_enough:
                search.cut(begin - 1)
                break
            if lasts[k] >= first:
                packed = rows[k * STRIDE + 2]
                search.bytes += packed & _SIZE_MASK
                search.take(begin, lasts[k], packed >> 32, self, k)


class BlockFrames(_Frames):
    """The frames in one block of the index section of an ``.idx``, of one or several ledgers. ``edition`` is that of
    the file."""

    __slots__ = ("_ledgers", "edition")

    def __init__(self, generation: int, index_rows: Rows, edition: int = 0) -> None:
        super().__init__()
        self.edition = edition
        self._ledgers = column(index_rows["ledger"])
        self._firsts = column(index_rows["first"])
        self._lasts = column(index_rows["last"])
        self._peaks = column(index_rows["max_last"])
        self._rows = column(columns_of_rows(generation, index_rows))

    def candidates(self, search: Search) -> None:
        """Give the search the frames of its ledger, as :meth:`LedgerFrames.candidates` does."""
        start = bisect_left(self._ledgers, search.ledger_id)
        self._candidates(search, start, bisect_right(self._ledgers, search.ledger_id, start))

    def memory_bytes(self) -> int:
        return 512 + len(self._firsts) * (_ROW_BYTES + 8)


class LedgerFrames(_Frames):
    """The frames of one ledger in one unsealed segment."""

    __slots__ = ("_lac_row", "lac", "lost")

    def __init__(self) -> None:
        super().__init__()
        self.lac = -1
        """The greatest LAC that a frame here carries, or −1."""
        self._lac_row = -1  # the row of a frame that carries it; −1: none
        self.lost: IntervalSet | None = None
        """The ids of damaged frames; None: there are none."""

    # --- filling ----------------------------------------------------------------------------------------------------

    def add(self, extent: FrameExtent, place: Place, striping: Striping | None) -> None:
        """Add a frame. It is appended in the usual case of ascending ids, otherwise inserted."""
        first, last, dense, _, lac = extent
        generation, offset, size, _ = place
        code = DENSE_CODE if dense else UNRESOLVED_CODE if striping is None else code_of(striping)
        row = _ROW.pack(generation, offset, size | code << 32, lac)
        firsts, peaks = self._firsts, self._peaks
        if not firsts or firsts[-1] <= first:
            if lac > self.lac:
                self.lac, self._lac_row = lac, len(firsts)
            peaks.append(peaks[-1] if peaks and peaks[-1] > last else last)
            firsts.append(first)
            self._lasts.append(last)
            self._rows.frombytes(row)
            return
        at = bisect_right(firsts, first)
        firsts.insert(at, first)
        self._lasts.insert(at, last)
        self._rows[at * STRIDE : at * STRIDE] = array("q", row)  # of its bytes
        self._peaks.append(0)
        self._rebuild()

    def add_many(self, firsts: array[int], lasts: array[int], rows: array[int]) -> None:
        """Add frames of one segment, all of this ledger and sorted by first id. ``rows`` comes from
        :func:`columns_of_rows`."""
        ordered = not self._firsts or self._firsts[-1] <= firsts[0]
        before = len(self._firsts)
        self._firsts += firsts
        self._lasts += lasts
        self._rows += rows
        if ordered and len(firsts) <= _FEW:
            self._append_peaks(before, lasts, rows)
            return
        self._peaks += lasts
        if not ordered:
            order = np.argsort(np.frombuffer(self._firsts, dtype=np.int64), kind="stable")
            self._firsts = _taken(self._firsts, order, 1)
            self._lasts = _taken(self._lasts, order, 1)
            self._rows = _taken(self._rows, order, STRIDE)
        self._rebuild()

    def _append_peaks(self, before: int, lasts: array[int], rows: array[int]) -> None:
        """Extend the peaks and the LAC for a few appended rows, for which numpy's calls would cost more than this
        loop."""
        peak = self._peaks[-1] if self._peaks else -1
        for k, last in enumerate(lasts):
            peak = max(peak, last)
            self._peaks.append(peak)
            if rows[k * STRIDE + 3] > self.lac:
                self.lac, self._lac_row = rows[k * STRIDE + 3], before + k

    def _rebuild(self) -> None:
        peaks = np.frombuffer(self._peaks, dtype=np.int64)
        np.maximum.accumulate(np.frombuffer(self._lasts, dtype=np.int64), out=peaks)
        self.lac, self._lac_row = -1, -1
        lacs = np.frombuffer(self._rows, dtype=np.int64)[3::STRIDE]
        if lacs.size:
            k = int(lacs.argmax())
            if lacs[k] >= 0:
                self.lac, self._lac_row = int(lacs[k]), k

    def remove(self, place: Place) -> bool:
        """Remove the damaged frame at ``place``. Its ids are lost unless another frame holds them. Return False if it
        is not here."""
        k = self._find(place)
        if k is None:
            return False
        if self.lost is None:
            self.lost = IntervalSet()
        self.lost.add(self._firsts[k], self._lasts[k])
        del self._firsts[k], self._lasts[k], self._peaks[k]
        del self._rows[k * STRIDE : (k + 1) * STRIDE]
        self._rebuild()
        return True

    def learn(self, place: Place, striping: Striping) -> None:
        """Note the striping of the frame at ``place``, which was read."""
        k = self._find(place)
        if k is not None:
            self._rows[k * STRIDE + 2] = place.size | code_of(striping) << 32

    def _find(self, place: Place) -> int | None:
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, STRIDE)
        found = np.flatnonzero(rows[:, 1] == place.offset)
        return int(found[0]) if found.size else None

    # --- look-ups -----------------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The least first id; there must be a frame."""
        return self._firsts[0]

    @property
    def peak(self) -> int:
        """The greatest last id; there must be a frame."""
        return self._peaks[-1]

    def dense_over(self, first: int, last: int) -> int | None:
        """Return a row whose frame holds all ids from ``first`` to ``last``, if bisection alone finds one, or None.
        Bisection alone is enough for most reads."""
        k = bisect_right(self._firsts, first) - 1
        if k < 0 or self._lasts[k] < last:
            return None
        return k if self._rows[k * STRIDE + 2] >> 32 < UNRESOLVED_CODE else None

    def candidates(self, search: Search) -> None:
        """Give the search every frame that may hold an id from its first to its ``through``, which this may lower."""
        self._candidates(search, 0, len(self._firsts))

    def last(self, ledger_id: int) -> tuple[int, Place | None]:
        """Return the greatest id, and a frame that ends with it. Return −1 and None if there is no frame."""
        if not self._peaks:
            return -1, None
        k = bisect_left(self._peaks, self._peaks[-1])
        return self._lasts[k], self.place(k, ledger_id)

    def carried_lac(self, ledger_id: int) -> tuple[int, Place | None]:
        """Return the greatest LAC that a frame carries, and that frame. Return −1 and None if no frame carries a
        LAC."""
        return self.lac, self.place(self._lac_row, ledger_id) if self._lac_row >= 0 else None

    def has_copy(self, first: int, last: int, size: int) -> bool:
        """Return whether a frame of these bounds and this size is here."""
        for k in range(bisect_left(self._firsts, first), bisect_right(self._firsts, first)):
            if self._lasts[k] == last and self._rows[k * STRIDE + 2] & _SIZE_MASK == size:
                return True
        return False

    def memory_bytes(self) -> int:
        return len(self._firsts) * _ROW_BYTES


def column(values: npt.NDArray[np.int64]) -> array[int]:
    """Convert values to a flat array, because bisecting it takes a fraction of the time that a numpy array takes."""
    return array("q", np.ascontiguousarray(values, dtype=np.int64).tobytes())


def _taken(values: array[int], order: npt.NDArray[np.int64], width: int) -> array[int]:
    taken = np.frombuffer(values, dtype=np.int64).reshape(-1, width)[order]
    return array("q", taken.tobytes())
