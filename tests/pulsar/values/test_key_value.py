# SPDX-License-Identifier: Apache-2.0
"""Inline values of KEY_VALUE schemas, and their definitions."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from bk_core.pulsar.model.schemas import TopicSchema
from bk_core.pulsar.values.avro.schema import SchemaError
from bk_core.pulsar.values.key_value import KeyValueReader, parts_of
from bk_core.pulsar.values.primitives import PrimitiveReader
from tests.kit.amount import some
from tests.pulsar.fuzz import mutated
from tests.pulsar.values import avro_oracle as oracle
from tests.pulsar.values.kit import read, rows
from tests.pulsar.values.test_avro import reader_of, record

ORDER = record(("id", "int"), ("note", ["null", "string"]), name="Order")


def sized(part: bytes | None) -> bytes:
    return struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part


def schema(**properties: str) -> TopicSchema:
    definition = sized(b"") + sized(json.dumps(ORDER).encode())
    return TopicSchema(3, "KEYVALUE", definition, False, tuple((k.replace("_", "."), v) for k, v in properties.items()))


def reader() -> KeyValueReader:
    return KeyValueReader(PrimitiveReader("INT32"), reader_of(ORDER), False)


def test_inline_keys_and_values() -> None:
    datum = oracle.encoded(ORDER, {"id": 7, "note": "x"})
    key = struct.pack(">i", 5)
    assert rows(reader(), [sized(key) + sized(datum), sized(None) + sized(datum), sized(key) + sized(None)]) == [
        {"key": 5, "value": {"id": 7, "note": "x"}},
        {"key": None, "value": {"id": 7, "note": "x"}},
        {"key": 5, "value": None},
    ]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\0\0",
        sized(b"1234"),
        sized(b"1234") + b"\0\0\0",
        sized(b"1234") + sized(b"\x02\x00") + b"x",
        struct.pack(">i", 1 << 30) + b"1234",
        struct.pack(">i", -2) + sized(None),
        sized(b"1234") + struct.pack(">i", -7),
        sized(b"123") + sized(None),
        sized(b"1234") + sized(b"\x02"),
    ],
)
def test_a_bad_value_spoils_no_other(value: bytes) -> None:
    good = sized(struct.pack(">i", 5)) + sized(None)
    assert rows(reader(), [good, value, good]) == [{"key": 5, "value": None}, "bad", {"key": 5, "value": None}]


def test_mutated_values_are_rows_or_bad() -> None:
    dice = random.Random(1)
    value = sized(struct.pack(">i", 5)) + sized(oracle.encoded(ORDER, {"id": 7, "note": "x"}))
    found = read(reader(), [mutated(value, dice) for _ in range(some(2000, 400))])
    assert found.problems


def test_definitions() -> None:
    key, value, is_separated = parts_of(
        schema(key_schema_type="INT32", value_schema_type="AVRO", kv_encoding_type="SEPARATED")
    )
    assert (key.kind, key.definition, key.version, is_separated) == ("INT32", b"", 3, True)
    assert (value.kind, json.loads(value.definition)) == ("AVRO", ORDER)
    names: Any = {"key_schema_type": "LOCAL_DATE_TIME", "value_schema_type": "PROTOBUF_NATIVE"}
    key, value, is_separated = parts_of(schema(**names))
    assert (key.kind, value.kind, is_separated) == ("LOCALDATETIME", "PROTOBUFNATIVE", False)


@pytest.mark.parametrize(
    ("definition", "properties"),
    [
        (b"", {"key.schema.type": "STRING", "value.schema.type": "STRING"}),
        (sized(b"") + struct.pack(">i", 9), {"key.schema.type": "STRING", "value.schema.type": "STRING"}),
        (sized(b"") + sized(b""), {"key.schema.type": "STRING"}),
        (sized(b"") + sized(b""), {}),
    ],
)
def test_definitions_that_are_refused(definition: bytes, properties: dict[str, str]) -> None:
    with pytest.raises(SchemaError):
        parts_of(TopicSchema(0, "KEYVALUE", definition, False, tuple(properties.items())))
