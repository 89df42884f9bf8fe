# SPDX-License-Identifier: Apache-2.0
"""Converts Arrow arrays of any layout into the types that a log keeps, and counts the bytes that rows take.

Theory. Arrow's casts are not enough here. A view, a dictionary or a slice may point into buffers of many gigabytes.
``nbytes`` counts a shared buffer once. A cast of a large list to a list refuses offsets beyond 2 GiB even if the slice
is small. A cast of views to text does not check that the result fits. So the caller first counts the bytes that each
row would take without sharing, and cuts the rows to a few megabytes. Then this file rebuilds the arrays layer by layer,
with offsets that begin at zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]

_VIEW = np.dtype([("length", "<i4"), ("rest", "V12")])
"""The layout of Arrow's views, which is the length of the value followed by the value itself or by its position."""
_OFFSET_BYTES = 4


def row_bytes(column: pa.Array) -> I64:
    """Return the approximate number of bytes that each row's value would take if it shared no buffer, without validity
    bits."""
    kind, types = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(column.storage)
    if types.is_dictionary(kind):
        return row_bytes(column.dictionary)[_indices(column)] if len(column.dictionary) else _each(column, 0)
    if types.is_run_end_encoded(kind):
        return row_bytes(column.values)[_runs(column)]
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = np.frombuffer(column.buffers()[1] or b"", dtype=_VIEW)[column.offset : column.offset + len(column)]
        return _where_valid(column, views["length"].astype(np.int64)) + _VIEW.itemsize
    if any(
        accepts(kind) for accepts in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    ):
        return _where_valid(column, np.diff(_offsets(column))) + _OFFSET_BYTES
    if types.is_struct(kind):
        return sum((row_bytes(column.field(k)) for k in range(kind.num_fields)), _each(column, 0))
    if types.is_nested(kind):
        return _row_bytes_of_lists(column)
    return _each(column, fixed_bytes(kind) or 0)


def _row_bytes_of_lists(column: pa.Array) -> I64:
    offsets = _list_offsets(column)
    first, last = int(offsets[0]), int(offsets[-1])
    parts = [part.slice(first, last - first) for part in _children(column)]
    widths = [fixed_bytes(part.type) for part in parts]
    # This saves an array with a number for each element, which may take eight times the elements' memory.
    if None not in widths:
        return np.diff(offsets) * sum(width or 0 for width in widths) + _OFFSET_BYTES
    sizes = sum((row_bytes(part) for part in parts), np.zeros(last - first, dtype=np.int64))
    ends = np.concatenate(([0], np.cumsum(sizes)))[offsets - first]
    return np.diff(ends) + _OFFSET_BYTES


def fixed_bytes(kind: pa.DataType) -> int | None:
    """Return the number of bytes of one value, at least 1, or None if values of this type differ in size."""
    types = pa.types
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return max(1, int(kind.bit_width) // 8)
    return 1 if types.is_null(kind) or types.is_boolean(kind) else None


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of a column in the type ``kind``, which must be a type that a log keeps. The result does not
    point into large shared buffers. Raises pyarrow.ArrowInvalid for a value that ``kind`` cannot hold."""
    given, types = column.type, pa.types
    if isinstance(given, pa.BaseExtensionType):
        return converted(column.storage, kind)
    if types.is_dictionary(given):
        values = _without_views(column.dictionary)
        return converted(values.take(column.indices), kind)
    if types.is_run_end_encoded(given):
        return converted(_without_views(column.values).take(pa.array(_runs(column))), kind)
    if types.is_struct(kind):
        parts = [converted(column.field(k), kind.field(k).type) for k in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if types.is_list(kind) or types.is_map(kind):
        return _converted_lists(column, kind)
    if types.is_large_string(given) or types.is_large_binary(given):
        column = column.take(pa.array(np.arange(len(column))))  # its offsets may be too large for the narrow type
    if types.is_time64(kind):
        column = column.cast(pa.time64("us"))  # Spark's times have no nanoseconds
    return column if column.type == kind else column.cast(kind)


def _converted_lists(column: pa.Array, kind: pa.DataType) -> pa.Array:
    offsets = _list_offsets(column)
    first, last = int(offsets[0]), int(offsets[-1])
    inside = [kind.key_type, kind.item_type] if pa.types.is_map(kind) else [kind.value_type]
    parts = [
        converted(part.slice(first, last - first), wanted)
        for part, wanted in zip(_children(column), inside, strict=True)
    ]
    starts, mask = pa.array((offsets - first).astype(np.int32)), column.is_null()
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(starts, *parts, type=kind, mask=mask)
    return pa.ListArray.from_arrays(starts, *parts, type=kind, mask=mask)


def _without_views(values: pa.Array) -> pa.Array:
    """Return the values of a dictionary or of runs with views replaced by large types, because Arrow cannot take values
    from views."""
    kind = values.type
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary_view(kind) else values


def _children(column: pa.Array) -> list[pa.Array]:
    """Return the arrays that the offsets of a list or map point into."""
    return [column.keys, column.items] if pa.types.is_map(column.type) else [column.values]


def _list_offsets(column: pa.Array) -> I64:
    """Return the offsets in the child arrays at which each row's elements begin, followed by the end of the last
    row's."""
    if pa.types.is_fixed_size_list(column.type):
        places: I64 = np.arange(column.offset, column.offset + len(column) + 1) * column.type.list_size
        return places
    return _offsets(column)


def _offsets(column: pa.Array) -> I64:
    kind = column.type
    wide = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)
    dtype: Any = np.int64 if any(accepts(kind) for accepts in wide) else np.int32
    found = np.frombuffer(column.buffers()[1] or b"", dtype=dtype)
    if not len(found):  # an empty array may have no offsets
        return np.zeros(1, dtype=np.int64)
    offsets: I64 = found[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return offsets


def _indices(column: pa.DictionaryArray) -> I64:
    """Return the index of each row's value in the dictionary. For a null it is 0."""
    found: I64 = pc.fill_null(column.indices, 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _runs(column: pa.RunEndEncodedArray) -> I64:
    """Return the index of the run that each row belongs to."""
    ends = column.run_ends.to_numpy(zero_copy_only=False)
    return np.searchsorted(ends, np.arange(column.offset, column.offset + len(column)), side="right").astype(np.int64)


def _where_valid(column: pa.Array, sizes: I64) -> I64:
    if column.null_count:
        sizes = np.where(column.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
    return sizes


def _each(column: pa.Array, size: int) -> I64:
    return np.full(len(column), size, dtype=np.int64)
