# SPDX-License-Identifier: Apache-2.0
"""Rows per second of 100 B and 1 KB, written, read and streamed, beside Spark's own limits or beside spark-sql-kafka.

Ours and the peer take turns, so that other work of the machine affects both. Our side has three bookies, Qw 3, Qa 2,
fdatasync before each ack, and a digest for each entry. The memory allocator of Spark's workers has its default
settings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.report.figures import Figure, elapsed, side_by_side
from benchmarks.spark.in_memory import InMemory
from benchmarks.spark.session import drop_rows, drop_stream, drop_written, session
from benchmarks.spark.spent import Spent, measured
from benchmarks.spark.topics import TUNED_CONSUMER, Topics, kafka_classpath
from benchmarks.spark.world import World, new_log

UNIT = "k rows/s"
ROWS = {100: 4_000_000, 1_000: 600_000}
"""The number of rows of a write, by the size of a row."""
READ_TIMES = 3
"""How many times as many rows are read as written. A query of a second would measure how Spark starts a query."""
NAMES = {100: "100b", 1_000: "1kb"}
PARTITIONS = 2
ID_DIGITS = 10
WARM_UP = 2
"""The number of warm-up reads. During them Java compiles the code that reads need. While it compiles, that takes a
fifth of the processors' time."""
WRITE_WARM_UP = 1
"""The number of warm-up writes. It is small, because each write leaves its rows on the disk."""
READ_SHARE, WRITE_SHARE, STREAM_SHARE = 0.65, 0.7, 0.75
"""The least wanted shares of the ceilings' rates."""
OF_KAFKA = {100: {"write": 1.2, "read": 2.0, "stream": 1.3}, 1_000: {"write": 1.0, "read": 1.3, "stream": 0.9}}
"""The wanted ratios to spark-sql-kafka's rows per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two functions that do the same work, ours and the peer's. Each returns thousands of rows per second."""

    what: str
    ours: Callable[[], float]
    peers: Callable[[], float]
    peer: str
    note: str
    wanted: float | None = None
    """The least wanted ratio to the peer's rate."""
    warm_up: int = WARM_UP

    def figure(self, job: Job) -> Figure:
        """Measure both in turns. Return the rate, with the processor time of each side."""
        spent, peers = list[Spent](), list[Spent]()
        values, peer_values = side_by_side(
            job.world.runs, partial(_noted, self.ours, spent), partial(_noted, self.peers, peers), warm_up=self.warm_up
        )
        moved = job.size * (job.rows if "write" in self.what else job.rows_read)
        beside: dict[str, Any] = {"peer": self.peer, "note": self.note, "lane": job.world.lane}
        return Figure(
            f"spark_{self.what}_{job.name}", UNIT, values, wanted_ratio=self.wanted, peer_values=peer_values,
            cpu_s_per_gb=_median_cost(spent[self.warm_up :], moved),
            peer_cpu_s_per_gb=_median_cost(peers[self.warm_up :], moved), **beside,
        )  # fmt: skip


def _noted(work: Callable[[], float], spent: list[Spent]) -> float:
    value, each = measured(work)
    spent.append(each)
    return value


def _median_cost(spent: Sequence[Spent], payload_bytes: int) -> dict[str, float]:
    costs = [each.cpu_a_gb(payload_bytes) for each in spent]
    return {kind: statistics.median(cost.get(kind, 0.0) for cost in costs) for kind in costs[0]}


@dataclass(frozen=True, slots=True)
class Job:
    """A job on rows of one size; ``rows`` is their number in a write. Methods that measure return thousands of rows per
    second."""

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

    @property
    def rows_read(self) -> int:
        return self.rows * READ_TIMES

    def rate(self, work: Callable[[], object], rows: int | None = None) -> float:
        """Return thousands of rows per second of a write, or of work on ``rows`` rows."""
        return (rows or self.rows) / elapsed(work) / 1e3

    def padded(self) -> Any:
        """Return different rows to write, each padded by Spark. Padding is most of Spark's work in the job."""
        return self._frame(f"rpad(cast(id as string), {self.size}, 'x')", self.rows)

    def cheap(self, rows: int | None = None) -> Any:
        """Return rows of the same size that cost little to make: only their first digits differ."""
        value = f"concat(lpad(cast(id as string), {ID_DIGITS}, '0'), '{'x' * (self.size - ID_DIGITS)}')"
        return self._frame(value, rows or self.rows)

    def to_read(self) -> Any:
        """Return the rows that are written for a read: READ_TIMES as many as in a write, of the cheap kind."""
        return self.cheap(self.rows_read)

    def _frame(self, value: str, rows: int) -> Any:
        return self.spark.range(rows, numPartitions=PARTITIONS).selectExpr(f"cast({value} as binary) value")

    # --- ours ---

    def write(self, rows: Any) -> float:
        return self.rate(lambda: self.world.appends(rows).save(new_log()))

    def prepared(self) -> str:
        """Write a log with the rows, read it once and check it."""
        log = new_log()
        self.world.appends(self.to_read()).save(log)
        found = self.world.reads(self.spark).load(log).count()
        assert found == self.rows_read, f"{found} rows of {self.rows_read} in the log"
        return log

    def read(self, log: str, **options: str) -> float:
        return self.rate(lambda: drop_rows(self.world.reads(self.spark, **options).load(log)), self.rows_read)

    def stream(self, log: str) -> float:
        frame = self.world.streams(self.spark)
        return self.rate(lambda: drop_stream(frame.load(log), self.world.new_folder()), self.rows_read)

    # --- Spark's own limits ---

    def drop_written(self, rows: Any) -> float:
        return self.rate(lambda: drop_written(rows))

    def make(self, schema: str | None = None) -> float:
        reader = self.spark.read.format("inmemory").options(rows=self.rows_read, size=self.size)
        reader = reader.schema(schema) if schema else reader
        return self.rate(lambda: drop_rows(reader.load()), self.rows_read)

    def make_stream(self) -> float:
        reader = self.spark.readStream.format("inmemory").options(rows=self.rows_read, size=self.size)
        return self.rate(lambda: drop_stream(reader.load(), self.world.new_folder()), self.rows_read)


def writes(job: Job, peers: Callable[[Any], float], wanted: float, peer: str, note: str) -> list[Comparison]:
    """Compare writes of rows that Spark pads, for which the wanted ratios were set, and of rows that cost little to
    make, so that writing is most of the job."""
    return [
        Comparison(
            what=what,
            ours=partial(job.write, rows),
            peers=partial(peers, rows),
            peer=peer,
            note=f"{note}; {how}",
            wanted=ratio,
            warm_up=WRITE_WARM_UP,
        )
        for what, rows, how, ratio in (
            ("write", job.padded(), "range and rpad make the rows", wanted),
            ("write_cheap", job.cheap(), "rows that cost little to make", None),
        )
    ]


# --- beside the ceilings ----------------------------------------------------------------------------------------------


def ceiling_figures(size: int, world: World) -> list[Figure]:
    """Compare our rates with those of the same jobs on a source and a sink in memory, on the newest pyspark."""
    spark = session(world.folder)
    try:
        spark.dataSource.register(InMemory)
        job = Job.of(spark, world, size)
        log = job.prepared()
        note = f"local[2], warm, rows of {size} B, {job.rows:,} written, {job.rows_read:,} read; peer: the same job "
        sink, source = f"{note}on a sink that drops Arrow batches", f"{note}on a source in memory with the same columns"
        beside = partial(Comparison, peer="ceiling")
        comparisons = [
            *writes(job, job.drop_written, WRITE_SHARE, "ceiling", sink),
            beside(what="read", ours=partial(job.read, log), peers=job.make, note=source, wanted=READ_SHARE),
            beside(
                what="stream",
                ours=partial(job.stream, log),
                peers=job.make_stream,
                note=f"{source}; trigger AvailableNow",
                wanted=STREAM_SHARE,
            ),
            beside(
                what="read_value",
                ours=partial(job.read, log, columns="value"),
                peers=partial(job.make, "value BINARY"),
                note=f"{source}: value alone (option columns)",
            ),
        ]
        return [comparison.figure(job) for comparison in comparisons]
    finally:
        spark.stop()


# --- beside Kafka -----------------------------------------------------------------------------------------------------


def kafka_figures(size: int, world: World) -> list[Figure]:
    """Compare our rates with those of spark-sql-kafka on one broker, on the pyspark that this process runs. Both sides
    make whole rows. The wanted ratios were set for a tuned producer and Spark's own settings of the consumer. A tuned
    consumer is measured too, and so is a source in memory in our place, which is about the most that a Python source
    can reach."""
    import pyspark

    spark = session(world.folder, spark__driver__extraClassPath=kafka_classpath())
    try:
        spark.dataSource.register(InMemory)
        job, topics = Job.of(spark, world, size), Topics(spark, world.kafka, PARTITIONS)
        log, topic = job.prepared(), topics.filled(job.to_read(), job.rows_read)

        def produce(rows: Any) -> float:
            with topics.fresh() as name:  # made and deleted outside the measured time
                return job.rate(lambda: topics.write(rows, name))

        def consume(consumer: Mapping[str, str]) -> float:
            return job.rate(lambda: drop_rows(topics.read(topic, consumer)), job.rows_read)

        def consume_stream(consumer: Mapping[str, str]) -> float:
            return job.rate(lambda: drop_stream(topics.stream(topic, consumer), world.new_folder()), job.rows_read)

        note = (
            f"local[2], pyspark {pyspark.__version__} on both sides, warm, rows of {size} B, {job.rows:,} written, "
            f"{job.rows_read:,} read; peer: spark-sql-kafka, one broker, no replica, no fsync, acks=all, linger 50 ms, "
            "batches of 1 MB"
        )
        beside = partial(Comparison, peer="kafka")
        of_kafka = OF_KAFKA[size]
        comparisons = writes(job, produce, of_kafka["write"], "kafka", note)
        settings = ", ".join(f"{name}={value}" for name, value in TUNED_CONSUMER.items())
        for consumer, suffix, how, wanted in (
            ({}, "", "the consumer as Spark sets it", of_kafka),
            (TUNED_CONSUMER, "_tuned_consumer", f"the consumer with {settings}", {}),
        ):
            comparisons += [
                beside(
                    what=f"{what}{suffix}",
                    ours=ours,
                    peers=partial(peers, consumer),
                    note=f"{note}; {how}",
                    wanted=wanted.get(what),
                )
                for what, ours, peers in (
                    ("read", partial(job.read, log), consume),
                    ("stream", partial(job.stream, log), consume_stream),
                )
            ]
        comparisons += [
            beside(what=f"ceiling_{what}", ours=ours, peers=peers, note=f"{note}; in our place {memory}")
            for what, ours, peers, memory in (
                ("write", partial(job.drop_written, job.padded()), partial(produce, job.padded()), "a dropping sink"),
                ("read", job.make, partial(consume, {}), "a source in memory"),
                ("stream", job.make_stream, partial(consume_stream, {}), "a source in memory"),
            )
        ]
        return [comparison.figure(job) for comparison in comparisons]
    finally:
        spark.stop()
