# SPDX-License-Identifier: Apache-2.0
"""Arrays of every layout become the types of a log, and are cut by the bytes that their rows take."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.columns.conversion import converted, row_bytes
from bk_core.columns.writable import kept_schema, pieces, reader_of
from bk_core.errors import EntryTooLargeError, InvalidArgumentError

TEXTS = ["", "a", None, "a text of more than twelve bytes", "é" * 9]
PLAIN = pa.array(TEXTS)
LAYOUTS: dict[str, pa.Array] = {
    "large text": PLAIN.cast(pa.large_string()),
    "views of text": PLAIN.cast(pa.string_view()),
    "views of bytes": PLAIN.cast(pa.binary_view()),
    "dictionary": PLAIN.dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        [2, None, 0, 1, 2], pa.array(["x", "yy", "z" * 20], pa.string_view())
    ),
    "runs": pc.run_end_encode(pa.array(["a", "a", "b" * 20, None, None])),
    "fixed bytes": pa.array([b"12", None, b"34", b"56", b"78"], pa.binary(2)),
    "large lists": pa.array([[1], None, [], [2, None], [3]], pa.large_list(pa.int32())),
    "fixed lists": pa.array([[1, 2], None, [3, None], [4, 5], [6, 7]], pa.list_(pa.int64(), 2)),
    "lists of views": pa.array([["a"], None, [], ["b" * 20, None], ["c"]], pa.list_(pa.string_view())),
    "lists of dictionaries": pa.array(
        [["a"], None, [], ["b", "a"], ["c"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))
    ),
    "structs": pa.array(
        [{"a": "x", "b": [1]}, None, {"a": None, "b": None}, {"a": "y" * 20, "b": []}, {"a": "z", "b": [2, 3]}],
        pa.struct([("a", pa.string_view()), ("b", pa.large_list(pa.uint8()))]),
    ),
    "maps": pa.array(
        [[("k", 1)], None, [], [("l", None), ("m", 2)], [("n", 3)]], pa.map_(pa.large_string(), pa.uint16())
    ),
    "times": pa.array([dt.time(1, 2, 3, 4), None, dt.time(5), dt.time(6), dt.time(7)], pa.time64("us")),
    "decimals": pa.array([1, None, 2, 3, 4]).cast(pa.decimal256(19, 0)),
    "uuids": pa.array([b"0" * 16, None, b"1" * 16, b"2" * 16, b"3" * 16], pa.uuid()),
    "tensors": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]),
        pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
    ),
    "json": pa.array(['{"a":1}', None, "2", "3", "4"], pa.json_()),
}  # fmt: skip


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_layout_and_each_slice_of_it_keeps_its_values(layout: str) -> None:
    column = LAYOUTS[layout]
    (kind,) = kept_schema(pa.schema([("c", column.type)]), "log").types
    for start in range(len(column) + 1):
        for stop in range(start, len(column) + 1):
            found = converted(column.slice(start, stop - start), kind)
            found.validate(full=True)
            assert found.type == kind
            plain = column.storage if isinstance(column, pa.ExtensionArray) else column
            wanted = plain.slice(start, stop - start).to_pylist()
            if layout == "views of bytes":
                wanted = [None if each is None else bytes(each) for each in wanted]
            assert found.to_pylist() == wanted, (start, stop)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_rows_of_a_slice_are_counted_as_those_of_the_whole(layout: str) -> None:
    whole = row_bytes(LAYOUTS[layout])
    assert len(whole) == len(LAYOUTS[layout])
    assert (whole >= 0).all()
    for start in range(len(whole)):
        assert row_bytes(LAYOUTS[layout].slice(start, 2)).tolist() == whole[start : start + 2].tolist()


@pytest.mark.parametrize("layout", ["large text", "views of text", "dictionary", "runs", "lists of views", "structs"])
def test_a_longer_value_takes_its_bytes_more(layout: str) -> None:
    def of(text: str) -> int:
        kinds: dict[str, pa.Array] = {
            "large text": pa.array([text], pa.large_string()),
            "views of text": pa.array([text], pa.string_view()),
            "dictionary": pa.array([text]).dictionary_encode(),
            "runs": pc.run_end_encode(pa.array([text])),
            "lists of views": pa.array([[text]], pa.list_(pa.string_view())),
            "structs": pa.array([{"a": text}], pa.struct([("a", pa.large_string())])),
        }
        (size,) = row_bytes(kinds[layout])
        return int(size)

    assert of("x" * 1000) - of("x" * 200) == 800


def cut(column: pa.Array, piece_bytes: int) -> list[pa.RecordBatch]:
    rows = reader_of(pa.table({"c": column}))
    return list(pieces(rows, kept_schema(rows.schema, "log"), piece_bytes=piece_bytes))


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), st.sampled_from(["view", "dictionary", "slice"]))
def test_pieces_have_about_the_bytes_that_were_wanted_though_rows_share_a_buffer(sizes: list[int], how: str) -> None:
    texts = ["x" * size for size in sizes]
    column = pa.array(texts, pa.string_view()) if how == "view" else pa.array(texts)
    if how == "dictionary":
        column = column.dictionary_encode()
    elif how == "slice":
        column = pa.concat_arrays([pa.array(["y" * 50_000]), column]).slice(1)
    found = cut(column, 8192)
    assert [text for piece in found for text in piece.column(0).to_pylist()] == texts
    assert all(piece.nbytes <= 2 * 8192 for piece in found)
    assert all(piece.nbytes >= 8192 // 4 for piece in found[:-1])


def test_a_document_joined_to_many_rows_is_cut_by_what_the_rows_take() -> None:
    shared = pa.array(["d" * 22_000], pa.string_view())
    views = np.tile(np.frombuffer(shared.buffers()[1], dtype=np.uint8), 2000)
    column = pa.Array.from_buffers(pa.string_view(), 2000, [None, pa.py_buffer(views), shared.buffers()[2]])
    assert column.nbytes < 1 << 20 < 44_000_000
    found = cut(column, 1 << 20)
    assert len(found) >= 40
    assert sum(piece.num_rows for piece in found) == 2000
    assert found[0].column(0)[0].as_py() == "d" * 22_000


@pytest.mark.long
@pytest.mark.parametrize("how", ["views", "large text", "large bytes", "large lists", "structs", "dictionary of views"])
def test_text_beyond_2_gib_is_cut_and_nothing_crashes(how: str) -> None:
    """The memory is reserved and mostly never touched."""
    count, size = 110_000, 22_000  # 2.4 GB
    if "views" in how:
        document = pa.array(["d" * size], pa.string_view())
        views = np.tile(np.frombuffer(document.buffers()[1], dtype=np.uint8), count)
        column = pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(views), document.buffers()[2]])
        if how == "dictionary of views":
            column = pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int32), document)
    else:
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int64) * size)
        data = pa.py_buffer(np.zeros(count * size, dtype=np.uint8))
        kind = {"large bytes": pa.large_binary(), "large text": pa.large_string()}.get(how, pa.large_string())
        column = pa.Array.from_buffers(kind, count, [None, offsets, data])
        if how == "structs":
            column = pa.StructArray.from_arrays([column], names=["a"])
        if how == "large lists":
            inside = pa.Array.from_buffers(pa.int8(), count * size, [None, data])
            column = pa.LargeListArray.from_arrays(
                pa.Array.from_buffers(pa.int64(), count + 1, [None, offsets]), inside
            )
    rows = reader_of(pa.record_batch([column], names=["c"]))
    found = pieces(rows, kept_schema(rows.schema, "log"))
    seen = sum(piece.num_rows for piece in found)
    assert seen == count


def test_a_row_beyond_every_entry_is_refused_before_it_is_converted() -> None:
    sizes = np.array([0, 5, 5 + (1 << 31) + 10, (1 << 31) + 20], dtype=np.int64)
    data = pa.py_buffer(np.zeros(int(sizes[-1]), dtype=np.uint8))
    column = pa.Array.from_buffers(pa.large_string(), 3, [None, pa.py_buffer(sizes), data])
    with pytest.raises(EntryTooLargeError, match=r"row 1 makes one of 21474836\d\d"):
        cut(column, 1 << 20)


def test_an_error_of_arrow_while_rows_are_produced_is_ours() -> None:
    schema = pa.schema([("c", pa.int64())])

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1])], schema=schema)
        raise pa.ArrowInvalid("the file ends early")

    reader = pa.RecordBatchReader.from_batches(schema, rows())
    with pytest.raises(InvalidArgumentError, match=r"the rows to append cannot be read.*the file ends early"):
        list(pieces(reader, schema))


REFUSED: list[tuple[pa.DataType, str]] = [
    (pa.decimal128(5, -2), r"decimal128\(7, 0\)"),
    (pa.decimal128(3, 5), r"decimal128\(5, 5\)"),
    (pa.decimal256(50, 2), r"decimal128\(38, 2\)"),
    (pa.uint64(), r"decimal128\(20, 0\)"),
    (pa.null(), "the type that it will have"),
    (pa.month_day_nano_interval(), r"duration\('us'\)"),
    (pa.struct([("a", pa.int64()), ("a", pa.string())]), "fields with different names"),
    (pa.struct([]), "needs fields"),
    (pa.list_view(pa.int32()), "cast it to a list"),
    (pa.bool8(), "without an extension"),
    (pa.opaque(pa.binary(16), "int128", "polars"), "without an extension"),
    (pa.dense_union([pa.field("a", pa.int64())]), "leave it out"),
]


@pytest.mark.parametrize(("kind", "remedy"), REFUSED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("depth", ["bare", "list", "struct", "map"])
def test_a_type_that_spark_does_not_have_is_refused_with_a_cast(kind: pa.DataType, remedy: str, depth: str) -> None:
    wrapped = {
        "bare": kind, "list": pa.list_(kind), "struct": pa.struct([("a", kind)]), "map": pa.map_(pa.string(), kind),
    }[depth]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=rf"types that a log does not keep.*c: .*{remedy}"):
        kept_schema(pa.schema([("c", wrapped)]), "log")


@pytest.mark.parametrize("depth", ["bare", "list"])
def test_a_time_with_nanoseconds_is_refused(depth: str) -> None:
    values: list[Any] = [1_000, 1_001]
    column = pa.array(values, pa.int64()).view(pa.time64("ns"))
    if depth == "list":
        column = pa.ListArray.from_arrays([0, 2], column)
    with pytest.raises(InvalidArgumentError, match="values of column c do not fit its type"):
        cut(column, 1 << 20)
