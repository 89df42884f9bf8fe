# SPDX-License-Identifier: Apache-2.0
"""Topics of a Pulsar broker on our bookies, read as Spark's driver and tasks read them and compared with the reads of
Pulsar's own client. A stream also shows the last message of an idle topic."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bk_spark.codecs import spark_types
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.topics.batch_reader import TopicReader
from bk_spark.topics.columns import ALL
from bk_spark.topics.stream_reader import TopicStreamReader
from tests.interop.pulsar_topics import TOPICS, WITHIN_S, World, as_python_says, compare, started
from tests.interop.steps import Steps
from tests.kit.pulsar_rows import rows_of

SCHEMA: StructType = spark_types.struct_of(ALL)
MILLISECONDS = pa.timestamp("ms", "UTC")


def options(world: World, use: Use, **more: Any) -> BkOptions:
    uri = {"metadataserviceuri": world.bookkeeper.store.uri, "pulsaradminurl": world.broker.web_url}
    return parse_options({**uri, **{key: str(value) for key, value in more.items()}}, use)


def rows(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    """Return all rows, in the form in which trials compare them."""
    batches = [batch for each in partitions for batch in reader.read(each)]
    table = pa.Table.from_batches(batches, schema=reader.columns.schema)
    for name in ("__publishTime", "__eventTime"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(MILLISECONDS))
    return rows_of(table)


@pytest.mark.interop
@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_reads_the_topics_of_a_broker(tmp_path: Path) -> None:
    steps = Steps()
    with started(steps, tmp_path, apache=False) as world:
        for kind, count in (("plain", 300), ("lz4", 300), ("chunked", 4)):
            with steps.step(f"{kind}, in a batch of few entries a task", go_on=True) as step:
                name = f"{TOPICS}spark-{kind}"
                world.produce(name, kind, count)
                reader = TopicReader(options(world, Use.READ, topic=name, minpartitions=9), SCHEMA)
                step.found = compare(world.python_reads(name), as_python_says(rows(reader, reader.partitions())), count)
        with steps.step("transactions", go_on=True) as step:
            name = f"{TOPICS}spark-transactions"
            outcomes = ["commit", "abort", "none", "leave"]
            world.java.call("transact", within_s=WITHIN_S, topic=name, count=60, batched=False, outcomes=outcomes)
            reader = TopicReader(options(world, Use.READ, topic=name, maxentriesperpartition=7), SCHEMA)
            step.found = compare(world.java_reads(name), rows(reader, reader.partitions()))
        with steps.step("a stream, micro-batch by micro-batch", go_on=True) as step:
            step.found = stream(world, f"{TOPICS}spark-stream")
    assert steps.passed, steps.table()


def stream(world: World, name: str) -> str:
    """Follow a topic while messages come and ledgers roll, until it is idle and its last message is shown."""
    world.produce(name, "plain", 20)
    chosen = options(world, Use.STREAM, topic=name, startingoffsets="earliest", maxentriespertrigger=50)
    reader = TopicStreamReader(chosen, SCHEMA)
    at, found = reader.initialOffset(), list[dict[str, Any]]()
    for seed in (1, 2):
        if seed == 2:
            world.produce(name, "plain", 200, seed=2)
        deadline = time.monotonic() + 10
        wanted = 20 if seed == 1 else 220
        while len(found) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} messages came"
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            found += rows(reader, reader.partitions(at, end))
            at = end
    reader.stop()
    return compare(world.python_reads(name), as_python_says(found), 220)
