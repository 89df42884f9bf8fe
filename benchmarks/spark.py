# SPDX-License-Identifier: Apache-2.0
"""Group ``spark``: rows a second through the data source, beside the same jobs on a source and a sink in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from benchmarks.figures import Figure, elapsed, repeat
from bk_cli.cluster import LocalCluster

ROWS = 2_000_000
ROWS_PER_BATCH = 10_000


def session() -> Any:
    """``local[2]`` with this interpreter for its workers."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def in_memory_reader() -> type:
    """The reader of :func:`peer_source`."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, InputPartition

    class InMemoryReader(DataSourceReader):
        def __init__(self, rows: int, size: int) -> None:
            self._rows, self._size = rows, size

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0), InputPartition(1)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            batch = pa.record_batch([pa.array([bytes(self._size)] * ROWS_PER_BATCH, pa.binary())], names=["value"])
            for _ in range(self._rows // 2 // ROWS_PER_BATCH):
                yield batch

    return InMemoryReader


def dropping_writer() -> type:
    """The writer of :func:`peer_source`."""
    from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

    class DroppingWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    return DroppingWriter


def peer_source() -> type:
    """A source that makes rows in memory and a sink that drops them: what Spark's own machinery costs.

    The classes are made inside functions so that Spark ships them by value.
    """
    from pyspark.sql.datasource import DataSource

    reader_class, writer_class = in_memory_reader(), dropping_writer()

    class InMemory(DataSource):
        @classmethod
        def name(cls) -> str:
            return "inmemory"

        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: Any) -> Any:
            return reader_class(int(self.options["rows"]), int(self.options["size"]))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return writer_class()

    return InMemory


def spark_group(cluster: LocalCluster, runs: int, scale: float) -> list[Figure]:
    spark = session()
    try:
        spark.dataSource.register(peer_source())
        return [
            figure
            for size, ours in ((100, True), (1_000, False))
            for figure in _both(spark, cluster, runs, scale, size, ours)
        ]
    finally:
        spark.stop()


def _both(spark: Any, cluster: LocalCluster, runs: int, scale: float, size: int, has_target: bool) -> list[Figure]:
    rows = int(ROWS * scale * 100 / size) // (2 * ROWS_PER_BATCH) * 2 * ROWS_PER_BATCH or 2 * ROWS_PER_BATCH
    name = {100: "100b", 1_000: "1kb"}[size]
    frame = spark.range(rows, numPartitions=2).selectExpr(
        f"cast(rpad(cast(id as string), {size}, 'x') as binary) value"
    )
    log = f"bench-{uuid4().hex[:8]}"

    def write() -> float:
        nonlocal log
        log = f"bench-{uuid4().hex[:8]}"
        writer = frame.write.format("bookkeeper").option("metadataServiceUri", cluster.uri).mode("append")
        return rows / elapsed(lambda: writer.save(log)) / 1e3

    def drop() -> float:
        return rows / elapsed(lambda: frame.write.format("inmemory").mode("append").save()) / 1e3

    def read() -> float:
        loaded = spark.read.format("bookkeeper").option("metadataServiceUri", cluster.uri).load(log)
        return rows / elapsed(lambda: loaded.select("value").write.format("noop").mode("overwrite").save()) / 1e3

    def make() -> float:
        loaded = spark.read.format("inmemory").option("rows", rows).option("size", size).load()
        return rows / elapsed(lambda: loaded.write.format("noop").mode("overwrite").save()) / 1e3

    note = f"local[2], warm, {rows:,} rows; peer: the same job on a dropping Arrow writer / an in-memory source"
    written, dropped = repeat(runs, write), repeat(runs, drop)
    loaded, made = repeat(runs, read), repeat(runs, make)
    return [
        Figure(
            f"spark_write_{name}",
            "k rows/s",
            written,
            wanted=400 if has_target else None,
            peer="raw",
            peer_values=dropped,
            note=note,
        ),
        Figure(
            f"spark_read_{name}",
            "k rows/s",
            loaded,
            wanted=800 if has_target else None,
            peer="raw",
            peer_values=made,
            note=note,
        ),
    ]
