# SPDX-License-Identifier: Apache-2.0
"""``format("bookkeeper")`` as Spark sees it: one class that checks options and returns readers and writers.

Spark makes many instances of it, in driver and workers, and pickles them. So nothing here opens a socket, starts a
thread or imports the client. Parameter names are Spark's, because Spark calls some of these methods by keyword.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from bk_spark import compat
from bk_spark.options import table_options
from bk_spark.options.options import Use, parse_options

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions
    from bk_spark.read.ledger_reader import LedgerReader
    from bk_spark.stream.stream_reader import StreamReader
    from bk_spark.stream.stream_writer import StreamWriter
    from bk_spark.topics.batch_reader import TopicReader
    from bk_spark.topics.stream_reader import TopicStreamReader
    from bk_spark.write.log_writer import LogWriter

FORMAT = "bookkeeper"


class BookKeeperDataSource(DataSource):
    """Ledgers and named logs of a BookKeeper cluster, and topics of Apache Pulsar, as DataFrames (docs/spark.md,
    docs/pulsar.md)."""

    options: Mapping[str, str]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> Any:
        """Check the options and return the default columns. It does no I/O, except for a codec whose columns are in the
        log, because side effects belong in ``partitions()``."""
        from bk_spark import codecs
        from bk_spark.plan.resolve import log_schemas
        from bk_spark.topics import columns as topic_columns
        from bk_spark.workers import worker_reuse

        worker_reuse.settle()
        is_for_table = table_options.creates_table(self.options)
        given = table_options.without_properties(self.options) if is_for_table else self.options
        options = parse_options(given, None)
        if options.topics is not None:
            columns = topic_columns.default_schema(options)
        else:
            columns = codecs.default_schema(options, log_schemas(options))
        return table_options.columns_of_new_table(given, columns) if is_for_table else columns

    def reader(self, schema: Any) -> LedgerReader | TopicReader:
        options = parse_options(table_options.for_read(self.options, schema), Use.READ)
        if options.topics is not None:
            from bk_spark.topics.batch_reader import TopicReader

            return TopicReader(options, schema)
        from bk_spark.read.ledger_reader import LedgerReader

        return LedgerReader(options, schema)

    def streamReader(self, schema: Any) -> StreamReader | TopicStreamReader:
        options = parse_options(table_options.for_read(self.options, schema), Use.STREAM)
        if options.topics is not None:
            from bk_spark.topics.stream_reader import TopicStreamReader

            return TopicStreamReader(options, schema)
        from bk_spark.stream.stream_reader import StreamReader

        return StreamReader(options, schema)

    def writer(self, schema: Any, overwrite: bool) -> LogWriter:
        from bk_spark.write.log_writer import LogWriter

        return LogWriter.plan(self._write_options(is_sink=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        from bk_spark.stream.stream_writer import StreamWriter

        options, location = self._write_options(is_sink=True), self.options.get("checkpointLocation")
        if compat.ends_batches():
            return StreamWriter(options, None, overwrite=overwrite, checkpoint_location=location)
        return StreamWriter.plan(options, schema, overwrite=overwrite, checkpoint_location=location)

    def _write_options(self, *, is_sink: bool) -> BkOptions:
        table_options.check_write(self.options)
        return parse_options(self.options, Use.WRITE, is_sink=is_sink)
