# SPDX-License-Identifier: Apache-2.0
"""Rows with types: the flights' 20 columns with ``codec=arrow``, beside Kafka with JSON and with Avro, or beside
memory.

The rows are in Spark's cache before they are written. Reads make whole rows and forget them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.flights import THREE, flights
from benchmarks.report.figures import Figure, elapsed, side_by_side
from benchmarks.spark.in_memory import InMemory
from benchmarks.spark.session import drop_rows, drop_written, session
from benchmarks.spark.topics import TUNED_CONSUMER, Topics, kafka_classpath
from benchmarks.spark.world import World, new_log

ROWS = 3_000_000
PARTITIONS = 2
UNIT = "k rows/s"
OF_KAFKA = {"write": 2.5, "read": 4.0, "read_3_columns": 12.0}
OF_MEMORY = 0.65
WARM_UP = {"write": 1, "read": 2, "read_3_columns": 2}
FORMATS = ("json", "avro")

Job = Callable[[], object]


class Typed:
    """The rows, in Spark's cache and in a file that a worker maps into its memory."""

    def __init__(self, spark: Any, world: World) -> None:
        self.spark, self.world = spark, world
        self.rows = world.scaled(ROWS, 10_000) // PARTITIONS * PARTITIONS
        self.path = world.folder / "flights.arrow"
        table = flights(self.rows)
        with pa.OSFile(str(self.path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=10_000)
        self.frame = self.memory().repartition(PARTITIONS).cache()
        assert self.frame.count() == self.rows
        self.log = new_log()

    def memory(self, columns: tuple[str, ...] = ()) -> Any:
        """Return a source that only hands over the rows."""
        reader = self.spark.read.format("inmemory").options(rows=self.rows, size=1, path=str(self.path))
        return (reader.schema(self.schema(columns)) if columns else reader).load()

    def schema(self, columns: tuple[str, ...]) -> Any:
        """Return the schema of these columns, in this order."""
        from pyspark.sql.types import StructType

        return StructType([self.frame.schema[name] for name in columns])

    def write(self, log: str = "") -> None:
        self.world.appends(self.frame, codec="arrow").save(log or new_log())

    def read(self, columns: tuple[str, ...] = ()) -> Any:
        """Return a DataFrame of the log. It leaves out the columns that say where a row comes from, because Kafka is
        not asked for them either."""
        names = columns or tuple(self.frame.columns)
        return self.world.reads(self.spark, codec="arrow", columns=",".join(names)).load(self.log)

    def rate(self, job: Job) -> float:
        return self.rows / elapsed(job) / 1e3


def jobs_of(rows: Typed | KafkaRows) -> dict[str, Job]:
    return {
        "write": rows.write,
        "read": lambda: drop_rows(rows.read()),
        "read_3_columns": lambda: drop_rows(rows.read(THREE)),
    }


def jobs_in_memory(typed: Typed) -> dict[str, Job]:
    """Return the same jobs with a sink and a source in memory."""
    return {
        "write": lambda: drop_written(typed.frame),
        "read": lambda: drop_rows(typed.memory()),
        "read_3_columns": lambda: drop_rows(typed.memory(THREE)),
    }


def typed_figures(world: World) -> list[Figure]:
    """Compare reads with a source of the same columns in memory, on the newest pyspark."""
    spark = session(world.folder)
    try:
        spark.dataSource.register(InMemory)
        typed = Typed(spark, world)
        typed.write(typed.log)
        _check_same(typed.read(), typed.frame)
        note = f"local[2], warm, {typed.rows:,} rows of the 20 columns of the flights, codec=arrow"
        jobs, memory = jobs_of(typed), jobs_in_memory(typed)
        return [
            Figure(
                f"spark_typed_{name}", UNIT, ours, lane=world.lane, wanted_ratio=OF_MEMORY, peer="memory",
                peer_values=theirs, note=note, peer_note="a source that maps the same columns from a file of Arrow",
            )
            for name in ("read", "read_3_columns")
            for ours, theirs in [
                side_by_side(
                    world.runs,
                    partial(typed.rate, jobs[name]),
                    partial(typed.rate, memory[name]),
                    warm_up=WARM_UP[name],
                )
            ]
        ]  # fmt: skip
    finally:
        spark.stop()


# --- beside Kafka -----------------------------------------------------------------------------------------------------


class KafkaRows:
    """The same rows in a topic, as JSON or as Avro, made by Spark's own functions."""

    def __init__(self, typed: Typed, topics: Topics, form: str) -> None:
        self.typed, self.topics, self.form = typed, topics, form
        self.topic = topics.create()
        topics.write(self._packed(), self.topic)
        _check_same(self.read(), typed.frame)

    def _packed(self) -> Any:
        from pyspark.sql import functions
        from pyspark.sql.avro.functions import to_avro

        whole = functions.struct(*self.typed.frame.columns)
        made = functions.to_json(whole) if self.form == "json" else to_avro(whole)
        return self.typed.frame.select(made.alias("value"))

    def read(self, columns: tuple[str, ...] = ()) -> Any:
        """Return a DataFrame that parses only the named columns."""
        from pyspark.sql import functions
        from pyspark.sql.avro.functions import from_avro

        names = columns or tuple(self.typed.frame.columns)
        rows = self.topics.read(self.topic, TUNED_CONSUMER)
        if self.form == "json":
            parsed = functions.from_json(rows["value"].cast("string"), self.typed.schema(names))
        else:
            whole = self._avro_schema(tuple(self.typed.frame.columns))
            parsed = from_avro(rows["value"], whole, {"avroSchema": self._avro_schema(names)})
        return rows.select(parsed.alias("row")).select("row.*")

    def _avro_schema(self, names: tuple[str, ...]) -> str:
        """Return the Avro schema with which ``to_avro`` writes these columns."""
        schema = self.typed.schema(names)
        converters = self.typed.spark._jvm.org.apache.spark.sql.avro.SchemaConverters
        java = self.typed.spark._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
        made: str = converters.toAvroType(java, False, "topLevelRecord", "").toString()
        return made

    def write(self) -> None:
        self.topics.write(self._packed(), self.topics.create())


def kafka_typed_figures(world: World) -> list[Figure]:
    """Compare each job with both forms, in turns, and the same job in memory with Avro. The latter is about the most
    that a Python data source can reach."""
    import pyspark

    spark = session(world.folder, spark__driver__extraClassPath=kafka_classpath())
    try:
        spark.dataSource.register(InMemory)
        typed = Typed(spark, world)
        typed.write(typed.log)
        _check_same(typed.read(), typed.frame)
        topics = Topics(spark, world.kafka, PARTITIONS)
        peers = {form: jobs_of(KafkaRows(typed, topics, form)) for form in FORMATS}
        ours, memory = jobs_of(typed), jobs_in_memory(typed)
        note = (
            f"local[2], pyspark {pyspark.__version__} on both sides, warm, {typed.rows:,} rows of the 20 columns of "
            "the flights, codec=arrow; three copies, synced"
        )
        avro = {"avro": peers["avro"]}
        return [
            figure
            for name in ours
            for figure in (
                *_beside(name, typed, ours[name], peers, note, wanted=OF_KAFKA[name]),
                *_beside(name, typed, memory[name], avro, f"{note}; in our place memory", prefix="ceiling_"),
            )
        ]
    finally:
        spark.stop()


def _beside(
    name: str,
    typed: Typed,
    ours: Job,
    peers: dict[str, dict[str, Job]],
    note: str,
    prefix: str = "",
    wanted: float | None = None,
) -> list[Figure]:
    world, found = typed.world, []
    for form, jobs in peers.items():
        values, others = side_by_side(
            world.runs, partial(typed.rate, ours), partial(typed.rate, jobs[name]), warm_up=WARM_UP[name]
        )
        its = f"spark-sql-kafka with Spark's {form.upper()} functions, one broker, one copy, no sync, tuned consumer"
        beside: dict[str, Any] = {"lane": world.lane, "peer": f"kafka {form}", "note": note, "peer_note": its}
        found.append(
            Figure(f"spark_{prefix}typed_{name}", UNIT, values, peer_values=others, wanted_ratio=wanted, **beside)
        )
    return found


def _check_same(found: Any, wanted: Any) -> None:
    """Check that both have the same rows."""
    digest = "count(*) n", f"bit_xor(xxhash64({', '.join(wanted.columns)})) x"
    here, there = found.selectExpr(*digest).first(), wanted.selectExpr(*digest).first()
    assert here == there, f"{here} is not {there}: {json.dumps(found.schema.jsonValue())}"
