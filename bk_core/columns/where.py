# SPDX-License-Identifier: Apache-2.0
"""Which rows a read wants: conditions that must all hold, each a column, an operator and a value.

Rows are filtered exactly. Before that, the least and greatest values in an entry's directory tell whether it can have
such a row at all (docs/formats.md §7); bounds are rounded outward, so an entry that has one is never skipped. A null
meets no condition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from bk_core.entries.arrow_directory import MAX_RAISED, MIN_CUT, Bounds, Column, Directory
from bk_core.errors import InvalidArgumentError

Condition: TypeAlias = tuple[str, str, Any]
"""A column, an operator of ``OPERATORS``, and a value; for ``in`` several values."""

_COMPARE: Mapping[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
OPERATORS = (*_COMPARE, "in")


@dataclass(frozen=True, slots=True)
class _Condition:
    """``values`` are of the column's type; all operators but ``in`` have one. ``keys`` are the same in the form that
    bounds are compared in, or None for a type without bounds."""

    column: str
    operator: str
    values: pa.Array
    keys: tuple[Any, ...] | None

    def mask(self, column: pa.Array) -> pa.Array:
        if self.operator == "in":
            return pc.is_in(column, value_set=self.values)
        return _COMPARE[self.operator](column, self.values[0])

    def may_hold(self, column: Column, rows: int, kind: pa.DataType) -> bool:
        """Whether it may hold for a row of an entry with this column."""
        if column.nulls == rows:
            return False
        if self.keys is None or not column.bounds.bits:
            return True
        low, high = (None if bound is None else _bound(bound, kind) for bound in column.bounds[:2])
        return any(_may_be(self.operator, key, low, high, column.bounds) for key in self.keys)


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions that must all hold."""

    conditions: tuple[_Condition, ...] = ()

    @classmethod
    def of(cls, given: Sequence[Condition] | None, kinds: Mapping[str, pa.DataType]) -> Where:
        """``kinds`` are the types of all columns that may be named. Raises InvalidArgumentError for anything but
        conditions on them, with values of their types."""
        if given is None:
            return cls()
        if isinstance(given, str) or not all(isinstance(each, tuple) and len(each) == 3 for each in given):
            raise InvalidArgumentError(
                "where is a list of conditions", value=repr(given), remedy='where=[("delay", ">", 15)]'
            )
        return cls(tuple(_condition(*each, kinds) for each in given))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(each.column for each in self.conditions))

    def filtered(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which all conditions hold."""
        for condition in self.conditions:
            rows = rows.filter(condition.mask(rows.column(condition.column)))
        return rows

    def may_have(self, directory: Directory, stored: pa.Schema, data: Sequence[str]) -> bool:
        """Whether an entry of this schema may have such a row. ``data`` are the columns that the codec has."""
        for condition in self.conditions:
            if condition.column not in data:
                continue  # where the row is from: no directory tells
            place = stored.get_field_index(condition.column)
            if place < 0 or not condition.may_hold(directory.columns[place], directory.rows, stored.field(place).type):
                return False
        return True


def _condition(column: str, operator: str, value: Any, kinds: Mapping[str, pa.DataType]) -> _Condition:
    if column not in kinds:
        raise InvalidArgumentError("where names a column that is not there", value=str(column))
    if operator not in OPERATORS:
        raise InvalidArgumentError(
            "no such operator", value=str(operator), remedy=f"choose from {', '.join(OPERATORS)}"
        )
    kind = kinds[column]
    try:
        values = pa.array(list(value) if operator == "in" else [value], kind)
        keys = None if pa.types.is_nested(kind) else tuple(_key(each) for each in values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"column {column} is {kind}", value=f"{operator} {value!r}: {error}", remedy="compare it with such a value"
        ) from error
    if values.null_count or pa.types.is_nested(kind):
        raise InvalidArgumentError(
            "a condition compares with values, and not with null", value=f"{column} {kind} {operator} {value!r}"
        )
    return _Condition(column, operator, values, keys)


def _key(value: pa.Scalar) -> Any:
    """A value in the form that :func:`_bound` gives bounds."""
    kind = value.type
    if pa.types.is_string(kind):
        return value.as_py().encode()
    if pa.types.is_decimal(kind):
        return int.from_bytes(memoryview(pa.array([value], kind).buffers()[1])[:16], "little", signed=True)
    if pa.types.is_temporal(kind):
        return value.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).as_py()
    return value.as_py()


def _bound(bound: bytes, kind: pa.DataType) -> Any:
    """A bound of a column of this type, to be compared."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return bound
    if pa.types.is_floating(kind):
        return struct.unpack("<f" if kind.bit_width == 32 else "<d", bound)[0]
    return int.from_bytes(bound, "little", signed=not pa.types.is_boolean(kind))


def _may_be(operator: str, key: Any, low: Any, high: Any, bounds: Bounds) -> bool:
    match operator:
        case "<":
            return low is None or low < key
        case "<=":
            return low is None or low <= key
        case ">":
            return high is None or high > key
        case ">=":
            return high is None or high >= key
        case "!=":
            return low != key or high != key or bool(bounds.bits & (MIN_CUT | MAX_RAISED))
    return (low is None or low <= key) and (high is None or high >= key)
