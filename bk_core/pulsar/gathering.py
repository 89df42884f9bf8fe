# SPDX-License-Identifier: Apache-2.0
"""Receives entries while rows are made of earlier ones.

Making rows costs about the same for one entry as for hundreds, and the ledgers of brokers arrive in batches of a few
entries. Therefore one task receives without a pause, and the reader takes the batches that have arrived together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

import numpy as np

from bk_core.entries.batch import EntryBatch, array_view, joined_heads
from bk_core.pulsar.model.plan import TopicRange

Received = tuple[TopicRange, EntryBatch]
Gathered = tuple[TopicRange, list[EntryBatch]]
"""Consecutive batches of one ledger, which :func:`joined` can join, and the range of the first of them."""
JOINED_BYTES_MAX = 16 << 20
"""Batches are gathered until they have this many bytes of payload. The last of them may exceed it. Making rows of them
costs one to two milliseconds in addition to the time that each message takes."""
ENOUGH_BYTES, GATHER_S = 8 << 20, 0.03
"""The reader waits up to GATHER_S seconds until ENOUGH_BYTES bytes have come, or as many as it has taken before. So it
takes the first entries at once."""
WAITING_BYTES_MAX = 32 << 20
"""Receiving pauses once this many bytes of payload wait for the reader. The last batch may exceed it."""


async def gathered(source: AsyncGenerator[Received, None]) -> AsyncGenerator[Gathered, None]:
    """Yield the entries of ``source`` in order, as lists of the consecutive batches of one ledger that have already
    arrived. An error of the source is raised after the entries that came before it."""
    box = _Box()
    task = asyncio.create_task(box.fill(source))
    try:
        while (found := await box.take()) is not None:
            yield found
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class _Box:
    """A queue of the batches that have arrived and that the reader has not taken."""

    def __init__(self) -> None:
        self._waiting: deque[Received] = deque()
        self._bytes = self._taken = 0
        self._error: BaseException | None = None
        self._has_ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def fill(self, source: AsyncGenerator[Received, None]) -> None:
        """Receive everything from the source; pause while WAITING_BYTES_MAX bytes or more wait."""
        try:
            async with aclosing(source) as batches:
                async for piece, batch in batches:
                    self._waiting.append((piece, batch))
                    self._bytes += batch.payload_bytes
                    self._changed.set()
                    if self._bytes >= WAITING_BYTES_MAX:
                        self._room.clear()
                    await self._room.wait()
        except BaseException as error:  # a cancelled source has not ended, so its reader must not take this for the end
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._has_ended = True
            self._changed.set()

    async def take(self) -> Gathered | None:
        """Return the next entries, or None after the last. Raises the error with which the source ended."""
        await self._waits(lambda: bool(self._waiting))
        if not self._waiting:
            if self._error is not None:
                raise self._error
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._waits(lambda: self._bytes >= min(ENOUGH_BYTES, self._taken))
        piece, batch = self._waiting.popleft()
        batches, size = [batch], batch.payload_bytes
        while self._waiting and size < JOINED_BYTES_MAX and self._is_joined(batches[-1], piece):
            batches.append(self._waiting.popleft()[1])
            size += batches[-1].payload_bytes
        self._bytes -= size
        self._taken += size
        if self._bytes < WAITING_BYTES_MAX:
            self._room.set()
        return piece, batches

    async def _waits(self, enough: Callable[[], bool]) -> None:
        """Wait until ``enough`` returns True, or the source has ended."""
        while not (self._has_ended or enough()):
            self._changed.clear()
            await self._changed.wait()

    def _is_joined(self, last: EntryBatch, piece: TopicRange) -> bool:
        """Return whether the next batch that waits is joined to ``last``, which is of ``piece``."""
        next_piece, batch = self._waiting[0]
        return next_piece.is_compacted == piece.is_compacted and follows(last, batch)


def follows(last: EntryBatch, batch: EntryBatch) -> bool:
    """Return whether ``batch`` continues where ``last`` ends, so that the two batches can be joined."""
    return batch.ledger_id == last.ledger_id and batch.ids is None and batch.first_entry_id == last.last_entry_id + 1


def joined(batches: Sequence[EntryBatch]) -> EntryBatch:
    """Join consecutive batches into one. Digests are not copied, because the batches have been verified already."""
    if len(batches) == 1:
        return batches[0]
    first, crcs = batches[0], [each.payload_crcs for each in batches if each.payload_crcs is not None]
    return EntryBatch(
        lengths=np.concatenate([each.lengths for each in batches]),
        # numpy lets other threads run while it copies
        payload=array_view(np.concatenate([np.frombuffer(each.payload, dtype=np.uint8) for each in batches])),
        ledger_id=first.ledger_id,
        first_entry_id=first.first_entry_id,
        ids=None if first.ids is None else np.concatenate([each.entry_ids() for each in batches]),
        length_before=-1,
        heads=joined_heads(batches),
        payload_crcs=np.concatenate(crcs) if len(crcs) == len(batches) else None,
    )
