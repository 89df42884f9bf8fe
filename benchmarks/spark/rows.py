# SPDX-License-Identifier: Apache-2.0
"""Rows a second of 100 B and 1 KB: written, read, streamed; beside Spark's own limits, or beside spark-sql-kafka.

Ours and the peer take turns, so that what else the machine does falls on both. Our side: three bookies, Qw 3, Qa 2,
fdatasync before each ack, a digest an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.figures import Figure, elapsed, side_by_side
from benchmarks.spark.in_memory import InMemory
from benchmarks.spark.session import drop_rows, drop_stream, session
from benchmarks.spark.topics import Topics, kafka_classpath
from benchmarks.spark.world import World, new_log

UNIT = "k rows/s"
ROWS = {100: 4_000_000, 1_000: 600_000}
NAMES = {100: "100b", 1_000: "1kb"}
PARTITIONS = 2
READ_WARM_UP = 3
"""After so many reads Java has compiled what they need; before, it takes a fifth of the processors."""
READ_SHARE, WRITE_SHARE = 0.5, 0.4
"""Wanted of the ceilings (on the gRPC lane)."""
OF_KAFKA = {"write": 1.2, "read": 2.5, "stream": 2.0}
"""Wanted of spark-sql-kafka's rows a second."""


@dataclass(frozen=True, slots=True)
class Job:
    """Rows of one size. Everything here returns thousands of rows a second."""

    spark: Any
    world: World
    rows: int
    size: int

    @classmethod
    def of(cls, spark: Any, world: World, size: int) -> Job:
        return cls(spark, world, world.scaled(ROWS[size], 1_000) // PARTITIONS * PARTITIONS, size)

    @property
    def name(self) -> str:
        return NAMES[self.size]

    def rate(self, work: Callable[[], object]) -> float:
        return self.rows / elapsed(work) / 1e3

    def frame(self) -> Any:
        """The rows to write: every one another."""
        value = f"cast(rpad(cast(id as string), {self.size}, 'x') as binary) value"
        return self.spark.range(self.rows, numPartitions=PARTITIONS).selectExpr(value)

    # --- ours ---

    def write(self) -> float:
        return self.rate(lambda: self.world.appends(self.frame()).save(new_log()))

    def prepared(self) -> str:
        """A log with the rows, that was read once and is what it should be."""
        log = new_log()
        self.world.appends(self.frame()).save(log)
        found = self.world.reads(self.spark).load(log).count()
        assert found == self.rows, f"{found} rows of {self.rows} in the log"
        return log

    def read(self, log: str, **options: str) -> float:
        return self.rate(lambda: drop_rows(self.world.reads(self.spark, **options).load(log).select("value")))

    def stream(self, log: str) -> float:
        frame = self.world.streams(self.spark).load(log).select("value")
        return self.rate(lambda: drop_stream(frame, self.world.new_folder()))

    # --- Spark's own limits ---

    def drop_written(self) -> float:
        return self.rate(lambda: self.frame().write.format("inmemory").mode("append").save())

    def make(self, schema: str | None = None) -> float:
        reader = self.spark.read.format("inmemory").options(rows=self.rows, size=self.size)
        reader = reader.schema(schema) if schema else reader
        return self.rate(lambda: drop_rows(reader.load().select("value")))

    def make_stream(self) -> float:
        reader = self.spark.readStream.format("inmemory").options(rows=self.rows, size=self.size)
        frame = reader.load().select("value")
        return self.rate(lambda: drop_stream(frame, self.world.new_folder()))


# --- beside the ceilings ----------------------------------------------------------------------------------------------


def ceiling_figures(size: int, world: World) -> list[Figure]:
    """Beside the same jobs on a source and a sink in memory, on the newest pyspark."""
    spark = session(world.folder)
    try:
        spark.dataSource.register(InMemory)
        job = Job.of(spark, world, size)
        log = job.prepared()
        note = f"local[2], warm, {job.rows:,} rows of {size} B; peer: the same job "
        source = note + "on a source in memory with the same columns"
        compared: list[tuple[str, Callable[[], float], Callable[[], float], float | None, str]] = [
            ("write", job.write, job.drop_written, WRITE_SHARE, note + "on a sink that drops Arrow batches"),
            ("read", partial(job.read, log), job.make, READ_SHARE, source),
            ("stream", partial(job.stream, log), job.make_stream, None, f"{source}; trigger AvailableNow"),
        ]
        pruned = partial(job.read, log, columns="value"), partial(job.make, "value BINARY")
        compared.append(("read_value", *pruned, None, f"{source}: value alone (option columns)"))
        return [_figure(f"spark_{what}_{job.name}", world.runs, *each, peer="ceiling") for what, *each in compared]  # type: ignore[arg-type]
    finally:
        spark.stop()


# --- beside Kafka -----------------------------------------------------------------------------------------------------


def kafka_figures(size: int, world: World) -> list[Figure]:
    """Beside spark-sql-kafka on one broker, on the pyspark that this process runs."""
    import pyspark

    spark = session(world.folder, spark__driver__extraClassPath=kafka_classpath())
    try:
        job, topics = Job.of(spark, world, size), Topics(spark, world.kafka, PARTITIONS)
        log, topic = job.prepared(), topics.filled(job.frame(), job.rows)
        both = f"local[2], pyspark {pyspark.__version__} on both sides, warm, {job.rows:,} rows of {size} B"
        note = (
            f"{both}; peer: spark-sql-kafka, one broker, no replica, no fsync, acks=all, linger 50 ms, batches of 1 MB"
        )

        def produce() -> float:
            with topics.fresh() as name:  # made and deleted outside the time
                return job.rate(lambda: topics.write(job.frame(), name))

        def consume() -> float:
            return job.rate(lambda: drop_rows(topics.read(topic).select("value")))

        def consume_stream() -> float:
            frame = topics.stream(topic).select("value")
            return job.rate(lambda: drop_stream(frame, world.new_folder()))

        compared: list[tuple[str, Callable[[], float], Callable[[], float]]] = [
            ("write", job.write, produce),
            ("read", partial(job.read, log), consume),
            ("stream", partial(job.stream, log), consume_stream),
        ]
        return [
            _figure(f"spark_{what}_{job.name}", world.runs, ours, peer_work, OF_KAFKA[what], note, peer="kafka")
            for what, ours, peer_work in compared
        ]
    finally:
        spark.stop()


def _figure(
    name: str,
    runs: int,
    ours: Callable[[], float],
    peer_work: Callable[[], float],
    wanted_ratio: float | None,
    note: str,
    *,
    peer: str,
) -> Figure:
    warm_up = 1 if "write" in name else READ_WARM_UP  # each write leaves its rows on the disk
    values, peer_values = side_by_side(runs, ours, peer_work, warm_up=warm_up)
    return Figure(name, UNIT, values, wanted_ratio=wanted_ratio, peer=peer, peer_values=peer_values, note=note)
