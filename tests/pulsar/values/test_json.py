# SPDX-License-Identifier: Apache-2.0
"""Values of JSON schemas: what Arrow parses at once and what is parsed one by one must agree."""

from __future__ import annotations

import base64
import datetime
import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from bk_core.pulsar.messages.rows import TooManyValuesError
from bk_core.pulsar.values import json_counts
from bk_core.pulsar.values.avro import schema as avro_schema
from bk_core.pulsar.values.json_values import JsonReader
from tests.kit.amount import some
from tests.pulsar.fuzz import mutated
from tests.pulsar.values.kit import read, rows
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
        ("int", '5, "a": 6', 6),
        ("int", '5, "a": null', None),
        ("int", '"x", "a": 5', 5),
        ("int", '5, "a": "x"', "bad"),
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
        (DECIMAL, '"1.25"', Decimal("1.25")),
        (DECIMAL, '"-.5e1"', Decimal("-5.00")),
        (DECIMAL, '"1_0"', "bad"),
        (DECIMAL, '"NaN"', "bad"),
        (DECIMAL, '""', "bad"),
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


def test_member_that_is_given_twice_spoils_no_neighbour() -> None:
    fields = (("a", "int"), ("t", ["null", "string"]), ("r", record(("x", "int"), name="I")))
    values = [b'{"a": 1}', b'{"a": 1, "a": 2, "t": "x"}', b"oops", b'{"r": {"x": 1}, "r": {}}', b'{"t": "y"}']
    assert rows(JsonReader(node(record(*fields))), values) == [
        {"a": 1, "t": None, "r": None},
        {"a": 2, "t": "x", "r": None},
        "bad",
        {"a": None, "t": None, "r": {"x": None}},
        {"a": None, "t": "y", "r": None},
    ]


def test_mutated_values_are_equal_in_both_ways() -> None:
    fields = (
        ("a", "long"),
        ("b", ["null", "string"]),
        ("d", DECIMAL),
        ("e", ENUM),
        ("l", {"type": "array", "items": "double"}),
    )
    both_ways = [JsonReader(node(record(*fields, *more))) for more in ((), (("m", MAP),))]
    dice, value = random.Random(1), b'{"a": -12, "b": "x\\n", "d": 1.25, "e": "A", "l": [1, 2.5, null]}'
    data = [mutated(value, dice) for _ in range(some(20_000, 1000))]
    together, alone = (rows(reader, data) for reader in both_ways)
    good = 0
    for text, fast, slow in zip(data, together, alone, strict=True):
        good += fast != "bad"
        assert fast == (slow if slow == "bad" else {name: slow[name] for name in fast}), text
    assert good > len(data) // 20


WIDE = record(*((f"f{n}", ["null", "long"]) for n in range(1000)), name="Wide")


@pytest.mark.parametrize("more", [[], [("m", MAP)]], ids=["at once", "one by one"])
def test_few_bytes_that_stand_for_very_many_values_are_bad(more: Any) -> None:
    """Each ``{}`` would be a record of 1000 nulls. What is made is limited, so nothing is made of it."""
    reader = JsonReader(node(record(("rows", {"type": "array", "items": WIDE}), *more)))
    hostile = b'{"rows": [' + b"{}," * 40_000 + b"{}]}"
    began = pa.total_allocated_bytes()
    part = read(reader, [hostile])
    assert part.problems == {0: f"its arrays and maps have more than {1 << 25} values"}
    assert pa.total_allocated_bytes() - began < 1 << 20
    with pytest.raises(TooManyValuesError):
        read(reader, [hostile, b"{}"])
    with pytest.raises(TooManyValuesError):
        read(reader, [hostile[: len(hostile) // 2]] * 4)
    assert read(reader, [hostile[:-1]]).problems[0].startswith("it is not JSON")
    assert read(reader, [hostile[:-1] + b', "n": 1e' + b"9" * 30 + b"}"]).problems[0].startswith("it is not JSON")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("9" * 36 + ".99", Decimal("9" * 36 + ".99")),
        ("-" + "9" * 36 + ".99", Decimal("-" + "9" * 36 + ".99")),
        (f'"{"9" * 36}.99"', Decimal("9" * 36 + ".99")),
        ("1" + "0" * 36, "bad"),
        ("9" * 35 + ".998", "bad"),
        ("1" * 30 + ".1200", Decimal("1" * 30 + ".12")),
        ("1.1" + "0" * 100, Decimal("1.1")),
    ],
)
def test_decimals_of_all_digits_are_exact(text: str, wanted: Any) -> None:
    """Python's context of decimals has 28 digits, and Arrow's type has 38."""
    alone, beside_map = both({**DECIMAL, "precision": 38}, text)
    assert beside_map == wanted
    assert alone in (wanted, "bad" if len(text) > 100 else wanted)  # Arrow takes no 100 digits


def test_text_whose_exponent_no_decimal_has_is_of_the_next_branch() -> None:
    reader = JsonReader(node(record(("u", ["null", DECIMAL, "string"]))))
    assert rows(reader, [b'{"u": "1e' + b"9" * 30 + b'"}']) == [{"u": {"member0": None, "member1": "1e" + "9" * 30}}]


def test_commas_in_texts_are_no_items() -> None:
    reader = JsonReader(node(record(("t", "string"), ("rows", {"type": "array", "items": WIDE}))))
    text = "," * 50_000
    (row,) = rows(reader, [json.dumps({"t": text, "rows": [{"f7": 1}]}).encode()])
    assert (row["t"], row["rows"][0]["f7"]) == (text, 1)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ({"type": "array", "items": "int"}, [1, 2], 2),
        (MAP, {"a": 1, "b": 2, "c": 3}, 3),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], [2, 3], []], 9),
        (
            {"type": "map", "values": record(("x", "int"), ("l", {"type": "array", "items": "int"}))},
            {"a": {"l": [1]}},
            5,
        ),
        (["null", "int", {"type": "array", "items": "int"}, MAP], {"a": 1}, 1),
        (record(("x", "int"), ("l", {"type": "array", "items": "int"})), {"l": "x"}, 0),
        (["null", {"type": "array", "items": "int"}], None, 0),
    ],
)
def test_values_are_counted_by_the_schema(kind: Any, value: Any, wanted: int) -> None:
    count = json_counts.counter(node(kind))
    assert count is not None
    assert count(value) == wanted


def test_only_records_of_simple_types_are_parsed_at_once() -> None:
    assert avro_schema.arrow_type(node(MAP)) == JsonReader(node(MAP)).columns["value"]
    assert rows(JsonReader(node("string")), [b'"x"', b"5"]) == [{"value": "x"}, "bad"]
