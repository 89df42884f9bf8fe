# SPDX-License-Identifier: Apache-2.0
"""Buffers for long messages, used again and again: a new one of a megabyte costs as much as receiving into it."""

from __future__ import annotations

import mmap
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bk_core.entries.batch import Bytes

SLOT_BYTES_MIN = 64 << 10
FREE_BYTES_MAX = 64 << 20


class Slots:
    """A slot comes back when nobody refers to any part of it any more, on whatever thread that happens. At most
    ``free_bytes_max`` are kept. :meth:`take` belongs to one thread. A slot begins at a page."""

    def __init__(self, free_bytes_max: int = FREE_BYTES_MAX) -> None:
        self._free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)
        self._free_bytes, self._free_bytes_max = 0, free_bytes_max
        self._back: deque[mmap.mmap] = deque()  # from any thread

    def take(self, size: int) -> memoryview:
        """A buffer of ``size`` bytes, whose contents are anything."""
        import numpy as np  # who only asks bookies what they are never needs it

        while self._back:
            self._keep(self._back.popleft())
        step = max(SLOT_BYTES_MIN, 1 << max(0, (size - 1).bit_length() - 3))  # at most a fourth is not used
        whole = -(-size // step) * step
        free = self._free[whole]
        if free:
            memory = free.pop()
            self._free_bytes -= whole
        else:
            memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a forked child has its own
        lent = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(lent, self._give_back, memory).atexit = False
        return lent.data[:size]

    def join(self, pieces: Sequence[Bytes]) -> bytearray | memoryview:
        """The pieces one behind the other, in a slot if they are long."""
        size = sum(map(len, pieces))
        if size < SLOT_BYTES_MIN:
            return bytearray().join(pieces)
        joined, end = self.take(size), 0
        for piece in pieces:
            begin, end = end, end + len(piece)
            joined[begin:end] = piece
        return joined

    def _give_back(self, memory: mmap.mmap) -> None:
        if sum(map(len, list(self._back))) < self._free_bytes_max:  # on any thread: not what is free already
            self._back.append(memory)

    def _keep(self, memory: mmap.mmap) -> None:
        if self._free_bytes + len(memory) <= self._free_bytes_max:
            self._free_bytes += len(memory)
            self._free[len(memory)].append(memory)
