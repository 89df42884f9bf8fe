# SPDX-License-Identifier: Apache-2.0
"""The frames of one ledger, sorted by first id, in flat arrays: 64 bytes a frame, no object per frame (RULES S2).

``_peaks[k]`` is the greatest last id among frames 0 to k. It never falls, so the first frame that can reach an id is
found by bisection, and everything before it is out of the question: that is the walk to the left of RULES S2 at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bk_core.entries.frame import FrameExtent
from bookie_server.storage.index_file import DENSE, Rows
from bookie_server.storage.membership import Frame, Membership, Striping
from bookie_server.storage.segment import Place

_STRIDE = 5  # generation, offset, size | membership code << 32, counter, LAC carried
_ROW_BYTES = 8 * (3 + _STRIDE)
_SIZE_MASK = (1 << 32) - 1
_DENSE, _UNRESOLVED = 0, 1  # membership codes; above them indices of _STRIPINGS
_STRIPINGS: list[Striping] = []
_CODE_OF: dict[Striping, int] = {}
_UNRESOLVED_MAX = 8


def _code(striping: Striping) -> int:
    code = _CODE_OF.get(striping)
    if code is None:
        code = _CODE_OF[striping] = len(_STRIPINGS) + 2
        _STRIPINGS.append(striping)
    return code


@dataclass(slots=True)
class Candidates:
    """Frames that may hold ids of a range, in order of first, with their row numbers; ``through`` as in a look-up."""

    through: int
    frames: list[Frame] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    unresolved: list[Place] = field(default_factory=list)
    sparse: bool = False


class LedgerFrames:
    """Frames of one ledger."""

    __slots__ = ("_firsts", "_lac", "_lac_place", "_lasts", "_peaks", "_rows")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        self._peaks = array("q")
        self._rows = array("q")
        self._lac = -1  # greatest carried by any frame here
        self._lac_place: Place | None = None

    def __len__(self) -> int:
        return len(self._firsts)

    # --- filling ----------------------------------------------------------------------------------------------------

    def add(self, extent: FrameExtent, place: Place, counter: int, striping: Striping | None) -> None:
        """Take in one frame; at the end in the usual case of ascending ids, else in its place."""
        code = _DENSE if extent.dense else _UNRESOLVED if striping is None else _code(striping)
        row = array("q", (place.generation, place.offset, place.size | code << 32, counter, extent.max_lac))
        if extent.max_lac > self._lac:
            self._lac, self._lac_place = extent.max_lac, place
        firsts = self._firsts
        if not firsts or firsts[-1] <= extent.first:
            self._peaks.append(max(extent.last, self._peaks[-1]) if firsts else extent.last)
            firsts.append(extent.first)
            self._lasts.append(extent.last)
            self._rows += row
            return
        at = bisect_right(firsts, extent.first)
        firsts.insert(at, extent.first)
        self._lasts.insert(at, extent.last)
        self._rows[at * _STRIDE : at * _STRIDE] = row
        self._peaks.append(0)
        self._rebuild_peaks()

    def add_many(self, generation: int, index_rows: Rows) -> None:
        """Take in index records of one segment, all of this ledger and sorted by first."""
        firsts, lasts, lacs = index_rows["first"], index_rows["last"], index_rows["lac"]
        code = np.where(index_rows["bits"] & DENSE, _DENSE, _UNRESOLVED << 32)
        rows = np.empty((firsts.size, _STRIDE), dtype=np.int64)
        rows[:, 0] = generation
        rows[:, 1] = index_rows["offset"]
        rows[:, 2] = index_rows["size"].astype(np.int64) | code
        rows[:, 3] = index_rows["counter"]
        rows[:, 4] = lacs
        ordered = not self._firsts or self._firsts[-1] <= int(firsts[0])
        self._firsts.frombytes(firsts.tobytes())
        self._lasts.frombytes(lasts.tobytes())
        self._rows.frombytes(rows.tobytes())
        self._peaks.frombytes(lasts.tobytes())
        if not ordered:
            order = np.argsort(np.frombuffer(self._firsts, dtype=np.int64), kind="stable")
            self._firsts = _taken(self._firsts, order, 1)
            self._lasts = _taken(self._lasts, order, 1)
            self._rows = _taken(self._rows, order, _STRIDE)
        self._rebuild_peaks()
        if int(lacs.max()) > self._lac:
            self._find_lac()

    def _find_lac(self) -> None:
        self._lac, self._lac_place = -1, None
        if self._firsts:
            lacs = np.frombuffer(self._rows, dtype=np.int64)[4::_STRIDE]
            k = int(lacs.argmax())
            if lacs[k] >= 0:
                self._lac, self._lac_place = int(lacs[k]), self.place(k)

    def _rebuild_peaks(self) -> None:
        peaks = np.frombuffer(self._peaks, dtype=np.int64)
        np.maximum.accumulate(np.frombuffer(self._lasts, dtype=np.int64), out=peaks)

    def remove(self, place: Place) -> tuple[int, int] | None:
        """Forget the frame at ``place``; its first and last id, or None if it is not here."""
        k = self._find(place)
        if k is None:
            return None
        lost = self._firsts[k], self._lasts[k]
        del self._firsts[k], self._lasts[k], self._peaks[k]
        del self._rows[k * _STRIDE : (k + 1) * _STRIDE]
        self._rebuild_peaks()
        if place == self._lac_place:
            self._find_lac()
        return lost

    def learn(self, place: Place, striping: Striping) -> None:
        """The frame at ``place`` turned out to be striped so."""
        k = self._find(place)
        if k is not None:
            self._rows[k * _STRIDE + 2] = place.size | _code(striping) << 32

    def _find(self, place: Place) -> int | None:
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, _STRIDE)
        found = np.flatnonzero((rows[:, 0] == place.generation) & (rows[:, 1] == place.offset))
        return int(found[0]) if found.size else None

    # --- asking -----------------------------------------------------------------------------------------------------

    def place(self, k: int) -> Place:
        generation, offset, packed = self._rows[k * _STRIDE : k * _STRIDE + 3]
        return Place(generation, offset, packed & _SIZE_MASK)

    def candidates(
        self, first: int, last: int, counter_min: int, frames_max: int, resolved: Mapping[Place, Membership]
    ) -> Candidates:
        """Every frame that may hold an id from first to the answer's ``through`` (≤ last)."""
        low = bisect_left(self._peaks, first)
        end = bisect_right(self._firsts, last)
        cut = min(end, max(low + frames_max, bisect_right(self._firsts, first)))
        found = Candidates(last if cut == end else self._firsts[cut] - 1)
        for k in range(low, cut):
            if self._firsts[k] > found.through:
                break
            if self._lasts[k] < first or self._rows[k * _STRIDE + 3] < counter_min:
                continue
            code = self._rows[k * _STRIDE + 2] >> 32
            membership = None
            if code == _UNRESOLVED:
                membership = resolved.get(self.place(k))
                if membership is None:
                    found.unresolved.append(self.place(k))
                    if len(found.unresolved) == _UNRESOLVED_MAX:
                        break
                    continue
            elif code != _DENSE:
                membership = _STRIPINGS[code - 2]
            found.sparse |= membership is not None
            found.frames.append((self._firsts[k], self._lasts[k], membership))
            found.rows.append(k)
        return found

    def last(self, counter_min: int) -> tuple[int, Place | None]:
        """Greatest id, and a frame that ends with it; −1 and None if there is none."""
        if not counter_min:
            if not self._peaks:
                return -1, None
            k = bisect_left(self._peaks, self._peaks[-1])
            return self._lasts[k], self.place(k)
        served = np.flatnonzero(np.frombuffer(self._rows, dtype=np.int64)[3::_STRIDE] >= counter_min)
        if not served.size:
            return -1, None
        k = int(served[np.frombuffer(self._lasts, dtype=np.int64)[served].argmax()])
        return self._lasts[k], self.place(k)

    def carried_lac(self) -> tuple[int, Place | None]:
        """Greatest LAC that a frame carries, and that frame; −1 and None if none carries one."""
        return self._lac, self._lac_place

    def has_copy(self, first: int, last: int, size: int, above: int) -> bool:
        """Whether a frame of these bounds and this size lies in a segment of a greater generation than ``above``."""
        for k in range(bisect_left(self._firsts, first), bisect_right(self._firsts, first)):
            place = self.place(k)
            if self._lasts[k] == last and place.size == size and place.generation > above:
                return True
        return False

    def memory_bytes(self) -> int:
        return len(self._firsts) * _ROW_BYTES


def _taken(values: array[int], order: npt.NDArray[np.int64], width: int) -> array[int]:
    taken = np.frombuffer(values, dtype=np.int64).reshape(-1, width)[order]
    return array("q", taken.tobytes())
