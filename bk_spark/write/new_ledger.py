# SPDX-License-Identifier: Apache-2.0
"""One ledger for a log, created with its first entry: by a task for its own rows, or by the driver for the rows of
small tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.errors import BookKeeperError
from bk_core.logs.model.head import NewExtent, PublishId, custom_metadata_for
from bk_spark.options.options import BkOptions
from bk_spark.workers import clients
from bk_spark.write.held import LogAt
from bk_spark.write.joined import Joiner

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper, LedgerWriter
    from bk_core.entries.batch import EntryBatch

logger = logging.getLogger("bk_spark.write.log_writer")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task attempt, with what its ledgers' custom metadata says about their purpose."""

    partition: int
    number: int
    publish_id: PublishId
    query_id: str | None = None


class NewLedger:
    """A ledger that becomes a part of ``log`` once a publish names it."""

    def __init__(self, options: BkOptions, log: LogAt, attempt: Attempt) -> None:
        self._options, self._log, self._attempt = options, log, attempt
        self._joiner = Joiner()
        self._bookkeeper: BookKeeper | None = None  # set with the ledger
        self._ledger: LedgerWriter | None = None

    def append(self, entries: EntryBatch, frame_bytes: int) -> None:
        """Queue entries, to be sent ``frame_bytes`` at a time. Wait while the window is full."""
        if self._ledger is None:
            self._ledger = clients.patiently(self._options, self._create)
        self._send(self._joiner.add(entries, frame_bytes))

    def send_rest(self) -> None:
        """Send the entries that are held back until they fill a frame."""
        self._send(self._joiner.rest())

    def _send(self, batches: Iterator[EntryBatch]) -> None:
        for batch in batches:
            assert self._ledger is not None
            self._ledger.append_batch(batch)

    def finish(self, rows: int | None) -> NewExtent | None:
        """Close the ledger and return its extent, or None without entries. ``rows`` is the number of DataFrame rows in
        it, given if an entry may hold several."""
        ledger, options = self._ledger, self._options
        if ledger is None:
            return None
        self.send_rest()
        ledger.close()
        metadata = ledger.metadata
        return NewExtent(
            ledger_id=ledger.ledger_id,
            entry_count=ledger.last_add_confirmed + 1,
            size_bytes=ledger.length,
            created_ms=metadata.ctime_ms or int(time.time() * 1000),
            codec=options.codec,
            ensemble_size=options.ensemble_size,
            write_quorum_size=options.write_quorum_size,
            ack_quorum_size=options.ack_quorum_size,
            fragments=metadata.fragments,
            row_count=rows,
        )

    def give_up(self) -> None:
        """Stop and delete the ledger, best effort."""
        if self._ledger is None:
            return
        assert self._bookkeeper is not None
        try:
            self._ledger.abandon()
            self._bookkeeper.delete_ledger(self._ledger.ledger_id)
        except BookKeeperError as error:
            logger.warning("ledger %d of a failed task stays until vacuum: %s", self._ledger.ledger_id, error)

    def _create(self, bookkeeper: BookKeeper) -> LedgerWriter:
        options, attempt = self._options, self._attempt
        self._bookkeeper = bookkeeper
        return bookkeeper.create_ledger(
            ensemble_size=options.ensemble_size,
            write_quorum_size=options.write_quorum_size,
            ack_quorum_size=options.ack_quorum_size,
            digest_type=self._log.digest_type,
            password=options.ledger_password,
            custom_metadata=custom_metadata_for(
                self._log.uuid,
                attempt.publish_id,
                partition=attempt.partition,
                attempt=attempt.number,
                codec=options.codec,
                log_name=self._log.name,
            ),
        )
