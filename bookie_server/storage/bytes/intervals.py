# SPDX-License-Identifier: Apache-2.0
"""A set of integers kept as disjoint closed intervals, for deleted ledger ids and damaged entry ids (RULES S4)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt


class IntervalSet:
    """A set that only grows. Adjacent intervals are joined, so ids that are deleted in order take the space of one
    interval."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add first to last, both inclusive."""
        low = bisect_left(self._lasts, first - 1)  # the first interval that touches or follows
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high] = array("q", [first])
        self._lasts[low:high] = array("q", [last])

    def __contains__(self, value: int) -> bool:
        k = bisect_right(self._firsts, value) - 1
        return k >= 0 and self._lasts[k] >= value

    def holds(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each value whether it is a member."""
        if not self._firsts:
            return np.zeros(values.size, dtype=np.bool_)
        firsts, lasts = np.array(self._firsts, dtype=np.int64), np.array(self._lasts, dtype=np.int64)
        at = np.searchsorted(firsts, values, "right") - 1
        return (at >= 0) & (lasts[at] >= values)

    def pairs(self) -> npt.NDArray[np.int64]:
        """Return the intervals, sorted, as an array of (first, last)."""
        return np.column_stack((np.array(self._firsts, dtype=np.int64), np.array(self._lasts, dtype=np.int64)))

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self._firsts)

    def split(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Cut the range first to last at the borders of the set; yield (low, high, whether inside) for each part."""
        k = bisect_left(self._lasts, first)
        while first <= last:
            if k == len(self._firsts) or self._firsts[k] > last:
                yield first, last, False
                return
            if self._firsts[k] > first:
                yield first, self._firsts[k] - 1, False
                first = self._firsts[k]
            high = min(last, self._lasts[k])
            yield first, high, True
            first, k = high + 1, k + 1
