# SPDX-License-Identifier: Apache-2.0
"""The queue of appended entries that the machine does not have yet.

The queue gives entries their ids and joins small entries into batches. Any thread may put entries; only the loop takes
them.

An entry whose id the caller chose is *early* until every id below it is queued. Early entries are not taken, so that
the taken entries have no gap.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import lru_cache
from itertools import islice

import numpy as np

from bk_core.entries.batch import U32, Bytes, EntryBatch
from bk_core.entries.packets import SLICE_ENTRIES_MAX
from bk_core.errors import DuplicateEntryIdError, InvalidArgumentError
from bk_core.model import NO_ENTRY, EntryId

ENTRY_COST_BYTES = 32
"""The number of bytes that each entry counts in addition to its payload, so that the number of empty entries is
bounded, too."""


class AppendQueue:
    """A queue of payloads and batches in the order of their ids. ``lock`` guards everything; the caller of a put holds
    it.

    ``held`` counts the bytes of all unconfirmed entries. It is the sum of ``early_bytes`` (early entries),
    ``taken_bytes`` (entries that the machine took) and ``bytes`` (queued entries). An entry may be put without a check
    while ``held`` does not exceed ``free_to``, which :class:`~bk_core.client.writing.append_room.Room` sets. ``tail``
    holds the last entries that were put one by one, and ``tail_first`` is the id of the first entry in it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.early_bytes = self.taken_bytes = self.held = 0
        self.free_to = -1
        self.tail: list[Bytes] = []
        self.tail_first: EntryId = 0
        self._items: deque[EntryBatch | list[Bytes]] = deque()  # before the tail
        self._early: dict[EntryId, Bytes] = {}
        self._last_early: EntryId = NO_ENTRY

    @property
    def bytes(self) -> int:
        return self.held - self.taken_bytes - self.early_bytes

    @property
    def next_id(self) -> EntryId:
        """The id that the next entry put without an id gets."""
        return self.tail_first + len(self.tail)

    @property
    def last_id(self) -> EntryId:
        """The highest id given to an entry, early entries included."""
        return max(self.next_id - 1, self._last_early)

    def __len__(self) -> int:
        return len(self._items) + bool(self.tail)

    def put(self, payload: Bytes) -> EntryId:
        """Queue one entry that passed :func:`check_bytes`, and return its id. The lock is held."""
        self.held += ENTRY_COST_BYTES + len(payload)
        self.tail.append(payload)
        return self.tail_first + len(self.tail) - 1

    def put_at(self, entry_id: EntryId, payload: Bytes) -> None:
        """Queue one entry under an id that the caller chose. The entry is early until every id below it is queued.
        Raises DuplicateEntryIdError. The lock is held."""
        self.check_new(entry_id)
        if entry_id != self.next_id:
            self._early[entry_id] = payload
            self._last_early = max(self._last_early, entry_id)
            self._count_early(cost(len(payload), 1))
            return
        self.put(payload)
        while (early := self._early.pop(self.next_id, None)) is not None:
            self._count_early(-cost(len(early), 1))
            self.put(early)

    def _count_early(self, size: int) -> None:
        self.early_bytes += size
        self.held += size

    def check_new(self, entry_id: EntryId) -> None:
        """Raise DuplicateEntryIdError for an id that another entry has. The lock is held."""
        if entry_id < self.next_id or entry_id in self._early:
            raise DuplicateEntryIdError(
                f"entry {entry_id} was appended before", remedy="give each id once; the entry that came first counts"
            )

    def drop_early(self) -> None:
        """Forget the early entries. The caller calls this when the ids below them will not come. The lock is held."""
        self._count_early(-self.early_bytes)
        self._early.clear()
        self._last_early = NO_ENTRY

    def put_batch(self, batch: EntryBatch) -> None:
        """Queue a batch. The lock is held."""
        if self.tail:
            self._items.append(self.tail)
        self._items.append(batch)
        self.tail_first, self.tail = self.next_id + len(batch), []
        self.held += cost(batch.payload_bytes, len(batch))

    def take(self, frame_bytes: int) -> tuple[EntryBatch, int]:
        """Take the next batch to send: a queued batch, or single payloads joined up to ``frame_bytes``. Return it with
        the number of bytes of the window that it uses."""
        with self.lock:
            head = self._items[0] if self._items else self.tail
            if isinstance(head, EntryBatch):
                batch = head
                self._items.popleft()
            else:
                lengths = prefix_lengths(head, frame_bytes)
                count = lengths.size
                payload = b"".join(head if count == len(head) else head[:count])
                batch = EntryBatch(lengths=lengths, payload=memoryview(payload))
                del head[:count]
                if head is self.tail:
                    self.tail_first += count
                elif not head:
                    self._items.popleft()
            size = cost(batch.payload.nbytes, batch.lengths.size)
            self.taken_bytes += size
            return batch, size

    def take_lone(self) -> tuple[Bytes, int] | None:
        """Take the next entry if it is the only one in the queue. Return it with the number of bytes of the window that
        it uses. Return None if the queue has more, or a batch."""
        with self.lock:
            if self._items or len(self.tail) != 1:
                return None
            payload = self.tail.pop()
            self.tail_first += 1
            size = cost(len(payload), 1)
            self.taken_bytes += size
            return payload, size

    def skip(self) -> EntryId | None:
        """Give the next id to an entry that does not go through this queue. Return None if other entries wait here. The
        lock is held."""
        if self._items or self.tail:
            return None
        self.tail_first += 1
        return self.tail_first - 1

    def took(self, size: int) -> None:
        """Add ``size``, the bytes of an unconfirmed entry that got its id from :meth:`skip`."""
        with self.lock:
            self.held += size
            self.taken_bytes += size

    def confirmed(self, size: int) -> None:
        """Subtract ``size``, the bytes of taken entries that are now confirmed."""
        with self.lock:
            self.held -= size
            self.taken_bytes -= size

    def clear(self) -> None:
        with self.lock:
            self._items.clear()
            self._early.clear()
            self.tail_first, self.tail = self.next_id, []
            self.early_bytes = self.taken_bytes = self.held = 0


def check_bytes(payload: object) -> None:
    """Raise InvalidArgumentError for a payload that is not bytes. An append checks its payload before it queues the
    entry, because a bad payload in a batch would fail the other entries of the batch, too."""
    if isinstance(payload, memoryview) and payload.nbytes != len(payload):
        raise InvalidArgumentError("an entry is bytes or a view of bytes", remedy='cast the view: view.cast("B")')
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgumentError(
            "an entry is bytes",
            value=f"this one is of type {type(payload).__name__}",
            remedy='encode text first: text.encode("utf-8")',
        )


def cost(payload_bytes: int, entries: int) -> int:
    """Return the number of bytes of the window that these entries use. The cost of a batch is the sum of the costs of
    its entries, because entries are added one by one and subtracted together."""
    return payload_bytes + ENTRY_COST_BYTES * entries


def prefix_lengths(payloads: list[Bytes], frame_bytes: int) -> U32:
    """Return the lengths of the first payloads that together fit into ``frame_bytes``, but always of at least one
    payload."""
    if len(payloads) == 1:
        return _one_length(len(payloads[0]))
    lengths = np.fromiter(map(len, islice(payloads, SLICE_ENTRIES_MAX)), dtype=np.uint32)
    if lengths.size == 1 or int(lengths.sum(dtype=np.int64)) <= frame_bytes:
        return lengths
    if int(lengths[0]) > frame_bytes:
        return lengths[:1]
    return lengths[: int(lengths.cumsum(dtype=np.int64).searchsorted(frame_bytes, side="right"))]


@lru_cache(maxsize=1024)
def _one_length(size: int) -> U32:
    """Return the lengths of a batch of one payload. To make an array costs more than to take the entry."""
    lengths = np.array([size], dtype=np.uint32)
    lengths.flags.writeable = False
    return lengths
