# SPDX-License-Identifier: Apache-2.0
"""Has a pool of reusable buffers for long messages, because allocating a new buffer of a megabyte costs as much as
receiving into it."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bk_core.memory.huge_pages import HAS_HUGE_PAGES, HUGE_BYTES, private_memory

if TYPE_CHECKING:
    from bk_core.entries.batch import Bytes

SLOT_BYTES_MIN = 64 << 10
"""The size of the smallest slot in bytes."""
FREE_BYTES_MAX = 64 << 20
"""The default of the maximum size, in bytes, of all unused slots that are kept."""
_MADE_BYTES = 8 << 20  # large slots of one size are made in blocks of 8 MB, so that they are in huge pages
_LARGE_BYTES = HUGE_BYTES // 4


class _Slot(NamedTuple):
    memory: mmap.mmap
    begin: int
    size: int


class Slots:
    """A pool of buffers, which are called slots. A slot returns to the pool once no object refers to any part of it, on
    any thread. At most ``free_bytes_max`` bytes are kept in the pool. Only one thread may call :meth:`take`. A slot
    begins at the start of a memory page."""

    def __init__(self, free_bytes_max: int = FREE_BYTES_MAX) -> None:
        self._free: defaultdict[int, list[_Slot]] = defaultdict(list)
        self._new: defaultdict[int, list[_Slot]] = defaultdict(list)  # never lent
        self._free_bytes, self._free_bytes_max = 0, free_bytes_max
        self._back: deque[_Slot] = deque()  # from any thread

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary contents."""
        import numpy as np  # a client that only asks bookies for their state never needs it

        while self._back:
            self._keep(self._back.popleft())
        step = max(SLOT_BYTES_MIN, 1 << max(0, (size - 1).bit_length() - 3))  # at most a fourth is unused
        whole = -(-size // step) * step
        free = self._free[whole]
        if free:
            slot = free.pop()
            self._free_bytes -= whole
        else:
            new = self._new[whole] = self._new[whole] or _made(whole)
            slot = new.pop()
        lent = np.frombuffer(slot.memory, np.uint8, whole, slot.begin)
        weakref.finalize(lent, self._give_back, slot).atexit = False
        return lent.data[:size]

    def join(self, pieces: Sequence[Bytes]) -> bytearray | memoryview:
        """Return the pieces joined in one buffer, which is a slot if they have at least SLOT_BYTES_MIN bytes."""
        size = sum(map(len, pieces))
        if size < SLOT_BYTES_MIN:
            return bytearray().join(pieces)
        joined, end = self.take(size), 0
        for piece in pieces:
            begin, end = end, end + len(piece)
            joined[begin:end] = piece
        return joined

    def _give_back(self, slot: _Slot) -> None:
        # This may run on any thread, so it counts only the slots in ``_back``, and does not touch ``_free``.
        if sum([each.size for each in list(self._back)]) < self._free_bytes_max:
            self._back.append(slot)
        else:
            _empty(slot)

    def _keep(self, slot: _Slot) -> None:
        if self._free_bytes + slot.size <= self._free_bytes_max:
            self._free_bytes += slot.size
            self._free[slot.size].append(slot)
        else:
            _empty(slot)


def _made(size: int) -> list[_Slot]:
    """Make new slots of ``size`` bytes. Large slots are made several at a time if the system has huge pages."""
    count = max(1, _MADE_BYTES // size) if HAS_HUGE_PAGES and size >= _LARGE_BYTES else 1
    try:
        memory = private_memory(count * size)
    except OSError:  # the process may not be allowed that much
        if count == 1:
            raise
        count, memory = 1, private_memory(size)
    return [_Slot(memory, k * size, size) for k in range(count)]


def _empty(slot: _Slot) -> None:
    """Return the slot's memory to the system. The memory of other slots in the same mapping is not affected."""
    with contextlib.suppress(OSError, AttributeError):  # not every system has it
        slot.memory.madvise(mmap.MADV_DONTNEED, slot.begin, slot.size)
