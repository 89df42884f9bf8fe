# SPDX-License-Identifier: Apache-2.0
"""Defines the batch reader of topics: the driver plans the read, and tasks read the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from bk_spark.options.options import BkOptions
from bk_spark.topics import tasks
from bk_spark.topics.columns import columns_of, decoded
from bk_spark.topics.task_reader import read_topics
from bk_spark.workers import clients, worker_reuse

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper


class TopicReader(DataSourceReader):
    """The reader of one ``load()`` of topics. It has only options and columns, because each Spark partition has
    everything that its task needs."""

    def __init__(self, options: BkOptions, schema: Any) -> None:
        self.options = options
        self.columns = columns_of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Plan the read of the topics as they are now, once, without fencing a ledger."""
        return clients.patiently(self.options, self._planned)

    def _planned(self, bookkeeper: BookKeeper) -> list[InputPartition]:
        from bk_spark.topics.batch_plan import plan_batch

        worker_reuse.settle()
        plans = bookkeeper.begin(lambda inner: plan_batch(inner, self.options, decoded(self.columns))).result()
        return [InputPartition(task) for task in tasks.task_plans(bookkeeper, self.options, plans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_topics(partition.value, self.columns, self.options)
