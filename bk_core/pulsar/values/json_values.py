# SPDX-License-Identifier: Apache-2.0
"""Decodes values of JSON schemas.

The definition of such a schema is an Avro schema, but the values are plain JSON as Jackson writes it. Unions have no
tags, bytes are base64, and dates and times are numbers as in Avro's logical types. Arrow parses all values together. It
cannot parse maps, or unions of several types, so values of a schema with such types are parsed one by one. Values that
Arrow refuses are parsed one by one, too, because Arrow accepts no member that is given twice. As in Java, the last of
two members with one name counts.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns.json import rows as json_rows
from bk_core.entries.batch import I64
from bk_core.pulsar.messages.rows import VALUE, TooManyValuesError, spans
from bk_core.pulsar.values.avro.schema import EXACT, LIMITS, Node, arrow_type, columns_of, values_of, widened
from bk_core.pulsar.values.json_counts import counter, items_at_most, widest
from bk_core.pulsar.values.limits import OBJECTS_MAX, VALUES_MAX, too_many
from bk_core.pulsar.values.part import Part, Places

_BITS = {"int": 31, "long": 63}
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A text that Arrow takes as a decimal."""
_BAD = (ValueError, RecursionError, ArithmeticError)
"""The errors of bad values. Numbers that are too large for a float or a Decimal raise an ArithmeticError."""
_NAMED = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


@dataclass(slots=True)
class JsonReader:
    """Decodes JSON values by one schema. Members that the schema does not name are ignored, and missing members are
    null."""

    schema: Node
    _widest: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._widest = widest(self.schema)

    @property
    def is_record(self) -> bool:
        return self.schema.kind == "record"

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return columns_of(self.schema)

    def read(self, places: Places, wanted: frozenset[str]) -> Part:
        texts = spans(places.data, places.begin, places.length)
        is_for_arrow = (
            self.is_record and self.schema.fields and all(_is_for_arrow(each.node) for each in self.schema.fields)
        )
        if (why := self._too_much(texts, VALUES_MAX if is_for_arrow else OBJECTS_MAX)) is not None:
            return Part({name: pa.nulls(1, kind) for name, kind in self.columns.items() if name in wanted}, {0: why})
        return self._together(texts, wanted) if is_for_arrow else self._one_by_one(texts.to_pylist(), wanted)

    def _too_much(self, texts: pa.Array, most: int) -> str | None:
        """Return why the only value cannot be decoded, if it has too many values inside or they cannot be counted.
        Raises TooManyValuesError if several values may have more than ``most``."""
        size = texts.nbytes  # an item has at least one byte, so few bytes need not be looked at
        if size * self._widest <= most or int(items_at_most(texts).sum()) * self._widest <= most:
            return None
        if len(texts) > 1:
            raise TooManyValuesError(too_many())
        count = counter(self.schema)
        try:
            return too_many() if count is not None and count(_parsed(texts[0].as_py())) > VALUES_MAX else None
        except _BAD as error:
            return _no_json(error)

    def _one_by_one(self, texts: Sequence[bytes], wanted: frozenset[str]) -> Part:
        problems, found = dict[int, str](), list[Any]()
        for place, text in enumerate(texts):
            try:
                found.append(value_of(self.schema, _parsed(text)))
            except _BAD as error:
                problems[place] = _no_json(error)
                found.append(None)
        whole = pa.array(found, arrow_type(self.schema))
        if not self.is_record:
            return Part({VALUE: whole}, problems)
        names = list(self.columns)
        return Part({name: pc.struct_field(whole, [names.index(name)]) for name in names if name in wanted}, problems)

    def _together(self, texts: pa.Array, wanted: frozenset[str]) -> Part:
        kind = pa.struct([pa.field(each.name, _parsed_as(each.node)) for each in self.schema.fields])
        found = json_rows.objects_in(texts, kind)
        problems, made = dict[int, str](), dict[str, pa.Array]()
        for number, each in enumerate(self.schema.fields):
            if each.name in wanted or _has_limits(each.node):
                made[each.name] = _converted(pc.struct_field(found.structs, [number]), each.node, each.name, problems)
        if found.bad is not None and found.bad.any():
            refused = np.flatnonzero(found.bad)
            again = self._one_by_one(texts.take(pa.array(refused)).to_pylist(), frozenset(made))
            problems.update((int(refused[place]), why) for place, why in again.problems.items())
            made = {name: _replaced(column, refused, again.columns[name]) for name, column in made.items()}
        return Part(made, problems)


def _replaced(column: pa.Array, at: I64, values: pa.Array) -> pa.Array:
    """Return a column with these values at these places."""
    index = np.arange(len(column))
    index[at] = len(column) + np.arange(at.size)
    return pa.concat_arrays([column, values]).take(pa.array(index))


def _no_json(error: Exception) -> str:
    return f"it is not JSON of its schema: {str(error)[:200]}"


def _parsed(text: bytes) -> Any:
    found = json.loads(text, parse_float=Decimal)
    if found is None:
        raise ValueError("it is null")
    return found


def _has_limits(node: Node) -> bool:
    """Return whether Arrow's parser accepts JSON values that the type does not allow."""
    return node.kind in ("enum", "bytes", "fixed", "union") or node.logical in LIMITS


def _is_for_arrow(node: Node, *, outer: bool = True) -> bool:
    """Return whether Arrow can parse values of a type in a form that :func:`_converted` converts."""
    if node.kind == "union":
        values = values_of(node)
        return bool(widened(node)) or (len(values) == 1 and _is_for_arrow(values[0], outer=outer))
    if node.kind == "record":
        return bool(node.fields) and all(_is_for_arrow(each.node, outer=False) for each in node.fields)
    if node.kind == "array":
        return _is_for_arrow(node.inside, outer=False)
    if node.kind in ("map", "null"):
        return False
    return outer or (node.kind not in ("enum", "bytes", "fixed") and node.logical not in LIMITS)


def _single(node: Node) -> Node:
    return values_of(node)[0] if node.kind == "union" and not widened(node) else node


def _parsed_as(node: Node) -> pa.DataType:
    """Return the Arrow type with which Arrow's JSON parser reads the values of a node."""
    node = _single(node)
    if node.logical == "decimal":
        return pa.decimal256(76, node.scale)  # Arrow's parser does not check the precision of a decimal128
    if node.kind in ("enum", "bytes", "fixed"):
        return pa.string()
    match node.kind:
        case "int" | "long":
            return pa.int32() if node.kind == "int" else pa.int64()
        case "record":
            return pa.struct([pa.field(each.name, _parsed_as(each.node)) for each in node.fields])
        case "array":
            return pa.list_(_parsed_as(node.inside))
    return arrow_type(node)


def _converted(column: pa.Array, node: Node, name: str, problems: dict[int, str]) -> pa.Array:
    """Return the column that Arrow parsed, converted to the Arrow type of ``node``. Adds the reasons for bad values to
    ``problems``."""
    node = _single(node)
    kind = arrow_type(node)
    if node.kind == "enum":
        known = pc.is_in(column, pa.array(list(node.symbols), pa.string()))
        _wrong(pc.and_(column.is_valid(), pc.invert(known)), f"{name} is no symbol of {node.name}", problems)
        return column
    if node.logical == "decimal":
        limit = pa.scalar(Decimal(10) ** (node.precision - node.scale), column.type)
        outside = pc.or_(pc.greater_equal(column, limit), pc.less_equal(column, pc.negate(limit)))
        _wrong(outside, f"{name} has more than {node.precision} digits", problems)
        return pc.if_else(pc.fill_null(outside, False), pa.scalar(None, column.type), column).cast(kind)
    if node.kind in ("bytes", "fixed"):
        return _of_base64(column, node, name, problems)
    if node.logical in LIMITS:
        least, most = LIMITS[node.logical]
        outside = pc.or_(pc.less(column, least), pc.greater(column, most))
        _wrong(outside, f"{name} is outside the range of {node.logical}", problems)
        column = pc.if_else(pc.fill_null(outside, False), pa.scalar(0, column.type), column)
    return column if column.type == kind else column.cast(kind)


def _wrong(which: pa.Array, why: str, problems: dict[int, str]) -> None:
    for place in np.flatnonzero(pc.fill_null(which, False).to_numpy(zero_copy_only=False)).tolist():
        problems.setdefault(place, why)


def _of_base64(column: pa.Array, node: Node, name: str, problems: dict[int, str]) -> pa.Array:
    found = list[bytes | None]()
    for place, text in enumerate(column.to_pylist()):
        try:
            found.append(None if text is None else _bytes(node, text))
        except ValueError as error:
            problems.setdefault(place, f"{name}: {error}")
            found.append(None)
    return pa.array(found, pa.binary())


def _bytes(node: Node, text: str) -> bytes:
    found = base64.b64decode(text, validate=True)
    if node.kind == "fixed" and len(found) != node.size:
        raise ValueError(f"{node.name} has {node.size} bytes, not {len(found)}")
    return found


# --- one by one ------------------------------------------------------------------------------------------------------


def value_of(node: Node, value: Any) -> Any:
    """Return a JSON value in the form that ``pyarrow.array`` takes. null fits every type. Raises ValueError or
    ArithmeticError for a value that does not fit the type."""
    return None if value is None else _OF_KIND[node.kind](node, value)


def _record(node: Node, value: Any) -> dict[str, Any]:
    _check(isinstance(value, Mapping), node, value)
    return {each.name: value_of(each.node, value.get(each.name)) for each in node.fields}


def _map(node: Node, value: Any) -> list[tuple[str, Any]]:
    _check(isinstance(value, Mapping), node, value)
    return [(_text(Node("string"), key), value_of(node.inside, each)) for key, each in value.items()]


def _array(node: Node, value: Any) -> list[Any]:
    _check(isinstance(value, list), node, value)
    return [value_of(node.inside, each) for each in value]


def _boolean(node: Node, value: Any) -> bool:
    _check(isinstance(value, bool), node, value)
    return bool(value)


def _text(node: Node, value: Any) -> str:
    _check(isinstance(value, str), node, value)
    value.encode()  # a lone surrogate raises ValueError
    return str(value)


def _symbol(node: Node, value: Any) -> str:
    _check(value in node.symbols, node, value)
    return str(value)


def _integer(node: Node, value: Any) -> int:
    _check(isinstance(value, int) and not isinstance(value, bool), node, value)
    end = 1 << _BITS[node.kind]
    least, most = LIMITS.get(node.logical, (-end, end - 1))
    _check(least <= value <= most, node, value)
    return int(value)


def _bytes_or_decimal(node: Node, value: Any) -> Any:
    return _decimal(node, value) if node.logical == "decimal" else _text_bytes(node, value)


def _null(node: Node, value: Any) -> None:
    _check(False, node, value)


def _check(fits: bool, node: Node, value: Any) -> None:
    if not fits:
        raise ValueError(f"{str(value)[:50]!r} is no {node.name or node.logical or node.kind}")


def _text_bytes(node: Node, value: Any) -> bytes:
    _check(isinstance(value, str), node, value)
    return _bytes(node, value)


def _float(node: Node, value: Any) -> float:
    if isinstance(value, str):
        _check(value in _NAMED, node, value)
        return float(_NAMED[value])
    _check(isinstance(value, int | float | Decimal) and not isinstance(value, bool), node, value)
    found = float(value)
    _check(isinstance(value, float) or not math.isinf(found), node, value)
    return found


def _decimal(node: Node, value: Any) -> Decimal:
    """Return a decimal, which Java reads from a number and from a text."""
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    _check(is_number or (isinstance(value, str) and _DECIMAL.fullmatch(value) is not None), node, value)
    found = Decimal(value)
    _check(found.is_finite() and abs(found.adjusted()) <= 2 * node.precision + 1, node, value)
    shifted, limit = found.scaleb(node.scale, EXACT), 10**node.precision
    unscaled = int(shifted)
    _check(shifted == unscaled and -limit < unscaled < limit, node, value)
    return Decimal(unscaled).scaleb(-node.scale, EXACT)


def _of_union(node: Node, value: Any) -> Any:
    values, kind = values_of(node), widened(node)
    if kind:
        return value_of(Node(kind), value)
    for place, branch in enumerate(values):
        try:
            made = value_of(branch, value)
        except (ValueError, ArithmeticError):
            continue
        if len(values) == 1:
            return made
        return {f"member{number}": made if number == place else None for number in range(len(values))}
    raise ValueError(f"{str(value)[:50]!r} fits no branch of a union")


_OF_KIND: Mapping[str, Callable[[Node, Any], Any]] = {
    "union": _of_union,
    "record": _record,
    "map": _map,
    "array": _array,
    "boolean": _boolean,
    "string": _text,
    "enum": _symbol,
    "float": _float,
    "double": _float,
    "int": _integer,
    "long": _integer,
    "bytes": _bytes_or_decimal,
    "fixed": _bytes_or_decimal,
    "null": _null,
}
