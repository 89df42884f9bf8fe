# SPDX-License-Identifier: Apache-2.0
"""What programs hand over to be written with codec ``arrow``: any table with Arrow's interfaces, as record batches of
the types that a log keeps.

A log keeps one type where Arrow has several for the same values: text may be large, a view or a dictionary, and is
utf8 in the log. A type that would lose something is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from bk_core.columns import arrow_schema, places
from bk_core.errors import InvalidArgumentError

PIECE_BYTES = 8 << 20
"""Rows are encoded in pieces of about this size."""

_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}


def reader_of(data: object) -> pa.RecordBatchReader:
    """The rows of a table, record batch, reader, or anything else with Arrow's PyCapsule interface: frames of pandas
    and polars, results of duckdb. Raises InvalidArgumentError for anything else."""
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
    """The columns in the types that a log keeps. Raises InvalidArgumentError that names every column that it cannot
    keep."""
    check_names(given.names, f"log {log}", remedy="rename them, or leave them out")
    kinds = {field.name: _kept(field.type) for field in given}
    if wrong := [f"{field.name} {field.type}" for field in given if kinds[field.name] is None]:
        raise InvalidArgumentError(
            "columns have types that a log does not keep", value=", ".join(wrong), remedy="cast them first"
        )
    return arrow_schema.from_bytes(arrow_schema.to_bytes(pa.schema(list(kinds.items()))))


def check_names(names: Sequence[str], target: str, *, remedy: str) -> None:
    """Raises InvalidArgumentError for names that columns of codec ``arrow`` cannot have; ``remedy`` is for those that a
    read adds."""
    if wrong := [name for name in names if name in places.TYPES]:
        raise InvalidArgumentError(
            f"columns of {target} have names of columns that a read adds", value=", ".join(wrong), remedy=remedy
        )
    folded = [name.lower() for name in names]
    if not names or len(set(folded)) != len(names):
        raise InvalidArgumentError(
            "columns must be given, once each; case does not tell them apart", value=", ".join(names)
        )


def pieces(rows: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in the columns of ``schema``, in pieces of about PIECE_BYTES. Raises InvalidArgumentError for a value
    that its column's type in the log cannot hold."""
    small, size = list[pa.RecordBatch](), 0
    for batch in rows:
        for piece in _cut(batch):
            small.append(_conformed(piece, schema))
            size += small[-1].nbytes
            if size >= PIECE_BYTES // 2:
                yield _joined(small)
                small, size = [], 0
    if small:
        yield _joined(small)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    step = max(1, batch.num_rows * PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            columns.append(_cast(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidArgumentError(
                f"values of column {field.name} do not fit its type in the log, {field.type}",
                value=str(error),
                remedy="cast the column first",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.DictionaryArray):  # Arrow takes no views out of a dictionary
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind))
    return column if column.type == kind else column.cast(kind)


def _kept(kind: pa.DataType) -> pa.DataType | None:
    """The type that a log keeps for values of this one; None: there is none."""
    types = pa.types
    if kind in _WIDER:
        return _WIDER[kind]
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
    if types.is_temporal(kind):
        return _kept_time(kind)
    if types.is_nested(kind):
        return _kept_nested(kind)
    return _kept_wrapped(kind)


def _kept_wrapped(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _kept(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _kept(kind.storage_type)
    return kind if arrow_schema.is_simple(kind) else None


def _kept_time(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_date(kind):
        return pa.date32()
    if types.is_time(kind):
        return pa.time64("ns")
    return pa.duration("us") if types.is_duration(kind) else None


def _kept_nested(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_struct(kind):
        inside = [(kind.field(k).name, _kept(kind.field(k).type)) for k in range(kind.num_fields)]
        return None if any(part is None for _, part in inside) else pa.struct(inside)
    if types.is_map(kind):
        key, value = _kept(kind.key_type), _kept(kind.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    if any(accepts(kind) for accepts in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        element = _kept(kind.value_type)
        return None if element is None else pa.list_(element)
    return None
