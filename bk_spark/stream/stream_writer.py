# SPDX-License-Identifier: Apache-2.0
"""Streaming writes to named logs. Each batch of a query is written exactly once, even if it is replayed (RULES N5).

Spark plans a writer for each micro-batch, and makes another one for ``commit``. They share only options, columns and
messages. Only a task knows the query's id, so messages carry it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from bk_core.errors import InvalidArgumentError
from bk_core.logs.machines.publication import Transaction
from bk_core.logs.model.head import PublishId
from bk_spark import compat
from bk_spark.options.options import BkOptions
from bk_spark.stream import checkpoint
from bk_spark.write import commit
from bk_spark.write.commit import Messages
from bk_spark.write.log_writer import abort, plan_target, publish_options, task_numbers
from bk_spark.write.new_ledger import Attempt
from bk_spark.write.task_ledgers import WriteTarget, write_rows

logger = logging.getLogger("bk_spark.stream.stream_writer")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties of the tasks of a micro-batch."""


class StreamWriter(compat.StreamWriterBase):
    """The writer of one micro-batch. ``commit`` and ``abort`` need no ``target``, and work even if no batch could be
    written now."""

    def __init__(
        self, options: BkOptions, target: WriteTarget | None, *, overwrite: bool, checkpoint_location: str | None = None
    ) -> None:
        self.options, self.target, self.overwrite = options, target, overwrite
        self.checkpoint_location = checkpoint_location

    @classmethod
    def plan(
        cls, options: BkOptions, schema: Any, *, overwrite: bool = False, checkpoint_location: str | None = None
    ) -> StreamWriter:
        """Check and plan as :meth:`LogWriter.plan` does. Also raises InvalidArgumentError before pyspark 4.1 and for
        ``txnVersion``. If the checkpoint can be read, raises it for a continuous trigger and for a stream that reads
        the log that it writes (RULES K9)."""
        if not compat.HAS_STREAM_WRITER:
            raise InvalidArgumentError(
                "writing a stream needs pyspark 4.1 or later",
                value=f"pyspark {compat.pyspark_version()}",
                remedy="upgrade, or write in foreachBatch with txnAppId and txnVersion",
            )
        if options.txn_version is not None:
            raise InvalidArgumentError(
                "txnVersion is not for a stream, whose versions are its batch ids",
                value=f"txnVersion={options.txn_version}",
                remedy="leave it out; in foreachBatch give the batch id",
            )
        if checkpoint_location is not None and not checkpoint.is_batch_planned(checkpoint_location):
            raise InvalidArgumentError(
                "a continuous trigger writes no row: Spark calls no Python writer for it",
                value=f"checkpointLocation={checkpoint_location}",
                remedy="use a micro-batch trigger: processingTime, availableNow or once",
            )
        target = plan_target(options, schema, overwrite=overwrite)
        if target.log is not None and checkpoint_location is not None:
            _check_no_loop(target.log.name, target.log.uuid, checkpoint_location)
        return cls(options, target, overwrite=overwrite, checkpoint_location=checkpoint_location)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task attempt; see :func:`bk_spark.write.task_ledgers.write_rows`."""
        assert self.target is not None
        partition, number = task_numbers()
        query_id, batch_id = query_of_task()
        publish_id = PublishId(f"stream/{query_id}/{batch_id}")
        return write_rows(self.target, Attempt(partition, number, publish_id, query_id), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        """Make all rows of the batch visible in one step, once. Raises what :func:`bk_spark.write.commit.publish`
        raises."""
        commit.check_complete(messages)
        options, query_id = self.options, commit.query_of(messages)
        if not messages and not self.overwrite:
            return
        publish_id, transaction = self._identity(query_id, batchId)
        how = publish_options(options, transaction, overwrite=self.overwrite)
        rows = commit.publish(options, publish_id, how, messages)
        logger.info("batch %d: published %d rows to %s as %s", batchId, rows, options.selection, publish_id.text)

    def _identity(self, query_id: str | None, batch_id: int) -> tuple[PublishId, Transaction]:
        app_id, location = self.options.txn_app_id, self.checkpoint_location
        plan = checkpoint.plan_of(location, batch_id) if location is not None else b""
        if app_id is not None:
            return PublishId.txn(app_id, batch_id), Transaction(app_id, batch_id, plan)
        if query_id is None:
            raise InvalidArgumentError(
                "the tasks did not report the id of their query, so a batch could be written twice",
                value=f"batch {batch_id}",
                remedy="name the query's batches with option txnAppId",
            )
        return PublishId.stream(query_id, batch_id), Transaction(query_id, batch_id, plan)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Clean up after a failed batch. Never raises, because Spark would report that error instead of the cause."""
        abort(self.options, messages)


def query_of_task() -> tuple[str | None, str]:
    """Return the ids of the query and the micro-batch of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None, "?"
    return context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID) or "?"


def _check_no_loop(name: str, uuid: str, location: str) -> None:
    """Check that the stream does not read the log that it writes, because it would never end (RULES K9). This works
    only if the stream itself names a local folder as its checkpoint, because Spark passes a sink nothing else about its
    query's sources. Raises InvalidArgumentError."""
    if uuid in checkpoint.source_logs(location):
        raise InvalidArgumentError(
            "the stream reads the log that it writes: it would never end",
            value=f"log {name}",
            remedy="write to another log",
        )
