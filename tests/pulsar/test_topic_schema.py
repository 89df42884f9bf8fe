# SPDX-License-Identifier: Apache-2.0
"""Reads of topics whose values become columns: versions of a schema, null values, what cannot be decoded."""

from __future__ import annotations

import json
import logging
import pickle
import struct
from typing import Any

import pyarrow as pa
import pytest

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MessageSchemaError,
    NoSchemaError,
    UnsupportedTopicError,
)
from bk_core.pulsar.messages.row_maker import RowMaker
from bk_core.pulsar.messages.rows import DEFAULT_COLUMNS, schema_of
from bk_core.pulsar.model.message_id import MessageId
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.values.topic_values import TopicValues
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_world import PulsarWorld, pulsar_world
from tests.pulsar.values.avro_oracle import encoded

NAME = "persistent://public/default/orders"
STRING, JSON, PROTOBUF, AVRO, INT64, KEYVALUE = 2, 3, 4, 5, 10, 16
V0: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
V1 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": "string", "default": "new"},
    ],
}


def versioned(value: bytes, version: int, **fields: Any) -> bytes:
    return kit.entry(value, schema_version=struct.pack(">q", version), **fields)


async def avro_world(world: PulsarWorld) -> Any:
    """A topic with a message of each version, in one ledger with a batch and a null value."""
    await world.schema(NAME, AVRO, json.dumps(V0))
    await world.schema(NAME, AVRO, json.dumps(V1))
    new = encoded(V1, {"id": 1 << 40, "note": "x", "state": "old"})
    batch = [kit.single(encoded(V0, {"id": 2})), kit.single(b"", null_value=True), kit.single(encoded(V0, {"id": 3}))]
    return await world.ledger(
        NAME,
        [
            versioned(encoded(V0, {"id": 1}), 0),
            kit.batch_entry(batch, schema_version=struct.pack(">q", 0)),
            versioned(new, 1),
            kit.entry(new),
            versioned(b"", 1, null_value=True),
        ],
    )


ROWS = [
    {"id": 1, "note": None, "state": "new"},
    {"id": 2, "note": None, "state": "new"},
    {"id": None, "note": None, "state": None},
    {"id": 3, "note": None, "state": "new"},
    {"id": 1 << 40, "note": "x", "state": "old"},
    {"id": 1 << 40, "note": "x", "state": "old"},
    {"id": None, "note": None, "state": None},
]


async def test_each_value_is_decoded_with_its_version_and_resolved_to_the_newest() -> None:
    async with pulsar_world() as world:
        ledger = await avro_world(world)
        table = await world.topic(NAME).to_arrow(topic_schema="latest")
        assert table.schema.names == ["id", "note", "state", *DEFAULT_COLUMNS[1:]]
        assert table.select(["id", "note", "state"]).to_pylist() == ROWS
        ids = [MessageId.deserialize(each) for each in table["__messageId"].to_pylist()]
        assert ids[2] == MessageId(ledger.ledger_id, 1, -1, 1, 3)
        few = await world.topic(NAME).to_arrow(columns=["state", "__messageId"], topic_schema="latest")
        assert few.schema.names == ["state", "__messageId"]
        assert few["state"].to_pylist() == [each["state"] for each in ROWS]


async def test_every_kind_of_read_gives_the_same_columns() -> None:
    async with pulsar_world() as world:
        await avro_world(world)
        topic, columns = world.topic(NAME), ["id", "note", "state"]
        batches = [batch async for batch in topic.read(columns=columns, topic_schema="latest")]
        assert pa.Table.from_batches(batches).to_pylist() == ROWS
        (plan,) = await topic.plan(topic_schema="latest")
        assert plan.schemas is not None
        values = TopicValues(pickle.loads(pickle.dumps(plan.schemas)))
        maker = RowMaker(plan.topic, schema_of(columns, values.columns), None, values)
        rows = list[dict[str, Any]]()
        for piece in plan.ranges:
            async with await world.bookkeeper.open_ledger(piece.ledger_id, recover=False) as reader:
                async for entries in reader.reading(piece.first, piece.last):
                    for made in maker.rows(maker.heads(entries), Bounds()):
                        rows += made.to_pylist()
        assert rows == ROWS
        assert (await topic.plan())[0].schemas is None


async def test_a_version_can_be_named() -> None:
    async with pulsar_world() as world:
        await avro_world(world)
        with pytest.raises(MessageSchemaError, match="version 1 does not resolve"):
            await world.topic(NAME).to_arrow(topic_schema=0)
        with pytest.raises(InvalidArgumentError, match="0, 1"):
            await world.topic(NAME).to_arrow(topic_schema=2)
        wrong_ones: list[Any] = ["newest", -1, True, None]
        for wrong in wrong_ones:
            with pytest.raises(InvalidArgumentError, match="topic_schema"):
                await world.topic(NAME).to_arrow(topic_schema=wrong)
        (plan,) = await world.topic(NAME).plan(topic_schema=0)
        assert plan.schemas is not None
        assert plan.schemas.version == 0


async def test_a_tail_decodes_versions_that_are_registered_later() -> None:
    async with pulsar_world() as world:
        await world.schema(NAME, AVRO, json.dumps(V0))
        written = await world.ledger(NAME, [versioned(encoded(V0, {"id": 1}), 0)], is_open=True)
        await written.write_lac()
        async with world.topic(NAME).tail(columns=["id"], topic_schema="latest") as tail:
            assert (await anext(tail))["id"].to_pylist() == [1]
            wider = {**V0, "fields": [{"name": "more", "type": "string"}, *V0["fields"]]}
            assert await world.schema(NAME, AVRO, json.dumps(wider)) == 1
            await written.append(versioned(encoded(wider, {"more": "x", "id": 2}), 1))
            await written.write_lac()
            assert (await anext(tail))["id"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (versioned(encoded(V0, {"id": 7}) + b"x", 0), "bytes are left"),
        (versioned(b"", 0), "cut off"),
        (versioned(encoded(V0, {"id": 7}), 9), "version 9 is not known"),
        (kit.entry(encoded(V0, {"id": 7}), schema_version=b"abc"), "not a number"),
        (kit.batch_entry([kit.single(b"\xff" * 12), kit.single(b"")], schema_version=bytes(8)), "first of 2 messages"),
    ],
)
async def test_what_cannot_be_decoded_is_an_error_that_names_the_entry_or_is_skipped(
    entry: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pulsar_world() as world:
        await world.schema(NAME, AVRO, json.dumps(V0))
        good = [versioned(encoded(V0, {"id": each}), 0) for each in (1, 2)]
        ledger = await world.ledger(NAME, [good[0], entry, good[1]])
        for columns in (None, ["__publishTime"]):
            with pytest.raises(MessageSchemaError, match=why) as caught:
                await world.topic(NAME).to_arrow(columns=columns, topic_schema="latest")
            assert f"entry {ledger.ledger_id}:1 of {NAME}" in str(caught.value)
        with caplog.at_level(logging.WARNING):
            table = await world.topic(NAME).to_arrow(topic_schema="latest", corrupt="skip")
        assert table["id"].to_pylist() == [1, 2]
        assert sum(why in each.getMessage() for each in caplog.records) == 1
        assert (await world.topic(NAME).to_arrow(columns=["value"])).num_rows >= 3


async def test_only_the_bad_messages_of_a_batch_are_left_out() -> None:
    async with pulsar_world() as world:
        await world.schema(NAME, INT64)
        messages = [kit.single(struct.pack(">q", 1)), kit.single(b"bad"), kit.single(struct.pack(">q", 3))]
        await world.ledger(NAME, [kit.batch_entry(messages)])
        table = await world.topic(NAME).to_arrow(topic_schema="latest", corrupt="skip")
        assert table["value"].to_pylist() == [1, 3]
        ids = [MessageId.deserialize(each).batch_index for each in table["__messageId"].to_pylist()]
        assert ids == [0, 2]


async def test_values_of_many_messages_are_decoded_in_halves_if_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lists = {**V0, "fields": [*V0["fields"], {"name": "list", "type": {"type": "array", "items": "int"}}]}
    values = [encoded(lists, {"id": n, "list": [1] * (500 if n == 3 else 20)}) for n in range(7)]
    values[5] = values[6] = b"bad"
    async with pulsar_world() as world:
        await world.schema(NAME, AVRO, json.dumps(lists))
        await world.ledger(NAME, [kit.batch_entry(list(map(kit.single, values[:3]))), *map(kit.entry, values[3:5])])
        wanted = (await world.topic(NAME).to_arrow(topic_schema="latest")).to_pylist()
        for name, most in (("values.avro.rows.VALUES_MAX", 45), ("messages.row_maker.VALUES_AT_ONCE", 1)):
            monkeypatch.setattr(f"bk_core.pulsar.{name}", most)
            table = await world.topic(NAME).to_arrow(topic_schema="latest", corrupt="skip")
            assert table.to_pylist() == [row for row in wanted if row["id"] != 3]
        batches = [each async for each in world.topic(NAME).read(topic_schema="latest", corrupt="skip")]
        assert [each.num_rows for each in batches] == [1, 1, 1, 1]
        caplog.clear()
        await world.ledger(NAME, [kit.batch_entry(list(map(kit.single, values[4:])))])
        assert (await world.topic(NAME).to_arrow(topic_schema="latest", corrupt="skip"))["id"].to_pylist()[4:] == [4]
        new = [each.getMessage() for each in caplog.records if "entry 2:0" in each.getMessage()]
        assert len(new) == 1, "both bad messages of the entry are in halves of their own"


async def test_a_topic_without_a_schema_says_so_and_offers_bytes() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, [kit.entry(b"a")])
        for _ in range(2):
            with pytest.raises(NoSchemaError, match="bytes") as caught:
                await world.topic(NAME).to_arrow(topic_schema="latest")
            assert NAME in str(caught.value)
            await world.schema(NAME, STRING, deleted=True)


@pytest.mark.parametrize(
    ("kind", "definition", "why"),
    [
        (PROTOBUF, json.dumps(V0), "PROTOBUF"),
        (22, b"", "EXTERNAL"),
        (77, b"", "77"),
        (AVRO, b"{", "AVRO"),
        (AVRO, json.dumps({**V0, "fields": [{"name": "again", "type": ["null", "Order"]}]}), "contains itself"),
        (JSON, json.dumps({**V0, "fields": [{"name": "__topic", "type": "int"}]}), "__topic"),
        (KEYVALUE, b"", "KEYVALUE"),
    ],
)
async def test_schemas_that_cannot_become_columns_are_refused_by_topic_and_type(
    kind: int, definition: bytes, why: str
) -> None:
    async with pulsar_world() as world:
        await world.schema(NAME, kind, definition)
        await world.ledger(NAME, [kit.entry(b"a")])
        with pytest.raises(UnsupportedTopicError, match=why) as caught:
            await world.topic(NAME).to_arrow(topic_schema="latest")
        assert NAME in str(caught.value)
        assert "bytes" in str(caught.value)


async def test_a_version_of_another_type_is_never_decoded_as_the_newest() -> None:
    async with pulsar_world() as world:
        await world.schema(NAME, STRING)
        await world.schema(NAME, AVRO, json.dumps(V0))
        await world.ledger(NAME, [versioned(b"\x02", 0), versioned(b"\x02", 1)])
        with pytest.raises(MessageSchemaError, match="of type STRING, and that of the read is AVRO"):
            await world.topic(NAME).to_arrow(topic_schema="latest")
        table = await world.topic(NAME).to_arrow(topic_schema="latest", corrupt="skip")
        assert table["id"].to_pylist() == [1]


async def test_partitions_have_the_schema_of_their_topic() -> None:
    async with pulsar_world() as world:
        world.partitioned(NAME, 2)
        await world.schema(NAME, STRING)
        for part in range(2):
            await world.ledger(f"{NAME}-partition-{part}", [kit.entry(b"p%d" % part)])
        assert (await world.topic(NAME).to_arrow(topic_schema="latest"))["value"].to_pylist() == ["p0", "p1"]
        one = await world.topic(f"{NAME}-partition-1").to_arrow(topic_schema="latest")
        assert one["value"].to_pylist() == ["p1"]
        assert one.schema.field("value").type == pa.string()


async def test_raw_encrypted_messages_have_no_columns() -> None:
    async with pulsar_world() as world:
        await world.schema(NAME, STRING)
        await world.ledger(NAME, [kit.entry(b"a")])
        with pytest.raises(InvalidArgumentError, match="raw"):
            await world.topic(NAME).to_arrow(topic_schema="latest", encrypted="raw")


async def test_keys_that_are_the_messages_own_are_decoded_from_base64() -> None:
    async with pulsar_world() as world:
        definition = struct.pack(">i", 0) + struct.pack(">i", len(json.dumps(V0))) + json.dumps(V0).encode()
        await world.schema(
            NAME,
            KEYVALUE,
            definition,
            key_schema_type="INT64",
            value_schema_type="AVRO",
            kv_encoding_type="SEPARATED",
        )
        key = {"partition_key": b"AAAAAAAAAAU=", "partition_key_b64_encoded": True}
        datum = encoded(V0, {"id": 1})
        await world.ledger(
            NAME, [versioned(datum, 0, **key), versioned(b"", 0, null_value=True, **key), versioned(datum, 0)]
        )
        table = await world.topic(NAME).to_arrow(topic_schema="latest")
        assert table.schema.names[:3] == ["key", "value", "__key"]
        assert table["key"].to_pylist() == [5, 5, None]
        assert table["value"].to_pylist() == [{"id": 1}, None, {"id": 1}]
        bad = {"partition_key": b"A!", "partition_key_b64_encoded": True}
        ledger = await world.ledger(NAME, [versioned(datum, 0, **bad), versioned(datum, 0, **key)])
        for columns in (None, ["value"]):
            with pytest.raises(MessageSchemaError, match=f"entry {ledger.ledger_id}:0 .*key is not valid base64"):
                await world.topic(NAME).to_arrow(columns=columns, topic_schema="latest")
            table = await world.topic(NAME).to_arrow(columns=columns, topic_schema="latest", corrupt="skip")
            assert table.num_rows == 4


async def test_an_error_of_a_read_is_one_of_ours() -> None:
    async with pulsar_world() as world:
        await world.schema(NAME, JSON, json.dumps(V1))
        await world.ledger(NAME, [kit.entry(b"[" * 50_000)])
        with pytest.raises(BookKeeperError, match="JSON"):
            await world.topic(NAME).to_arrow(topic_schema="latest")
