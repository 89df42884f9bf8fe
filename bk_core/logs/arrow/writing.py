# SPDX-License-Identifier: Apache-2.0
"""Writes rows to a log with codec ``arrow``: into a new ledger, which one compare-and-set lists together with the
schema of its rows (K8).

The ledger counts only once the log's head names it. Until the publish begins only this process knows the ledger, so it
is deleted after an error; afterwards only vacuum may do that (N4).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from bk_core.client.bookkeeper import BookKeeper
from bk_core.columns.arrow_entries import ArrowEntries
from bk_core.columns.arrow_message import COMPRESSIONS
from bk_core.columns.arrow_schema import to_bytes
from bk_core.columns.log_rows import ARROW
from bk_core.columns.writable import kept_schema, pieces, reader_of
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.logs.ledgers import Sizes, create_for_log, drop_ledger, written_extent
from bk_core.logs.model.head import LogHead, NewExtent, PublishId
from bk_core.logs.model.schemas import merged


class RowsToWrite:
    """The rows of one append. ``schema`` is the schema to publish with them."""

    schema: bytes

    def __init__(self, data: object, log: str, newest: bytes | None, *, merge_schema: bool, compression: str) -> None:
        """Raise InvalidArgumentError for data or columns that cannot be written, SchemaMismatchError for columns that
        do not fit the log's newest schema."""
        if compression not in COMPRESSIONS.values():
            raise InvalidArgumentError(
                "no such compression", value=str(compression), remedy=f"choose from {', '.join(COMPRESSIONS.values())}"
            )
        self._rows = reader_of(data)
        given = kept_schema(self._rows.schema, log)
        self.schema = merged(newest, to_bytes(given), merge_schema)
        self._given, self._codec = given, ArrowEntries(self.schema, compression)
        self.count = 0

    def entries(self) -> Iterator[EntryBatch]:
        """Yield entries in order, a few megabytes at a time. ``count`` is the number of rows in them so far. Raises
        InvalidArgumentError for values that the log's types cannot hold, EntryTooLargeError for a row that fits in no
        entry."""
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
    """Write a closed ledger with all rows, to be published; return None if there are no rows. After an error the ledger
    is deleted."""
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
