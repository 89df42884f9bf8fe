# SPDX-License-Identifier: Apache-2.0
"""Entries of codec arrow and their directories: regions, checksums and bounds of tables of all types."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.columns import arrow_entries, arrow_message, arrow_schema
from bk_core.columns.arrow_entries import EntryLayout, entry_of
from bk_core.entries.arrow_directory import (
    HAS_MAX,
    HAS_MIN,
    MAX_RAISED,
    MIN_CUT,
    NO_BOUNDS,
    Bounds,
    Directory,
    crcs_behind,
    parse,
)
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ENTRY_HEADER, Digester, crc32c
from bk_core.errors import CorruptEntryError
from bk_core.logs.model.head import COMPRESSIONS
from bk_core.model import DigestType
from bk_spark import codecs
from bk_spark.codecs import LedgerAt
from bk_spark.options.options import Use
from tests.spark.codecs.codec_kit import arrow_entry, options, resealed, rows_of, written
from tests.spark.codecs.codec_kit import struct as spark_struct

# Near the longest bound, with characters of one to four bytes and those that no greater byte follows.
LONG = st.integers(28, 36).flatmap(lambda n: st.text("aü€😀\U0010ffff", min_size=n // 4, max_size=n))
LONG_BYTES = st.integers(30, 34).flatmap(
    lambda n: st.lists(st.sampled_from([0, 0x7F, 0xFE, 0xFF]), min_size=n, max_size=n).map(bytes)
)
INTS = [(kind, st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1))
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())]  # fmt: skip
STORED_AS = {pa.date32(): pa.int32()} | dict.fromkeys(
    (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.time64("ns"), pa.duration("us")), pa.int64()
)
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *INTS,
    *((kind, {str(k): v for k, v in INTS}[str(number)]) for kind, number in STORED_AS.items()),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0])),
    (pa.decimal128(38, 4), st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-4"))),
    (pa.string(), LONG | st.text(max_size=3)),
    (pa.binary(), LONG_BYTES | st.binary(max_size=3)),
    (pa.list_(pa.field("element", pa.string())), st.lists(st.none() | st.text(max_size=3), max_size=3)),
    (pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int64()))]), st.just({"x": 1, "y": [1, None]})),
    (pa.map_(pa.string(), pa.float64()), st.just([("k", 1.5), ("n", None)])),
]  # fmt: skip


@st.composite
def tables(draw: st.DrawFn, columns: int = 3) -> pa.RecordBatch:
    """Up to so many columns of any types, maybe a slice of more rows."""
    kinds = draw(st.lists(st.sampled_from(TYPES), max_size=columns))
    rows, skipped = draw(st.integers(0, 5)), draw(st.sampled_from([0, 0, 3]))
    arrays = []
    for kind, values in kinds:
        filled = st.none() if draw(st.integers(0, 7)) == 0 else st.none() | values if draw(st.booleans()) else values
        found = draw(st.lists(filled, min_size=skipped + rows, max_size=skipped + rows))
        integers = STORED_AS.get(kind)
        arrays.append(pa.array(found, kind) if integers is None else pa.array(found, integers).view(kind))
    if not kinds:
        return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))
    schema = pa.schema([pa.field(f"c{k}", kind) for k, (kind, _) in enumerate(kinds)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema).slice(skipped, rows)


def directory_of(entry: bytes) -> Directory:
    return parse(memoryview(entry), len(entry))


@given(tables(), st.sampled_from(COMPRESSIONS), st.booleans())
def test_regions_cover_the_entry_and_combine_to_its_digest(rows: pa.RecordBatch, compression: str, small: bool) -> None:
    entry = arrow_entry(rows, compression, small=small)
    told = directory_of(entry)
    assert (told.rows, len(told.columns)) == (rows.num_rows, rows.num_columns)
    places = [slice(0, told.size), told.head, *(told.column(k) for k in range(rows.num_columns))]
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    assert places[-1].stop == len(entry)
    told.check_head(entry[told.head])
    for k in range(rows.num_columns):
        told.check_column(k, entry[told.column(k)])
    header = ENTRY_HEADER.pack(17, 4, 3, 99)
    (digest,) = crcs_behind([crc32c(header)], [told]).tolist()
    assert digest.to_bytes(4, "big") == Digester(DigestType.CRC32C, b"", 17).digest(header, entry)
    assert entry[told.size :].startswith(b"\xff\xff\xff\xff"), "what follows the directory is a message of Arrow"
    if rows.num_columns and compression == "none":
        assert pa.ipc.read_record_batch(pa.py_buffer(entry[told.size :]), rows.schema).equals(rows)


@given(tables(4), st.data())
def test_columns_at_another_level_are_columns_as_all_others(rows: pa.RecordBatch, data: st.DataObject) -> None:
    places = range(rows.num_columns)
    chosen = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
    layout = EntryLayout.of(rows.schema)
    plain = b"".join(entry_of(rows, "zstd", layout))
    entry = b"".join(entry_of(rows, "zstd", layout, at_level_3=chosen))
    told = directory_of(entry)
    assert [(each.nulls, each.bounds) for each in told.columns] == [
        (each.nulls, each.bounds) for each in directory_of(plain).columns
    ]
    for k in places:
        told.check_column(k, entry[told.column(k)])
    assert told.rows == rows.num_rows
    if places:  # as bytes, because NaN differs from itself
        read, wanted = (
            pa.ipc.read_record_batch(pa.py_buffer(each[directory_of(each).size :]), rows.schema).serialize()
            for each in (entry, plain)
        )
        assert read == wanted


def value_of(kind: pa.DataType, stored: bytes) -> Any:
    """A bound as docs/formats.md says it is written, as something that compares."""
    if pa.types.is_boolean(kind):
        return {b"\0": False, b"\1": True}[stored]
    if pa.types.is_floating(kind):
        return struct.unpack({32: "<f", 64: "<d"}[kind.bit_width], stored)[0]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return stored
    assert len(stored) == kind.bit_width // 8
    return int.from_bytes(stored, "little", signed=True)


def values_of(column: pa.Array) -> list[Any]:
    """The values that are there, as :func:`value_of` gives bounds."""
    found = [value for value in column.to_pylist() if value is not None] if column.type not in STORED_AS else [
        value for value in column.view(STORED_AS[column.type]).to_pylist() if value is not None
    ]  # fmt: skip
    if pa.types.is_string(column.type):
        return [value.encode() for value in found]
    if pa.types.is_decimal(column.type):
        return [int("".join(map(str, value.as_tuple().digits))) * (-1 if value < 0 else 1) for value in found]
    return found


@given(tables(), st.sampled_from(COMPRESSIONS))
def test_no_value_is_outside_of_its_columns_bounds(rows: pa.RecordBatch, compression: str) -> None:
    told = directory_of(arrow_entry(rows, compression))
    for column, said in zip(rows.columns, told.columns, strict=True):
        assert said.nulls == column.null_count
        low, high, bits = said.bounds
        if pa.types.is_nested(column.type):
            assert said.bounds == (None, None, 0)
            continue
        found = values_of(column)
        if not found or any(value != value for value in found):
            assert said.bounds == (None, None, 0), "nothing can be said"
            continue
        assert bits & HAS_MIN
        assert low is not None
        least = value_of(column.type, low)
        assert least <= min(found)
        assert (least == min(found)) != bool(bits & MIN_CUT)
        if high is None:
            assert max(found)[:32] == b"\xff" * 32
            assert not bits & HAS_MAX
            continue
        greatest = value_of(column.type, high)
        assert greatest >= max(found)
        assert (greatest == max(found)) != bool(bits & MAX_RAISED)


def bounds_of(values: list[Any], kind: pa.DataType) -> Bounds:
    (column,) = directory_of(arrow_entry(pa.record_batch([pa.array(values, kind)], names=["x"]))).columns
    return column.bounds


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("values", [[0.0], [-0.0], [0.0, -0.0], [-0.0, None, 0.0]])
def test_a_zero_bound_has_the_sign_that_is_outside(values: list[float | None], kind: pa.DataType) -> None:
    low, high, _ = bounds_of(values, kind)
    assert low is not None
    assert high is not None
    assert (low[-1], high[-1]) == (0x80, 0)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_where_one_value_is_nan_nothing_is_said(kind: pa.DataType) -> None:
    nan, most = float("nan"), float("inf")
    for values in ([nan], [1.0, nan], [nan, 1.0], [None, nan, 2.0], [-most, nan, most]):
        assert bounds_of(values, kind) == NO_BOUNDS
    low, high, _ = bounds_of([most, 1.0, -most], kind)
    assert (value_of(kind, low or b""), value_of(kind, high or b"")) == (-most, most)


@pytest.mark.parametrize(
    ("value", "low", "high", "bits"),
    [
        ("ü" * 16, "ü".encode() * 16, "ü".encode() * 16, 0),
        ("ü" * 16 + "x", "ü".encode() * 16, "ü".encode() * 15 + b"\xc3\xbd", MIN_CUT | MAX_RAISED),
        ("a" * 31 + "é", b"a" * 31 + b"\xc3", b"a" * 31 + b"\xc4", MIN_CUT | MAX_RAISED),
        (
            "\U0010ffff" * 9,
            "\U0010ffff".encode() * 8,
            "\U0010ffff".encode() * 7 + b"\xf4\x8f\xbf\xc0",
            MIN_CUT | MAX_RAISED,
        ),
        (b"\xff" * 32, b"\xff" * 32, b"\xff" * 32, 0),
        (b"a" + b"\xff" * 32, b"a" + b"\xff" * 31, b"b", MIN_CUT | MAX_RAISED),
        (b"\xff" * 33, b"\xff" * 32, None, MIN_CUT),
    ],
)
def test_text_and_bytes_at_the_longest_bound(value: str | bytes, low: bytes, high: bytes | None, bits: int) -> None:
    there = HAS_MIN | (HAS_MAX if high is not None else 0)
    kind = pa.string() if isinstance(value, str) else pa.binary()
    for values in ([value], [None, value, value]):
        assert bounds_of(values, kind) == (low, high, bits | there)


def test_decimals_that_differ_in_their_lower_half_have_right_bounds() -> None:
    values = [Decimal(-1), Decimal(1 - 2**64), Decimal(-(2**64)), Decimal(2**64 - 1), Decimal(2**64), Decimal(0)]
    for these in (values, values[:3], values[3:]):
        rows = pa.record_batch([pa.array(these, pa.decimal128(38, 0))], names=["x"])
        (column,) = directory_of(arrow_entry(rows)).columns
        low, high, _ = column.bounds
        assert (value_of(rows.schema[0].type, low or b""), value_of(rows.schema[0].type, high or b"")) == (
            min(these),
            max(these),
        )


# --- reading ----------------------------------------------------------------------------------------------------------


def read(entries: list[bytes], schema: pa.Schema, columns: list[str], policy: str = "fail") -> pa.Table:
    """The rows of entries, of some columns, as Spark would ask for them."""
    known = {"events": {1: arrow_schema.to_bytes(schema)}}
    given = options(codec="arrow", corruptentries=policy, columns=",".join([*columns, "offset"]))
    codec = codecs.row_codec(given, codecs.default_schema(given, known), known)
    at = LedgerAt(ledger_id=17, log="events", offset_shift=100, schema=known["events"][1])
    return rows_of(codec, EntryBatch.from_list(entries), at)


NESTED = pa.schema([
    ("a", pa.int64()), ("l", pa.list_(pa.field("element", pa.string()))), ("b", pa.string()),
    ("s", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.int64())))])), ("c", pa.float64()),
    ("m", pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.float64()))), ("d", pa.bool_()),
])  # fmt: skip
NESTED_ROWS = pa.RecordBatch.from_pylist(
    [{"a": n, "l": ["x" * n, None], "b": "text" * n, "s": {"x": n, "y": [n, None]}, "c": n / 2, "m": [("k", n * 1.5)],
      "d": n % 2 == 0} if n % 3 else {} for n in range(50)], schema=NESTED,
)  # fmt: skip


@given(st.lists(st.sampled_from(NESTED.names), unique=True), st.sampled_from(COMPRESSIONS), st.integers(0, 49))
def test_any_columns_are_read_as_they_were(columns: list[str], compression: str, start: int) -> None:
    parts = [NESTED_ROWS.slice(0, start), NESTED_ROWS.slice(start)]
    entries = [arrow_entry(part, compression, small=k == 1) for k, part in enumerate(parts) if part.num_rows]
    found = read(entries, NESTED, columns)
    assert found.num_rows == 50
    assert found.select(columns).to_pylist() == NESTED_ROWS.select(columns).to_pylist()


@given(st.data(), st.sampled_from(COMPRESSIONS))
def test_a_flipped_byte_is_noticed_by_who_reads_its_region(data: st.DataObject, compression: str) -> None:
    entry = arrow_entry(NESTED_ROWS, compression)
    told = directory_of(entry)
    place = data.draw(st.integers(0, len(entry) - 1))
    bad = entry[:place] + bytes([entry[place] ^ data.draw(st.integers(1, 255))]) + entry[place + 1 :]
    for k, name in enumerate(NESTED.names):
        if place < told.offsets[0] or told.offsets[k] <= place < told.offsets[k + 1]:
            with pytest.raises(CorruptEntryError, match=r"check|directory|regions|version"):
                read([bad], NESTED, [name])
        else:
            assert read([bad], NESTED, [name])[name].to_pylist() == NESTED_ROWS[name].to_pylist()
    if place < told.size:
        with pytest.raises(CorruptEntryError):
            read([bad], NESTED, [])
    else:
        assert read([bad], NESTED, []).num_rows == 50, "rows are counted by the directory"


def test_an_entry_of_another_schema_is_corrupt() -> None:
    entry = arrow_entry(NESTED_ROWS.select(NESTED.names[:-1]))
    with pytest.raises(CorruptEntryError, match="6 columns"):
        read([entry], NESTED, ["a"])
    swapped = pa.schema([NESTED.field(1), NESTED.field(0), *list(NESTED)[2:]])
    with pytest.raises(CorruptEntryError, match="in the number of nulls"):
        read([arrow_entry(NESTED_ROWS)], swapped, ["a"])


def test_a_directory_that_tells_of_other_rows_or_nulls_than_the_message_is_corrupt() -> None:
    entry, fewer = arrow_entry(NESTED_ROWS), arrow_entry(NESTED_ROWS.slice(1))
    told = directory_of(entry)
    head = bytearray(entry[told.head])
    assert directory_of(fewer).rows == 49
    at = head.index(struct.pack("<qq", 50, told.columns[0].nulls))
    struct.pack_into("<q", head, at + 8, told.columns[0].nulls - 1)
    lies = resealed(entry[: told.size] + bytes(head) + entry[told.offsets[0] :], entry)
    with pytest.raises(CorruptEntryError, match="in the number of nulls"):
        read([lies], NESTED, ["a"])
    assert read([lies], NESTED, ["b"]).num_rows == 50, "of columns that are not read nothing is compared"


def test_a_buffer_that_points_into_another_column_is_corrupt() -> None:
    """Its column's checksum would be right, and the rows another column's."""
    rows = pa.record_batch([pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], names=["a", "b", "c"])
    entry = arrow_entry(rows)
    told = directory_of(entry)
    head = arrow_message.head_of(memoryview(entry)[told.head])
    swapped = head.with_numbers(
        2, head.nodes, [*head.buffers[2:4], *head.buffers[:2], *head.buffers[4:]], head.body_bytes
    )
    bad = resealed(entry[: told.size] + bytes(swapped) + entry[told.offsets[0] :], entry)
    with pytest.raises(CorruptEntryError, match="lies outside of its column"):
        read([bad], rows.schema, ["a", "b"])


def test_an_entry_of_too_many_rows_is_corrupt() -> None:
    rows = pa.record_batch([pa.nulls(arrow_message.ROWS_MAX + 1, pa.bool_())], names=["a"])
    for columns in ([], ["a"]):
        with pytest.raises(CorruptEntryError, match="65537 rows, at most 65536"):
            read([arrow_entry(rows)], rows.schema, columns)


# --- where the bytes are ----------------------------------------------------------------------------------------------


def test_buffers_that_are_not_compressed_lie_where_they_can_be_used() -> None:
    entry = arrow_entry(NESTED_ROWS)
    told = directory_of(entry)
    head = arrow_message.head_of(memoryview(entry)[told.head])
    assert len(entry) % 64 == 0
    assert [offset % 64 for offset in told.offsets] == [0] * len(told.offsets)
    assert {(told.offsets[0] + offset) % 64 for offset, _ in head.buffers} == {0}


def test_a_small_entry_takes_no_more_room_than_it_must() -> None:
    codec = codecs.entry_codec(options(Use.WRITE, codec="arrow"), spark_struct(("a", "int")), {"events": {}})
    assert isinstance(codec, arrow_entries.ArrowEntries)
    for count, is_small in ((arrow_entries.SMALL_BYTES // 4 - 1, True), (arrow_entries.SMALL_BYTES // 4, False)):
        rows = pa.record_batch([pa.array(range(count), pa.int32())], names=["a"])
        (entry,) = written(codec, rows).to_list()
        layout = EntryLayout.of(arrow_schema.from_bytes(codec.schema))
        assert entry == b"".join(entry_of(rows, "zstd", layout, small=is_small))
        assert (directory_of(entry).columns[0].bounds.low is None) == is_small


def test_the_message_is_written_from_views() -> None:
    """What is not compressed is copied twice: by Arrow into its message, and with all others into the batch."""
    rows = pa.record_batch([pa.array(range(1 << 15))], names=["a"])
    pieces = entry_of(rows, "none", EntryLayout.of(rows.schema))
    assert [type(piece) for piece in pieces[2:]] == [memoryview]
    assert len(pieces[2]) == 8 << 15
