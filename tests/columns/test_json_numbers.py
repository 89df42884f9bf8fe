# SPDX-License-Identifier: Apache-2.0
"""Quoted numbers of JSON, as Spark writes them, are read as numbers; texts that look like them stay texts."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from bk_core.columns.json import rows as json_rows
from bk_core.entries.batch import EntryBatch


def read(kind: pa.StructType, *entries: bytes) -> list[Any]:
    found = json_rows.objects_of(EntryBatch.from_list(list(entries)), kind)
    return [
        "bad" if found.bad is not None and found.bad[n] else each for n, each in enumerate(found.structs.to_pylist())
    ]


def struct(**kinds: pa.DataType) -> pa.StructType:
    return pa.struct(list(kinds.items()))


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_both_spellings_of_a_number_are_read(kind: pa.DataType) -> None:
    found = read(struct(x=kind), b'{"x":"Infinity"}', b'{"x" : "-Infinity"}', b'{"x":Infinity}', b'{"x":1}', b"{}")
    assert [each["x"] for each in found] == [math.inf, -math.inf, math.inf, 1.0, None]
    assert math.isnan(read(struct(x=kind), b'{"x":"NaN"}')[0]["x"])
    assert math.isnan(read(struct(x=kind), b'{"x":NaN}')[0]["x"])


def test_texts_that_look_like_numbers_stay() -> None:
    kind = struct(x=pa.float64(), s=pa.string(), l=pa.list_(pa.string()))
    entry = rb'{"x":"Infinity","s":"NaN","l":["NaN","\"x\":\"NaN\""]}'
    assert read(kind, entry) == [{"x": math.inf, "s": "NaN", "l": ["NaN", '"x":"NaN"']}]
    assert read(struct(s=pa.string()), b'{"s":"NaN","x":"NaN"}') == [{"s": "NaN"}]


def test_numbers_in_lists_and_in_structs_are_read() -> None:
    numbers, part = pa.list_(pa.float64()), struct(y=pa.float64())
    kind = struct(a=numbers, b=pa.list_(pa.list_(pa.float32())), c=struct(x=pa.float64()), d=pa.list_(part))
    entry = (
        b'{"a":["Infinity",1.5,null, "-Infinity"],"NaN":0,"b":[[1],["Infinity"]],'
        b'"c":{"x":"Infinity"},"d":[{"y":"Infinity"}]}'
    )
    assert read(kind, entry, b'{"a":[2]}') == [
        {"a": [math.inf, 1.5, None, -math.inf], "b": [[1.0], [math.inf]], "c": {"x": math.inf}, "d": [{"y": math.inf}]},
        {"a": [2.0], "b": None, "c": None, "d": None},
    ]


def test_what_is_no_number_is_bad_alone() -> None:
    found = read(struct(x=pa.float64()), b'{"x":"Infinity"}', b'{"x":"Inf inity"}', b'{"x":"\xff"}', b'{"x":2}')
    assert found == [{"x": math.inf}, "bad", "bad", {"x": 2.0}]


def test_decimals_keep_their_digits_beside_quoted_numbers() -> None:
    kind = struct(l=pa.list_(pa.float64()), d=pa.decimal128(30, 20))
    (found,) = read(kind, b'{"l":["Infinity"],"d":1.23456789012345678901}')
    assert str(found["d"]) == "1.23456789012345678901"


def test_names_are_taken_as_they_stand() -> None:
    kind = pa.struct([("a.b", pa.float64()), ('q"', pa.float64()), ("é", pa.float64())])
    entry = '{"a.b":"Infinity","q\\"":"Infinity","é":"Infinity"}'.encode()
    assert read(kind, entry) == [{"a.b": math.inf, 'q"': math.inf, "é": math.inf}]
