# SPDX-License-Identifier: Apache-2.0
"""A set of integers kept as disjoint closed intervals: deleted ledger ids, damaged entry ids (RULES S4)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Grows only. Neighbouring intervals join, so that ids deleted in order take the space of one."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")

    def add(self, first: int, last: int) -> None:
        """Take in first to last, both inclusive."""
        low = bisect_left(self._lasts, first - 1)  # the first interval that touches or follows
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high] = array("q", [first])
        self._lasts[low:high] = array("q", [last])

    def __contains__(self, value: int) -> bool:
        k = bisect_right(self._firsts, value) - 1
        return k >= 0 and self._lasts[k] >= value

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self._firsts)

    @property
    def greatest(self) -> int:
        """Greatest member, −1 if empty."""
        return self._lasts[-1] if self._lasts else -1

    def split(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """first to last cut at the borders of the set: (low, high, whether inside)."""
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
