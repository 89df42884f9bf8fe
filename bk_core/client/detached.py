# SPDX-License-Identifier: Apache-2.0
"""Reads ranges without a session with the metadata service (K3).

A Spark driver looks up metadata, addresses and LAC once, and its tasks read ranges with them. If no replica that the
record lists can give an entry, the reader calls ``refresh`` for a new record and new addresses. It calls ``refresh`` at
most once for each position of a read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TypeAlias

from bk_core.client.config import ClientConfig
from bk_core.client.reading.batch_iterator import BatchIterator
from bk_core.client.reading.column_reads import WINDOW_BYTES, columns_or_entries, if_it_pays
from bk_core.client.reading.ranges import Quarantine, read_range
from bk_core.client.reading.read_ahead import WantedRange, read_ahead
from bk_core.client.running.fork import ForkGuard
from bk_core.client.running.metrics import ClientMetrics, Observer
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.parts import ColumnBatch, Parts
from bk_core.errors import EntryUnreadableError, NoSuchEntryError
from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId, LedgerMetadata
from bk_core.transport.lanes import LaneTransport

Refresh: TypeAlias = Callable[[LedgerId], tuple[LedgerMetadata, Mapping[BookieId, BookieServiceInfo]]]
"""A blocking function that reads the ledger's record and the bookies' addresses again."""


class DetachedReader:
    """A reader of ranges that are known to exist. It takes the password and the digest type from the metadata.

    It belongs to the loop on which it was made. As an async context manager it closes itself at the end.
    """

    def __init__(
        self,
        infos: Mapping[BookieId, BookieServiceInfo],
        *,
        instance_id: str,
        config: ClientConfig | None = None,
        refresh: Refresh | None = None,
    ) -> None:
        self._config, self._refresh = config or ClientConfig(), refresh
        self._slow = Quarantine()
        self._observer = Observer(self._config.slow_operation_ms)
        self._guard = ForkGuard()
        self._transport = LaneTransport(self._config.caller(instance_id))
        self._transport.update_bookies(list(infos.values()))

    async def update_bookies(self, infos: Mapping[BookieId, BookieServiceInfo]) -> None:
        """Add or change the addresses of bookies."""
        self._transport.update_bookies(list(infos.values()))

    def read_all(
        self, wanted: Iterable[WantedRange], *, prefer: int = 0
    ) -> BatchIterator[list[tuple[int, EntryBatch | ColumnBatch]]]:
        """Read all ranges in order. Each item is a list of the batches that are ready, each with the number of its
        range.

        Several small ranges are read at the same time. If a range names ``columns``, only these columns are read where
        that saves work. Raises the errors of :meth:`read`, after the batches before the error.
        """
        return BatchIterator(read_ahead(wanted, lambda each: self._read_range(each, prefer)))

    async def _read_range(self, each: WantedRange, prefer: int) -> AsyncGenerator[EntryBatch | ColumnBatch, None]:
        ledger_id, metadata, count = each.ledger_id, each.metadata, each.last + 1 - each.first
        entry_bytes = each.bytes // max(1, count)
        wanted = if_it_pays(each.columns, entry_bytes, metadata.digest_type)

        def whole(first: EntryId, last: EntryId) -> AsyncGenerator[EntryBatch, None]:
            return self._read(ledger_id, metadata, first, last, prefer)

        def parts(first: EntryId, last: EntryId, wanted: Parts) -> AsyncGenerator[EntryBatch, None]:
            self._guard.check("this reader")
            return self._range(ledger_id, metadata, first, last, prefer, wanted)

        step = count if wanted is None else max(1, WINDOW_BYTES // entry_bytes)
        for first in range(each.first, each.last + 1, step):
            last = min(first + step - 1, each.last)
            found: AsyncGenerator[EntryBatch | ColumnBatch, None] = whole(first, last)
            if wanted is not None:
                found = columns_or_entries(parts, whole, wanted, first, last)
            async with aclosing(found) as batches:
                async for batch in batches:
                    yield batch

    def read(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, first: EntryId, last: EntryId, *, prefer: int = 0
    ) -> BatchIterator[EntryBatch]:
        """Read the entries ``first`` to ``last`` in order. Raises NoSuchEntryError, EntryUnreadableError."""
        return BatchIterator(self._read(ledger_id, metadata, first, last, prefer))

    async def _read(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, first: EntryId, last: EntryId, prefer: int
    ) -> AsyncGenerator[EntryBatch, None]:
        self._guard.check("this reader")
        position, refreshed_at = first, -1
        while True:
            try:
                async with aclosing(self._range(ledger_id, metadata, position, last, prefer)) as batches:
                    async for batch in batches:
                        yield batch
                        position = batch.last_entry_id + 1
                return
            except (EntryUnreadableError, NoSuchEntryError):  # a bookie that gave up its copy may deny the entry
                if self._refresh is None or refreshed_at == position:
                    raise
            refreshed_at = position
            metadata, infos = await asyncio.to_thread(self._refresh, ledger_id)
            await self.update_bookies(infos)

    def _range(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        prefer: int,
        parts: Parts | None = None,
    ) -> AsyncGenerator[EntryBatch, None]:
        digester = Digester(metadata.entry_digest_type, metadata.password or b"", ledger_id)
        return read_range(
            self._transport,
            metadata,
            digester,
            first,
            last,
            config=self._config,
            prefer=prefer,
            slow=self._slow,
            parts=parts,
            observer=self._observer,
        )

    def metrics(self) -> ClientMetrics:
        """Return a copy of this reader's counters."""
        return self._observer.counts.snapshot()

    async def close(self) -> None:
        """End the connections."""
        await self._transport.close()

    async def __aenter__(self) -> DetachedReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
