# SPDX-License-Identifier: Apache-2.0
"""Batch writes to a named log: each task attempt fills a ledger of its own, the driver publishes them together.

Several attempts of one partition may run, also at once, and a loser may end after ``commit`` (facts: spark.md §3.3);
so no two attempts share a ledger, and a ledger counts only once the log's head names it (RULES N4, N6).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from bk_core import __version__
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, NotEnoughBookiesError
from bk_core.logs.head import LogHead, NewExtent, PublishId, custom_metadata_for
from bk_core.model import DigestType
from bk_spark import clients, codecs, commit, resolve, task_log
from bk_spark.errors import package_mismatch
from bk_spark.ledgers import digest_type_of
from bk_spark.options import BkOptions

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper, LedgerWriter, NamedLog

logger = logging.getLogger("bk_spark.write")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """What every task of one job must know. ``publish_id`` is made once, on the driver."""

    log: str
    log_uuid: str
    digest_type: DigestType
    publish_id: PublishId
    version: str


class LogWriter(DataSourceArrowWriter):
    """One job. Spark pickles this same object to every task and to ``commit`` and ``abort``."""

    def __init__(self, options: BkOptions, target: WriteTarget, codec: codecs.EntryCodec) -> None:
        self.options, self.target, self.codec = options, target, codec

    @classmethod
    def plan(cls, options: BkOptions, schema: Any) -> LogWriter:
        """Check everything that can be known before a row is written, on the driver.

        A missing log is created and the log says so (RULES N8). Raises InvalidArgumentError for columns,
        NotEnoughBookiesError, LogHasLeaderError, WrongPasswordError, MetadataUnavailableError.
        """
        log = options.log
        codec = codecs.entry_codec(options, schema)
        bookkeeper = clients.client(options)
        check_bookies(bookkeeper, options)
        head = open_or_create(bookkeeper.log(log, password=options.ledger_password), options)
        target = WriteTarget(
            log=log,
            log_uuid=head.uuid,
            digest_type=head.digest_type,
            publish_id=PublishId.job(str(uuid.uuid4())),
            version=__version__,
        )
        return cls(options, target, codec)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task attempt. Its ledger is closed when this returns; on an error it is deleted, best effort."""
        if self.target.version != __version__:
            raise package_mismatch(self.target.version, __version__)
        partition, attempt = task_numbers()
        attempted, rows = TaskLedger(self.options, self.target, partition, attempt), 0
        try:
            with task_log.Writing(iterator, partition, attempt) as batches:
                for batch in batches:
                    for entries in self.codec.entries(batch, first_row=rows):
                        attempted.append(entries)
                    rows += batch.num_rows
                extent = attempted.finish()
                batches.ledgers = [extent.ledger_id] if extent else []
            return commit.WrittenLedger(partition, attempt, extent)
        except BaseException:
            attempted.give_up()
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """One compare-and-set makes all rows visible, or none. Raises what :func:`bk_spark.commit.publish` raises."""
        bookkeeper = clients.client(self.options)
        target = self.target
        rows = commit.publish(bookkeeper, target.log, self.options.ledger_password, target.publish_id, messages)
        logger.info("published %d entries to log %s as %s", rows, target.log, target.publish_id.text)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Never raises: Spark would report this instead of the cause (facts: spark.md §2.6)."""
        try:
            commit.abandon(clients.client(self.options), messages)
        except Exception as error:
            logger.warning("could not clean up after a failed write to log %s: %s", self.target.log, error)


class TaskLedger:
    """The ledger of one task attempt, created with its first row."""

    def __init__(self, options: BkOptions, target: WriteTarget, partition: int, attempt: int) -> None:
        self._options, self._target = options, target
        self._partition, self._attempt = partition, attempt
        self._bookkeeper: BookKeeper | None = None
        self._ledger: LedgerWriter | None = None

    def append(self, entries: EntryBatch) -> None:
        """Queue a batch; waits while the window is full."""
        if not entries.count:
            return
        if self._ledger is None:
            self._ledger = self._create()
        self._ledger.append_batch(entries)

    def finish(self) -> NewExtent | None:
        """Close the ledger and report it; None without rows."""
        ledger, options = self._ledger, self._options
        if ledger is None:
            return None
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
        )

    def give_up(self) -> None:
        """Stop and delete the ledger, best effort: nobody was told of it, so nobody can publish it."""
        if self._ledger is None or self._bookkeeper is None:
            return
        try:
            self._ledger.abandon()
            self._bookkeeper.delete_ledger(self._ledger.ledger_id)
        except BookKeeperError as error:
            logger.warning("ledger %d of a failed task stays until vacuum: %s", self._ledger.ledger_id, error)

    def _create(self) -> LedgerWriter:
        self._bookkeeper = clients.client(self._options)
        target, options = self._target, self._options
        return self._bookkeeper.create_ledger(
            ensemble_size=options.ensemble_size,
            write_quorum_size=options.write_quorum_size,
            ack_quorum_size=options.ack_quorum_size,
            digest_type=target.digest_type,
            password=options.ledger_password,
            custom_metadata=custom_metadata_for(
                target.log_uuid,
                target.publish_id,
                partition=self._partition,
                attempt=self._attempt,
                codec=options.codec,
            ),
        )


def open_or_create(log: NamedLog, options: BkOptions) -> LogHead:
    """The head of the log, made if there is none (RULES N8). Raises LogHasLeaderError when a leader writes it: a
    publish would put rows in the middle (RULES N2)."""
    found, created = log.open_or_create(digest_type=digest_type_of(options))
    if created:
        logger.warning("created log %s", log.name)
    head: LogHead = found.value
    resolve.check_no_leader(head, options)
    return head


def check_bookies(bookkeeper: BookKeeper, options: BkOptions) -> None:
    """Raises NotEnoughBookiesError before a job starts that could not create a single ledger."""
    alive = len(bookkeeper.store.writable_bookies())
    if alive < options.ensemble_size:
        raise NotEnoughBookiesError(
            f"a ledger needs {options.ensemble_size} bookies and {alive} are writable",
            value=f"ensembleSize={options.ensemble_size}",
            remedy="start more bookies, or lower ensembleSize, writeQuorumSize and ackQuorumSize",
        )


def task_numbers() -> tuple[int, int]:
    """Partition and attempt number of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
