# SPDX-License-Identifier: Apache-2.0
"""Codec raw: columns in and out without copying, nulls and foreign columns refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types

from bk_core.entries.batch import EntryBatch
from bk_core.errors import EntryTooLargeError, InvalidArgumentError
from bk_spark import codecs
from bk_spark.codecs import LedgerAt, raw
from bk_spark.options.options import Use
from tests.spark.codecs.codec_kit import options, struct, written


def reader(schema: types.StructType, path: str = "events") -> codecs.RowCodec:
    return codecs.row_codec(options(path=path), schema)


ALL = reader(
    struct(
        ("value", "binary"), ("log", "string"), ("ledger_id", "bigint"), ("entry_id", "bigint"), ("offset", "bigint")
    ),
)


def test_rows_carry_where_they_come_from() -> None:
    batch = EntryBatch.from_list([b"a", b"", b"ccc"], first_entry_id=5)
    (rows,) = ALL.rows(batch, batch.entry_ids(), LedgerAt(ledger_id=17, log="events", offset_shift=100))
    assert rows.to_pydict() == {
        "value": [b"a", b"", b"ccc"],
        "log": ["events"] * 3,
        "ledger_id": [17] * 3,
        "entry_id": [5, 6, 7],
        "offset": [105, 106, 107],
    }


def test_values_are_views_of_what_was_received() -> None:
    received = memoryview(bytes(1000))
    batch = EntryBatch(lengths=np.full(10, 100, dtype=np.uint32), payload=received)
    (rows,) = ALL.rows(batch, batch.entry_ids(), LedgerAt(ledger_id=1))
    begin = np.frombuffer(received, dtype=np.uint8).__array_interface__["data"][0]
    assert rows.column(0).buffers()[2].address == begin


def test_a_bare_ledger_has_no_log_and_no_offset() -> None:
    batch = EntryBatch.from_list([b"a"])
    (rows,) = ALL.rows(batch, batch.entry_ids(), LedgerAt(ledger_id=17))
    assert rows.column("log").to_pylist() == rows.column("offset").to_pylist() == [None]


def test_a_schema_chooses_columns_their_order_and_nullability() -> None:
    codec = reader(struct(("offset", "bigint"), ("entry_id", "bigint", False)))
    (rows,) = codec.rows(None, np.arange(3), LedgerAt(ledger_id=1, log="events", offset_shift=7))
    assert rows.schema == pa.schema([pa.field("offset", pa.int64()), pa.field("entry_id", pa.int64(), nullable=False)])
    assert rows.to_pydict() == {"offset": [7, 8, 9], "entry_id": [0, 1, 2]}
    assert not codec.reads_values


@pytest.mark.parametrize(
    ("columns", "has_log", "hint"),
    [
        ([("key", "binary", True)], True, r"choose from \.schema"),
        ([("value", "string", True)], True, "CAST"),
        ([("entry_id", "int", True)], True, "declare entry_id BIGINT"),
        ([("offset", "bigint", False)], False, "declare offset nullable"),
        ([], True, "columns must be given"),
        ([("value", "binary", True), ("value", "binary", True)], True, "once each"),
    ],
)
def test_a_schema_the_codec_cannot_give_is_refused(
    columns: list[tuple[str, str, bool]], has_log: bool, hint: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=hint):
        reader(struct(*columns), "events" if has_log else "ledger:17")


@pytest.mark.parametrize(
    ("columns", "paste"),
    [
        ([("value", "binary"), ("extra", "int")], 'df.select("value")'),
        ([("payload", "binary")], 'df.selectExpr("`payload` AS value")'),
        ([("id", "bigint")], 'df.selectExpr("CAST(`id` AS STRING) AS value")'),
        ([("value", "bigint")], 'df.selectExpr("CAST(`value` AS STRING) AS value")'),
        ([("data", types.StructType().add("a", types.IntegerType()))], 'df.selectExpr("to_json(`data`) AS value")'),
        ([("a", "int"), ("b", "string")], 'df.selectExpr("to_json(struct(*)) AS value")'),
        ([], "no columns"),
    ],
)
def test_a_frame_without_exactly_one_value_column_gets_the_select_to_paste(
    columns: list[tuple[str, str]], paste: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codecs.check_input(options(Use.WRITE), struct(*columns))
    assert paste in str(caught.value)
    assert str(caught.value).startswith("[BK_INVALID_ARGUMENT] log events takes one column, value BINARY or STRING; ")


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_binary_and_string_columns_become_entries_without_copying(kind: pa.DataType) -> None:
    column = pa.array(["ab", "", "cde"]).cast(kind)
    (batch,) = raw.RawEntries().entries(pa.record_batch([column], names=["value"]).slice(1))
    assert batch.to_list() == [b"", b"cde"]
    address = np.frombuffer(batch.payload, dtype=np.uint8).__array_interface__["data"][0]
    assert address == column.buffers()[2].address + 2


@pytest.mark.rule("K9")
def test_a_null_value_fails_the_write_and_names_its_row() -> None:
    rows = pa.record_batch([pa.array([b"a", None, b"c"])], names=["value"])
    with pytest.raises(InvalidArgumentError, match=r"row 11, 1 of 3 rows.*IS NOT NULL"):
        written(raw.RawEntries(), rows, first_row=10)


@pytest.mark.rule("K9")
@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_null_values_are_skipped_or_empty_when_asked(kind: pa.DataType) -> None:
    rows = pa.record_batch([pa.array(["a", None, "c", None]).cast(kind)], names=["value"])
    assert written(raw.RawEntries("skip"), rows).to_list() == [b"a", b"c"]
    assert written(raw.RawEntries("empty"), rows).to_list() == [b"a", b"", b"c", b""]


@pytest.mark.parametrize("limit", [10, 20])
def test_a_value_that_no_entry_can_hold_is_named_by_its_row(limit: int) -> None:
    rows = pa.record_batch([pa.array([b"", None, b"x" * 21])], names=["value"])
    with pytest.raises(EntryTooLargeError, match=rf"at most {limit} bytes; row 7 makes one of 21"):
        written(raw.RawEntries("skip", limit), rows, first_row=5)
    assert written(raw.RawEntries("skip", 21), rows).count == 2


def test_metadata_says_how_long_an_entry_is_and_of_which_ledger() -> None:
    columns = struct(("entry_length", "int"), ("ledger_ctime", "timestamp"), ("ledger_closed", "boolean"))
    codec, batch = reader(columns), EntryBatch.from_list([b"a", b"", b"ccc"])
    assert codec.reads_values
    (rows,) = codec.rows(batch, batch.entry_ids(), LedgerAt(ledger_id=1, ctime_ms=1_700_000_000_123, closed=False))
    assert rows.column("entry_length").to_pylist() == [1, 0, 3]
    assert rows.column("ledger_ctime").cast(pa.int64()).to_pylist() == [1_700_000_000_123_000] * 3
    assert rows.column("ledger_closed").to_pylist() == [False] * 3
    (unknown,) = codec.rows(batch, batch.entry_ids(), LedgerAt(ledger_id=1))
    assert unknown.column("ledger_ctime").null_count == 3
