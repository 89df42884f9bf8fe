# SPDX-License-Identifier: Apache-2.0
"""Topics on bookies of this process, read as Spark's driver and tasks read them, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from bk_core import blocking
from bk_core.blocking import BookKeeper
from bk_core.client import ClientConfig
from bk_core.pulsar.model.message_id import MessageId
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.topics.batch_reader import TopicReader
from bk_spark.topics.columns import default_schema
from bk_spark.topics.stream_reader import TopicStreamReader
from bk_spark.workers import clients
from tests.kit.memory_cluster import MemoryBookKeeper
from tests.kit.pulsar_world import PulsarWorld

NAME = "persistent://public/default/orders"
T = TypeVar("T")


class SparkWorld:
    """A :class:`PulsarWorld` behind the blocking client that the data source finds under ``uri``."""

    def __init__(self, uri: str) -> None:
        made = list[PulsarWorld]()

        async def make() -> Any:
            made.append(PulsarWorld(MemoryBookKeeper(3)))
            return made[0].bookkeeper

        self.uri = uri
        self.client: BookKeeper = clients._clients.get((uri, ()), lambda: BookKeeper(make))
        (self.pulsar,) = made
        instance = self.client.instance_id
        reader = blocking.DetachedReader({}, instance_id=instance, config=ClientConfig())
        reader._inner._transport = self.pulsar.cluster.network.transport()
        clients._readers.get((uri, (), b"", instance), lambda: reader)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop of the cluster."""
        return self.client.begin(lambda _: work).result(20)

    def ledger(self, name: str, entries: list[bytes], **how: Any) -> Any:
        return self.call(self.pulsar.ledger(name, entries, **how))

    def given(self, options: dict[str, Any]) -> dict[str, str]:
        chosen = {} if {"topics", "topicspattern", "path", "topic"} & options.keys() else {"topic": NAME}
        return {"metadataserviceuri": self.uri, **chosen, **{key: str(value) for key, value in options.items()}}

    def reader(self, schema: Any = None, **options: Any) -> TopicReader:
        parsed = parse_options(self.given(options), Use.READ)
        return TopicReader(parsed, default_schema(parsed) if schema is None else schema)

    def stream(self, **options: Any) -> Stream:
        """A query that begins at the earliest messages unless it is said otherwise."""
        starts = {"startingoffsets", "startingtimestamp", "subscription"} & options.keys()
        given = self.given(options if starts else {"startingoffsets": "earliest", **options})
        return Stream(parse_options(given, Use.STREAM))

    def table(self, schema: Any = None, **options: Any) -> pa.Table:
        """What ``load()`` would give. Reader and partitions travel as bytes, as they do in Spark."""
        reader = self.reader(schema, **options)
        return rows_of(reader, reader.partitions())

    def values(self, **options: Any) -> list[bytes | None]:
        return values_of(self.table(**options))


class Stream:
    """A streaming query, call by call as Spark makes them. Offsets pass through JSON."""

    def __init__(self, options: BkOptions) -> None:
        self.options = options
        self.reader = TopicStreamReader(options, default_schema(options))
        self.at: dict[str, Any] = {}

    def begin(self) -> Stream:
        self.at = through_json(self.reader.initialOffset())
        return self

    def restart(self, at: dict[str, Any]) -> Stream:
        """Another run of the query, with a checkpoint."""
        again = Stream(self.options)
        again.at = at
        return again

    def step(self, limit: Any = None) -> list[bytes | None]:
        """One micro-batch; its values, of all partitions one after the other."""
        end = self.latest(limit)
        found = self.rows(self.at, end)
        self.at = end
        return found

    def latest(self, limit: Any = None) -> dict[str, Any]:
        """The end of the next micro-batch, as it is now."""
        self.reader._seen = None
        return through_json(self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit()))

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes | None]:
        reader = TopicStreamReader(self.options, default_schema(self.options))  # that of the tasks
        return values_of(rows_of(reader, self.reader.partitions(start, end)))

    @property
    def positions(self) -> dict[str, str]:
        return {name.rpartition("/")[2]: at for name, at in self.at["topics"].items()}


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(json.dumps(offset))
    return decoded


def rows_of(reader: Any, partitions: Any) -> pa.Table:
    """Read all partitions, each with a reader of its own."""
    batches = [
        batch
        for partition in partitions
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))
    ]
    return pa.Table.from_batches(batches, schema=reader.columns.schema)


def values_of(table: pa.Table) -> list[bytes | None]:
    found: list[bytes | None] = table["value"].to_pylist()
    return found


def ids(table: pa.Table) -> list[MessageId]:
    return [MessageId.deserialize(each) for each in table["__messageId"].to_pylist()]


@contextmanager
def spark_world(uri: str) -> Iterator[SparkWorld]:
    world = SparkWorld(uri)
    try:
        yield world
    finally:
        world.pulsar.cluster.store.close()
