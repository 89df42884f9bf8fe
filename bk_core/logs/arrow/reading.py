# SPDX-License-Identifier: Apache-2.0
"""Reads a log as Arrow columns. A read is planned once; then its batches are read in order.

The loop only receives entries. The thread that wants the rows makes the columns, while the loop continues to receive.
:mod:`bk_core.client.reading.read_ahead` reads ahead, so the received entries are limited in bytes even if the thread
takes rows slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.batch_iterator import BatchIterator, KeptItems
from bk_core.client.reading.column_reads import WINDOW_BYTES
from bk_core.client.reading.made_in_order import THREADS, made_in_order
from bk_core.client.reading.pull import Pull
from bk_core.client.reading.read_ahead import read_ahead
from bk_core.columns.log_rows import LogRows, check_written
from bk_core.columns.row_origins import LedgerAt
from bk_core.columns.where import Condition
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch, ColumnsWanted
from bk_core.errors import MetadataCorruptError
from bk_core.logs.model.head import ARROW, LogHead
from bk_core.logs.reading import ExtentPart, LogReading, parts_of
from bk_core.logs.store import LogStore

if TYPE_CHECKING:
    import pyarrow as pa

Numbered = tuple[int, EntryBatch | ColumnBatch]
WHOLE_BYTES = 8 << 20
"""The size, in payload bytes, of a window of whole entries, which is read and decoded as a unit."""
AHEAD_BYTES = 24 << 20
"""The maximum size, in payload bytes, of all windows that are read at the same time. It is a few windows, so that
several bookies send entries while others are decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedColumns:
    """The arguments of a read of columns; see :meth:`bk_core.logs.named_log.NamedLog.to_arrow`."""

    columns: Sequence[str] | None = None
    where: Sequence[Condition] | None = None
    codec: str | None = None
    schema: pa.Schema | None = None


@dataclass(frozen=True, slots=True)
class LogScan:
    """A planned read of a log. ``windows`` are the entries to read, and ``rows`` makes rows of them."""

    reading: LogReading
    windows: list[_Window]
    rows: LogRows

    @classmethod
    async def plan(
        cls, store: LogStore, reading: LogReading, head: LogHead, start: int, end: int, wanted: WantedColumns
    ) -> LogScan:
        """Plan a read of the offsets ``start`` to ``end`` − 1, which must be readable. Raises InvalidArgumentError for
        columns that do not exist and for entries of several codecs."""
        extents = await asyncio.to_thread(store.extents, head, start, end) if start < end else []
        schemas = await asyncio.to_thread(store.schemas, head) if head.schemas else {}
        parts = parts_of(extents, start, end)
        written = [part.extent.codec for part in parts] or ([ARROW] if schemas else [])
        codec = check_written(store.name, wanted.codec, written)
        newest = schemas[max(schemas)] if schemas else None
        rows = LogRows.of(codec, wanted.columns, newest=newest, members=wanted.schema, where=wanted.where)
        windows = list[_Window]()
        for part in parts:
            at = _place(store.name, part, schemas, codec)
            windows += _windows_of(part, at, None if at.schema is None else rows.wanted(at.schema))
        return cls(reading, windows, rows)

    async def ready(self) -> AsyncGenerator[list[Numbered], None]:
        """Yield entries in order, as lists of the batches that are ready, each batch with the number of its window."""
        async with aclosing(
            read_ahead(self.windows, lambda each: each.read(self.reading), bytes_max=AHEAD_BYTES)
        ) as lists:
            async for found in lists:
                yield found

    def batches(self, found: Sequence[Numbered], *, use_threads: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these entries. With ``use_threads`` Arrow may use several threads, because no other thread
        makes rows at the same time. Raises CorruptEntryError."""
        for number, batch in found:
            yield from self.rows.rows(batch, self.windows[number].at, use_threads=use_threads)

    async def table(self) -> pa.Table:
        """Return all rows. Each processor has a thread that makes columns, and one thread more, because Arrow decodes
        without Python's lock and often waits for new memory. Meanwhile more entries are received."""
        made = list[Any]()
        async with aclosing(made_in_order(self.ready(), self._made, at_once=THREADS + 1)) as lists:
            async for found in lists:
                made += found
        return self.rows.table(made)

    def _made(self, found: Sequence[Numbered]) -> list[pa.RecordBatch]:
        return list(self.batches(found, use_threads=False))

    def reader(self, bookkeeper: BookKeeper) -> pa.RecordBatchReader:
        """Return the rows as a stream that any thread but the loop's may read."""
        return self.rows.reader(_PulledRows(self, Pull(bookkeeper, asyncio.get_running_loop())))


class _PulledRows(Iterator["pa.RecordBatch"]):
    """An iterator over the rows of a scan, for a thread other than the loop's. When it is dropped, on any thread, its
    reads end. If an interrupt ended a call, the next call returns the same batch."""

    def __init__(self, scan: LogScan, pull: Pull) -> None:
        self._scan, self._pull, self._source = scan, pull, KeptItems(BatchIterator(scan.ready()))
        self._at = (-1, 0)  # the number of the list being decoded, and the number of its batches that were returned
        self._found: list[Numbered] = []
        self._made: Iterator[pa.RecordBatch] | None = None

    def __next__(self) -> pa.RecordBatch:
        while (batch := self._decoded()) is None:
            number = self._at[0] + 1
            self._found, self._at = self._pull.wait(self._source.item(number, [])), (number, 0)
            if not self._found:
                self._at = (number - 1, 0)
                raise StopIteration
            self._made = None
        self._at = (self._at[0], self._at[1] + 1)
        return batch

    def _decoded(self) -> pa.RecordBatch | None:
        """Return the next batch of the list. If an error or an interrupt ended a call, decode its batch again."""
        if self._made is None:
            self._made = islice(self._scan.batches(self._found, use_threads=True), self._at[1], None)
        try:
            return next(self._made, None)
        except BaseException:
            self._made = None
            raise


@dataclass(frozen=True, slots=True)
class _Window:
    """A run of entries that is read and decoded as a unit. ``at`` is the origin of its rows, ``wanted`` the wanted
    columns, and ``bytes`` an estimate of the bytes to receive."""

    part: ExtentPart
    at: LedgerAt
    wanted: ColumnsWanted | None
    bytes: int

    def read(self, reading: LogReading) -> AsyncGenerator[EntryBatch | ColumnBatch, None]:
        return reading.read_columns(self.part, self.wanted)


def _windows_of(part: ExtentPart, at: LedgerAt, wanted: ColumnsWanted | None) -> Iterator[_Window]:
    """Cut a part of a log into windows of about WHOLE_BYTES. If only some columns are wanted, the whole entries of a
    window have about WINDOW_BYTES. An open extent is one window, because the size of its entries is unknown."""
    if not part.entry_bytes:  # an open extent
        yield _Window(part, at, wanted, part.bytes)
        return
    step = max(1, (WHOLE_BYTES if wanted is None else WINDOW_BYTES) // part.entry_bytes)
    share = 1.0 if wanted is None else (len(wanted.places) + 1) / (wanted.count + 1)
    for first in range(part.first, part.stop, step):
        window = replace(part, first=first, stop=min(first + step, part.stop))
        yield _Window(window, at, wanted, int(window.bytes * share))


def _place(log: str, part: ExtentPart, schemas: Mapping[int, bytes], codec: str) -> LedgerAt:
    """Return the origin of a part's rows. Raises MetadataCorruptError if the log lost the schema of its entries."""
    extent = part.extent
    if codec == ARROW and extent.schema_number not in schemas:
        raise MetadataCorruptError(
            f"log {log} does not have the schema that entries were written with",
            value=f"schema {extent.schema_number} of {sorted(schemas)}",
            remedy="this is damage: restore the log's record from a backup",
        )
    return LedgerAt(
        ledger_id=extent.ledger_id,
        log=log,
        offset_shift=part.shift,
        ctime_ms=extent.created_ms or None,
        closed=not extent.is_open,
        schema=schemas[extent.schema_number] if codec == ARROW else None,
    )
