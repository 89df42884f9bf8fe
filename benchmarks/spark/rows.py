# SPDX-License-Identifier: Apache-2.0
"""Rows a second of 100 B and 1 KB: written, read, streamed; beside Spark's own limits, or beside spark-sql-kafka.

Ours and the peer take turns, so that what else the machine does falls on both. Our side: three bookies, Qw 3, Qa 2,
fdatasync before each ack, a digest an entry. Nothing is set for the workers' allocator.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.report.figures import Figure, elapsed, side_by_side
from benchmarks.spark.in_memory import InMemory
from benchmarks.spark.session import drop_rows, drop_stream, session
from benchmarks.spark.spent import Spent, measured
from benchmarks.spark.topics import TUNED_CONSUMER, Topics, kafka_classpath
from benchmarks.spark.world import World, new_log

UNIT = "k rows/s"
ROWS = {100: 4_000_000, 1_000: 600_000}
"""Written at a time."""
READ_TIMES = 3
"""So many times as many are read: a query of a second would measure how Spark starts one."""
NAMES = {100: "100b", 1_000: "1kb"}
PARTITIONS = 2
ID_DIGITS = 10
WARM_UP = 2
"""After so many reads Java has compiled what they need; before, it takes a fifth of the processors."""
WRITE_WARM_UP = 1
"""Each write leaves its rows on the disk."""
READ_SHARE, WRITE_SHARE, STREAM_SHARE = 0.65, 0.7, 0.75
"""Wanted of the ceilings."""
OF_KAFKA = {100: {"write": 1.2, "read": 2.0, "stream": 1.3}, 1_000: {"write": 1.0, "read": 1.3, "stream": 0.9}}
"""Wanted of spark-sql-kafka's rows a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Our work and the peer's, each of which returns thousands of rows a second."""

    what: str
    ours: Callable[[], float]
    peers: Callable[[], float]
    peer: str
    note: str
    wanted: float | None = None
    """At least so much of the peer's."""
    warm_up: int = WARM_UP

    def figures(self, job: Job) -> list[Figure]:
        """Both measured, in turns: the rate with what the processes spent, and the page faults of Spark's workers."""
        spent, peers = list[Spent](), list[Spent]()
        values, peer_values = side_by_side(
            job.world.runs, partial(_noted, self.ours, spent), partial(_noted, self.peers, peers), warm_up=self.warm_up
        )
        moved = job.size * (job.rows if "write" in self.what else job.rows_read)
        faults, peer_faults = ([each.faults_a_gb(moved) for each in side[self.warm_up :]] for side in (spent, peers))
        beside: dict[str, Any] = {"peer": self.peer, "note": self.note, "lane": job.world.lane}
        rate = Figure(
            f"spark_{self.what}_{job.name}", UNIT, values, wanted_ratio=self.wanted, peer_values=peer_values,
            cpu_s_per_gb=_median_cost(spent[self.warm_up :], moved),
            peer_cpu_s_per_gb=_median_cost(peers[self.warm_up :], moved), **beside,
        )  # fmt: skip
        pages = Figure(
            f"spark_{self.what}_{job.name}_faults", "faults/GB", faults, less_is_better=True, peer_values=peer_faults,
            **beside,
        )  # fmt: skip
        return [rate, pages] if self.peer == "ceiling" else [rate]  # no other peer has workers


def _noted(work: Callable[[], float], spent: list[Spent]) -> float:
    value, each = measured(work)
    spent.append(each)
    return value


def _median_cost(spent: Sequence[Spent], payload_bytes: int) -> dict[str, float]:
    costs = [each.cpu_a_gb(payload_bytes) for each in spent]
    return {kind: statistics.median(cost.get(kind, 0.0) for cost in costs) for kind in costs[0]}


@dataclass(frozen=True, slots=True)
class Job:
    """Rows of one size, so many for a write. What is measured returns thousands of rows a second."""

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
        """Of a write, or of what makes so many ``rows``."""
        return (rows or self.rows) / elapsed(work) / 1e3

    def padded(self) -> Any:
        """The rows to write, every one another, padded one by one: that is most of what Spark does in the job."""
        return self._frame(f"rpad(cast(id as string), {self.size}, 'x')", self.rows)

    def cheap(self, rows: int | None = None) -> Any:
        """Rows as large, all but their first digits the same: they cost little to make."""
        value = f"concat(lpad(cast(id as string), {ID_DIGITS}, '0'), '{'x' * (self.size - ID_DIGITS)}')"
        return self._frame(value, rows or self.rows)

    def to_read(self) -> Any:
        """The rows of what is read."""
        return self.cheap(self.rows_read)

    def _frame(self, value: str, rows: int) -> Any:
        return self.spark.range(rows, numPartitions=PARTITIONS).selectExpr(f"cast({value} as binary) value")

    # --- ours ---

    def write(self, rows: Any) -> float:
        return self.rate(lambda: self.world.appends(rows).save(new_log()))

    def prepared(self) -> str:
        """A log with the rows, that was read once and is what it should be."""
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
        return self.rate(lambda: rows.write.format("inmemory").mode("append").save())

    def make(self, schema: str | None = None) -> float:
        reader = self.spark.read.format("inmemory").options(rows=self.rows_read, size=self.size)
        reader = reader.schema(schema) if schema else reader
        return self.rate(lambda: drop_rows(reader.load()), self.rows_read)

    def make_stream(self) -> float:
        reader = self.spark.readStream.format("inmemory").options(rows=self.rows_read, size=self.size)
        return self.rate(lambda: drop_stream(reader.load(), self.world.new_folder()), self.rows_read)


def writes(job: Job, peers: Callable[[Any], float], wanted: float, peer: str, note: str) -> list[Comparison]:
    """Of rows that Spark pads, which is the job that the wanted ratios are of, and of such that cost little to make,
    where writing is most of the job."""
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
    """Beside the same jobs on a source and a sink in memory, on the newest pyspark."""
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
        return [figure for comparison in comparisons for figure in comparison.figures(job)]
    finally:
        spark.stop()


# --- beside Kafka -----------------------------------------------------------------------------------------------------


def kafka_figures(size: int, world: World) -> list[Figure]:
    """Beside spark-sql-kafka on one broker, on the pyspark that this process runs. Both sides make whole rows. The
    wanted ratios were set beside a tuned producer and Spark's own settings of the consumer; beside a tuned consumer it
    is measured too, and so is about the most that a Python source can reach: one in memory in our place."""
    import pyspark

    spark = session(world.folder, spark__driver__extraClassPath=kafka_classpath())
    try:
        spark.dataSource.register(InMemory)
        job, topics = Job.of(spark, world, size), Topics(spark, world.kafka, PARTITIONS)
        log, topic = job.prepared(), topics.filled(job.to_read(), job.rows_read)

        def produce(rows: Any) -> float:
            with topics.fresh() as name:  # made and deleted outside the time
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
        return [figure for comparison in comparisons for figure in comparison.figures(job)]
    finally:
        spark.stop()
