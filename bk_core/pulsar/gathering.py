# SPDX-License-Identifier: Apache-2.0
"""Gathers entries while earlier ones are made into rows.

Making rows costs the same for one entry as for hundreds, and ledgers of brokers come in batches of a few entries. So a
task receives all the time, and its reader takes everything that has come, joined.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

import numpy as np

from bk_core.entries.batch import EntryBatch
from bk_core.pulsar.model.plan import TopicRange

Received = tuple[TopicRange, EntryBatch]
JOINED_BYTES_MAX = 4 << 20
"""The most bytes that are joined."""
WAITING_BYTES_MAX = 16 << 20
"""The most bytes that wait for the reader; one batch more may come."""


async def gathered(source: AsyncGenerator[Received, None]) -> AsyncGenerator[Received, None]:
    """The entries of ``source``, in order, joined as far as they have come and are of one ledger. Raises what the
    source raises, after the entries before the error."""
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
    """What has come and was not taken."""

    def __init__(self) -> None:
        self._waiting: deque[Received] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._has_ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def fill(self, source: AsyncGenerator[Received, None]) -> None:
        """Take everything from the source, no more at a time than there is room for."""
        try:
            async with aclosing(source) as batches:
                async for piece, batch in batches:
                    self._waiting.append((piece, batch))
                    self._bytes += batch.payload_bytes
                    self._changed.set()
                    if self._bytes >= WAITING_BYTES_MAX:
                        self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._error = error
        finally:
            self._has_ended = True
            self._changed.set()

    async def take(self) -> Received | None:
        """The next entries, None after the last."""
        while not self._waiting:
            if self._has_ended:
                if self._error is not None:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        piece, batch = self._waiting.popleft()
        batches, size = [batch], batch.payload_bytes
        while self._waiting and size < JOINED_BYTES_MAX and _follows(batches[-1], piece, *self._waiting[0]):
            batches.append(self._waiting.popleft()[1])
            size += batches[-1].payload_bytes
        self._bytes -= size
        if self._bytes < WAITING_BYTES_MAX:
            self._room.set()
        return piece, joined(batches)


def _follows(last: EntryBatch, piece: TopicRange, next_piece: TopicRange, batch: EntryBatch) -> bool:
    """Whether a batch goes on where the last one ends."""
    return (
        batch.ledger_id == last.ledger_id
        and next_piece.is_compacted == piece.is_compacted
        and batch.ids is None
        and batch.first_entry_id == last.last_entry_id + 1
    )


def joined(batches: Sequence[EntryBatch]) -> EntryBatch:
    """Batches that follow each other as one, with nothing but payloads and ids: they were verified before."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    return EntryBatch(
        lengths=np.concatenate([each.lengths for each in batches]),
        payload=memoryview(b"".join([each.payload for each in batches])),
        ledger_id=first.ledger_id,
        first_entry_id=first.first_entry_id,
        ids=None if first.ids is None else np.concatenate([each.entry_ids() for each in batches]),
        length_before=-1,
    )
