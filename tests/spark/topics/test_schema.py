# SPDX-License-Identifier: Apache-2.0
"""``topicSchema``: columns of the topics' schemas in batches and streams, and what happens when a schema changes."""

from __future__ import annotations

import datetime
import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MessageSchemaError,
    NoSchemaError,
    UnsupportedTopicError,
)
from bk_spark.options.options import BkOptions
from bk_spark.topics.columns import COLUMNS, default_schema
from bk_spark.topics.stream_reader import TopicStreamReader
from tests.kit import pulsar_entries as kit
from tests.pulsar.test_topic_schema import AVRO, KEYVALUE, NAME, STRING, V0, V1, versioned
from tests.pulsar.values.avro_oracle import encoded
from tests.spark.topics.test_stream import append
from tests.spark.topics.world import SparkWorld, Stream, rows_of, through_json

LATEST = {"topicschema": "latest"}
WIDER = {**V0, "fields": [*V0["fields"], {"name": "more", "type": "string", "default": "-"}]}


def schema(world: SparkWorld, definition: Any, name: str = NAME, kind: int = AVRO, **how: Any) -> int:
    text = definition if isinstance(definition, str | bytes) else json.dumps(definition)
    number: int = world.call(world.pulsar.schema(name, kind, text, **how))
    return number


def of(version: int, definition: Any, **value: Any) -> bytes:
    return versioned(encoded(definition, value), version)


def one(name: str, kind: Any) -> StructType:
    """The schema of a read with one column."""
    return StructType([StructField(name, kind)])


def refused(world: SparkWorld, kind: type[BookKeeperError], spark_schema: Any = None, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        world.table(spark_schema, **{**LATEST, **options})
    return str(caught.value)


class Decoding(Stream):
    """A query whose micro-batches are read as tables without the columns of messages."""

    def __init__(self, options: BkOptions) -> None:
        super().__init__(options)
        self.spark_schema = default_schema(options)  # Spark asks once for a run of a query

    @classmethod
    def of(cls, world: SparkWorld, **options: Any) -> Decoding:
        return cls(world.stream(**{**LATEST, **options}).options)

    def restart(self, at: dict[str, Any], **options: Any) -> Decoding:
        again = Decoding(self.options)
        again.at = at
        return again

    def table(self) -> pa.Table:
        """The rows of the next micro-batch."""
        end = self.latest()
        found = self.between(self.at, end)
        self.at = end
        return found

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        of_tasks = TopicStreamReader(self.options, self.spark_schema)
        whole = rows_of(of_tasks, self.reader.partitions(start, end))
        return whole.select([name for name in whole.schema.names if not name.startswith("__")])


def test_fields_are_columns_in_the_place_of_value(world: SparkWorld) -> None:
    schema(world, V0)
    schema(world, V1)
    new = of(1, V1, id=1 << 40, note="x", state="old")
    world.ledger(NAME, [of(0, V0, id=1), new, versioned(b"", 1, null_value=True)])
    table = world.table(**LATEST, maxentriesperpartition=1)
    assert table.schema.names == ["id", "note", "state", *list(COLUMNS)[1:]]
    assert table.select(["id", "note", "state"]).to_pylist() == [
        {"id": 1, "note": None, "state": "new"},
        {"id": 1 << 40, "note": "x", "state": "old"},
        {"id": None, "note": None, "state": None},
    ]
    types = {field.name: field.dataType.simpleString() for field in default_schema(world.reader(**LATEST).options)}
    assert (types["id"], types["note"], types["__publishTime"]) == ("bigint", "string", "timestamp")
    few = world.table(**LATEST, columns="state,__partition")
    assert few.to_pylist() == [{"state": each, "__partition": -1} for each in ("new", "old", None)]
    assert world.table(one("note", StringType()), **LATEST)["note"].to_pylist() == [None, "x", None]
    assert world.table(**LATEST, columns="__topic").num_rows == 3
    assert world.values() == world.values(topicschema="bytes")
    assert len(world.table(**LATEST, includemetadata="true").schema.names) == 12


def test_types_of_spark(world: SparkWorld) -> None:
    """Times are numbers, and nanoseconds are cut."""

    def logical(kind: str, name: str) -> dict[str, str]:
        return {"type": kind, "logicalType": name}

    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": logical("long", "timestamp-nanos")}]}
    fields = {
        "date": logical("int", "date"),
        "millis": logical("int", "time-millis"),
        "micros": logical("long", "time-micros"),
        "at": logical("long", "timestamp-millis"),
        "local": logical("long", "local-timestamp-nanos"),
        "nothing": "null",
        "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "map": {"type": "map", "values": "long"},
        "list": {"type": "array", "items": inner},
        "union": ["null", "int", "string"],
    }
    definition = {"type": "record", "name": "R", "fields": [{"name": k, "type": v} for k, v in fields.items()]}
    schema(world, definition)
    stored: Any = json.loads(
        json.dumps(definition)
        .replace('"logicalType": "t', '"x": "t')
        .replace('"logicalType": "l', '"x": "l')
        .replace('"logicalType": "d', '"x": "d')
    )
    value = {
        "date": 1,
        "millis": 2,
        "micros": 3,
        "at": 4,
        "local": 5_999,
        "nothing": None,
        "decimal": b"\x01",
        "map": {"k": 1},
    }
    world.ledger(NAME, [versioned(encoded(stored, {**value, "list": [{"at": 7_999}], "union": "x"}), 0)])
    table = world.table(**LATEST)
    types = {field.name: field.dataType.simpleString() for field in default_schema(world.reader(**LATEST).options)}
    assert {name: types[name] for name in fields} == {
        "date": "date",
        "millis": "int",
        "micros": "bigint",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "nothing": "string",
        "decimal": "decimal(6,2)",
        "map": "map<string,bigint>",
        "list": "array<struct<at:timestamp>>",
        "union": "struct<member0:int,member1:string>",
    }
    (row,) = table.select(list(fields)).to_pylist()
    utc = datetime.UTC
    assert row == {
        "date": datetime.date(1970, 1, 2),
        "millis": 2,
        "micros": 3,
        "at": datetime.datetime(1970, 1, 1, 0, 0, 0, 4000, tzinfo=utc),
        "local": datetime.datetime(1970, 1, 1, 0, 0, 0, 5),
        "nothing": None,
        "decimal": row["decimal"],
        "map": [("k", 1)],
        "list": [{"at": datetime.datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=utc)}],
        "union": {"member0": None, "member1": "x"},
    }
    assert str(row["decimal"]) == "0.01"


def test_primitives_and_keys(world: SparkWorld) -> None:
    schema(world, "", "plain", STRING)
    world.ledger("plain", [kit.entry(b"a"), kit.entry(b"", null_value=True)])
    assert world.values(topic="plain", **LATEST) == ["a", None]
    assert world.table(one("value", StringType()), topic="plain", **LATEST)["value"].to_pylist() == ["a", None]
    definition = struct.pack(">i", 0) + struct.pack(">i", len(json.dumps(V0))) + json.dumps(V0).encode()
    types = {"key_schema_type": "LOCAL_TIME", "value_schema_type": "AVRO"}
    schema(world, definition, "pairs", KEYVALUE, **types)
    datum = encoded(V0, {"id": 1})
    inline = struct.pack(">iq", 8, 5) + struct.pack(">i", len(datum)) + datum
    world.ledger("pairs", [versioned(inline, 0)])
    table = world.table(topic="pairs", **LATEST)
    assert table.select(["key", "value"]).to_pylist() == [{"key": 5, "value": {"id": 1}}]


def test_what_cannot_be_decoded_ends_the_query_or_is_skipped(world: SparkWorld) -> None:
    schema(world, V0)
    ledger = world.ledger(NAME, [of(0, V0, id=1), versioned(b"", 0), of(5, V0, id=2)]).ledger_id
    assert f"entry {ledger}:1 of {NAME}" in refused(world, MessageSchemaError)
    for columns in ("id", "__topic"):
        assert world.table(**LATEST, columns=columns, corruptentries="skip").num_rows == 1


def test_topics_that_have_no_columns_are_refused_on_the_driver(world: SparkWorld) -> None:
    world.ledger(NAME, [kit.entry(b"a")])
    assert "BK_NO_SCHEMA" in refused(world, NoSchemaError)
    schema(world, V0, kind=4)
    text = refused(world, UnsupportedTopicError)
    assert NAME in text
    assert "PROTOBUF" in text


def test_columns_that_no_version_has_are_refused(world: SparkWorld) -> None:
    schema(world, V0)
    world.ledger(NAME, [of(0, V0, id=1)])
    assert "no column number" in refused(world, InvalidArgumentError, one("number", IntegerType()))
    assert "id is int, not string" in refused(world, InvalidArgumentError, one("id", StringType()))
    assert "choose from id" in refused(world, InvalidArgumentError, columns="value")
    for wrong, why in (("newest", "topicSchema"), ("7", "no version 7")):
        assert why in refused(world, InvalidArgumentError, topicschema=wrong)
    assert "query of it alone" in refused(world, InvalidArgumentError, topicschema="0", topics="a,b")
    assert "raw" in refused(world, InvalidArgumentError, encryptedmessages="raw")


def test_a_dataframe_keeps_its_columns_when_a_version_is_registered(world: SparkWorld) -> None:
    schema(world, V0)
    world.ledger(NAME, [of(0, V0, id=1)])
    reader = world.reader(**LATEST)
    schema(world, WIDER)
    world.ledger(NAME, [of(1, WIDER, id=2, more="x")])
    found = rows_of(reader, reader.partitions())
    assert found.schema.names == ["id", *list(COLUMNS)[1:]]
    assert found["id"].to_pylist() == [1, 2]
    assert world.table(**LATEST)["more"].to_pylist() == ["-", "x"]
    assert world.table(topicschema="0").schema.names[0] == "id"
    assert world.table(topicschema="0")["id"].to_pylist() == [1, 2]


def test_topics_of_one_query_have_equal_columns(world: SparkWorld) -> None:
    for name in ("a", "b", "c"):
        schema(world, {**V0, "name": f"Of_{name}"}, name)
        world.ledger(name, [of(0, V0, id=ord(name))])
    world.ledger("empty", [])
    assert world.table(topics="a,b,c,empty", **LATEST)["id"].to_pylist() == [97, 98, 99]
    schema(world, WIDER, "b")
    text = refused(world, InvalidArgumentError, topics="a,b")
    assert "more" in text
    assert "public/default/a and persistent://public/default/b" in text
    world.ledger("none", [kit.entry(b"x")])
    assert "none" in refused(world, NoSchemaError, topics="a,none")


def test_a_stream_keeps_its_columns_and_reads_newer_values_with_their_own_version(world: SparkWorld) -> None:
    schema(world, V0)
    written = world.ledger(NAME, [of(0, V0, id=1)], is_open=True)
    append(world, written)
    stream = Decoding.of(world).begin()
    start = dict(stream.at)
    assert "schemas" not in start
    assert stream.table().to_pylist() == [{"id": 1}]
    assert stream.at["schemas"] == {NAME: 0}
    schema(world, WIDER)
    first_end = dict(stream.at)
    append(world, written, of(1, WIDER, id=2, more="x"), of(0, V0, id=3))
    assert stream.table().to_pylist() == [{"id": 2}, {"id": 3}]
    assert stream.at["schemas"] == {NAME: 0}
    assert stream.between(start, first_end).to_pylist() == [{"id": 1}]
    assert stream.between(first_end, stream.at).to_pylist() == [{"id": 2}, {"id": 3}]


def test_a_restart_goes_on_with_the_version_of_the_checkpoint_or_says_why_not(world: SparkWorld) -> None:
    schema(world, V0)
    written = world.ledger(NAME, [of(0, V0, id=1)], is_open=True)
    append(world, written)
    stream = Decoding.of(world).begin()
    stream.table()
    at = dict(stream.at)
    schema(world, {**V0, "doc": "the same columns"})
    append(world, written, of(1, V0, id=2))
    again = stream.restart(at)
    assert again.table().to_pylist() == [{"id": 2}]
    assert again.at["schemas"] == {NAME: 0}
    schema(world, WIDER)
    append(world, written, of(2, WIDER, id=3, more="x"))
    changed = stream.restart(again.at)
    with pytest.raises(InvalidArgumentError, match="topicSchema=0") as caught:
        changed.table()
    assert "no column more" in str(caught.value)
    pinned = Decoding.of(world, topicschema="0")
    pinned.at = again.at
    assert pinned.table().to_pylist() == [{"id": 3}]


def test_a_query_that_began_with_bytes_takes_columns_from_then_on(world: SparkWorld) -> None:
    schema(world, V0)
    written = world.ledger(NAME, [of(0, V0, id=1)], is_open=True)
    append(world, written)
    as_bytes = world.stream().begin()
    assert as_bytes.step() == [encoded(V0, {"id": 1})]
    append(world, written, of(0, V0, id=2))
    stream = Decoding.of(world)
    stream.at = as_bytes.at
    assert stream.table().to_pylist() == [{"id": 2}]


def test_a_new_topic_of_a_pattern_must_have_the_columns(world: SparkWorld) -> None:
    schema(world, V0, "a")
    world.ledger("a", [of(0, V0, id=1)])
    stream = Decoding.of(world, topicspattern=".*").begin()
    assert stream.table().to_pylist() == [{"id": 1}]
    schema(world, V0, "b")
    world.ledger("b", [of(0, V0, id=2)])
    stream = stream.restart(stream.at)
    assert stream.table().to_pylist() == []
    assert stream.table().to_pylist() == [{"id": 2}]
    assert stream.at["schemas"] == {f"persistent://public/default/{name}": 0 for name in "ab"}
    stream = stream.restart(stream.at)  # the list of topics is some seconds old in a running query
    schema(world, "", "c", STRING)
    world.ledger("c", [kit.entry(b"x")])
    stream.table()
    with pytest.raises(InvalidArgumentError, match="public/default/c does not have the columns"):
        stream.table()


def test_a_checkpoint_with_versions_is_checked(world: SparkWorld) -> None:
    schema(world, V0)
    world.ledger(NAME, [of(0, V0, id=1)])
    stream = Decoding.of(world).begin()
    end = stream.latest()
    assert through_json(end) == end
    with pytest.raises(InvalidArgumentError, match="no version 5"):
        stream.between(stream.at, {**end, "schemas": {NAME: 5}})
    with pytest.raises(InvalidArgumentError, match="no offset of topics"):
        stream.between(stream.at, {**end, "schemas": {NAME: "x"}})
