# SPDX-License-Identifier: Apache-2.0
"""Makes Python values for ``pyarrow.array`` from the JSON of Avro defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from bk_core.pulsar.values.avro.schema import EXACT, LIMITS, NO_DEFAULT, Node, SchemaError, values_of, widened


def default_of(node: Node, value: Any) -> Any:
    """Return the Python value of a default. A default of a union is a value of its first branch or, as newer versions
    of Avro allow, of any branch. Raises SchemaError if the default does not fit the type."""
    if node.kind in _SIMPLE:
        _check(
            isinstance(value, _SIMPLE[node.kind]) and (node.kind == "boolean") == isinstance(value, bool), node, value
        )
        if node.logical in LIMITS:
            least, most = LIMITS[node.logical]
            _check(least <= value <= most, node, value)
        return float(value) if node.kind in ("float", "double") else value
    return _OF_KIND[node.kind](node, value)


def _record(node: Node, value: Any) -> dict[str, Any]:
    _check(isinstance(value, dict), node, value)
    return {each.name: _member(each, value) for each in node.fields}


def _array(node: Node, value: Any) -> list[Any]:
    _check(isinstance(value, list), node, value)
    return [default_of(node.inside, each) for each in value]


def _map(node: Node, value: Any) -> list[tuple[str, Any]]:
    _check(isinstance(value, dict), node, value)
    return [(key, default_of(node.inside, each)) for key, each in value.items()]


def _symbol(node: Node, value: Any) -> Any:
    _check(value in node.symbols, node, value)
    return value


def _check(fits: bool, node: Node, value: Any) -> None:
    if not fits:
        raise SchemaError(f"{str(value)[:50]!r} is not of type {node.name or node.kind}")


def _of_union(node: Node, value: Any) -> Any:
    values = values_of(node)
    for branch in node.branches:
        try:
            made = default_of(branch, value)
        except SchemaError:
            continue
        if branch.kind == "null" or len(values) == 1 or widened(node):
            return made
        return {f"member{place}": made if each is branch else None for place, each in enumerate(values)}
    raise SchemaError(f"{str(value)[:50]!r} fits no branch of a union")


def _member(field: Any, value: dict[str, Any]) -> Any:
    if field.name in value:
        return default_of(field.node, value[field.name])
    _check(field.default is not NO_DEFAULT, field.node, None)
    return default_of(field.node, field.default)


def _bytes(node: Node, value: Any) -> Any:
    """Return the bytes of a JSON text in which each character stands for one byte."""
    _check(isinstance(value, str) and all(ord(each) < 256 for each in value), node, value)
    made = str(value).encode("latin-1")
    _check(node.kind != "fixed" or len(made) == node.size, node, value)
    if node.logical == "decimal":
        return Decimal(int.from_bytes(made, "big", signed=True)).scaleb(-node.scale, EXACT)
    return made


_SIMPLE: Mapping[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": int | float,
    "double": int | float,
    "string": str,
}
_OF_KIND: Mapping[str, Callable[[Node, Any], Any]] = {
    "union": _of_union,
    "record": _record,
    "array": _array,
    "map": _map,
    "enum": _symbol,
    "bytes": _bytes,
    "fixed": _bytes,
}
