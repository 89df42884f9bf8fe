# SPDX-License-Identifier: Apache-2.0
"""Codec json: one object an entry, one row an object, whatever stands beside it."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from bk_core.columns.json import rows as json_rows
from bk_core.columns.json import suspects as json_suspects
from bk_core.entries.batch import EntryBatch
from bk_core.errors import CorruptEntryError, EntryTooLargeError, InvalidArgumentError
from bk_spark import codecs
from bk_spark.codecs import spark_types
from bk_spark.options.options import Use
from tests.spark.codecs.codec_kit import SCALARS, columns, damaged, options, rows_of, struct, written

WRITE = options(Use.WRITE, codec="json")


def reader(schema: types.StructType, policy: str = "fail") -> codecs.RowCodec:
    return codecs.row_codec(options(codec="json", corruptentries=policy), schema)


def record_batch(schema: types.StructType, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=spark_types.arrow_schema_of(schema))


@given(columns(SCALARS, with_maps=False))
def test_rows_come_back_as_they_were(given: tuple[types.StructType, list[dict[str, Any]]]) -> None:
    schema, rows = given
    batch = written(codecs.entry_codec(WRITE, schema), record_batch(schema, rows))
    assert all(isinstance(json.loads(entry), dict) for entry in batch.to_list())
    assert rows_of(reader(schema), batch).to_pylist() == record_batch(schema, rows).to_pylist()


def test_objects_are_what_anybody_would_write() -> None:
    schema = struct(
        ("i", "int"), ("s", "string"), ("t", "timestamp"), ("d", "date"), ("a b", types.ArrayType(types.IntegerType()))
    )
    batch = pa.record_batch(
        [
            pa.array([1, None], pa.int32()),
            pa.array(['a"\\\n\x01é', None]),
            pa.array([1_700_000_000_000_001, None], pa.timestamp("us", tz="Europe/Berlin")),
            pa.array([0, None], pa.int32()).cast(pa.date32()),
            pa.array([[1, None], None]),
        ],
        names=["i", "s", "t", "d", "a b"],
    )
    first, second = written(codecs.entry_codec(WRITE, schema), batch).to_list()
    assert first.decode() == (
        r'{"i":1,"s":"a\"\\\n\u0001é","t":"2023-11-14T22:13:20.000001Z","d":"1970-01-01","a b":[1,null]}'
    )
    assert second == b"{}"


def test_numbers_that_are_none_come_back() -> None:
    schema = struct(("x", "double"))
    batch = written(
        codecs.entry_codec(WRITE, schema),
        pa.record_batch([pa.array([math.nan, math.inf, -math.inf, 1.0])], names=["x"]),
    )
    assert batch.to_list() == [b'{"x":"NaN"}', b'{"x":"Infinity"}', b'{"x":"-Infinity"}', b'{"x":1}']
    assert str(rows_of(reader(schema), batch)["x"].to_pylist()) == "[nan, inf, -inf, 1.0]"


def test_members_may_be_missing_and_more_than_asked_for() -> None:
    batch = EntryBatch.from_list([b'{"b":{"c":[1]},"a":1}', b' {\n"a" :\t2 } ', b"{}", b'{"a":null}'])
    assert rows_of(reader(struct(("a", "int"), ("offset", "bigint"))), batch).to_pylist() == [
        {"a": 1, "offset": 100},
        {"a": 2, "offset": 101},
        {"a": None, "offset": 102},
        {"a": None, "offset": 103},
    ]


BAD = {
    "empty": b"",
    "null": b"null",
    "a number": b"1",
    "an array": b"[]",
    "text": b"hello",
    "cut": b'{"a":1',
    "two objects": b'{"a":1}{"a":2}',
    "two lines": b'{"a":1}\n{"a":2}',
    "one that goes on behind ours": b'{"a":1}} {"v":{"a":5}',
    "one that opens ours": b'{"a":{"b":1}',
    "a string that is not ended": b'{"b":"x',
    "a line feed in a string": b'{"b":"x\ny"}',
    "no UTF-8": b'{"b":"\xff"}',
    "another type": b'{"a":"1"}',
    "a fraction": b'{"a":1.5}',
    "too large for its type": b'{"a":2147483648}',
    "a member twice": b'{"a":1,"a":2}',
    "a date that is none": b'{"d":"2024-13-01"}',
    "deep": b'{"a":' * 100_000,
    "zeros": bytes(100),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_not_one_object_of_the_columns_fails_or_is_skipped_or_null(bad: bytes) -> None:
    schema = struct(("a", "int"), ("b", "string"), ("d", "date"), ("entry_id", "bigint"))
    batch = EntryBatch.from_list([b'{"a":1}', bad, b'{"a":3}'], first_entry_id=5)
    with pytest.raises(CorruptEntryError, match=r"entry 6 of ledger 17, offset 106 of log events: .*corruptEntries"):
        rows_of(reader(schema), batch)
    skipped = rows_of(reader(schema, "skip"), batch)
    assert (skipped["a"].to_pylist(), skipped["entry_id"].to_pylist()) == ([1, 3], [5, 7])
    nulls = rows_of(reader(schema, "null"), batch)
    assert (nulls["a"].to_pylist(), nulls["entry_id"].to_pylist()) == ([1, None, 3], [5, 6, 7])
    ids = reader(struct(("entry_id", "bigint")), "skip")
    assert ids.reads_values
    whole_object = bad.startswith(b"{") and bad.endswith(b"}") and bad.count(b"a") == 1 and b"b" not in bad
    assert rows_of(ids, batch)["entry_id"].to_pylist() in (
        [5, 7],
        [5, 6, 7] if whole_object or b'"d"' in bad or b"," in bad else [5, 7],
    )


@given(damaged([b'{"a":1,"b":"two"}', b'{"b":"\\u00e9","x":[{}]}', b"{}"]))
def test_any_bytes_are_decoded_or_corrupt(entries: list[bytes]) -> None:
    schema, batch = struct(("a", "int"), ("b", "string")), EntryBatch.from_list(entries)
    nulls = rows_of(reader(schema, "null"), batch)
    assert nulls.num_rows == len(entries)
    alone = [rows_of(reader(schema, "null"), EntryBatch.from_list([entry])).to_pylist()[0] for entry in entries]
    assert nulls.to_pylist() == alone, "what a neighbour is decides nothing"


MEMBERS = st.sampled_from(
    ["1", "1.5", "true", "null", "NaN", "Inf", "-Infinity", "[]", "[{}]", '[{"y":1}]', "01", "1e5", "{}", "1e400"]
) | st.sampled_from(['"x"', '"2024-01-01"', '"2024-01-01T00:00:00Z"', '"1.25"', '"\\ud800"', '"a\nb"', "9" * 5000])
OBJECTS = st.lists(st.tuples(st.sampled_from(["i", "d", "f", "s", "b", "x", "t", "l", "other"]), MEMBERS), max_size=3)


@given(OBJECTS)
def test_what_is_called_implausible_never_parses(members: list[tuple[str, str]]) -> None:
    decimal, nested = types.DecimalType(10, 2), types.ArrayType(struct(("y", "int")))
    schema = struct(("i", "bigint"), ("d", "date"), ("f", "double"), ("s", "string"), ("b", "boolean"), ("x", decimal))
    schema.add("t", types.TimestampType()).add("l", nested)
    kind = pa.struct(list(spark_types.arrow_schema_of(schema)))
    entry = ("{" + ", ".join(f'"{name}":{value}' for name, value in members) + "}").encode()
    if json_suspects.implausible([entry], kind)[0]:
        with pytest.raises((pa.ArrowException, ValueError)):
            json_rows.parse(pa.array([entry]), kind)


def test_reading_needs_columns() -> None:
    with pytest.raises(InvalidArgumentError, match=r"needs to know the columns.*\.schema\("):
        codecs.default_schema(options(codec="json"))


def test_types_without_a_json_form_are_all_named() -> None:
    schema = struct(("b", "binary"), ("ok", "int"), ("m", types.MapType(types.StringType(), types.IntegerType())))
    for make in (lambda: reader(schema), lambda: codecs.entry_codec(WRITE, schema)):
        with pytest.raises(InvalidArgumentError, match=r"b binary, m map<string,int>.*base64"):
            make()


def test_a_row_that_no_entry_can_hold_and_a_year_of_five_digits_are_named() -> None:
    codec = codecs.entry_codec(options(Use.WRITE, codec="json", maxentrybytes="20"), struct(("s", "string")))
    with pytest.raises(EntryTooLargeError, match=r"row 8 makes one of 28"):
        written(codec, pa.record_batch([pa.array(["x", "x" * 20])], names=["s"]), first_row=7)
    late = pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", tz="UTC"))
    with pytest.raises(InvalidArgumentError, match=r"row 1: its year"):
        written(codecs.entry_codec(WRITE, struct(("t", "timestamp"))), pa.record_batch([late], names=["t"]))


def test_a_text_that_is_no_utf8_is_refused_with_its_row_and_column() -> None:
    column = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    codec = codecs.entry_codec(WRITE, struct(("s", "string")))
    with pytest.raises(InvalidArgumentError, match=r"not UTF-8.*column s of row 8"):
        written(codec, pa.record_batch([column], names=["s"]), first_row=7)
