# SPDX-License-Identifier: Apache-2.0
"""Turns the data that programs want to write with codec ``arrow`` into record batches of types that a log keeps. The
data may be any table with Arrow's interfaces.

A log keeps the types that Spark has. Where Arrow has several types for the same values, the log keeps one of them. For
example, large text, views and dictionaries of text are utf8 in the log. A type is refused if its values would lose
something, or if Spark cannot read it. :mod:`~bk_core.columns.conversion` converts the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from bk_core.columns import arrow_schema
from bk_core.columns import row_origins as places
from bk_core.columns.arrow_entries import too_large
from bk_core.columns.arrow_message import BODY_BYTES_MAX
from bk_core.columns.conversion import converted, row_bytes
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX

PIECE_BYTES = 8 << 20
"""The approximate size in bytes of the pieces into which rows are cut before they are encoded."""
DECIMAL_DIGITS_MAX = 38
"""The maximum number of digits of a decimal, which is that of Spark's decimals."""
_PLAIN_EXTENSIONS = ("arrow.json", "arrow.uuid", "arrow.fixed_shape_tensor")
"""The extension types that a log keeps as their storage types, which are text, 16 bytes and a list. The values keep
their meaning without the extension."""
_CASTS = {pa.uint64(): "cast it to decimal128(20, 0), or to int64", pa.null(): "cast it to the type that it will have"}

_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}


def reader_of(data: object) -> pa.RecordBatchReader:
    """Return a reader of rows. ``data`` is a table, a record batch, a reader, or another object with Arrow's PyCapsule
    interface, such as a frame of pandas or polars or a result of duckdb. Raises InvalidArgumentError for anything
    else."""
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.RecordBatchReader):
        return data
    if not hasattr(data, "__arrow_c_stream__"):
        raise InvalidArgumentError(
            "rows come from a pyarrow.Table or another object with Arrow's stream interface",
            value=type(data).__name__,
            remedy="pyarrow.table({...}), or pyarrow.Table.from_pylist([...])",
        )
    return pa.RecordBatchReader.from_stream(data)


def kept_schema(given: pa.Schema, log: str) -> pa.Schema:
    """Return the columns in the types that a log keeps. Raises InvalidArgumentError if a log cannot keep some columns.
    The error names all of them and the reasons."""
    check_names(given.names, f"log {log}", remedy="rename them, or leave them out")
    kinds, wrong = dict[str, pa.DataType](), list[tuple[str, str]]()
    for field in given:
        try:
            kinds[field.name] = _kept(field.type)
        except _NotKept as error:
            wrong.append((f"{field.name} {field.type}", f"{field.name}: {error}"))
    if wrong:
        raise InvalidArgumentError(
            "columns have types that a log does not keep, because Spark does not have them",
            value=", ".join(column for column, _ in wrong),
            remedy="; ".join(remedy for _, remedy in wrong),
        )
    return arrow_schema.from_bytes(arrow_schema.to_bytes(pa.schema(list(kinds.items()))))


class _NotKept(Exception):
    """The error for a type that a log does not keep. Its text is the remedy, such as a cast."""


def check_names(names: Sequence[str], target: str, *, remedy: str) -> None:
    """Raise InvalidArgumentError for names that columns of codec ``arrow`` cannot have. ``remedy`` is the remedy for
    names of columns that a read adds."""
    if wrong := [name for name in names if name in places.TYPES]:
        raise InvalidArgumentError(
            f"columns of {target} have names of columns that a read adds", value=", ".join(wrong), remedy=remedy
        )
    folded = [name.lower() for name in names]
    if not names or len(set(folded)) != len(names):
        raise InvalidArgumentError(
            "give at least one column, and each name once, also if case is ignored", value=", ".join(names)
        )


def pieces(
    rows: pa.RecordBatchReader, schema: pa.Schema, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the columns of ``schema``, in pieces of about ``piece_bytes``. Raises InvalidArgumentError for
    a value that its column's type in the log cannot hold, and EntryTooLargeError for a row that is larger than the
    maximum entry."""
    small, size, first_row = list[pa.RecordBatch](), 0, 0
    for batch in _batches(rows):
        for piece in _cut(batch, first_row, piece_bytes):
            small.append(_conformed(piece, schema))
            size += small[-1].nbytes
            if size >= piece_bytes // 2:
                yield _joined(small)
                small, size = [], 0
        first_row += batch.num_rows
    if small:
        yield _joined(small)


def _batches(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the reader. Raises InvalidArgumentError if the program that produces them fails, which Arrow
    reports as an ArrowException."""
    try:
        yield from rows
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            "the rows to append cannot be read", value=str(error), remedy="check the program that produces them"
        ) from error


def _cut(batch: pa.RecordBatch, first_row: int, piece_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of rows that take at most ``piece_bytes``, or have one row. The bytes are counted as if the rows
    shared no buffer, because many rows of a view, a dictionary or a slice may share one."""
    ends = np.cumsum(sum((row_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, dtype=np.int64)))
    start = 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + piece_bytes, side="right")))
        if (size := int(ends[start]) - before) > BODY_BYTES_MAX:
            raise too_large(first_row + start, size, ENTRY_BYTES_MAX)
        yield batch.slice(start, stop - start)
        start = stop


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            columns.append(converted(column, field.type))
        except pa.ArrowException as error:
            raise InvalidArgumentError(
                f"values of column {field.name} do not fit its type in the log, {field.type}",
                value=str(error),
                remedy="cast the column first",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _kept(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a log keeps values of this type. Raises _NotKept if there is none."""
    types = pa.types
    if kind in _WIDER:
        return _WIDER[kind]
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind):
        return _kept_decimal(kind)
    if types.is_temporal(kind):
        return _kept_time(kind)
    if types.is_nested(kind) and not types.is_run_end_encoded(kind):
        return _kept_nested(kind)
    return _kept_wrapped(kind)


def _kept_wrapped(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _kept(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name not in _PLAIN_EXTENSIONS:
            raise _NotKept("cast it to a type without an extension")
        return _kept(kind.storage_type)
    if not arrow_schema.is_simple(kind):
        raise _NotKept(_CASTS.get(kind, "cast it to another type"))
    return kind


def _kept_decimal(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a log keeps a decimal. Spark's decimals have up to 38 digits, of which any number may be
    behind the point. Raises _NotKept for other decimals."""
    if not 0 <= kind.scale <= kind.precision <= DECIMAL_DIGITS_MAX:
        scale = min(max(kind.scale, 0), DECIMAL_DIGITS_MAX)
        precision = min(max(kind.precision - min(kind.scale, 0), scale), DECIMAL_DIGITS_MAX)
        raise _NotKept(f"cast it to decimal128({precision}, {scale}), or to a string")
    return pa.decimal128(kind.precision, kind.scale)


def _kept_time(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_date(kind):
        return pa.date32()
    if types.is_time(kind):
        return pa.time64("ns")
    if not types.is_duration(kind):
        raise _NotKept("cast it to duration('us')")
    return pa.duration("us")


def _kept_nested(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        fields = [kind.field(k) for k in range(kind.num_fields)]
        if not fields or len({field.name for field in fields}) != len(fields):
            raise _NotKept("a struct needs fields with different names")
        return pa.struct([(field.name, _kept(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_kept(kind.key_type), _kept(kind.item_type))
    if any(accepts(kind) for accepts in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        return pa.list_(_kept(kind.value_type))
    raise _NotKept(
        "cast it to a list" if types.is_list_view(kind) or types.is_large_list_view(kind) else "leave it out"
    )
