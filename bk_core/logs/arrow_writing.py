# SPDX-License-Identifier: Apache-2.0
"""Writes rows to a log with codec ``arrow``: a ledger of its own, which one compare-and-set lists together with the
schema of its rows (K8).

The ledger counts only once the log's head names it. Until the publish begins nobody else knows of it, so after an error
it is deleted; afterwards only vacuum may do that (N4).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.client.connect import BookKeeper
from bk_core.client.writer import LedgerWriter
from bk_core.columns.arrow_entries import ArrowEntries
from bk_core.columns.arrow_message import COMPRESSIONS
from bk_core.columns.arrow_schema import to_bytes
from bk_core.columns.log_rows import ARROW
from bk_core.columns.writable import kept_schema, pieces, reader_of
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, InvalidArgumentError
from bk_core.logs.model.head import LogHead, NewExtent, PublishId, custom_metadata_for
from bk_core.logs.model.schemas import merged

if TYPE_CHECKING:
    pass

logger = logging.getLogger("bk_core.logs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSizes:
    """The ensemble and quorum sizes of a ledger."""

    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2


class RowsToWrite:
    """Rows of one append. ``schema`` is the one to publish with them."""

    schema: bytes

    def __init__(self, data: object, log: str, newest: bytes | None, *, merge_schema: bool, compression: str) -> None:
        """Raises InvalidArgumentError for data or columns that cannot be written, SchemaMismatchError for columns that
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
        """Entries in order, a few megabytes at a time. ``count`` is how many rows they have so far. Raises
        InvalidArgumentError for values that the log's types cannot hold, EntryTooLargeError for such a row."""
        for piece in pieces(self._rows, self._given):
            yield from self._codec.entries(piece, first_row=self.count)
            self.count += piece.num_rows


async def write_ledger(
    bookkeeper: BookKeeper, head: LogHead, rows: RowsToWrite, publish_id: PublishId, sizes: LedgerSizes, password: bytes
) -> NewExtent | None:
    """A closed ledger with all rows, to be published; None if there are no rows. After an error the ledger is
    deleted."""
    entries, writer = rows.entries(), None
    try:
        while (batch := await asyncio.to_thread(next, entries, None)) is not None:
            if writer is None:
                writer = await _create(bookkeeper, head, publish_id, sizes, password)
            await writer.append_batch(batch)
        if writer is None:
            return None
        await writer.close()
    except BaseException:
        if writer is not None:
            await _give_up(bookkeeper, writer)
        raise
    return NewExtent(
        ledger_id=writer.ledger_id,
        entry_count=writer.last_add_confirmed + 1,
        size_bytes=writer.length,
        created_ms=writer.metadata.ctime_ms or int(time.time() * 1000),
        codec=ARROW,
        ensemble_size=sizes.ensemble_size,
        write_quorum_size=sizes.write_quorum_size,
        ack_quorum_size=sizes.ack_quorum_size,
        fragments=writer.metadata.fragments,
        row_count=rows.count,
    )


async def _create(
    bookkeeper: BookKeeper, head: LogHead, publish_id: PublishId, sizes: LedgerSizes, password: bytes
) -> LedgerWriter:
    return await bookkeeper.create_ledger(
        ensemble_size=sizes.ensemble_size,
        write_quorum_size=sizes.write_quorum_size,
        ack_quorum_size=sizes.ack_quorum_size,
        digest_type=head.digest_type,
        password=password,
        custom_metadata=custom_metadata_for(head.uuid, publish_id, partition=0, attempt=0, codec=ARROW),
    )


async def _give_up(bookkeeper: BookKeeper, writer: LedgerWriter) -> None:
    """Delete a ledger that nobody else knows of. Best effort: what stays, vacuum finds."""
    try:
        await writer.abandon()
        await bookkeeper.delete_ledger(writer.ledger_id)
    except BookKeeperError as error:
        logger.warning("ledger %d of a failed append stays until vacuum: %s", writer.ledger_id, error)
