# SPDX-License-Identifier: Apache-2.0
"""Makes Arrow arrays from Avro values, resolved from the schema that wrote them to the schema of the read.

The rules are those of Avro's specification: fields match by name or by alias, missing fields get their default, numbers
are promoted, and symbols and branches match by name. As in Java, names of records need not match. Two schemas are
compared once, when :func:`resolver` makes the conversion. The conversion then converts whole columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bk_core.entries.batch import U8
from bk_core.pulsar.messages.rows import spans, texts
from bk_core.pulsar.messages.scan import Mask
from bk_core.pulsar.values.avro.defaults import default_of
from bk_core.pulsar.values.avro.schema import (
    LIMITS,
    NO_DEFAULT,
    Field,
    Node,
    SchemaError,
    arrow_type,
    values_of,
    widened,
)
from bk_core.pulsar.values.decoded import Column, Items, Nulls, Numbers, Record, Spans, Union

Made: TypeAlias = "tuple[pa.Array, Mask | None]"
"""An array, and a mask of the values that do not fit the schema of the read, or None if all fit."""
Convert: TypeAlias = Callable[[Any, U8], Made]

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class UnresolvableError(ValueError):
    """The error for a schema whose values cannot be read as another schema."""


def resolver(writer: Node, reader: Node) -> Convert:
    """Return a function that makes an Arrow array of ``arrow_type(reader)`` from values of ``writer``. Raises
    UnresolvableError if no value of ``writer`` can be read as ``reader``."""
    if writer.kind == "union":
        return _from_union(writer, reader)
    if reader.kind == "union":
        return _into_union(writer, reader)
    if writer.kind == reader.kind:
        return _same_kind(writer, reader)
    if reader.kind in _PROMOTED.get(writer.kind, ()) and not (writer.logical and reader.logical):
        return _leaf(reader)
    raise _unresolvable(writer, reader)


def record_fields(writer: Node, reader: Node) -> dict[str, Convert]:
    """Return, for each field of the record ``reader``, a function that makes its column from a :class:`Record` of
    ``writer``. Raises UnresolvableError."""
    return {each.name: _field(writer, each) for each in reader.fields}


def _unresolvable(writer: Node, reader: Node) -> UnresolvableError:
    return UnresolvableError(f"{_title(writer)} cannot be read as {_title(reader)}")


def _title(node: Node) -> str:
    return f"{node.kind} {node.name}" if node.name else node.logical or node.kind


def _same_kind(writer: Node, reader: Node) -> Convert:
    if writer.logical and reader.logical and _meaning(writer) != _meaning(reader):
        raise _unresolvable(writer, reader)
    match writer.kind:
        case "record":
            return _record(writer, reader)
        case "array" | "map":
            return _list_or_map(writer, reader)
        case "enum":
            return _enum(writer, reader)
        case "fixed" if writer.size != reader.size:
            raise _unresolvable(writer, reader)
    return _leaf(reader)


def _meaning(node: Node) -> tuple[Any, ...]:
    return node.logical, node.precision, node.scale


# --- numbers, texts, bytes -------------------------------------------------------------------------------------------


def _leaf(reader: Node) -> Convert:
    """Return the conversion of numbers, texts or bytes into an array of the type ``reader``."""
    kind = arrow_type(reader)
    if reader.logical == "decimal":
        return lambda column, data: _decimals(column, data, kind)
    if reader.kind == "string":
        return lambda column, data: (texts(spans(data, column.begin, column.length)), None)
    if reader.kind in ("bytes", "fixed"):
        return lambda column, data: (spans(data, column.begin, column.length), None)
    if reader.kind == "null":
        return lambda column, data: (pa.nulls(len(column)), None)
    stored: Any = np.int32 if reader.kind == "int" else np.int64
    if reader.logical in LIMITS:
        limits = LIMITS[reader.logical]
        return lambda column, data: _times(column, kind, limits, stored)
    if reader.logical:
        return lambda column, data: (pa.array(column.values.astype(stored)).view(kind), None)
    to: Any = kind.to_pandas_dtype()
    return lambda column, data: (pa.array(column.values.astype(to)), None)


def _times(column: Numbers, kind: pa.DataType, limits: tuple[int, int], stored: Any) -> Made:
    wrong = (column.values < limits[0]) | (column.values > limits[1])
    return pa.array(np.where(wrong, 0, column.values).astype(stored)).view(kind), wrong if wrong.any() else None


def _decimals(column: Spans, data: U8, kind: pa.DataType) -> Made:
    """Return decimals as an array. Their encoding is a big-endian two's complement of any length."""
    wide = 16
    begin, length = column.begin, column.length
    spare = np.maximum(length - wide, 0)
    first = data.take(begin, mode="clip")
    fill = np.where(first >= 0x80, 0xFF, 0).astype(np.uint8)
    place = length[:, None] - 1 - np.arange(wide)
    digits = np.where(place >= 0, data.take(begin[:, None] + place, mode="clip"), fill[:, None])
    wrong = length == 0
    for row in np.flatnonzero(spare).tolist():  # more bytes than 16 must repeat the sign
        head = data[begin[row] : begin[row] + spare[row]]
        wrong[row] = bool((head != fill[row]).any()) or (digits[row, -1] >= 0x80) != (fill[row] == 0xFF)
    limit = 10**kind.precision
    wrong |= _at_least(digits, limit) | ~_at_least(digits, 1 - limit)
    digits[wrong] = 0
    found = pa.Array.from_buffers(kind, len(digits), [None, pa.py_buffer(digits)])
    return found, wrong if wrong.any() else None


def _at_least(digits: U8, limit: int) -> Mask:
    """Return a mask of the little-endian 128-bit numbers that are ``limit`` or more."""
    low, high = digits.view("<u8")[:, 0], digits.view("<i8")[:, 1]
    least = np.uint64(limit & (1 << 64) - 1)
    found: Mask = (high > limit >> 64) | ((high == limit >> 64) & (low >= least))
    return found


def _enum(writer: Node, reader: Node) -> Convert:
    known = {symbol: place for place, symbol in enumerate(reader.symbols)}
    default = -1 if reader.default is None else known[reader.default]
    moved = np.array([known.get(symbol, default) for symbol in writer.symbols] or [-1], dtype=np.int32)
    symbols = pa.array(list(reader.symbols) or [""], pa.string())

    def convert(column: Numbers, data: U8) -> Made:
        at = moved[column.values]
        wrong = at < 0
        return symbols.take(pa.array(np.maximum(at, 0))), wrong if wrong.any() else None

    return convert


# --- records, arrays, maps -------------------------------------------------------------------------------------------


def _field(writer: Node, field: Field) -> Convert:
    for name in (field.name, *field.aliases):
        for place, each in enumerate(writer.fields):
            if each.name == name:
                return _of_field(place, resolver(each.node, field.node))
    if field.default is NO_DEFAULT:
        raise UnresolvableError(f"field {field.name} is not in the schema that wrote it, and has no default")
    try:
        value = pa.array([default_of(field.node, field.default)], arrow_type(field.node))
    except (SchemaError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UnresolvableError(f"the default of field {field.name} is not of its type: {error}") from error
    return lambda column, data: (value.take(pa.array(np.zeros(len(column), dtype=np.int64))), None)


def _of_field(place: int, convert: Convert) -> Convert:
    return lambda column, data: convert(column.fields[place], data)


def _record(writer: Node, reader: Node) -> Convert:
    kind, fields = arrow_type(reader), record_fields(writer, reader)

    def convert(column: Record, data: U8) -> Made:
        made = [each(column, data) for each in fields.values()]
        if not made:
            return pa.array([{}], kind).take(pa.array(np.zeros(len(column), dtype=np.int64))), None
        return pa.StructArray.from_arrays([array for array, _ in made], fields=list(kind)), _any(
            mask for _, mask in made
        )

    return convert


def _any(masks: Any) -> Mask | None:
    found: Mask | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def _list_or_map(writer: Node, reader: Node) -> Convert:
    kind, inside = arrow_type(reader), resolver(writer.inside, reader.inside)

    def convert(column: Items, data: U8) -> Made:
        places = column.places()
        in_order = places.size == len(column.items) and bool((places == np.arange(places.size)).all())
        values, wrong = inside(column.items if in_order else column.items.take(places), data)
        bounds = np.zeros(len(column) + 1, dtype=np.int32)
        np.cumsum(column.length, out=bounds[1:])
        if column.keys is None:
            made = pa.ListArray.from_arrays(pa.array(bounds), values, type=kind)
        else:
            at = column.keys.take(places)
            made = _map(bounds, texts(spans(data, at.begin, at.length)), values, kind)
        if wrong is None:
            return made, None
        owners = np.repeat(np.arange(len(column)), column.length)
        return made, np.bincount(owners[wrong], minlength=len(column)) > 0

    return convert


def _map(bounds: npt.NDArray[np.int32], keys: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array of maps. If a key has several values, the last value counts, as in Java."""
    owners = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))
    named = owners * (len(keys) + 1) + keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, last = np.unique(named[::-1], return_index=True)
    if last.size < named.size:
        kept = np.sort(named.size - 1 - last)
        keys, values = keys.take(pa.array(kept)), values.take(pa.array(kept))
        bounds = np.searchsorted(kept, bounds).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(bounds), keys, values, kind)


# --- unions ----------------------------------------------------------------------------------------------------------


def _from_union(writer: Node, reader: Node) -> Convert:
    """Return the conversion of a union's values. If a branch cannot be read as ``reader``, only the values of this
    branch are bad."""
    kind, converts, reasons = arrow_type(reader), list[Convert | None](), list[str]()
    for branch in writer.branches:
        try:
            converts.append(resolver(branch, reader))
        except UnresolvableError as error:
            converts.append(None)
            reasons.append(str(error))
    if not any(converts):
        raise UnresolvableError("; ".join(reasons))

    def convert(column: Union, data: U8) -> Made:
        pieces, at = [pa.nulls(1, kind)], np.zeros(len(column), dtype=np.int64)
        wrong, total = np.zeros(len(column), dtype=np.bool_), 1
        for tag, (each, values) in enumerate(zip(converts, column.branches, strict=True)):
            if values is None or isinstance(values, Nulls):
                if each is None:
                    wrong |= column.tag == tag
                continue
            here = column.tag == tag
            if each is None:
                wrong |= here
                continue
            array, inner = each(values, data)
            at[here] = total + column.place[here]
            if inner is not None:
                wrong[here] |= inner[column.place[here]]
            pieces.append(array)
            total += len(array)
        whole = pieces[1] if len(pieces) == 2 else pa.concat_arrays(pieces)
        shift = 1 if len(pieces) == 2 else 0
        array = whole.take(pa.array(np.maximum(at - shift, 0), mask=at == 0))
        return array, wrong if wrong.any() else None

    return convert


def _into_union(writer: Node, reader: Node) -> Convert:
    """Return the conversion into the branch of the union ``reader`` that fits best."""
    for branch in sorted(reader.branches, key=lambda each: _distance(writer, each)):
        try:
            convert = resolver(writer, branch)
        except UnresolvableError:
            continue
        return _as_member(convert, reader, branch)
    raise _unresolvable(writer, reader)


def _distance(writer: Node, branch: Node) -> int:
    """Return how far a branch is from ``writer``. A branch with the same name is nearest, then one of the same kind. A
    union has at most one unnamed branch of each kind."""
    if writer.kind == branch.kind:
        if writer.name and (writer.name == branch.name or writer.name in branch.aliases):
            return 1
        return 2 if writer.local_name == branch.local_name else 3
    return 4


def _as_member(convert: Convert, union: Node, branch: Node) -> Convert:
    kind, values = arrow_type(union), values_of(union)
    if branch.kind == "null":
        return lambda column, data: (pa.nulls(len(column), kind), None)
    if len(values) == 1:
        return convert
    if widened(union):

        def widen(column: Column, data: U8) -> Made:
            array, wrong = convert(column, data)
            return array.cast(kind), wrong

        return widen
    place = next(number for number, each in enumerate(values) if each is branch)

    def member(column: Column, data: U8) -> Made:
        array, wrong = convert(column, data)
        parts = [array if number == place else pa.nulls(len(array), each.type) for number, each in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind)), wrong

    return member


def has_limits(node: Node) -> bool:
    """Return whether a type, or a type inside it, has encodings that are not values."""
    inside = [each.node for each in node.fields] or node.branches
    return node.logical == "decimal" or node.logical in LIMITS or any(map(has_limits, inside))
