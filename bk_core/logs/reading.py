# SPDX-License-Identifier: Apache-2.0
"""Reads a log: its extents one after another, and then the entries that its leader confirms.

A reader never passes an open extent. It reads only the first open extent, up to its LAC (N2). It never fences, so it
never disturbs the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from types import TracebackType

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.column_reads import columns_or_entries, if_it_pays
from bk_core.client.reading.read_ahead import BYTES_MAX
from bk_core.client.reading.reader import LedgerReader
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch, ColumnsWanted
from bk_core.errors import MetadataUnavailableError, NoSuchEntryError
from bk_core.logs.model.head import Extent, LogHead
from bk_core.logs.model.position import LogPosition, check_position
from bk_core.logs.store import LogStore
from bk_core.model import LedgerId

POLL_S = 2.0
"""The number of seconds after which a tail reads the head again although no watch has fired (P10)."""

UNAVAILABLE_MAX_S = 60.0
"""The number of seconds for which a tail continues while the metadata store is unavailable."""

OffsetBatch = tuple[int, EntryBatch]
"""The log offset of a batch's first entry, and the batch."""


@dataclass(frozen=True, slots=True)
class ExtentPart:
    """The part of an extent that has the log offsets ``first`` to ``stop`` − 1."""

    extent: Extent
    first: int
    stop: int

    @property
    def shift(self) -> int:
        """The log offset of an entry minus its entry id. It is the same for all entries of the extent."""
        return self.extent.base_offset - self.extent.first_entry_id

    @property
    def entry_bytes(self) -> int:
        """The average size of the extent's entries in bytes, or 0 for an open extent, whose size is unknown."""
        return 0 if self.extent.is_open else self.extent.size_bytes // self.extent.entry_count

    @property
    def bytes(self) -> int:
        """An estimate of the part's payload bytes. The size of an open extent is unknown, so its part counts as
        BYTES_MAX."""
        if self.extent.is_open:
            return BYTES_MAX
        return self.extent.size_bytes * (self.stop - self.first) // self.extent.entry_count


def parts_of(extents: Sequence[Extent], start: int, end: int) -> list[ExtentPart]:
    """Return the parts of ``extents`` to read for the offsets ``start`` to ``end`` − 1, which must be readable."""
    parts = list[ExtentPart]()
    for extent in extents:
        first, stop = max(start, extent.base_offset), end if extent.is_open else min(end, extent.next_offset)
        if first < stop:
            parts.append(ExtentPart(extent, first, stop))
        if extent.is_open:
            break
    return parts


class LogReading:
    """Reads the entries of one log for one client."""

    def __init__(self, bookkeeper: BookKeeper, store: LogStore, password: bytes) -> None:
        self._bookkeeper, self._store, self._password = bookkeeper, store, password

    def _open(self, ledger_id: LedgerId) -> Awaitable[LedgerReader]:
        return self._bookkeeper.open_ledger(ledger_id, recover=False, password=self._password)

    async def readable_end(self, head: LogHead) -> int:
        """Return the offset after the last readable entry. The sealed extents are readable, and so is the first open
        extent up to its LAC."""
        if not head.open_extents:
            return head.next_offset
        ledger_id = head.open_extents[0].ledger_id
        async with await self._open(ledger_id) as reader:
            return head.next_offset + reader.last_add_confirmed + 1

    async def read(self, extents: Sequence[Extent], start: int, end: int) -> AsyncGenerator[OffsetBatch, None]:
        """Yield the entries at the log offsets ``start`` to ``end`` − 1, which must be readable. ``extents`` cover
        them."""
        for part in parts_of(extents, start, end):
            first, last = part.first - part.shift, part.stop - part.shift - 1
            opening = self._open(part.extent.ledger_id)
            async with await opening as reader, aclosing(reader.reading(first, last)) as batches:
                async for batch in batches:
                    yield batch.first_entry_id + part.shift, batch

    async def read_columns(
        self, part: ExtentPart, wanted: ColumnsWanted | None
    ) -> AsyncGenerator[EntryBatch | ColumnBatch, None]:
        """Yield the entries of a part, with their ids in its ledger.

        If ``wanted`` is given, yield only these columns, and only of entries that may have wanted rows. Entries are
        still read whole if they are too small, or if a bookie cannot send parts of them.
        """
        first, last = part.first - part.shift, part.stop - part.shift - 1
        async with await self._open(part.extent.ledger_id) as reader:
            found: AsyncGenerator[EntryBatch | ColumnBatch, None] = reader.reading(first, last)
            wanted = if_it_pays(wanted, part.entry_bytes, reader.metadata.digest_type)
            if wanted is not None:
                found = columns_or_entries(reader.read_parts, reader.reading, wanted, first, last)
            async with aclosing(found) as batches:
                async for batch in batches:
                    yield batch

    async def tail(self, offset: int, head: LogHead) -> AsyncGenerator[OffsetBatch, None]:
        """Yield every entry from ``offset`` on, as soon as it is readable, without end.

        Raises NoSuchEntryError if entries were trimmed, LogRecreatedError if the log was deleted and another log has
        its name, and LogOverwrittenError if the log has another epoch than ``head``.
        """
        at = LogPosition(head.uuid, head.epoch, offset)
        async with HeadWatch(self._bookkeeper, self._store) as watch:
            while True:
                check_position(at, head, name=self._store.name)
                check_not_trimmed(offset, head, self._store.name)
                async with aclosing(self._advance(offset, head)) as batches:
                    async for base, batch in batches:
                        yield base, batch
                        offset = base + len(batch)
                head = await watch.next_head(head)

    async def _advance(self, offset: int, head: LogHead) -> AsyncGenerator[OffsetBatch, None]:
        """Yield the entries from ``offset`` on that ``head`` lists. If it lists open ledgers, follow the first of them
        until it is closed."""
        if offset < head.next_offset:
            extents = await asyncio.to_thread(self._store.extents, head, offset, head.next_offset)
            async with aclosing(self.read(extents, offset, head.next_offset)) as batches:
                async for found in batches:
                    yield found
            offset = head.next_offset
        if not head.open_extents:
            return
        base, ledger_id = head.next_offset, head.open_extents[0].ledger_id
        async with await self._open(ledger_id) as reader, aclosing(reader.tailing(offset - base)) as batches:
            async for batch in batches:
                yield base + batch.first_entry_id, batch


def check_not_trimmed(offset: int, head: LogHead, name: str) -> None:
    """Raise NoSuchEntryError if the log begins after ``offset``."""
    if offset < head.start_offset:
        raise NoSuchEntryError(
            f"entries of log {name} were trimmed",
            value=f"offset {offset}, the log begins at {head.start_offset}",
            remedy=f"read from offset {head.start_offset}",
        )


class HeadWatch:
    """Waits for changes of the head of a log. It is an async context manager."""

    def __init__(self, bookkeeper: BookKeeper, store: LogStore) -> None:
        self._bookkeeper = bookkeeper
        self._store, self._changed, self._loop = store, asyncio.Event(), asyncio.get_running_loop()
        self._read_at = self._loop.time()

    async def next_head(self, known: LogHead) -> LogHead:
        """Wait until a watch fires or POLL_S is over, and return the head. If the store does not answer, return
        ``known``. Raises MetadataUnavailableError after UNAVAILABLE_MAX_S without an answer, and ClientClosedError once
        the client is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._changed.wait()
        self._changed.clear()
        self._bookkeeper.check_open()
        try:
            known = (await asyncio.to_thread(self._store.read)).value
            self._read_at = self._loop.time()
        except MetadataUnavailableError:
            if self._loop.time() - self._read_at > UNAVAILABLE_MAX_S:
                raise
        return known

    async def __aenter__(self) -> HeadWatch:
        self._cancel = await asyncio.to_thread(self._store.store.watch_log, self._store.name, lambda _: self._fire())
        self._forget = self._bookkeeper.at_close(self._changed.set)
        self._changed.set()  # the head may have changed before the watch was set
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget()
        self._cancel()

    def _fire(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)
