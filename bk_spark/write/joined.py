# SPDX-License-Identifier: Apache-2.0
"""Makes batches of entries as large as a frame, because a small frame costs its writer, its bookies and every reader
about as much as a large one.

Spark hands rows over in batches of 10,000. Small batches are copied, one behind the other, into a buffer that is reused
once its entries were sent. So no memory of Spark is kept, and none is allocated. A large batch is cut into equal parts,
which are views of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bk_core.entries.batch import U32, EntryBatch
from bk_core.entries.packets import SLICE_ENTRIES_MAX
from bk_core.memory.slots import Slots

FREE_BYTES_MAX = 8 << 20
"""The maximum size, in bytes, of the buffers that are kept for later entries."""

_slots = Slots(
    FREE_BYTES_MAX
)  # one for this process, whose tasks and commits run one by one; a forked child has its own


class Joiner:
    """The entries of one ledger on their way into frames. ``add`` and ``rest`` yield the batches to send now, in
    order."""

    def __init__(self) -> None:
        self._lengths: list[U32] = []
        self._buffer: memoryview | None = None
        self._filled = self._count = 0

    def add(self, batch: EntryBatch, frame_bytes: int) -> Iterator[EntryBatch]:
        """Take a batch. ``frame_bytes`` is the number of bytes to send together."""
        if batch.payload_bytes > frame_bytes // 2:
            yield from self.rest()
            yield from _parts(batch, frame_bytes)
            return
        start = 0
        while start < len(batch):
            stop = self._fitting(batch, start, frame_bytes)
            if stop == start:
                yield from self.rest()
            else:
                self._copy(batch.slice(start, stop), frame_bytes)
            start = stop

    def rest(self) -> Iterator[EntryBatch]:
        """Yield the entries that were taken and not yielded yet."""
        buffer, lengths, filled = self._buffer, self._lengths, self._filled
        self._buffer, self._lengths, self._filled, self._count = None, [], 0, 0
        if buffer is not None:
            yield EntryBatch(lengths=np.concatenate(lengths), payload=buffer[:filled].toreadonly())

    def _fitting(self, batch: EntryBatch, start: int, frame_bytes: int) -> int:
        """Return the end, exclusive, of the entries from ``start`` that still fit into the buffer."""
        offsets, room = batch.offsets(), (frame_bytes if self._buffer is None else len(self._buffer)) - self._filled
        stop = int(offsets.searchsorted(int(offsets[start]) + room, side="right")) - 1
        return min(stop, start + SLICE_ENTRIES_MAX - self._count)

    def _copy(self, batch: EntryBatch, frame_bytes: int) -> None:
        if self._buffer is None:
            self._buffer = _slots.take(frame_bytes)
        end = self._filled + batch.payload_bytes
        self._buffer[self._filled : end] = batch.payload
        self._lengths.append(batch.lengths)
        self._filled, self._count = end, self._count + len(batch)


def _parts(batch: EntryBatch, frame_bytes: int) -> Iterator[EntryBatch]:
    """Cut the batch into the fewest possible parts of about the same size. A small last part would cost its readers as
    much as a large one."""
    most = max(frame_bytes // 2, frame_bytes - int(batch.lengths.max()))  # a part may have an entry more than its share
    count = max(-(-batch.payload_bytes // most), -(-len(batch) // SLICE_ENTRIES_MAX))
    ends = batch.offsets().searchsorted([batch.payload_bytes * part // count for part in range(1, count)])
    for start, stop in pairwise([0, *ends.tolist(), len(batch)]):
        if start < stop:
            yield batch.slice(start, stop)
