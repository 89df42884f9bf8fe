# SPDX-License-Identifier: Apache-2.0
"""Evaluates the conditions of a read, which must all hold for a row. A condition has a column, an operator and a value.

Rows are filtered exactly, because :mod:`~bk_core.columns.literals` rounds no value. Before that, the least and greatest
values in an entry's directory show whether the entry can have a wanted row (docs/formats.md §7). These bounds are
rounded outward, so no entry with a wanted row is skipped. A null meets no condition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns.literals import Comparison, NotComparable, comparison
from bk_core.entries.arrow_directory import MAX_RAISED, MIN_CUT, Bounds, Column, Directory
from bk_core.errors import InvalidArgumentError

Condition: TypeAlias = tuple[str, str, Any]
"""A condition as a user writes it, which is a column, an operator of ``OPERATORS``, and a value. The operator ``in``
takes several values."""

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
    """A parsed condition. A row meets it if one of the ``comparisons`` holds. Only the operator ``in`` makes more than
    one comparison."""

    column: str
    comparisons: tuple[Comparison, ...]

    def mask(self, column: pa.Array) -> pa.Array:
        """Return a boolean for each row. It is false or null for a row that does not meet the condition."""
        if any(each.always for each in self.comparisons):
            return column.is_valid()
        found = [each for each in self.comparisons if each.scalar is not None]
        if not found:
            return pa.repeat(False, len(column))
        if len(found) > 1:
            return pc.is_in(column, value_set=_value_set(found, column.type))
        return _COMPARE[found[0].operator](column, found[0].scalar)

    def may_hold(self, column: Column, rows: int, kind: pa.DataType) -> bool:
        """Return whether a row of an entry may meet the condition. ``column`` is the column's part of the entry's
        directory."""
        if column.nulls == rows:
            return False
        if any(each.always for each in self.comparisons):
            return True
        found = [each for each in self.comparisons if each.scalar is not None]
        if not column.bounds.bits:
            return bool(found)
        low, high = (None if bound is None else _bound(bound, kind) for bound in column.bounds[:2])
        return any(_may_be(each.operator, each.key, low, high, column.bounds) for each in found)


def _value_set(found: Sequence[Comparison], kind: pa.DataType) -> pa.Array:
    """Return the values of an ``in`` condition. If one of them is zero, both zeros are added, because ``is_in`` treats
    0.0 and -0.0 as different values."""
    zeros = [0.0, -0.0] if pa.types.is_floating(kind) and any(each.key == 0 for each in found) else []
    return pa.array([*(each.scalar for each in found), *zeros], kind)


@dataclass(frozen=True, slots=True)
class Where:
    """The parsed conditions of a read, which must all hold for a row."""

    conditions: tuple[_Condition, ...] = ()

    @classmethod
    def of(cls, given: Sequence[Condition] | None, kinds: Mapping[str, pa.DataType]) -> Where:
        """Parse conditions. ``kinds`` has the types of all columns that a condition may name. Raises
        InvalidArgumentError for anything but conditions on these columns with values of their types."""
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
        """Return the rows for which all conditions hold."""
        for condition in self.conditions:
            rows = rows.filter(condition.mask(rows.column(condition.column)))
        return rows

    def may_have(self, directory: Directory, stored: pa.Schema, data: Sequence[str]) -> bool:
        """Return whether an entry with this schema and directory may have a wanted row. ``data`` has the names of the
        codec's columns."""
        for condition in self.conditions:
            if condition.column not in data:
                continue  # a column of the row's origin, which no directory has
            place = stored.get_field_index(condition.column)
            if place < 0 or not condition.may_hold(directory.columns[place], directory.rows, stored.field(place).type):
                return False
        return True


def _condition(column: str, operator: str, value: Any, kinds: Mapping[str, pa.DataType]) -> _Condition:
    if column not in kinds:
        raise InvalidArgumentError("where names an unknown column", value=str(column))
    if operator not in OPERATORS:
        raise InvalidArgumentError(
            "no such operator", value=str(operator), remedy=f"choose from {', '.join(OPERATORS)}"
        )
    kind = kinds[column]
    literals = _several(column, value) if operator == "in" else [value]
    return _Condition(
        column,
        tuple(_comparison(column, operator, "==" if operator == "in" else operator, each, kind) for each in literals),
    )


def _several(column: str, values: Any) -> list[Any]:
    """Return the values of an ``in`` condition. Raises InvalidArgumentError for a single value, and for text and bytes,
    although Python could iterate over them."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise InvalidArgumentError(
            "in wants several values", value=f"{column} in {values!r}", remedy=f'where=[("{column}", "in", […])]'
        )
    return list(values)


def _comparison(column: str, said: str, operator: str, literal: Any, kind: pa.DataType) -> Comparison:
    if literal is None or (isinstance(literal, pa.Scalar) and not literal.is_valid):
        raise InvalidArgumentError(
            "a condition compares with values, and not with null", value=f"{column} {kind} {said} {literal!r}"
        )
    try:
        return comparison(operator, literal, kind)
    except NotComparable as error:
        raise InvalidArgumentError(
            f"column {column} is {kind}", value=f"{said} {literal!r}", remedy=f"compare it with {error}"
        ) from error


def _bound(bound: bytes, kind: pa.DataType) -> Any:
    """Decode a bound of a column of this type into a value that can be compared."""
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
