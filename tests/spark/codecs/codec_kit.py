# SPDX-License-Identifier: Apache-2.0
"""Columns, rows and hostile bytes for the tests of codecs, without a Spark session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types

from bk_core.columns import arrow_entries
from bk_core.entries import arrow_directory
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import crc32c
from bk_spark import codecs
from bk_spark.codecs import LedgerAt, RowCodec
from bk_spark.options.options import BkOptions, Use, parse_options

AT = LedgerAt(ledger_id=17, log="events", offset_shift=100)
SIMPLE = {
    "binary": types.BinaryType(),
    "string": types.StringType(),
    "bigint": types.LongType(),
    "int": types.IntegerType(),
    "boolean": types.BooleanType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
}
EPOCH = dt.datetime(1970, 1, 1)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
FIRST = dt.datetime(1, 1, 1)


def struct(*columns: tuple[str, Any] | tuple[str, Any, bool]) -> types.StructType:
    """A StructType of (name, type or its simple name, nullable)."""
    made = types.StructType()
    for name, kind, *nullable in columns:
        made.add(name, SIMPLE[kind] if isinstance(kind, str) else kind, *nullable)
    return made


def options(use: Use = Use.READ, path: str = "events", **given: str) -> BkOptions:
    """Checked options, as Spark would give them."""
    return parse_options({"metadataserviceuri": "zk://127.0.0.1:1/ledgers", "path": path, **given}, use)


def rows_of(codec: RowCodec, batch: EntryBatch, at: LedgerAt = AT) -> pa.Table:
    """All rows of a batch; each piece must have exactly the schema that Spark was told."""
    pieces = list(codec.rows(batch, batch.entry_ids(), at))
    for piece in pieces:
        assert piece.schema.equals(codec.schema)
        piece.validate(full=True)
    return pa.Table.from_batches(pieces, schema=codec.schema)


def written(codec: codecs.EntryCodec, rows: pa.RecordBatch, first_row: int = 0) -> EntryBatch:
    """All entries of a batch of rows, as one batch."""
    return EntryBatch.from_list(
        [entry for made in codec.entries(rows, first_row=first_row) for entry in made.to_list()]
    )


def arrow_entry(rows: pa.RecordBatch, compression: str = "none", *, small: bool = False) -> bytes:
    """An entry of codec arrow, compressed, aligned and with bounds however few rows there are."""
    return b"".join(arrow_entries.entry_of(rows, compression, arrow_entries.EntryLayout.of(rows.schema), small=small))


def resealed(entry: bytes, like: bytes) -> bytes:
    """``entry``, which is ``like`` with other bytes behind the directory, with a directory that answers for them: what
    a writer could have written who means harm."""
    told = arrow_directory.parse(memoryview(like), len(like))
    head = entry[told.head]
    columns = [column._replace(crc=crc32c(entry[told.column(k)])) for k, column in enumerate(told.columns)]
    return arrow_directory.encode(told.rows, len(head), crc32c(head), columns) + entry[told.size :]


def _zoned(value: dt.datetime | None) -> dt.datetime | None:
    return None if value is None else value.replace(tzinfo=dt.UTC)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(f"{n}e-{scale}"))  # exact: scaleb rounds to 28 digits


SCALARS: list[tuple[types.DataType, st.SearchStrategy[Any]]] = [
    (types.BooleanType(), st.booleans()),
    (types.ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (types.ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (types.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (types.LongType(), st.integers(-(2**63), 2**63 - 1)),
    (types.FloatType(), st.floats(width=32, allow_nan=False)),
    (types.DoubleType(), st.floats(allow_nan=False)),
    (types.DecimalType(10, 2), _decimals(10, 2)),
    (types.DecimalType(38, 18), _decimals(38, 18)),
    (types.StringType(), st.text(st.characters(codec="utf-8"), max_size=12)),
    (types.DateType(), st.dates()),
    (types.TimestampType(), st.datetimes(FIRST, LAST).map(_zoned)),
    (types.TimestampNTZType(), st.datetimes(FIRST, LAST)),
]
"""Spark's types that every codec of columns can hold, and their values."""
ARROW_SCALARS = [
    *SCALARS,
    (types.BinaryType(), st.binary(max_size=12)),
    (types.DayTimeIntervalType(), st.timedeltas()),
]


def _nested(part: tuple[types.DataType, st.SearchStrategy[Any]], with_maps: bool) -> list[tuple[types.DataType, Any]]:
    kind, values = part
    inside = st.none() | values
    found: list[tuple[types.DataType, Any]] = [
        (types.ArrayType(kind), st.lists(inside, max_size=3)),
        (
            struct(("a", kind), ("b b", "int")),
            st.fixed_dictionaries({"a": inside, "b b": st.none() | st.integers(0, 9)}),
        ),
    ]
    if with_maps:
        entries = st.lists(st.tuples(st.text("abc", max_size=3), inside), max_size=3, unique_by=lambda item: item[0])
        found.append((types.MapType(types.StringType(), kind), entries))
    return found


def columns(scalars: Sequence[tuple[types.DataType, Any]], *, with_maps: bool) -> st.SearchStrategy[Any]:
    """(StructType, rows as dicts) of up to four columns, nested twice at most, with nulls."""
    once = st.sampled_from(scalars)
    twice = once.flatmap(lambda part: st.sampled_from(_nested(part, with_maps)))
    thrice = twice.flatmap(lambda part: st.sampled_from(_nested(part, with_maps)))

    def rows(kinds: list[tuple[types.DataType, Any]]) -> st.SearchStrategy[Any]:
        schema = struct(*[(f"c{number}", kind) for number, (kind, _) in enumerate(kinds)])
        row = st.fixed_dictionaries({f"c{number}": st.none() | values for number, (_, values) in enumerate(kinds)})
        return st.tuples(st.just(schema), st.lists(row, max_size=6))

    return st.lists(st.one_of(once, once, twice, thrice), min_size=1, max_size=4).flatmap(rows)


def damaged(entries: Sequence[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Entries of which some are cut, have bytes changed, or are any bytes."""

    def changed(entry: bytes) -> st.SearchStrategy[bytes]:
        def put(at: int, value: int) -> bytes:
            return entry[:at] + bytes([value]) + entry[at + 1 :]

        places = st.integers(0, max(0, len(entry) - 1))
        near = st.integers(0, min(400, max(0, len(entry) - 1)))
        return st.one_of(
            st.just(entry),
            places.map(lambda at: entry[:at]),
            st.builds(put, places | near, st.integers(0, 255)),
            st.builds(lambda at, word: entry[:at] + word + entry[at + 8 :], near, st.binary(min_size=8, max_size=8)),
            st.binary(max_size=80),
        )

    return st.lists(st.sampled_from(list(entries)).flatmap(changed), min_size=1, max_size=4)
