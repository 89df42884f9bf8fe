# SPDX-License-Identifier: Apache-2.0
"""Carries out a compaction. It reads runs of extents, several ledgers at a time, writes each run into one new ledger,
and reads the new ledger again to compare. :mod:`bk_core.logs.machines.compaction` makes all decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.read_ahead import read_ahead
from bk_core.client.repairing.repair import ByteRate
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import IntegrityError
from bk_core.logs.ledgers import create_for_log, drop_ledger, written_extent
from bk_core.logs.machines import ask
from bk_core.logs.machines.compaction import Compacted, Compaction
from bk_core.logs.model.compaction import ENTRY_COST_BYTES, CompactionLimits, Content, Run, runs_to_compact, weight_of
from bk_core.logs.model.head import Extent, LogHead, NewExtent, PublishId
from bk_core.logs.sequences import Answers, carry_out
from bk_core.logs.store import LogStore, nonce

logger = logging.getLogger("bk_core.logs")

AHEAD_LEDGERS = 32
"""The maximum number of ledgers that are read at a time. It is above one because each small ledger costs a round
trip."""
AHEAD_BYTES = 16 << 20
"""The maximum number of bytes of ledgers that are read at a time. A larger ledger is read alone."""
JOIN_BYTES = 1 << 20
"""The size, in bytes, up to which batches are joined before they are appended, so that each small ledger does not cost
a frame."""

Progress = Callable[[int], None]
"""A function that is called after each piece is copied, with the number of entries of the piece."""


class Compactor:
    """The driver of one compaction of one log."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        store: LogStore,
        answers: Answers,
        password: bytes,
        limits: CompactionLimits,
        progress: Progress = lambda entries: None,
        rate: ByteRate | None = None,
    ) -> None:
        self._bookkeeper, self._store, self._answers, self._password = bookkeeper, store, answers, password
        self._limits, self._progress, self._rate = limits, progress, rate or ByteRate(0)
        self._publish_id = PublishId.job(str(uuid4()))  # names this compaction in its ledgers' metadata
        self._head: LogHead | None = None

    async def plan(self) -> list[Run]:
        """Return the runs that :meth:`run` would merge now."""
        listed = await self._list()
        return runs_to_compact(listed.extents, listed.limits)

    async def run(self) -> Compacted:
        """Compact until nothing is left to merge, or the limits are reached.

        It is safe during any other change of the log. It may be ended at any point; a new compaction continues. Raises
        WrongPasswordError, NotEnoughBookiesError, NoSuchEntryError and EntryUnreadableError if entries cannot be read,
        IntegrityError for a copy that is not exact, and PublishConflictError if other clients changed the log too
        often. Runs that were merged before an error stay merged.
        """
        return await carry_out(Compaction(self._store.name, self._limits, nonce).run(), self._answer)

    async def _answer(self, request: ask.Request) -> Any:
        match request:
            case ask.ListExtents():
                return await self._list()
            case ask.CopyRun(run, number):
                return await self._copy(run, number)
            case ask.ReadCopy(new):
                return await self._content(new)
            case ask.DropCopy(ledger_id):
                return await drop_ledger(self._bookkeeper, ledger_id)
        return await self._answers.answer(request)

    # --- the requests ------------------------------------------------------------------------------------------------

    async def _list(self) -> ask.ExtentsListed:
        def read() -> ask.ExtentsListed:
            head = self._store.read(sync=True).value
            self._store.check_password(head, self._password)
            self._head = head
            extents = self._store.extents(head, head.start_offset, head.next_offset)
            return ask.ExtentsListed(head.uuid, extents, self._limits.for_log(head))

        return await asyncio.to_thread(read)

    async def _copy(self, run: Run, number: int) -> ask.RunCopied:
        writer = await self._create(run, number)
        content = Content()
        try:
            async with aclosing(self._entries(run)) as batches, aclosing(_joined(batches)) as pieces:
                async for piece in pieces:
                    content = content.with_batch(piece)
                    await writer.append_batch(piece)
                    self._progress(len(piece))
                    await self._rate.spend(piece.payload_bytes)
            await writer.close()
        except BaseException:  # also after a cancel, because only this process knows the ledger
            await asyncio.shield(drop_ledger(self._bookkeeper, writer.ledger_id, writer))
            raise
        created_ms = max(extent.created_ms for extent in run)
        codec, schema_number = run[0].codec, run[0].schema_number
        new = written_extent(writer, codec=codec, created_ms=created_ms, schema_number=schema_number)
        return ask.RunCopied(new, content)

    async def _create(self, run: Run, number: int) -> LedgerWriter:
        """Create a ledger with the largest ensemble size and quorums of the run, so that no entry has fewer copies than
        before."""
        assert self._head is not None
        each = [(extent.ensemble_size, extent.write_quorum_size, extent.ack_quorum_size) for extent in run]
        ensemble_size, write_quorum_size, ack_quorum_size = map(max, zip(*each, strict=True))
        sizes, ids = (ensemble_size, write_quorum_size, ack_quorum_size), (self._publish_id, self._password)
        return await create_for_log(
            self._bookkeeper,
            self._head,
            sizes,
            *ids,
            codec=run[0].codec,
            log_name=self._store.name,
            partition=number,
        )

    async def _content(self, new: NewExtent) -> Content:
        """Read the new ledger from its bookies, and return a description of its entries."""
        content = Content()
        opening = self._bookkeeper.open_ledger(new.ledger_id, recover=False, password=self._password)
        async with await opening as reader, aclosing(reader.read(0, reader.last_add_confirmed)) as batches:
            async for batch in batches:
                content = content.with_batch(batch)
        return content

    # --- reading a run -----------------------------------------------------------------------------------------------

    async def _entries(self, run: Run) -> AsyncGenerator[EntryBatch, None]:
        """Yield all entries of the run, in order. Many small extents are read at a time."""
        wanted = [_Weighed(extent, weight_of(extent)) for extent in run]
        ahead = read_ahead(
            wanted, lambda each: self._extent(each.extent), ranges_max=AHEAD_LEDGERS, bytes_max=AHEAD_BYTES
        )
        async with aclosing(ahead) as lists:
            async for found in lists:
                for _, batch in found:
                    yield batch

    async def _extent(self, extent: Extent) -> AsyncGenerator[EntryBatch, None]:
        opening = self._bookkeeper.open_ledger(extent.ledger_id, recover=False, password=self._password)
        async with await opening as reader:
            last = extent.end_entry_id - 1
            if not reader.is_closed or last > reader.last_add_confirmed:
                raise IntegrityError(
                    f"ledger {extent.ledger_id} differs from the log's list",
                    value=f"listed up to entry {last}, "
                    f"{'closed' if reader.is_closed else 'open'} at {reader.last_add_confirmed}",
                    remedy="inspect it with bk ledger show",
                )
            async with aclosing(reader.read(extent.first_entry_id, last)) as batches:
                async for batch in batches:
                    yield batch


@dataclass(frozen=True, slots=True)
class _Weighed:
    extent: Extent
    bytes: int


async def _joined(batches: AsyncIterator[EntryBatch]) -> AsyncGenerator[EntryBatch, None]:
    """Yield the same entries, to be appended, in batches of JOIN_BYTES or more. The batches have no ids, LACs and
    digests."""
    held: list[EntryBatch] = []
    size = 0
    async for batch in batches:
        held.append(batch)
        size += batch.payload_bytes + ENTRY_COST_BYTES * len(batch)
        if size >= JOIN_BYTES:
            yield _as_new(held)
            held, size = [], 0
    if held:
        yield _as_new(held)


def _as_new(batches: Sequence[EntryBatch]) -> EntryBatch:
    if len(batches) == 1:
        return EntryBatch(lengths=batches[0].lengths, payload=batches[0].payload)
    lengths = np.concatenate([batch.lengths for batch in batches])
    return EntryBatch(lengths=lengths, payload=memoryview(b"".join(batch.payload for batch in batches)))
