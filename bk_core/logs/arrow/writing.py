# SPDX-License-Identifier: Apache-2.0
"""Writes rows to a log with codec ``arrow``. The rows go into a new ledger; one compare-and-set then lists the ledger
in the log and registers the schema of its rows (K8).

The rows belong to the log only once the log's head names the ledger. Until the publish begins, only this process knows
the ledger, so it deletes the ledger after an error. After that only vacuum may delete the ledger (N4).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from bk_core.client.bookkeeper import BookKeeper
from bk_core.columns.arrow_entries import TABLE_ENTRY_BYTES, ArrowEntries
from bk_core.columns.arrow_schema import to_bytes
from bk_core.columns.writable import kept_schema, pieces, reader_of
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.logs.ledgers import Sizes, create_for_log, drop_ledger, written_extent
from bk_core.logs.model.head import ARROW, COMPRESSIONS, LogHead, NewExtent, PublishId
from bk_core.logs.model.schemas import merged
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX


class RowsToWrite:
    """The rows of one append to a log. ``schema`` is the schema to publish with them."""

    schema: bytes

    def __init__(
        self,
        data: object,
        log: str,
        newest: bytes | None,
        *,
        merge_schema: bool,
        compression: str,
        entry_bytes: int | None = None,
    ) -> None:
        """Raise InvalidArgumentError for data or columns that cannot be written, and SchemaMismatchError for columns
        that do not fit the log's newest schema."""
        entry_bytes = TABLE_ENTRY_BYTES if entry_bytes is None else entry_bytes
        if not 0 < entry_bytes <= ENTRY_BYTES_MAX:
            raise InvalidArgumentError(
                "no such size of entries", value=f"max_entry_bytes={entry_bytes}", remedy=f"1 to {ENTRY_BYTES_MAX}"
            )
        if compression not in COMPRESSIONS:
            raise InvalidArgumentError(
                "no such compression", value=str(compression), remedy=f"choose from {', '.join(COMPRESSIONS)}"
            )
        self._rows = reader_of(data)
        given = kept_schema(self._rows.schema, log)
        self.schema = merged(newest, to_bytes(given), merge_schema)
        self._given, self._codec = given, ArrowEntries(self.schema, compression, entry_bytes)
        self.count = 0

    def entries(self) -> Iterator[EntryBatch]:
        """Yield the rows as entries, in order, a few megabytes at a time. ``count`` is the number of rows yielded so
        far. Raises InvalidArgumentError for values that the log's types cannot hold, and EntryTooLargeError for a row
        that is too large for an entry."""
        for piece in pieces(self._rows, self._given):
            yield from self._codec.entries(piece, first_row=self.count)
            self.count += piece.num_rows


async def write_ledger(
    bookkeeper: BookKeeper,
    log_name: str,
    head: LogHead,
    rows: RowsToWrite,
    publish_id: PublishId,
    sizes: Sizes,
    password: bytes,
) -> NewExtent | None:
    """Write all rows to a new ledger and close it. Return the extent to publish, or None if there are no rows. After an
    error the ledger is deleted."""
    entries, writer = rows.entries(), None
    try:
        while (batch := await asyncio.to_thread(next, entries, None)) is not None:
            if writer is None:
                writer = await create_for_log(
                    bookkeeper, head, sizes, publish_id, password, codec=ARROW, log_name=log_name
                )
            await writer.append_batch(batch)
        if writer is None:
            return None
        await writer.close()
    except BaseException:
        if writer is not None:
            await drop_ledger(bookkeeper, writer.ledger_id, writer)
        raise
    created_ms = writer.metadata.ctime_ms or int(time.time() * 1000)
    return written_extent(writer, codec=ARROW, created_ms=created_ms, row_count=rows.count)
