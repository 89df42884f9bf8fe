# SPDX-License-Identifier: Apache-2.0
"""Values of JSON schemas: what Arrow parses at once and what is parsed one by one must agree."""

from __future__ import annotations

import base64
import datetime
import json
import random
from decimal import Decimal
from typing import Any

import pytest

from bk_core.pulsar.values import avro_schema
from bk_core.pulsar.values.json_values import JsonReader, value_of
from tests.kit.amount import some
from tests.pulsar.fuzz import mutated
from tests.pulsar.values.kit import rows
from tests.pulsar.values.test_avro import node, record

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
MAP = {"type": "map", "values": "long"}


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


def both(kind: Any, text: str) -> list[Any]:
    """Read ``{"a": text}`` as a field of a type, at once and one by one; return the two values."""
    value = f'{{"a": {text}, "more": [1]}}'.encode()
    alone = rows(JsonReader(node(record(("a", kind)))), [value])[0]
    beside_map = rows(JsonReader(node(record(("a", kind), ("m", MAP)))), [value])[0]
    return [each if each == "bad" else each["a"] for each in (alone, beside_map)]


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("int", "5", 5),
        ("int", "2147483648", "bad"),
        ("int", "1.0", "bad"),
        ("int", "true", "bad"),
        ("int", '"5"', "bad"),
        ("long", "9223372036854775807", (1 << 63) - 1),
        ("long", "9007199254740993", 9007199254740993),
        ("long", "9223372036854775808", "bad"),
        ("float", "0.5", 0.5),
        ("double", "1e3", 1000.0),
        ("double", "3", 3.0),
        ("double", '"NaN"', "nan"),
        ("double", '"-Infinity"', float("-inf")),
        ("double", '"x"', "bad"),
        ("boolean", "true", True),
        ("boolean", "1", "bad"),
        ("string", '"\\u00e9\\n"', "é\n"),
        ("string", "5", "bad"),
        ("string", "null", None),
        (["null", "string"], "null", None),
        (["null", "string"], '"x"', "x"),
        (["string", "null"], '"x"', "x"),
        (["int", "long"], "5000000000", 5_000_000_000),
        (["float", "double"], "1.5", 1.5),
        ("bytes", json.dumps(base64.b64encode(b"\xff\x00").decode()), b"\xff\x00"),
        ("bytes", '"not base64"', "bad"),
        ({"type": "fixed", "name": "F", "size": 2}, '"YWI="', b"ab"),
        ({"type": "fixed", "name": "F", "size": 3}, '"YWI="', "bad"),
        (ENUM, '"B"', "B"),
        (ENUM, '"C"', "bad"),
        (DECIMAL, "1.25", Decimal("1.25")),
        (DECIMAL, "12345.6", "bad"),
        (DECIMAL, "1.234", "bad"),
        (logical("int", "date"), "20785", datetime.date(2026, 11, 28)),
        (logical("int", "time-millis"), "43200000", datetime.time(12)),
        (logical("int", "time-millis"), "86400000", "bad"),
        (logical("long", "time-micros"), "-1", "bad"),
        (logical("long", "timestamp-millis"), "1", datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=datetime.UTC)),
        (logical("long", "local-timestamp-micros"), "1", datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
        (logical("long", "timestamp-millis"), '"2026-11-28T12:00:00Z"', "bad"),
        ({"type": "array", "items": "int"}, "[1, null]", [1, None]),
        ({"type": "array", "items": ENUM}, '["A"]', ["A"]),
        ({"type": "array", "items": ENUM}, '["Z"]', "bad"),
        (record(("x", logical("long", "timestamp-millis")), name="I"), '{"x": null}', {"x": None}),
        (record(("x", ["null", "int"]), name="I"), "[]", "bad"),
        (record(name="Nothing"), "{}", {}),
        (["null", "int", "string"], '"x"', {"member0": None, "member1": "x"}),
        (["null", "int", "string"], "5", {"member0": 5, "member1": None}),
        (["null", "int", "string"], "true", "bad"),
        ("null", "null", None),
        ("null", "1", "bad"),
    ],
)
def test_values(kind: Any, text: str, wanted: Any) -> None:
    found = both(kind, text)
    assert [repr(each) if wanted == "nan" else each for each in found] == [wanted, wanted]


def test_maps_and_missing_members() -> None:
    reader = JsonReader(node(record(("m", MAP), ("s", "string"))))
    assert rows(reader, [b'{"m": {"x": 1, "y": null}}', b'{"m": {"x": "1"}}', b"{}"]) == [
        {"m": [("x", 1), ("y", None)], "s": None},
        "bad",
        {"m": None, "s": None},
    ]


def test_pretty_printed_values_are_read_as_pulsars_python_client_writes_them() -> None:
    reader = JsonReader(node(record(("a", ["null", "int"]), ("b", ["null", "string"]))))
    values = [json.dumps({"_default": None, "a": k, "b": "x\ny"}, indent=True).encode() for k in range(3)]
    assert rows(reader, values) == [{"a": k, "b": "x\ny"} for k in range(3)]


@pytest.mark.parametrize("fields", [[("a", "int")], [("a", "int"), ("m", MAP)]])
def test_a_bad_value_spoils_no_other(fields: Any) -> None:
    reader = JsonReader(node(record(*fields)))
    bad = [b"", b"null", b"[]", b"{", b'"x"', b"\xff", b'{"a": 1}}', b"[" * 50_000, b'{"a": ' + b"9" * 5000 + b"}"]
    good = b'{"a": 1}'
    found = rows(reader, [good, *(each for value in bad for each in (value, good))])
    assert [each if each == "bad" else each["a"] for each in found] == [1, *["bad", 1] * len(bad)]


def test_mutated_values_are_rows_or_bad_in_both_ways() -> None:
    fields = (
        ("a", "long"),
        ("b", ["null", "string"]),
        ("d", DECIMAL),
        ("e", ENUM),
        ("l", {"type": "array", "items": "double"}),
    )
    fast = JsonReader(node(record(*fields)))
    dice, value = random.Random(1), b'{"a": -12, "b": "x\\n", "d": 1.25, "e": "A", "l": [1, 2.5, null]}'
    data = [mutated(value, dice) for _ in range(some(2000, 300))]
    slow = node(record(*fields))
    same = 0
    for text, row in zip(data, rows(fast, data), strict=True):
        try:
            wanted = value_of(slow, json.loads(text, parse_float=Decimal))
        except (ValueError, ArithmeticError):
            continue  # Arrow and Python differ about some texts that are not JSON
        if row != "bad" and wanted is not None:
            same += 1
            assert row == wanted, text
    assert same > len(data) // 20


def test_only_records_of_simple_types_are_parsed_at_once() -> None:
    assert avro_schema.arrow_type(node(MAP)) == JsonReader(node(MAP)).columns["value"]
    assert rows(JsonReader(node("string")), [b'"x"', b"5"]) == [{"value": "x"}, "bad"]
