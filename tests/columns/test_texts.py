# SPDX-License-Identifier: Apache-2.0
"""Texts that are no UTF-8: refused by every codec that has texts, and found in entries that were written before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bk_core.columns import arrow_entries, arrow_rows, arrow_schema, texts
from bk_core.columns.arrow_entries import ArrowEntries
from bk_core.columns.log_rows import LogRows
from bk_core.columns.row_origins import LedgerAt
from bk_core.entries.batch import EntryBatch
from bk_core.errors import CorruptEntryError, InvalidArgumentError

BAD = b"caf\xe9"


def unchecked(values: list[bytes | None]) -> pa.Array:
    """A column of texts with these bytes, as ``CAST(bytes AS STRING)`` of Spark makes it."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


COLUMNS = {
    "bare": lambda inner: inner,
    "list": lambda inner: pa.ListArray.from_arrays([0, 1, 2, 4], inner),
    "struct": lambda inner: pa.StructArray.from_arrays([pa.array([1, 2, 3, 4]), inner], names=["n", "s"]),
    "map keys": lambda inner: pa.MapArray.from_arrays([0, 1, 2, 4], inner, pa.array([1, 2, 3, 4])),
    "map values": lambda inner: pa.MapArray.from_arrays([0, 1, 2, 4], pa.array(["a", "b", "c", "d"]), inner),
    "list of structs": lambda inner: pa.ListArray.from_arrays(
        [0, 1, 2, 4], pa.StructArray.from_arrays([inner], names=["s"])
    ),
}


@pytest.mark.parametrize("where", sorted(COLUMNS))
def test_a_text_that_is_no_utf8_is_refused_with_its_row_and_column(where: str) -> None:
    column = COLUMNS[where](unchecked([b"a", b"b", b"c", BAD]))
    good = COLUMNS[where](unchecked([b"a", b"b", b"c", b"d"]))
    rows = pa.record_batch([pa.array(range(len(column))), column], names=["id", "name"])
    codec = ArrowEntries(arrow_schema.to_bytes(arrow_schema.from_bytes(_schema(rows.schema))))
    with pytest.raises(InvalidArgumentError, match=rf"not UTF-8.*column name of row {100 + len(column) - 1}"):
        list(codec.entries(rows, first_row=100))
    assert list(codec.entries(pa.record_batch([rows.column(0), good], names=["id", "name"])))


def _schema(given: pa.Schema) -> bytes:
    return arrow_schema.to_bytes(given)


def test_a_bad_text_under_a_null_is_no_value_of_the_row() -> None:
    inner = unchecked([BAD, b"b"])
    column = pa.StructArray.from_arrays([inner], names=["s"], mask=pa.array([True, False]))
    assert texts.in_column(column, column.type).tolist() == [False, False]
    sliced = pa.ListArray.from_arrays([0, 1, 2], inner).slice(1)
    assert texts.in_column(sliced, sliced.type).tolist() == [False]


def written_before(column: pa.Array, ids: int, compression: str) -> tuple[EntryBatch, bytes]:
    """An entry as it was written when nobody checked: bytes have the same buffers as texts."""
    kinds = pa.schema([("id", pa.int64()), ("name", column.type), ("more", pa.string())])
    as_bytes = pa.Array._import_from_c_capsule(
        texts.as_bytes(column.type).__arrow_c_schema__(), column.__arrow_c_array__()[1]
    )
    rows = pa.record_batch(
        [pa.array(range(ids)), as_bytes, pa.array(["x" * 9000] * ids).cast(pa.binary())], names=["id", "name", "more"]
    )
    pieces = arrow_entries.entry_of(rows, compression, arrow_entries.EntryLayout.of(rows.schema), small=False)
    return EntryBatch.from_list([b"".join(pieces)]), _schema(kinds)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("where", sorted(COLUMNS))
def test_of_an_entry_with_a_bad_text_everything_else_is_read(where: str, compression: str) -> None:
    column = COLUMNS[where](unchecked([b"a", BAD, b"c", b"d"]))
    good = COLUMNS[where](unchecked([b"a", b"b", b"c", b"d"])).to_pylist()
    batch, schema = written_before(column, len(column), compression)
    stored = arrow_rows.stored_columns(schema, ("id", "name", "more"))
    ((found, size),) = arrow_rows.decoded(batch, stored)
    assert isinstance(found, arrow_rows.BadText)
    found.columns.validate(full=True)
    assert found.columns.schema.equals(stored.shown)
    assert np.flatnonzero(found.bad).tolist() == [1]
    assert found.why == "column name of row 1 is not UTF-8"
    assert size > 0
    expected: list[Any] = [*good[:1], None, *good[2:]]
    assert found.columns.column("name").to_pylist() == expected
    assert found.columns.column("id").to_pylist() == list(range(len(column)))
    ((only, _),) = arrow_rows.decoded(batch, arrow_rows.stored_columns(schema, ("id",)))
    assert isinstance(only, pa.RecordBatch), "a read without that column is whole"


def test_a_read_of_python_names_the_row_and_how_to_read_the_others() -> None:
    batch, schema = written_before(unchecked([b"a", BAD]), 2, "none")
    at = LedgerAt(ledger_id=17, log="events", offset_shift=100, schema=schema)
    with pytest.raises(CorruptEntryError, match=r"offset 100 of log events: column name of row 1.*columns=\[…\]"):
        list(LogRows.of("arrow", None, newest=schema).rows(batch, at))
    (rows,) = LogRows.of("arrow", ["id"], newest=schema).rows(batch, at)
    assert rows.to_pydict() == {"id": [0, 1]}


def test_damage_beside_a_bad_text_stays_damage() -> None:
    column = pa.ListArray.from_arrays([0, 1, 2], unchecked([b"a", BAD]))
    offsets = pa.py_buffer(np.array([0, 2, 1], dtype=np.int32))  # they go back
    broken = pa.Array.from_buffers(column.type, 2, [None, offsets], children=[column.values])
    batch, schema = written_before(broken, 2, "none")
    ((found, _),) = arrow_rows.decoded(batch, arrow_rows.stored_columns(schema, ("id", "name", "more")))
    assert isinstance(found, Exception)
