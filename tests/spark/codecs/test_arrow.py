# SPDX-License-Identifier: Apache-2.0
"""Codec arrow: columns of all types, entries of a bounded size, schemas that grow, and any bytes at all.

Over 400 lines because every table here is made and read back by the same few helpers.
"""

from __future__ import annotations

import pickle
import struct as binary
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from bk_core.columns import arrow_entries, arrow_message, arrow_schema
from bk_core.entries import arrow_directory
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    CorruptEntryError,
    EntryTooLargeError,
    InvalidArgumentError,
    MetadataCorruptError,
    SchemaChangedError,
    SchemaMismatchError,
)
from bk_core.logs.model import schemas as log_schemas
from bk_core.logs.model.head import COMPRESSIONS
from bk_spark import codecs
from bk_spark.codecs import LedgerAt, spark_types
from bk_spark.options.options import Use
from tests.spark.codecs.codec_kit import (
    ARROW_SCALARS,
    arrow_entry,
    columns,
    damaged,
    options,
    resealed,
    rows_of,
    struct,
    written,
)

AB = struct(("a", "int"), ("b", "string"))


def at(schema: bytes, number: int = 1) -> LedgerAt:
    return LedgerAt(ledger_id=17, log="events", offset_shift=100, schema=schema)


def reader(numbers: dict[int, bytes], schema: types.StructType | None = None, policy: str = "fail") -> codecs.RowCodec:
    given = options(codec="arrow", corruptentries=policy)
    known = {"events": numbers}
    return codecs.row_codec(given, schema or codecs.default_schema(given, known), known)


def writer(schema: types.StructType, newest: bytes | None = None, **given: str) -> codecs.EntryCodec:
    known = {"events": {} if newest is None else {1: newest}}
    return codecs.entry_codec(options(Use.WRITE, codec="arrow", **given), schema, known)


def record_batch(schema: types.StructType, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=spark_types.arrow_schema_of(schema))


def schema_of(codec: codecs.EntryCodec) -> bytes:
    assert codec.schema is not None
    return codec.schema


@given(columns(ARROW_SCALARS, with_maps=True), st.sampled_from(COMPRESSIONS))
def test_rows_come_back_as_they_were(given: tuple[types.StructType, list[dict[str, Any]]], compression: str) -> None:
    schema, rows = given
    codec = pickle.loads(pickle.dumps(writer(schema, compression=compression)))
    batch = record_batch(schema, rows)
    stored = schema_of(codec)
    assert arrow_schema.to_bytes(arrow_schema.from_bytes(stored)) == stored
    back = pickle.loads(pickle.dumps(reader({1: stored})))
    found = rows_of(back, written(codec, batch), at(stored))
    assert found.select(schema.names).to_pylist() == batch.to_pylist()


def test_rows_know_their_entry_and_their_place_in_it() -> None:
    codec = writer(struct(("a", "int")))
    batch = EntryBatch.from_list(
        [entry for n in (2, 0, 1) for entry in written(codec, record_batch(AB, [{"a": n}] * n).select(["a"])).to_list()]
        or [],
        first_entry_id=5,
    )
    given = options(codec="arrow", includemetadata="true")
    known = {"events": {1: schema_of(codec)}}
    back = codecs.row_codec(given, codecs.default_schema(given, known), known)
    found = rows_of(back, batch, at(schema_of(codec))).to_pydict()
    assert found["a"] == [2, 2, 1]
    assert (found["entry_id"], found["offset"], found["row_index"]) == ([5, 5, 6], [105, 105, 106], [0, 1, 0])
    assert found["entry_length"] == [int(batch.lengths[0])] * 2 + [int(batch.lengths[1])]
    assert list(found)[-8:] == [
        "log",
        "ledger_id",
        "entry_id",
        "offset",
        "entry_length",
        "ledger_ctime",
        "ledger_closed",
        "row_index",
    ]


def test_only_the_columns_that_are_asked_for_are_decoded() -> None:
    codec = writer(AB)
    batch = written(codec, record_batch(AB, [{"a": 1, "b": "x"}, {"a": 2, "b": None}]))
    known = {1: schema_of(codec)}
    swapped = rows_of(reader(known, struct(("entry_id", "bigint"), ("b", "string"))), batch, at(known[1]))
    assert swapped.to_pydict() == {"entry_id": [0, 0], "b": ["x", None]}
    places = reader(known, struct(("offset", "bigint")))
    assert places.reads_values
    assert rows_of(places, batch, at(known[1])).to_pydict() == {"offset": [100, 100]}


def test_not_null_and_what_spark_calls_things_inside_do_not_make_another_schema() -> None:
    strict = types.ArrayType(types.MapType(types.StringType(), types.LongType(), False), False)
    loose = types.ArrayType(types.MapType(types.StringType(), types.LongType()))
    assert schema_of(writer(struct(("x", strict, False)))) == schema_of(writer(struct(("x", loose))))


@pytest.mark.parametrize(
    ("kind", "said", "cast"),
    [
        (types.StringType("UNICODE_CI"), "string collate UNICODE_CI", "STRING"),
        (types.ArrayType(types.StringType("UNICODE")), "array<string collate UNICODE>", "ARRAY<STRING>"),
        (types.DayTimeIntervalType(0, 1), "interval day to hour", "INTERVAL DAY TO SECOND"),
        (types.VarcharType(3), r"varchar\(3\)", "STRING"),
    ],
)
def test_attributes_of_a_type_that_would_be_forgotten_are_refused(kind: Any, said: str, cast: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"c {said}; cast them: CAST\(`c` AS {cast}\)"):
        writer(types.StructType().add("c", kind))


def test_a_tables_varchar_is_told_by_its_columns_metadata() -> None:
    declared = {spark_types.CHAR_TYPE: "varchar(3)"}
    with pytest.raises(InvalidArgumentError, match=r"c varchar\(3\); cast them: CAST\(`c` AS STRING\)"):
        writer(types.StructType([types.StructField("c", types.StringType(), True, declared)]))
    assert writer(types.StructType([types.StructField("c", types.StringType(), True, {"comment": "kept by nobody"})]))


def test_large_view_and_dictionary_types_and_zones_are_cast() -> None:
    schema = struct(("s", "string"), ("v", "string"), ("d", "string"), ("b", "binary"), ("t", "timestamp"))
    given = pa.record_batch(
        [
            pa.array(["x"], pa.large_string()),
            pa.array(["y"], pa.string_view()),
            pa.array(["z"]).dictionary_encode(),
            pa.array([b"b"], pa.large_binary()),
            pa.array([1_000_000], pa.timestamp("us", tz="Asia/Tokyo")),
        ],
        names=schema.names,
    )
    codec = writer(schema)
    found = rows_of(reader({1: schema_of(codec)}), written(codec, given), at(schema_of(codec)))
    assert found.select(schema.names).to_pylist()[0] | {"t": 0} == {"s": "x", "v": "y", "d": "z", "b": b"b", "t": 0}
    assert found["t"].cast(pa.int64()).to_pylist() == [1_000_000]


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_entries_are_filled_and_never_over_the_limit(compression: str) -> None:
    rows = pa.record_batch([pa.array([f"{n * 7919 % 100_003:09}" * 5 for n in range(20_000)])], names=["b"])
    codec = writer(struct(("b", "string")), compression=compression, maxentrybytes="64k")
    batches = [written(codec, rows) for _ in range(3)]
    lengths = batches[-1].lengths
    assert lengths.max() <= 64 << 10
    assert lengths.mean() > 40 << 10, "later batches know how well earlier ones compressed"
    found = rows_of(reader({1: schema_of(codec)}), batches[0], at(schema_of(codec)))
    assert found["b"].to_pylist() == rows["b"].to_pylist()


def test_rows_of_very_different_size_still_fit() -> None:
    given = pa.record_batch([pa.array([b"x" * (50_000 if n % 100 == 7 else 10) for n in range(1000)])], names=["b"])
    codec = writer(struct(("b", "binary")), compression="none", maxentrybytes="64k")
    batch = written(codec, given)
    assert batch.lengths.max() <= 64 << 10
    assert (
        rows_of(reader({1: schema_of(codec)}), batch, at(schema_of(codec)))["b"].to_pylist() == given["b"].to_pylist()
    )


def test_a_row_that_no_entry_can_hold_is_named() -> None:
    rows = pa.record_batch([pa.array([b"", b"x" * 70_000])], names=["b"])
    with pytest.raises(
        EntryTooLargeError, match=r"at most 65536 bytes; row 11 makes one of 70\d{3}; raise maxEntryBytes"
    ):
        written(writer(struct(("b", "binary")), compression="none", maxentrybytes="64k"), rows, first_row=10)
    alone = written(writer(struct(("b", "binary")), compression="none"), rows)
    assert alone.count == 1


def test_a_row_over_a_mebibyte_is_an_entry_of_its_own_unless_a_limit_is_set() -> None:
    rows = pa.record_batch([pa.array([b"", b"x" * (2 << 20), b""])], names=["b"])
    assert written(writer(struct(("b", "binary")), compression="none"), rows).count == 3


def test_what_compresses_too_well_to_be_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_entries, "RAW_BYTES_MAX", 1 << 20)
    codec = writer(struct(("b", "binary")), compression="zstd")
    batch = written(codec, pa.record_batch([pa.array([bytes(1000)] * 4000)], names=["b"]))
    assert batch.count >= 4
    monkeypatch.setattr(arrow_message, "BODY_BYTES_MAX", 1 << 20)
    with pytest.raises(EntryTooLargeError, match="row 3 makes one of"):
        written(codec, pa.record_batch([pa.array([bytes(2 << 20)])], names=["b"]), first_row=3)


def test_an_entry_has_so_many_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_message, "ROWS_MAX", 100)
    batch = written(writer(struct(("a", "boolean"))), pa.record_batch([pa.array([True] * 1001)], names=["a"]))
    assert batch.count == 11


# --- bytes that nobody wrote ------------------------------------------------------------------------------------------

WIDE = struct(("a", "int"), ("b", "string"), ("l", types.ArrayType(types.StringType())), ("s", struct(("x", "binary"))))
SAMPLE_ROWS = [{"a": n, "b": "text" * n, "l": ["x", None], "s": {"x": b"y" * n}} for n in range(20)]
STORED = arrow_schema.to_bytes(spark_types.arrow_schema_of(WIDE))
SAMPLES = [arrow_entry(record_batch(WIDE, SAMPLE_ROWS), compression) for compression in COMPRESSIONS]


@given(damaged(SAMPLES))
def test_any_bytes_are_decoded_or_corrupt(entries: list[bytes]) -> None:
    batch = EntryBatch.from_list(entries)
    nulls = rows_of(reader({1: STORED}, policy="null"), batch, at(STORED))
    assert set(nulls["entry_id"].to_pylist()) <= set(range(len(entries)))
    skipped = rows_of(reader({1: STORED}, policy="skip"), batch, at(STORED))
    assert skipped.num_rows <= nulls.num_rows
    alone = [
        rows_of(reader({1: STORED}, policy="null"), EntryBatch.from_list([entry]), at(STORED)) for entry in entries
    ]
    data = WIDE.names
    assert nulls.select(data).to_pylist() == [row for one in alone for row in one.select(data).to_pylist()]


@given(st.sampled_from(SAMPLES), st.data())
def test_any_message_behind_a_directory_that_answers_for_it_is_decoded_or_corrupt(sample: bytes, data: Any) -> None:
    begin = arrow_directory.parse(memoryview(sample), len(sample)).size
    entry = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(begin, min(begin + 400, len(sample) - 8)) | st.integers(begin, len(sample) - 8))
        word = data.draw(st.binary(min_size=1, max_size=8))
        entry[place : place + len(word)] = word
    batch = EntryBatch.from_list([resealed(bytes(entry), sample), sample])
    for schema in (WIDE, struct(("b", "string")), struct(("offset", "bigint"))):
        back = rows_of(reader({1: STORED}, schema, policy="null"), batch, at(STORED))
        assert len(back) >= len(SAMPLE_ROWS), "the entry beside it is whole"


@pytest.mark.long
def test_every_byte_of_an_entry_may_be_wrong() -> None:
    back = reader({1: STORED}, policy="null")
    for sample in SAMPLES:
        begin = arrow_directory.parse(memoryview(sample), len(sample)).size
        for place in range(0, len(sample), 3):
            changed = sample[:place] + bytes([sample[place] ^ 0xFF]) + sample[place + 1 :]
            found = rows_of(back, EntryBatch.from_list([changed]), at(STORED))
            assert found["b"].to_pylist() == [None], "all columns are read, so that no byte is without a check"
            if place >= begin:
                rows_of(back, EntryBatch.from_list([resealed(changed, sample)]), at(STORED))


def test_a_compressed_column_that_claims_to_be_huge_allocates_nothing() -> None:
    rows = record_batch(struct(("b", "string")), [{"b": "text" * 100}])
    sample, stored = arrow_entry(rows, "zstd"), arrow_schema.to_bytes(rows.schema)
    body = arrow_directory.parse(memoryview(sample), len(sample)).offsets[0]
    places = [at for at in range(body, len(sample), 8) if binary.unpack_from("<q", sample, at)[0] in (400, 8)]
    assert places
    back = reader({1: stored}, policy="null")
    tracemalloc.start()
    for claim in (1 << 50, arrow_message.BODY_BYTES_MAX + 1, -2, (1 << 63) - 1):
        for place in places:
            changed = bytearray(sample)
            binary.pack_into("<q", changed, place, claim)
            before = pa.total_allocated_bytes()
            found = rows_of(back, EntryBatch.from_list([resealed(bytes(changed), sample)]), at(stored))
            assert found["b"].to_pylist() == [None]
            assert pa.total_allocated_bytes() - before < 1 << 20
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_entries_that_share_a_batch_are_judged_one_by_one() -> None:
    batch = EntryBatch.from_list([SAMPLES[0], b"", SAMPLES[2], SAMPLES[1] + SAMPLES[1], SAMPLES[1]], first_entry_id=5)
    found = rows_of(reader({1: STORED}, policy="skip"), batch, at(STORED))
    assert found["entry_id"].to_pylist() == [5] * 20 + [7] * 20 + [9] * 20
    with pytest.raises(CorruptEntryError, match=r"entry 6 of ledger 17, offset 106 of log events"):
        rows_of(reader({1: STORED}), batch, at(STORED))
    other = arrow_schema.to_bytes(pa.schema([("z", pa.int64())]))
    assert rows_of(reader({1: other}, policy="skip"), EntryBatch.from_list([SAMPLES[0]]), at(other)).num_rows == 0


def test_a_schema_message_is_no_entry() -> None:
    message = bytes(spark_types.arrow_schema_of(WIDE).serialize())
    with pytest.raises(arrow_message.NotABatch, match="is not a record batch"):
        arrow_message.head_of(memoryview(message))


# --- planning ---------------------------------------------------------------------------------------------------------


def test_a_bare_ledger_and_a_log_without_a_schema_are_refused() -> None:
    bare = options(path="ledger:17", codec="arrow")
    for make in (lambda: codecs.default_schema(bare), lambda: codecs.row_codec(bare, AB)):
        with pytest.raises(InvalidArgumentError, match="a ledger alone has no schema"):
            make()
    with pytest.raises(InvalidArgumentError, match="nothing was written with codec arrow yet"):
        codecs.default_schema(options(codec="arrow"), {"events": {}})


def test_a_column_that_no_log_has_or_has_otherwise_is_named() -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"x: no log has this column, a is int, asked for as bigint.*choose from a, b"
    ):
        reader({1: schema_of(writer(AB))}, struct(("x", "int"), ("a", "bigint")))


def test_several_logs_are_read_with_the_columns_of_all() -> None:
    both = {"a": {1: schema_of(writer(AB))}, "b": {1: schema_of(writer(struct(("c", "int"), ("a", "int"))))}, "new": {}}
    given = options(codec="arrow")
    assert codecs.default_schema(given, both).names[:3] == ["a", "b", "c"]
    both["b"] = {1: schema_of(writer(struct(("a", "string"))))}
    with pytest.raises(SchemaMismatchError, match=r"log b .*a string and int"):
        codecs.default_schema(given, both)


@pytest.mark.rule("K8")
def test_a_stream_that_meets_a_newer_schema_stops_and_a_batch_does_not() -> None:
    old = schema_of(writer(AB))
    new = log_schemas.merged(old, schema_of(writer(struct(("a", "int"), ("b", "string"), ("c", "int")))), True)
    back = reader({1: old})
    back.check("events", {("arrow", 1)}, {1: old, 2: new}, stream=True)
    back.check("events", {("arrow", 1), ("arrow", 2)}, {1: old, 2: new})
    with pytest.raises(SchemaChangedError, match=r"schema 2, columns a, b, c.*start the query again"):
        back.check("events", {("arrow", 2)}, {1: old, 2: new}, stream=True)


@pytest.mark.rule("K8")
def test_the_columns_remember_the_schema_that_they_were_made_of() -> None:
    old = schema_of(writer(AB))
    new = log_schemas.merged(old, schema_of(writer(struct(("a", "int"), ("b", "string"), ("c", "int")))), True)
    given = options(codec="arrow")
    planned = codecs.default_schema(given, {"events": {1: old}})
    back = codecs.row_codec(given, planned, {"events": {1: old, 2: new}})  # the log got a schema in between
    with pytest.raises(SchemaChangedError):
        back.check("events", {("arrow", 2)}, {1: old, 2: new}, stream=True)


@pytest.mark.rule("K8")
def test_a_new_log_of_a_pattern_may_join_a_stream_with_columns_that_it_has() -> None:
    known = {1: schema_of(writer(AB))}
    back = reader(known)
    back.check("later", {("arrow", 1)}, {1: schema_of(writer(struct(("b", "string"))))}, stream=True)
    with pytest.raises(SchemaChangedError, match="log later"):
        back.check("later", {("arrow", 1)}, {1: schema_of(writer(struct(("z", "string"))))}, stream=True)


def test_extents_of_another_codec_or_without_their_schema_are_refused() -> None:
    known = {1: schema_of(writer(AB))}
    with pytest.raises(InvalidArgumentError, match=r"written with arrow, raw.*raw.* alone reads"):
        reader(known).check("events", {("arrow", 1), ("raw", 0)}, known)
    with pytest.raises(SchemaMismatchError, match=r"schema 2 of \[1\]"):
        reader(known).check("events", {("arrow", 2)}, known)


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (
            [("a", "int"), ("offset", "bigint"), ("log", "string")],
            r"offset, log.*df.drop\('offset', 'log'\).*ignoreMetadata",
        ),
        ([("a", "int"), ("A", "int")], "also if case is ignored"),
        (
            [("v", types.VariantType()), ("n", types.NullType()), ("a", "int")],
            r"v variant, n void; cast them to STRING",
        ),
        ([], "give at least one column"),
    ],
)
def test_columns_that_cannot_be_written_are_all_named(columns: list[Any], hint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=hint):
        writer(struct(*columns))


def test_columns_that_a_read_added_are_left_out_when_asked() -> None:
    read = struct(("a", "int"), ("offset", "bigint"), ("row_index", "int"))
    codec = writer(read, ignoremetadatacolumns="true")
    rows = pa.record_batch([pa.array([1], pa.int32()), pa.array([9]), pa.array([0], pa.int32())], names=read.names)
    assert rows_of(reader({1: schema_of(codec)}), written(codec, rows), at(schema_of(codec)))["a"].to_pylist() == [1]
    raw = codecs.entry_codec(
        options(Use.WRITE, ignoremetadatacolumns="true"), struct(("value", "binary"), ("offset", "bigint"))
    )
    assert written(raw, pa.record_batch([pa.array([b"x"]), pa.array([9])], names=["value", "offset"])).to_list() == [
        b"x"
    ]


@pytest.mark.parametrize(
    "data",
    [
        b'{"fields":[{"name":"a","type":{"name":"int","bitWidth":128,"isSigned":true}}]}',
        b'{"fields":[{"name":"a","type":{"name":"list"},"children":[]}]}',
        b'{"fields":[{"name":"a","type":{"name":"map"},"children":[{}]}]}',
        b'{"fields":[{"name":"a","type":{"name":"decimal","bitWidth":128,"precision":99,"scale":0}}]}',
        b'{"fields":[{"name":"a","type":{"name":"struct"},"children":7}]}',
    ],
)
def test_a_schema_that_we_did_not_write_is_corrupt_metadata(data: bytes) -> None:
    with pytest.raises(MetadataCorruptError):
        arrow_schema.from_bytes(data)


@pytest.mark.rule("K8")
def test_a_stream_may_begin_before_the_first_row_with_columns_of_its_own() -> None:
    given, first = options(codec="arrow"), {1: schema_of(writer(AB))}
    back = codecs.row_codec(given, AB, {"events": {}})
    back.check("events", set(), {}, stream=True)
    back.check("events", {("arrow", 1)}, first, stream=True)
    narrow = codecs.row_codec(given, struct(("a", "int")), {"events": {}})
    with pytest.raises(SchemaChangedError):
        narrow.check("events", {("arrow", 1)}, first, stream=True)


@pytest.mark.parametrize(
    ("policy", "names", "places"), [("null", ["a", None, "c"], [0, 1, 2]), ("skip", ["a", "c"], [0, 2])]
)
def test_of_an_entry_with_a_text_that_is_no_utf8_only_that_value_is_lost(
    policy: str, names: list[str | None], places: list[int]
) -> None:
    """The entry was written when nobody checked: bytes have the same buffers as texts."""
    raw = pa.record_batch([pa.array([1, 2, 3], pa.int32()), pa.array([b"a", b"\xff", b"c"])], names=["a", "b"])
    batch = EntryBatch.from_list([arrow_entry(raw, "zstd")] * 2)
    schema = arrow_schema.to_bytes(pa.schema([("a", pa.int32()), ("b", pa.string())]))
    known = {"events": {1: schema}}
    given = options(codec="arrow", corruptentries=policy, includemetadata="true")
    found = rows_of(codecs.row_codec(given, codecs.default_schema(given, known), known), batch, at(schema))
    assert found["b"].to_pylist() == names * 2
    assert found["row_index"].to_pylist() == places * 2
    with pytest.raises(CorruptEntryError, match=r"column b of row 1 is not UTF-8.*corruptEntries=skip or null"):
        rows_of(reader({1: schema}), batch, at(schema))
    only = reader({1: schema}, struct(("a", "int")))
    assert rows_of(only, batch, at(schema))["a"].to_pylist() == [1, 2, 3] * 2
