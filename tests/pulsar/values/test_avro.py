# SPDX-License-Identifier: Apache-2.0
"""Avro datums as columns, beside fastavro; resolution between versions; bytes that nobody should have written."""

from __future__ import annotations

import datetime
import json
import random
import struct
import time
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from bk_core.pulsar.messages.rows import TooManyValuesError
from bk_core.pulsar.values.avro import rows as avro_rows
from bk_core.pulsar.values.avro import schema as avro_schema
from bk_core.pulsar.values.avro.reader import AvroReader
from tests.kit.amount import some
from tests.pulsar.fuzz import mutated
from tests.pulsar.values import avro_oracle as oracle
from tests.pulsar.values.kit import places, read, rows


def node(schema: Any) -> avro_schema.Node:
    return avro_schema.parse(json.dumps(schema).encode())


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default"), f, strict=False)) for f in fields],
    }


def reader_of(reader: Any, *writers: Any) -> AvroReader:
    """Return the reader of a schema; version k was written with ``writers[k]``."""
    return AvroReader(node(reader), dict(enumerate(map(node, writers))))


def resolved(writer: Any, reader: Any, *values: Any) -> list[Any]:
    """Write values of field ``a`` with one type, and read them with another."""
    data = [oracle.encoded(record(("a", writer)), {"a": value}) for value in values]
    found = rows(reader_of(record(("a", reader)), record(("a", writer))), data, [0] * len(data))
    return [row if row == "bad" else row["a"] for row in found]


@pytest.mark.parametrize("steps", [0, 64])
def test_values_are_those_of_another_implementation(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no steps, all arrays and maps of few datums are read one by one."""
    monkeypatch.setattr(avro_rows, "STEPS", steps)
    for seed in range(some(150, 40)):
        dice = random.Random(seed)
        schema = oracle.Schemas(dice).record()
        data = [oracle.encoded(schema, oracle.value_of(schema, dice)) for _ in range(dice.choice((1, 3, 30)))]
        wanted = [oracle.as_columns(node(schema), oracle.decoded(schema, each)) for each in data]
        assert rows(reader_of(schema), data) == wanted, seed


def test_mutated_datums_are_bad_or_what_another_implementation_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    for seed in range(some(200, 60)):
        monkeypatch.setattr(avro_rows, "STEPS", seed % 3)
        dice = random.Random(seed)
        schema = oracle.Schemas(dice).record()
        data = [mutated(oracle.encoded(schema, oracle.value_of(schema, dice)), dice) for _ in range(20)]
        data += [dice.randbytes(dice.randrange(30)) for _ in range(3)]
        for datum, row in zip(data, rows(reader_of(schema), data), strict=True):
            if row == "bad":
                continue
            try:
                wanted = oracle.as_columns(node(schema), oracle.decoded(schema, datum))
            except (ValueError, EOFError, IndexError):
                continue  # fastavro is stricter about UTF-8
            assert repr(_as_dictionaries(row)) == repr(_as_dictionaries(wanted)), seed
            seen += 1
    assert seen > 100


def _as_dictionaries(value: Any) -> Any:
    """Return the value with maps as dictionaries, and empty maps as the empty lists that they look like."""
    if isinstance(value, dict):
        return {key: _as_dictionaries(each) for key, each in sorted(value.items())}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: _as_dictionaries(each) for key, each in sorted(value)}
    return [_as_dictionaries(each) for each in value] if isinstance(value, list) else value


def test_the_last_value_of_a_key_counts_as_in_java() -> None:
    schema = record(("m", {"type": "map", "values": "string"}))
    twice = b"\x06" + b"\x02k\x02x" + b"\x02l\x02z" + b"\x02k\x02y" + b"\0"
    assert rows(reader_of(schema), [twice, b"\x02\x02k\x02x\0", b"\0", twice]) == [
        {"m": [("l", "z"), ("k", "y")]},
        {"m": [("k", "x")]},
        {"m": []},
        {"m": [("l", "z"), ("k", "y")]},
    ]


def test_promotions() -> None:
    assert resolved("int", "long", -5) == [-5]
    assert resolved("int", "float", 3) == [3.0]
    assert resolved("long", "double", 1 << 40) == [float(1 << 40)]
    assert resolved("float", "double", 0.5) == [0.5]
    assert resolved("string", "bytes", "é") == ["é".encode()]
    assert resolved("bytes", "string", b"ab") == ["ab"]
    assert resolved({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1, 2]) == [[1.0, 2.0]]
    assert resolved({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"k": 1}) == [[("k", 1)]]
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    assert (
        resolved("int", moment, 0)
        == resolved("long", moment, 0)
        == [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)]
    )
    assert resolved({"type": "int", "logicalType": "date"}, "long", datetime.date(1970, 1, 2)) == [1]


@pytest.mark.parametrize(
    ("writer", "reader", "value"),
    [
        ("long", "int", 1),
        ("double", "float", 1.0),
        ("string", "int", "1"),
        ("int", "boolean", 1),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, b"ab"),
        ({"type": "long", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "timestamp-micros"}, 1),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", "A"),
    ],
)
def test_what_does_not_resolve_is_bad_and_says_so(writer: Any, reader: Any, value: Any) -> None:
    assert resolved(writer, reader, value) == ["bad"]
    data = oracle.encoded(record(("a", writer)), {"a": value})
    part = read(reader_of(record(("a", reader)), record(("a", writer))), [data], [0])
    assert "version 0 does not resolve to the newest" in part.problems[0]


def test_unions() -> None:
    assert resolved("int", ["null", "long"], 5) == [5]
    assert resolved(["null", "int"], ["null", "double"], None, 5) == [None, 5.0]
    assert resolved(["null", "int"], "long", None, 5) == ["bad", 5]
    assert resolved(["int", "null"], ["null", "int"], 5, None) == [5, None]
    assert resolved(["int", "string"], "string", 5, "x") == ["bad", "x"]
    assert resolved(["null", "int", "string"], ["null", "string", "int"], 5, "x", None) == [
        {"member0": None, "member1": 5},
        {"member0": "x", "member1": None},
        None,
    ]
    assert resolved(["int", "long"], ["int", "long"], 5, 1 << 40) == [5, 1 << 40]
    assert resolved("null", ["null", "int"], None) == [None]
    assert resolved(["null"], ["null", "int"], None) == [None]


LARGE = 10**37 + 1234567
"""The unscaled value of a decimal with more digits than Python's default context has."""
LARGE_DEFAULT = LARGE.to_bytes(16, "big").decode("latin-1")


def test_enums_fields_aliases_and_defaults() -> None:
    old = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    assert resolved(old, {**old, "symbols": ["C", "A"]}, "A", "B", "C") == ["A", "bad", "C"]
    assert resolved(old, {**old, "symbols": ["C", "A"], "default": "A"}, "B", "C") == ["A", "C"]
    inner = record(("x", "int"), ("gone", "string"), name="I")
    new = record(("y", "long"), ("x", "int"), ("list", {"type": "array", "items": "int"}, [1, 2]), name="I2")
    new["fields"][0]["aliases"] = ["unknown", "x"]
    new["fields"][1] |= {"default": 9}
    assert resolved(inner, new, {"x": 1, "gone": "text"}) == [{"y": 1, "x": 1, "list": [1, 2]}]
    defaults = record(
        ("b", "bytes", "\u00ff"),
        ("n", ["null", "int"], None),
        ("u", ["int", "string"], "late"),
        ("m", {"type": "map", "values": "int"}, {"k": 1}),
        ("r", record(("z", "int", 3), name="Z"), {}),
        ("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001"),
        ("f", "double", 1),
        ("large", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}, LARGE_DEFAULT),
    )
    empty = record(name="Nothing")
    assert (
        rows(reader_of(defaults, empty), [b"", b""], [0, 0])
        == [
            {
                "b": b"\xff",
                "n": None,
                "u": {"member0": None, "member1": "late"},
                "m": [("k", 1)],
                "r": {"z": 3},
                "d": Decimal("0.01"),
                "f": 1.0,
                "large": Decimal(LARGE).scaleb(-2, Context(prec=38)),
            }
        ]
        * 2
    )
    for wrong in (
        record(("a", "int")),
        record(("a", "int", "x")),
        record(("a", "boolean", 1)),
        record(("a", "long", 1 << 70)),
        record(("a", {"type": "int", "logicalType": "time-millis"}, -1)),
        record(("a", {"type": "long", "logicalType": "timestamp-millis"}, 1 << 62)),
        record(("a", {"type": "fixed", "name": "F", "size": 2}, "x")),
    ):
        assert rows(reader_of(wrong, empty), [b""], [0]) == ["bad"]


def test_which_values_are_bad_does_not_depend_on_the_columns() -> None:
    old = record(("a", ["null", "int"]), ("b", "int"))
    new = record(("a", "int"), ("b", "int"), ("c", {"type": "int", "logicalType": "time-millis"}, 0))
    timed = record(("b", "int"), ("c", "int"))
    data = [oracle.encoded(old, {"a": None, "b": 1}), oracle.encoded(timed, {"b": 2, "c": -1})]
    for writer, datum in zip((old, timed), data, strict=True):
        reader = reader_of(new if writer is old else record(("b", "int"), new_time()), writer)
        for wanted in (frozenset(reader.columns), frozenset({"b"}), frozenset[str]()):
            part = reader.read(places([datum], [0]), wanted)
            assert list(part.problems) == [0]
            assert set(part.columns) == wanted


def new_time() -> tuple[str, Any]:
    return "c", {"type": "int", "logicalType": "time-millis"}


def test_versions_are_mixed_in_any_order() -> None:
    old, new = record(("a", "int")), record(("b", "string", "-"), ("a", "long"))
    versions = [0, 1, 0, -1, 1, 0]
    data = [
        oracle.encoded(old, {"a": k}) if v == 0 else oracle.encoded(new, {"b": "x", "a": k})
        for k, v in enumerate(versions)
    ]
    found = rows(reader_of(new, old, new), data, versions)
    assert found == [{"b": "-" if v == 0 else "x", "a": k} for k, v in enumerate(versions)]
    assert rows(reader_of(new), data[:1], [7]) == ["bad"]


def test_logical_types() -> None:
    def value(kind: str, logical: str, number: int) -> Any:
        schema = {"type": kind, "logicalType": logical}
        return resolved(schema, schema, *[None] if number is None else [number])[0]

    day, utc = datetime.date(2026, 11, 28), datetime.UTC
    noon = datetime.datetime(2026, 11, 28, 12, tzinfo=utc)
    ms = round(noon.timestamp() * 1000)
    raw = oracle.encoded
    fields = {
        "date": ("int", (day - datetime.date(1970, 1, 1)).days, day),
        "time-millis": ("int", 43_200_000, datetime.time(12)),
        "time-micros": ("long", 43_200_000_001, datetime.time(12, 0, 0, 1)),
        "timestamp-millis": ("long", ms, noon),
        "timestamp-micros": ("long", ms * 1000, noon),
        "local-timestamp-millis": ("long", ms, noon.replace(tzinfo=None)),
        "local-timestamp-micros": ("long", ms * 1000, noon.replace(tzinfo=None)),
    }
    for logical, (kind, number, wanted) in fields.items():
        data = raw(record(("a", kind)), {"a": number})
        assert rows(reader_of(record(("a", {"type": kind, "logicalType": logical}))), [data]) == [{"a": wanted}]
    for kind, logical, number in (("int", "time-millis", 86_400_000), ("long", "time-micros", -1)):
        data = raw(record(("a", kind)), {"a": number})
        assert rows(reader_of(record(("a", {"type": kind, "logicalType": logical}))), [data]) == ["bad"]
    part = read(
        reader_of(record(("a", {"type": "long", "logicalType": "timestamp-nanos"}))),
        [raw(record(("a", "long")), {"a": ms * 10**6 + 1})],
    )
    assert part.columns["a"].cast(pa.int64()).to_pylist() == [ms * 10**6 + 1]
    assert node(record(("a", {"type": "string", "logicalType": "date"}))).fields[0].node.logical == ""


def test_decimals() -> None:
    def decimals(precision: int, scale: int, *values: bytes) -> list[Any]:
        schema = record(("a", {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}))
        found = rows(reader_of(schema), [bytes([2 * len(each)]) + each for each in values])
        return [each if each == "bad" else each["a"] for each in found]

    assert decimals(4, 2, b"\x01", b"\xff", b"\x27\x0f", b"\x27\x10", b"", b"\x00\x01") == [
        Decimal("0.01"),
        Decimal("-0.01"),
        Decimal("99.99"),
        "bad",
        "bad",
        Decimal("0.01"),
    ]
    most = 10**38 - 1
    assert decimals(
        38,
        0,
        most.to_bytes(16, "big"),
        (-most).to_bytes(17, "big", signed=True),
        (1 << 127).to_bytes(17, "big"),
        (1 << 130).to_bytes(17, "big"),
    ) == [
        Decimal(most),
        Decimal(-most),
        "bad",
        "bad",
    ]
    fixed = record(
        ("a", {"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 5, "scale": 1})
    )
    assert rows(reader_of(fixed), [b"\xff\xff\xf6"]) == [{"a": Decimal("-1.0")}]
    assert (
        node(record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39}))).fields[0].node.logical == ""
    )


@pytest.mark.parametrize(
    ("kind", "datum"),
    [
        ("int", b"\x80\x80\x80\x80\x20"),
        ("long", b"\xff" * 11),
        ("boolean", b"\x07"),
        ("string", b"\x0a12"),
        ("string", b"\x01"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (["null", "int"], b"\x04"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02"),
        ({"type": "array", "items": "int"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02\x02"),
        ({"type": "array", "items": "int"}, b"\x02\x02"),
        ({"type": "map", "values": "int"}, b"\x02\x02k"),
        ("double", b"1234567"),
        ("int", b""),
    ],
)
def test_a_bad_datum_spoils_no_other(kind: Any, datum: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(1)
    schema = record(("a", kind))
    good = [oracle.encoded(schema, {"a": oracle.value_of(kind, dice)}) for _ in range(5)]
    wanted = [oracle.as_columns(node(schema), oracle.decoded(schema, each)) for each in good]
    for steps in (0, 64):
        monkeypatch.setattr(avro_rows, "STEPS", steps)
        assert rows(reader_of(schema), [*good[:2], datum, *good[2:]]) == [*wanted[:2], "bad", *wanted[2:]]


def test_blocks_with_sizes_are_read() -> None:
    schema = record(("a", {"type": "array", "items": "int"}))
    assert rows(reader_of(schema), [b"\x03\x04\x02\x04\x02\x06\x00"]) == [{"a": [1, 2, 3]}]


@pytest.mark.long
def test_long_arrays_and_many_items_take_bounded_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = record(("a", {"type": "array", "items": ["null", "int"]}))
    many = oracle.encoded(schema, {"a": [None, 7] * 100_000})
    began = time.monotonic()
    assert rows(reader_of(schema), [many, b"\x00"]) == [{"a": [None, 7] * 100_000}, {"a": []}]
    assert time.monotonic() - began < 10
    monkeypatch.setattr(avro_rows, "VALUES_MAX", 1000)
    assert rows(reader_of(schema), [many]) == ["bad"]
    nested = record(("a", {"type": "array", "items": {"type": "array", "items": "int"}}))
    deep = oracle.encoded(nested, {"a": [[1] * 900] * 3})
    for steps in (0, 64):
        monkeypatch.setattr(avro_rows, "STEPS", steps)
        assert rows(reader_of(nested), [deep]) == ["bad"]


def test_too_many_values_together_are_no_fault_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller reads fewer of them."""
    schema = record(("a", {"type": "array", "items": ["null", "int"]}))
    some_datums = [oracle.encoded(schema, {"a": [None] * 300})] * 2
    monkeypatch.setattr(avro_rows, "VALUES_MAX", 1000)
    for steps in (0, 64):
        monkeypatch.setattr(avro_rows, "STEPS", steps)
        assert rows(reader_of(schema), some_datums[:1]) == [{"a": [None] * 300}]
        with pytest.raises(TooManyValuesError):
            rows(reader_of(schema), some_datums)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not an Avro schema"),
        (b"\xff", "not an Avro schema"),
        (b'"thing"', "no type"),
        (b"5", "not a type"),
        (b'{"type":"record","name":"R"}', "not an Avro schema"),
        (b"[" * 100_000, "not an Avro schema"),
        (b'{"type":"array","items":' * 300 + b'"int"' + b"}" * 300, "nested"),
        (b'["null",["int"]]', "union"),
        (b'{"type":"array","items":"null"}', "without bytes"),
        (
            b'{"type":"array","items":{"type":"record","name":"R","fields":[{"name":"a","type":"null"}]}}',
            "without bytes",
        ),
        (b'{"type":"record","name":"R","fields":[{"name":"a","type":"R"}]}', "contains itself"),
        (b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}', "two fields"),
        (b'{"type":"fixed","name":"F","size":-1}', "impossible size"),
        (b'{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "default"),
        (b'{"type":"enum","name":"E","symbols":["\\ud800"]}', "surrogates"),
        (b'{"type":"record","name":"R","fields":[{"name":"\\udfff","type":"int"}]}', "surrogates"),
    ],
)
def test_schemas_that_are_refused(text: bytes, why: str) -> None:
    with pytest.raises(avro_schema.SchemaError, match=why):
        avro_schema.parse(text)


def test_a_short_schema_of_very_many_types_is_refused_at_once() -> None:
    """Each record has two of the one before: 2^60 types in a few kilobytes."""
    inner: Any = record(("a", "int"), name="R0")
    for number in range(1, 61):
        inner = record(("a", inner), ("b", f"R{number - 1}"), name=f"R{number}")
    began = time.monotonic()
    with pytest.raises(avro_schema.SchemaError, match="more than"):
        node(inner)
    assert time.monotonic() - began < 1


def test_names_have_namespaces() -> None:
    schema = {
        "type": "record",
        "name": "x.R",
        "fields": [
            {"name": "a", "type": {"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]}},
            {"name": "b", "type": "I"},
            {"name": "c", "type": ["null", "x.I"]},
        ],
    }
    found = node(schema)
    assert [each.node.name for each in found.fields[:2]] == ["x.I", "x.I"]
    assert rows(reader_of(schema), [b"\x02\x04\x02\x06"]) == [{"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}]


def test_a_schema_that_is_no_record_is_one_column() -> None:
    assert rows(reader_of("string"), [b"\x02x"]) == [{"value": "x"}]
    assert rows(reader_of(["null", "double"]), [b"\x00", b"\x02" + struct.pack("<d", 1.5)]) == [
        {"value": None},
        {"value": 1.5},
    ]


def test_texts_that_are_not_utf_8_are_replaced_as_in_java() -> None:
    assert rows(reader_of(record(("a", "string"))), [b"\x04a\xff", b"\x02b"]) == [{"a": "a\ufffd"}, {"a": "b"}]
