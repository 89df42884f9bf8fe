# SPDX-License-Identifier: Apache-2.0
"""Converts Arrow columns to JSON text, column by column. No Python code runs for each row, and only Arrow is needed.

Values become text, members are joined into objects, and elements into arrays. Each step is one call of Arrow's compute
functions for a whole column. Python's JSON libraries need rows as Python objects, and making those objects alone costs
several times as much as this whole conversion.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

YEAR_MAX_DAYS, YEAR_MIN_DAYS = 2_932_896, -719_162
"""The last and the first day of the years with four digits, in days since 1970."""
_DAY_US = 86_400_000_000


class NoText(ValueError):
    """The error for a value that has no JSON form. ``row`` is its index in the column."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


def unwritable(kind: pa.DataType) -> bool:
    """Return whether a type, or a type inside it, has values without a JSON form that would be read back as the same
    value."""
    types = pa.types
    if types.is_struct(kind):
        return any(unwritable(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_list(kind):
        return unwritable(kind.value_type)
    simple = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_string)
    return not any(accepts(kind) for accepts in (*simple, types.is_date32, types.is_timestamp))


def objects(rows: pa.RecordBatch) -> pa.Array:
    """Return one JSON object for each row, as strings. Null members are left out. Raises NoText for a value that has no
    JSON form."""
    return _object(rows.schema.names, rows.columns)


def text(column: pa.Array) -> pa.Array:
    """Return each value as JSON text, and null for a null. Raises NoText for a value that has no JSON form."""
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        whole = _object([field.name for field in kind], [pc.struct_field(column, [i]) for i in range(kind.num_fields)])
        return pc.if_else(column.is_valid(), whole, pa.scalar(None, pa.string()))
    if types.is_list(kind):
        return _array(column)
    if types.is_string(kind):
        return pc.binary_join_element_wise('"', escaped(column), '"', "")
    if types.is_floating(kind):
        return _number(column)
    if types.is_date32(kind):
        return _date(column)
    if types.is_timestamp(kind):
        return _timestamp(column)
    return column.cast(pa.string())


def escaped(column: pa.Array) -> pa.Array:
    """Return the strings with the characters escaped that JSON does not allow in strings. Most columns have no such
    character, and one pass over their bytes shows that."""
    used = _bytes_of(column)
    special = np.unique(used[(used < 0x20) | (used == ord('"')) | (used == ord("\\"))])
    for code in sorted(special.tolist(), key=lambda code: code != ord("\\")):  # first: escapes contain it
        column = pc.replace_substring(column, chr(code), json.dumps(chr(code))[1:-1])
    return column


def _bytes_of(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all strings of a column, joined."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return np.zeros(0, dtype=np.uint8)
    ends = np.frombuffer(offsets, dtype=np.int32)
    return np.frombuffer(data, dtype=np.uint8)[ends[column.offset] : ends[column.offset + len(column)]]


def _object(names: list[str], columns: list[pa.Array]) -> pa.Array:
    members = [
        pc.binary_join_element_wise(f",{json.dumps(name, ensure_ascii=False)}:", text(column), "")
        for name, column in zip(names, columns, strict=True)
    ]
    inside = pc.binary_join_element_wise(*members, "", null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise(pc.binary_replace_slice(inside, 0, 1, "{"), "}", "")


def _array(column: pa.Array) -> pa.Array:
    flat = text(column.flatten()).fill_null("null")
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets.cast(pa.int32()), flat), ",")
    whole = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(column.is_valid(), whole, pa.scalar(None, pa.string()))


def _number(column: pa.Array) -> pa.Array:
    """Return numbers as text. NaN and the infinities become ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which is the
    form that Spark's ``to_json`` writes and ``from_json`` reads."""
    written = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return written
    named = pc.replace_substring(pc.if_else(pc.is_nan(column), "NaN", written), "inf", "Infinity")
    return pc.if_else(pc.is_finite(column), written, pc.binary_join_element_wise('"', named, '"', ""))


def _date(column: pa.Array) -> pa.Array:
    _check_years(column.cast(pa.int32()), YEAR_MIN_DAYS, YEAR_MAX_DAYS)
    return pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")


def _timestamp(column: pa.Array) -> pa.Array:
    """Return timestamps as ISO 8601 text. The text ends with ``Z`` if the type has a time zone, because Arrow then
    stores UTC for any zone."""
    _check_years(column.cast(pa.int64()), YEAR_MIN_DAYS * _DAY_US, (YEAR_MAX_DAYS + 1) * _DAY_US - 1)
    # Cast to a type without a zone: the text is the same, and Arrow need not look into its table of zones.
    iso = pc.replace_substring(column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise('"', iso, '"' if column.type.tz is None else 'Z"', "")


def _check_years(column: pa.Array, least: int, most: int) -> None:
    outside = pc.or_(pc.less(column, least), pc.greater(column, most))
    if pc.any(outside).as_py():
        raise NoText(pc.index(pc.fill_null(outside, False), True).as_py(), "its year has more than four digits")
