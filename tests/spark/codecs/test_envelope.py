# SPDX-License-Identifier: Apache-2.0
"""Codec envelope: what goes in comes out, nulls are kept, and no bytes are too strange."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.columns import envelope_bytes
from bk_core.entries.batch import EntryBatch
from bk_core.errors import CorruptEntryError, EntryTooLargeError, InvalidArgumentError
from bk_spark import codecs
from bk_spark.codecs import envelope
from bk_spark.options.options import Use
from tests.spark.codecs.codec_kit import FIRST, LAST, damaged, options, rows_of, struct, written

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", envelope_bytes.TIMESTAMP),
        ("headers", envelope_bytes.HEADERS_TYPE),
    ]
)
ALL = codecs.row_codec(options(codec="envelope"), codecs.default_schema(options(codec="envelope")))
WRITER = envelope.EnvelopeEntries()
BYTES = st.none() | st.binary(max_size=40)
HEADER = st.fixed_dictionaries({"key": st.none() | st.text(st.characters(codec="utf-8"), max_size=5), "value": BYTES})
ROW = st.fixed_dictionaries(
    {
        "key": BYTES,
        "value": BYTES,
        "timestamp": st.datetimes(FIRST, LAST).map(lambda at: at.replace(tzinfo=dt.UTC)),
        "headers": st.none() | st.lists(st.none() | HEADER, max_size=3),
    }
)


def rows(*given: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(given), schema=SCHEMA)


@given(st.lists(ROW, max_size=8), st.integers(0, 3))
def test_rows_come_back_as_they_were(given: list[dict[str, Any]], skipped: int) -> None:
    batch = written(WRITER, rows(*given).slice(min(skipped, len(given))))
    found = rows_of(ALL, batch)
    assert found.select(SCHEMA.names).to_pylist() == given[skipped:]
    assert found["offset"].to_pylist() == list(range(100, 100 + batch.count))


def test_missing_columns_are_null_and_the_time_is_now() -> None:
    before = dt.datetime.now(dt.UTC)
    batch = written(WRITER, pa.record_batch([pa.array(["text", None])], names=["value"]))
    (first, second) = rows_of(ALL, batch).select(SCHEMA.names).to_pylist()
    assert (first["key"], first["value"], first["headers"]) == (None, b"text", None)
    assert second["value"] is None
    assert before <= first["timestamp"] == second["timestamp"] <= dt.datetime.now(dt.UTC)


def test_only_what_is_asked_for_is_made_and_ids_alone_read_nothing() -> None:
    batch = written(WRITER, rows({"key": b"k", "value": b"v" * 10}))
    codec = codecs.row_codec(options(codec="envelope"), struct(("entry_length", "int"), ("key", "binary")))
    assert rows_of(codec, batch).to_pylist() == [{"entry_length": 16 + 1 + 10, "key": b"k"}]
    ids = codecs.row_codec(options(codec="envelope"), struct(("entry_id", "bigint")))
    assert not ids.reads_values
    skipping = codecs.row_codec(options(codec="envelope", corruptentries="skip"), struct(("entry_id", "bigint")))
    assert skipping.reads_values, "which rows there are must not depend on the columns"


BAD = {
    "empty": b"",
    "short": b"\x01" * 15,
    "another version": b"\x02" + bytes(15),
    "an unknown flag": b"\x01\x08" + bytes(14),
    "a key without its flag": b"\x01\x00\x00\x00\x01" + bytes(11) + b"k",
    "bytes behind a null value": b"\x01" + bytes(15) + b"x",
    "a key beyond the end": b"\x01\x01\x00\x00\xff\xff\xff\xff" + bytes(8) + b"k",
    "headers without their flag": b"\x01\x00\x01\x00" + bytes(12) + bytes(8),
    "headers beyond the end": b"\x01\x04\xff\xff" + bytes(12),
    "a header beyond the end": b"\x01\x04\x01\x00" + bytes(12) + b"\xff\xff\xff\x7f\xff\xff\xff\x7f",
    "a header of length -3": b"\x01\x04\x01\x00" + bytes(12) + b"\xfd\xff\xff\xff\x00\x00\x00\x00",
    "a null header with a value": b"\x01\x04\x01\x00" + bytes(12) + b"\xfe\xff\xff\xff\x00\x00\x00\x00",
    "a header's key that is no text": b"\x01\x04\x01\x00" + bytes(12) + b"\x01\x00\x00\x00\xff\xff\xff\xff" + b"\xff",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_no_envelope_fails_or_is_skipped_or_null(bad: bytes) -> None:
    good = written(WRITER, rows({"key": b"k", "headers": [{"key": "h", "value": b"1"}]})).to_list()[0]
    batch = EntryBatch.from_list([good, bad, good], first_entry_id=5)
    with pytest.raises(CorruptEntryError, match=r"entry 6 of ledger 17, offset 106 of log events: .*corruptEntries"):
        rows_of(ALL, batch)
    for policy, keys, ids in (("skip", [b"k", b"k"], [5, 7]), ("null", [b"k", None, b"k"], [5, 6, 7])):
        codec = codecs.row_codec(
            options(codec="envelope", corruptentries=policy), codecs.default_schema(options(codec="envelope"))
        )
        found = rows_of(codec, batch)
        assert (found["key"].to_pylist(), found["entry_id"].to_pylist()) == (keys, ids)
    assert found.select(SCHEMA.names).to_pylist()[1] == dict.fromkeys(SCHEMA.names)


SAMPLE = written(
    WRITER,
    rows(
        {
            "key": b"key",
            "value": b"value" * 20,
            "headers": [{"key": "a", "value": b"1"}, None, {"key": None, "value": None}],
        },
        {"value": b"x"},
        {"key": b"", "headers": []},
    ),
).to_list()


@given(damaged(SAMPLE))
def test_any_bytes_are_decoded_or_corrupt(entries: list[bytes]) -> None:
    schema = codecs.default_schema(options(codec="envelope"))
    batch = EntryBatch.from_list(entries)
    assert rows_of(codecs.row_codec(options(codec="envelope", corruptentries="null"), schema), batch).num_rows == len(
        entries
    )
    rows_of(codecs.row_codec(options(codec="envelope", corruptentries="skip"), schema), batch)


def test_a_row_that_no_entry_can_hold_is_named() -> None:
    with pytest.raises(EntryTooLargeError, match=r"at most 30 bytes; row 101 makes one of 36"):
        written(envelope.EnvelopeEntries(30), rows({"value": b"x"}, {"value": b"x" * 20}), first_row=100)


def test_too_many_headers_are_refused_and_as_many_as_there_may_be_are_kept() -> None:
    most = [{"key": "h", "value": b""}] * envelope_bytes.HEADERS_MAX
    batch = written(WRITER, rows({"headers": most}, {"value": b"v"}))
    assert len(rows_of(ALL, batch)["headers"][0]) == envelope_bytes.HEADERS_MAX
    with pytest.raises(InvalidArgumentError, match=r"row 3 has 65536"):
        written(WRITER, rows({}, {"headers": [*most, None]}), first_row=2)


def test_large_batches_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "BYTES_AT_ONCE", 100)
    given = rows(*[{"value": b"%d" % n * 20} for n in range(50)])
    assert len(list(WRITER.entries(given))) > 5
    assert rows_of(ALL, written(WRITER, given))["value"].to_pylist() == given["value"].to_pylist()


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        ([("value", "binary"), ("extra", "int"), ("key", "string")], r'extra int.*df.select\("value", "key"\)'),
        ([("key", "binary")], "name a column value"),
        ([("value", "bigint")], "value bigint.*name a column value"),
        ([("value", "binary"), ("timestamp", "bigint")], r'timestamp bigint.*df.select\("value"\)'),
    ],
)
def test_columns_that_are_no_envelope_are_all_named(columns: list[tuple[str, str]], hint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=hint):
        codecs.entry_codec(options(Use.WRITE, codec="envelope"), struct(*columns))


def test_a_header_key_that_is_no_utf8_is_refused_with_its_row() -> None:
    keys = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    pairs = pa.StructArray.from_arrays([keys, pa.array([b"1", b"2"])], fields=list(envelope_bytes.HEADER))
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs, type=envelope_bytes.HEADERS_TYPE)
    given = rows({"value": b"x"}, {"value": b"y"}).set_column(3, SCHEMA.field(3), headers)
    with pytest.raises(InvalidArgumentError, match=r"not UTF-8.*column headers of row 6"):
        written(WRITER, given, first_row=5)


def test_another_codecs_extents_are_refused_before_they_are_read() -> None:
    ALL.check("events", {("envelope", 0), ("raw", 0)}, {})
    with pytest.raises(InvalidArgumentError, match=r"several codecs.*written with arrow, envelope.*raw.* alone"):
        ALL.check("events", {("envelope", 0), ("arrow", 1)}, {})
