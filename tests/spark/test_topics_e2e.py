# SPDX-License-Identifier: Apache-2.0
"""Topics of Pulsar through Spark, with bookies as processes and Pulsar's nodes in ZooKeeper."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from bk_core.blocking import BookKeeper, LedgerWriter
from bk_core.pulsar.model.message_id import MessageId
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.proto import managed_ledger_pb2 as proto
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_world import plain
from tests.spark.frames import failure, load, values

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


class Broker:
    """Writes ledgers and nodes as a broker does."""

    def __init__(self, uri: str, client: BookKeeper) -> None:
        self._client, self._records = client, dict[str, proto.ManagedLedgerInfo]()
        self._schemas = dict[str, list[proto.SchemaIndexEntry]]()
        self._zookeeper = KazooClient(uri.removeprefix("zk://").partition("/")[0])
        self._zookeeper.start(10)

    def partitioned(self, name: str, partitions: int) -> None:
        self._put(TopicName.parse(name).partitions_path, json.dumps({"partitions": partitions}).encode())

    def ledger(self, name: str, *entries: bytes) -> LedgerWriter:
        """The next ledger of a topic, which stays open; the one before is closed already."""
        written = self._client.create_ledger()
        self._record(name).ledgers.add(ledger_id=written.ledger_id)
        self._publish(name)
        self.append(written, *entries)
        return written

    def append(self, written: LedgerWriter, *entries: bytes) -> None:
        for entry in entries:
            written.append(entry)
        if entries:
            written.write_lac()

    def roll(self, name: str, written: LedgerWriter) -> None:
        written.close()
        info = self._record(name).ledgers[-1]
        info.entries, info.size, info.timestamp = written.last_add_confirmed + 1, written.length, 1_700_000_000_000
        self._publish(name)

    def trim(self, name: str) -> None:
        record = self._record(name)
        gone = record.ledgers[0].ledger_id
        del record.ledgers[0]
        self._publish(name)
        self._client.delete_ledger(gone)

    def schema(self, name: str, definition: Any, kind: int = 5) -> None:
        """Register the next version of a topic's schema, by default of type AVRO."""
        versions = self._schemas.setdefault(name, [])
        info = proto.SchemaInfo(type=kind, schema=json.dumps(definition).encode())
        with self._client.create_ledger() as written:
            written.append(proto.SchemaEntry(schema_data=info.SerializeToString(), index=versions).SerializeToString())
        at = proto.Position(ledger_id=written.ledger_id, entry_id=0)
        versions.append(proto.SchemaIndexEntry(version=len(versions), position=at))
        record = proto.SchemaLocator(info=versions[-1], index=versions)
        self._put(TopicName.parse(name).schema_path, record.SerializeToString())

    def close(self) -> None:
        self._zookeeper.stop()
        self._zookeeper.close()

    def _record(self, name: str) -> proto.ManagedLedgerInfo:
        return self._records.setdefault(name, proto.ManagedLedgerInfo())

    def _publish(self, name: str) -> None:
        self._put(TopicName.parse(name).managed_ledger_path, self._record(name).SerializeToString())

    def _put(self, path: str, data: bytes) -> None:
        self._zookeeper.ensure_path(path)
        self._zookeeper.set(path, data)


@pytest.fixture
def broker(uri: str, client: BookKeeper) -> Iterator[Broker]:
    made = Broker(uri, client)
    yield made
    made.close()


def test_a_topic_is_a_frame(spark: Any, uri: str, broker: Broker) -> None:
    first = broker.ledger(
        "frame", kit.entry(b"a", partition_key=b"k", properties={"p": "1"}), kit.chunk(0, b"x", count=2, total=2)
    )
    broker.roll("frame", first)
    batch = kit.batch_entry([kit.single(b"b"), kit.single(b"c")], compression=3)
    broker.ledger("frame", batch, kit.chunk(1, b"y", count=2, total=2))
    frame = load(spark, uri, topic="persistent://public/default/frame", minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert values(frame) == [b"a", b"b", b"c", b"xy"]
    row = frame.first()
    assert (bytes(row["__key"]), row["__topic"]) == (b"k", "persistent://public/default/frame")
    assert row["__messageProperties"] == {"p": "1"}
    assert MessageId.deserialize(bytes(row["__messageId"])) == MessageId(first.ledger_id, 0)
    assert row["__publishTime"].timestamp() == 1_700_000_000
    assert row["__eventTime"] is None
    more = load(spark, uri, topic="frame", includeMetadata="true")
    assert more.columns[-3:] == ["__partition", "__producer", "__sequenceId"]
    assert load(spark, uri, topic="frame", columns="__producer").collect()[0]["__producer"] == "p"
    assert values(load(spark, uri, topicsPattern="fra.*", startingOffsets=json.dumps({"frame": -2}))) != []
    path = spark.read.format("bookkeeper").option("metadataServiceUri", uri)
    assert path.load("persistent://public/default/frame").count() == 4


def typed(name: str, kind: str, logical: str) -> dict[str, Any]:
    return {"name": name, "type": {"type": kind, "logicalType": logical}}


def test_values_are_columns_of_the_schema(spark: Any, uri: str, broker: Broker) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}},
        {
            "name": "inner",
            "type": ["null", {"type": "record", "name": "I", "fields": [typed("at", "long", "timestamp-nanos")]}],
        },
        {"name": "either", "type": ["null", "int", "string"]},
        typed("day", "int", "date"),
        typed("time", "int", "time-millis"),
        typed("local", "long", "local-timestamp-micros"),
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "flag", "type": "boolean"},
        {"name": "ratio", "type": "float"},
        {"name": "data", "type": "bytes"},
    ]
    definition = {"type": "record", "name": "Typed", "fields": fields}
    broker.schema("typed", {**definition, "fields": fields[:1]})
    broker.schema(
        "typed",
        {
            **definition,
            "fields": [
                fields[0],
                *({**each, "default": None} if each["name"] in ("inner", "either") else each for each in fields[1:]),
            ],
        },
    )
    full = (
        b"\x0e"
        + b"\x04\x00\x02\x02x\x00"
        + b"\x02\x02k\x06\x00"
        + b"\x02"
        + b"\x02\xf0\x2e"
        + b"\x04\x02y"
        + b"\x02"
        + b"\x04"
        + b"\x06"
        + b"\x02\x7b"
        + b"\x01"
        + b"\x00\x00\x00\x3f"
        + b"\x02\xff"
    )
    written = broker.ledger(
        "typed", kit.entry(full, schema_version=bytes(7) + b"\x01"), kit.entry(null_value=True, partition_key=b"k")
    )
    frame = load(spark, uri, topic="typed", topicSchema="latest")
    first, second = frame.select(*(each["name"] for each in fields), "__key").collect()
    row = first.asDict(recursive=True)
    assert (row["id"], row["tags"], row["counts"], row["state"], row["time"]) == (7, [None, "x"], {"k": 3}, "OLD", 2)
    assert (row["either"], str(row["price"]), row["flag"], row["ratio"]) == (
        {"member0": None, "member1": "y"},
        "1.23",
        True,
        0.5,
    )
    assert (bytes(row["data"]), str(row["day"]), str(row["local"])) == (
        b"\xff",
        "1970-01-02",
        "1970-01-01 00:00:00.000003",
    )
    assert round(row["inner"]["at"].timestamp() * 1_000_000) == 3
    assert [second[name] for name in frame.columns[: len(fields)]] == [None] * len(fields)
    assert bytes(second["__key"]) == b"k"
    assert frame.where("counts['k'] = 3 and either.member1 = 'y'").count() == 1
    chosen = spark.read.format("bookkeeper").options(metadataServiceUri=uri, topic="typed", topicSchema="latest")
    assert chosen.schema("price DECIMAL(5,2)").load().columns == ["price"]
    assert [row["id"] for row in load(spark, uri, topic="typed", topicSchema="0").collect()] == [7, None]
    broker.append(written, kit.entry(b"no datum"))
    assert "BK_MESSAGE_SCHEMA" in failure(load(spark, uri, topic="typed", topicSchema="latest").collect)
    assert load(spark, uri, topic="typed", topicSchema="latest", corruptEntries="skip").count() == 2
    broker.ledger("untyped", *plain(b"a"))
    assert "BK_NO_SCHEMA" in failure(lambda: load(spark, uri, topic="untyped", topicSchema="latest"))


def test_a_stream_keeps_its_columns_over_a_new_version_and_a_restart(
    spark: Any, uri: str, broker: Broker, tmp_path: Path
) -> None:
    fields = [{"name": "id", "type": "int"}, {"name": "more", "type": "string", "default": "-"}]
    both = [{"type": "record", "name": "R", "fields": fields[:count]} for count in (1, 2)]
    broker.schema("changing", both[0])
    written = broker.ledger("changing", kit.entry(b"\x02", schema_version=bytes(8)))
    found = list[int]()

    def run(**options: Any) -> None:
        given = {"metadataServiceUri": uri, "topic": "changing", "startingOffsets": "earliest", **options}
        source = spark.readStream.format("bookkeeper").options(**{"topicSchema": "latest", **given}).load()
        writer = source.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        query = writer.foreachBatch(lambda frame, _: found.extend(row["id"] for row in frame.collect())).start()
        assert query.awaitTermination(60)

    run()
    broker.schema("changing", both[1])
    broker.append(written, kit.entry(b"\x04\x02x", schema_version=bytes(7) + b"\x01"))
    assert "topicSchema=0" in failure(run)
    run(topicSchema="0")
    assert found == [1, 2]


def test_what_cannot_be_is_refused_on_the_driver(spark: Any, uri: str, broker: Broker) -> None:
    broker.ledger("refused", *plain(b"a"))
    assert "BK_NO_SUCH_TOPIC" in failure(load(spark, uri, topic="refuse").collect)
    assert "option codec is not for topics" in failure(lambda: load(spark, uri, topic="refused", codec="arrow"))
    assert "more than one thing is selected" in failure(lambda: load(spark, uri, topic="refused", log="events"))
    frame = spark.createDataFrame([(b"x",)], "value binary")
    writer = frame.write.format("bookkeeper").options(metadataServiceUri=uri, topic="refused").mode("append")
    assert "does not write to topics of Pulsar" in failure(writer.save)


class Query:
    """A streaming query of a topic into a list of values."""

    def __init__(self, spark: Any, uri: str, checkpoint: Path, **options: Any) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.fail_at: int | None = None
        given = {"startingOffsets": "earliest", "maxEntriesPerTrigger": 3, **options}
        source = spark.readStream.format("bookkeeper").options(metadataServiceUri=uri, **given).load()
        writer = source.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._take)
        self._query = writer.start()

    def _take(self, frame: Any, number: int) -> None:
        self.batches[number] = values(frame)
        if number == self.fail_at:
            raise RuntimeError("made to fail")

    @property
    def values(self) -> list[bytes]:
        return [value for number in sorted(self.batches) for value in self.batches[number]]

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.values) < count:
            assert self._query.exception() is None, self._query.exception()
            assert time.monotonic() < deadline, self.values
            time.sleep(0.02)

    def stop(self) -> None:
        self._query.processAllAvailable()
        self._query.stop()

    def wait_failed(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while self._query.exception() is None:
            assert time.monotonic() < deadline, self.values
            time.sleep(0.02)


def test_a_stream_has_every_message_once_across_ledgers_partitions_and_restarts(
    spark: Any, uri: str, broker: Broker, tmp_path: Path
) -> None:
    broker.partitioned("stream", 1)
    name = "stream-partition-0"
    written = broker.ledger(name, *plain(b"0", b"1", b"2"), kit.chunk(0, b"3", count=2, total=2))
    query = Query(spark, uri, tmp_path, topic="stream")
    query.wait_for(3)
    broker.append(written, kit.chunk(1, b"!", count=2, total=2))
    query.wait_for(4)
    broker.roll(name, written)
    written = broker.ledger(name, *plain(b"4"))
    query.wait_for(5)
    broker.trim(name)
    broker.partitioned("stream", 2)
    other = broker.ledger("stream-partition-1", *plain(b"p0"))
    query.wait_for(6)
    query.fail_at = max(query.batches) + 1
    broker.append(written, *plain(b"5", b"6"))
    query.wait_failed()
    failed = dict(query.batches)
    again = Query(spark, uri, tmp_path, topic="stream")
    again.wait_for(2)
    broker.append(other, *plain(b"p1"))
    again.wait_for(3)
    again.stop()
    for number in failed.keys() & again.batches.keys():
        assert again.batches[number] == failed[number]
    found = [value for number, each in sorted({**failed, **again.batches}.items()) for value in each]
    assert [value for value in found if not value.startswith(b"p")] == [b"0", b"1", b"2", b"3!", b"4", b"5", b"6"]
    assert [value for value in found if value.startswith(b"p")] == [b"p0", b"p1"]


def test_a_stream_of_available_messages_ends(spark: Any, uri: str, broker: Broker, tmp_path: Path) -> None:
    broker.ledger("available", *plain(*(b"%d" % number for number in range(10))))
    source = spark.readStream.format("bookkeeper").options(
        metadataServiceUri=uri, topic="available", startingOffsets="earliest", maxEntriesPerTrigger=4
    )
    found = list[list[bytes]]()
    writer = source.load().writeStream.option("checkpointLocation", str(tmp_path))
    query = writer.foreachBatch(lambda frame, _: found.append(values(frame))).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert [len(each) for each in found if each] == [4, 4, 2]
