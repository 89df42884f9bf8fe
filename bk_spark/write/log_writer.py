# SPDX-License-Identifier: Apache-2.0
"""Batch writes to named logs: each task attempt fills ledgers of its own, and the driver publishes them together.

``append`` adds to a log. ``overwrite`` replaces all old rows by the new ones in one compare-and-set. Both make a
missing log; vacuum deletes the unlinked ledgers after their delay (RULES N6).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from bk_core.errors import InvalidArgumentError, NotEnoughBookiesError
from bk_core.logs.machines.publication import PublishOptions, Transaction
from bk_core.logs.model.head import PublishId
from bk_core.placement import writable_in_words
from bk_spark import codecs
from bk_spark.codecs.spark_types import name_of_field
from bk_spark.options.options import BkOptions
from bk_spark.workers import clients
from bk_spark.write import commit, fan_out
from bk_spark.write.commit import Messages
from bk_spark.write.held import LogAt
from bk_spark.write.new_ledger import Attempt
from bk_spark.write.task_ledgers import WriteTarget, found, open_or_create, write_rows

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper

logger = logging.getLogger("bk_spark.write.log_writer")


class LogWriter(DataSourceArrowWriter):
    """The writer of one job. Spark pickles this same object to every task and to ``commit`` and ``abort``."""

    def __init__(
        self, target: WriteTarget, publish_id: PublishId, transaction: Transaction | None, *, overwrite: bool
    ) -> None:
        self.target, self.publish_id, self.transaction, self.overwrite = target, publish_id, transaction, overwrite

    @classmethod
    def plan(cls, options: BkOptions, schema: Any, *, overwrite: bool = False) -> LogWriter:
        """Check everything that can be checked before a row is written, on the driver.

        A missing log is created, and a log line says so (RULES N8). Raises InvalidArgumentError for columns and
        options, NotEnoughBookiesError, LogHasLeaderError, WrongPasswordError, MetadataUnavailableError.
        """
        transaction = transaction_of(options)
        target = plan_target(options, schema, overwrite=overwrite)
        if transaction is None:
            return cls(target, PublishId.job(str(uuid.uuid4())), None, overwrite=overwrite)
        publish_id = PublishId.txn(transaction.app_id, transaction.version)
        return cls(target, publish_id, transaction, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task attempt; see :func:`bk_spark.write.task_ledgers.write_rows`."""
        partition, number = task_numbers()
        return write_rows(self.target, Attempt(partition, number, self.publish_id), iterator)

    def commit(self, messages: Messages) -> None:
        """Make all rows visible in one step, or none. Raises what :func:`bk_spark.write.commit.publish` raises."""
        options = self.target.options
        how = publish_options(options, self.transaction, overwrite=self.overwrite)
        rows = commit.publish(options, self.publish_id, how, messages)
        logger.info("published %d rows to %s as %s", rows, options.selection, self.publish_id.text)

    def abort(self, messages: Messages) -> None:
        """Clean up after a failed job. Never raises, because Spark would report that error instead of the cause."""
        abort(self.target.options, messages)


def publish_options(options: BkOptions, transaction: Transaction | None, *, overwrite: bool) -> PublishOptions:
    """Return how to publish what the tasks wrote, except the schema."""
    return PublishOptions(
        transaction=transaction,
        overwrite=overwrite,
        merge_schema=options.merge_schema,
        type_name=name_of_field,
    )


def transaction_of(options: BkOptions) -> Transaction | None:
    """Return the job's transaction (RULES N5), or None. Raises InvalidArgumentError if only one of its two options is
    given."""
    if options.txn_app_id is not None and options.txn_version is not None:
        return Transaction(options.txn_app_id, options.txn_version)
    if options.txn_app_id is None and options.txn_version is None:
        return None
    raise InvalidArgumentError(
        "txnAppId and txnVersion go together",
        value=f"txnAppId={options.txn_app_id}"
        if options.txn_app_id is not None
        else f"txnVersion={options.txn_version}",
        remedy="give both: the name of the application, and a number that rises with each of its jobs",
    )


def plan_target(options: BkOptions, schema: Any, *, overwrite: bool) -> WriteTarget:
    """Check the write and return what its tasks must know. A missing log is created."""
    columns = fan_out.columns_of_write(options, schema)
    if overwrite and columns.by_column:
        raise InvalidArgumentError(
            "overwriting needs the name of the log: a column does not tell which other logs to empty",
            value="no option log and no path",
            remedy='.option("log", "events"), or .mode("append")',
        )
    codecs.check_input(options, columns.written)

    def ask(bookkeeper: BookKeeper) -> WriteTarget:
        bookkeeper.store.sync()  # what is refused here fails the job: believe no server that is behind (RULES M5)
        check_bookies(bookkeeper, options)
        if options.log is None:
            return WriteTarget(
                options=options, log=None, columns=columns, codec=codecs.entry_codec(options, columns.written)
            )
        log = bookkeeper.log(options.log, password=options.ledger_password)
        head, schemas = found(log, options, overwrite=overwrite), {}
        if head is not None and codecs.keeps_schema(options):
            schemas[options.log] = log.schemas()
        codec = codecs.entry_codec(options, columns.written, schemas)
        if head is None:  # only now: a write that is refused makes no log
            head = open_or_create(log, options)
        return WriteTarget(options=options, log=LogAt.of(options.log, head), columns=columns, codec=codec)

    return clients.patiently(options, ask)


def abort(options: BkOptions, messages: Messages) -> None:
    """Delete the ledgers of a write if none was ever offered for publishing. Never raises."""
    try:
        commit.abandon(clients.client(options), messages)
    except Exception as error:
        logger.warning("could not clean up after a failed write to %s: %s", options.selection, error)


def check_bookies(bookkeeper: BookKeeper, options: BkOptions) -> None:
    """Check, before the job starts, that it can create a ledger. Raises NotEnoughBookiesError."""
    writable = bookkeeper.store.writable_bookies()
    if len(writable) < options.ensemble_size:
        raise NotEnoughBookiesError(
            f"a ledger needs {options.ensemble_size} bookies and {len(writable)} are writable",
            value=f"ensembleSize={options.ensemble_size}; {writable_in_words(writable, {})}",
            remedy="start more bookies, or lower ensembleSize, writeQuorumSize and ackQuorumSize",
        )


def task_numbers() -> tuple[int, int]:
    """Return the partition and the attempt number of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
