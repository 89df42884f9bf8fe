# SPDX-License-Identifier: Apache-2.0
"""Parses Avro schemas, which are JSON, into trees of nodes, and maps them to Arrow types.

A schema comes from a producer, so its size is limited before anything is built from it. A schema that contains itself
is refused, because no Arrow type can hold its values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context
from typing import Any

import pyarrow as pa

from bk_core.pulsar.messages.rows import VALUE

NODES_MAX = 5000
"""The maximum number of types in a schema. A reference to a named type counts as all types inside that type."""
DEPTH_MAX = 64
"""The maximum depth to which types are nested."""
BYTES_MAX = 4 << 20
"""The maximum size of the text of a schema, in bytes."""
DECIMAL_PRECISION_MAX = 38
"""The maximum precision of Arrow's decimal128 and of Spark's decimals."""
EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""The context in which Python shifts decimals. Its default context would round them to 28 digits."""
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NO_DEFAULT: Any = object()
"""The ``default`` of a field without a default."""


class SchemaError(ValueError):
    """The error for a schema that is invalid, or that cannot become columns."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record type."""

    name: str
    node: Node
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A type of an Avro schema. ``kind`` is Avro's name of the type. ``logical`` is its logical type, or empty. As Avro
    prescribes, an unknown or invalid logical type is ignored. ``branches`` has the types of a union, or the one item
    type of an array or a map. ``count`` is the number of types in the tree below this type, itself included."""

    kind: str
    logical: str = ""
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    branches: tuple[Node, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size: int = 0
    precision: int = 0
    scale: int = 0
    count: int = 1

    @property
    def local_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def inside(self) -> Node:
        """The type of an array's items, or of a map's values."""
        return self.branches[0]

    @property
    def has_no_bytes(self) -> bool:
        """Whether every value has an empty encoding."""
        if self.kind == "record":
            return all(each.node.has_no_bytes for each in self.fields)
        return self.kind == "null" or (self.kind == "fixed" and self.size == 0)


def parse(text: bytes) -> Node:
    """Return the tree of a schema, given as JSON. Raises SchemaError for a text that is not a schema, is recursive, or
    is too large."""
    if len(text) > BYTES_MAX:
        raise SchemaError(f"it has {len(text)} bytes, more than {BYTES_MAX}")
    try:
        return _Parser().node(json.loads(text), "", 0)
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"it is not an Avro schema: {str(error)[:200]}") from error


@dataclass(slots=True)
class _Parser:
    """Parses one schema. ``named`` has the named types by full name. The value is None while the type is being
    parsed."""

    named: dict[str, Node | None] = field(default_factory=dict)

    def node(self, data: Any, space: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise SchemaError(f"its types are nested more than {DEPTH_MAX} deep")
        found = self._made(data, space, depth)
        if found.count > NODES_MAX:
            raise SchemaError(f"it has more than {NODES_MAX} types")
        return found

    def _made(self, data: Any, space: str, depth: int) -> Node:
        if isinstance(data, str):
            return Node(data) if data in PRIMITIVES else self._reference(data, space)
        if isinstance(data, list):
            return self._union(data, space, depth)
        if not isinstance(data, Mapping):
            raise SchemaError(f"{str(data)[:50]!r} is not a type")
        kind = data.get("type")
        if isinstance(kind, list | Mapping):
            return self.node(kind, space, depth + 1)
        if kind in PRIMITIVES:
            return _logical(Node(str(kind)), data)
        made = {
            "record": self._record,
            "error": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
            "array": self._array_or_map,
            "map": self._array_or_map,
        }.get(str(kind))
        return self._reference(str(kind), space) if made is None else made(data, space, depth)

    def _array_or_map(self, data: Mapping[str, Any], space: str, depth: int) -> Node:
        is_array = data["type"] == "array"
        inside = self.node(data["items" if is_array else "values"], space, depth + 1)
        if is_array and inside.has_no_bytes:
            raise SchemaError("its arrays have items without bytes, so a few bytes may claim any number")
        return Node(str(data["type"]), branches=(inside,), count=1 + inside.count)

    def _reference(self, name: str, space: str) -> Node:
        for full in (_full(name, space), name):
            if full in self.named:
                found = self.named[full]
                if found is None:
                    raise SchemaError(f"type {full} contains itself, which columns cannot hold")
                return found
        raise SchemaError(f"there is no type {name[:100]!r}")

    def _union(self, data: list[Any], space: str, depth: int) -> Node:
        branches = tuple(self.node(each, space, depth + 1) for each in data)
        if not branches or any(each.kind == "union" for each in branches):
            raise SchemaError("a union has no types, or contains a union")
        return Node("union", branches=branches, count=1 + sum(each.count for each in branches))

    def _record(self, data: Mapping[str, Any], space: str, depth: int) -> Node:
        name, inner, aliases = self._begin(data, space)
        fields = tuple(self._field(each, inner, depth) for each in data["fields"])
        if len({each.name for each in fields}) != len(fields):
            raise SchemaError(f"record {name} has two fields of one name")
        count = 1 + sum(each.node.count for each in fields)
        return self._end(Node("record", name=name, aliases=aliases, fields=fields, count=count))

    def _field(self, data: Mapping[str, Any], space: str, depth: int) -> Field:
        node, aliases = self.node(data["type"], space, depth + 1), tuple(map(str, data.get("aliases") or ()))
        return Field(_text(data["name"]), node, data.get("default", NO_DEFAULT), aliases)

    def _enum(self, data: Mapping[str, Any], space: str, depth: int) -> Node:
        name, _, aliases = self._begin(data, space)
        symbols, default = tuple(map(_text, data["symbols"])), data.get("default")
        if default is not None and default not in symbols:
            raise SchemaError(f"the default of enum {name} is not one of its symbols")
        return self._end(Node("enum", name=name, aliases=aliases, symbols=symbols, default=default))

    def _fixed(self, data: Mapping[str, Any], space: str, depth: int) -> Node:
        name, _, aliases = self._begin(data, space)
        size = data["size"]
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
            raise SchemaError(f"fixed {name} has an impossible size")
        return self._end(_logical(Node("fixed", name=name, aliases=aliases, size=size), data))

    def _begin(self, data: Mapping[str, Any], space: str) -> tuple[str, str, tuple[str, ...]]:
        """Return the full name of a named type, the namespace that applies inside it, and its aliases in full."""
        given = data.get("namespace")
        name = _full(str(data["name"]), space if given is None else str(given))
        if name in self.named:
            raise SchemaError(f"type {name} is defined twice")
        self.named[name], inner = None, name.rpartition(".")[0]
        return name, inner, tuple(_full(str(each), inner) for each in data.get("aliases") or ())

    def _end(self, node: Node) -> Node:
        self.named[node.name] = node
        return node


def _text(data: object) -> str:
    """Return a name that Arrow takes. Raises ValueError for a name with a lone surrogate, which JSON can hold."""
    text = str(data)
    text.encode()
    return text


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


_LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
}
"""The logical types of numbers, and the type with which each of them is valid."""


def _logical(node: Node, data: Mapping[str, Any]) -> Node:
    """Return the node with the logical type that ``data`` names. Return the node unchanged if that type is unknown or
    does not fit."""
    logical = data.get("logicalType")
    if logical == "decimal" and node.kind in ("bytes", "fixed"):
        return _decimal(node, data.get("precision"), data.get("scale", 0))
    return replace(node, logical=str(logical)) if _LOGICAL.get(str(logical)) == node.kind else node


def _decimal(node: Node, precision: Any, scale: Any) -> Node:
    if not (isinstance(precision, int) and isinstance(scale, int)):
        return node
    is_valid = 0 <= scale <= precision and 0 < precision <= DECIMAL_PRECISION_MAX
    return replace(node, logical="decimal", precision=precision, scale=scale) if is_valid else node


_SIMPLE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_OF_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    **{
        f"{where}timestamp-{name}": pa.timestamp(unit, zone)
        for where, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}


_MS_MAX = (1 << 63) // 1000 - 1
LIMITS = {
    "time-millis": (0, 86_400_000 - 1),
    "time-micros": (0, 86_400_000_000 - 1),
    "timestamp-millis": (-_MS_MAX, _MS_MAX),
    "local-timestamp-millis": (-_MS_MAX, _MS_MAX),
}
"""The least and the greatest number of each logical type that does not allow all numbers. Spark keeps timestamps in
microseconds, so a timestamp in milliseconds must also fit into 64 bits as microseconds."""


def arrow_type(node: Node) -> pa.DataType:
    """Return the Arrow type of a node's values. All types inside are nullable, except the keys of maps."""
    if node.logical == "decimal":
        return pa.decimal128(node.precision, node.scale)
    if node.logical:
        return _OF_LOGICAL[node.logical]
    match node.kind:
        case "record":
            return pa.struct([pa.field(each.name, arrow_type(each.node)) for each in node.fields])
        case "array":
            return pa.list_(arrow_type(node.inside))
        case "map":
            return pa.map_(pa.string(), arrow_type(node.inside))
        case "union":
            return union_type(node)
    return _SIMPLE[node.kind]


def columns_of(schema: Node) -> Mapping[str, pa.DataType]:
    """Return the columns of a schema's values. They are the fields of a record, or else the one column ``value``."""
    if schema.kind == "record":
        return {each.name: arrow_type(each.node) for each in schema.fields}
    return {VALUE: arrow_type(schema)}


def values_of(union: Node) -> list[Node]:
    """Return the branches of a union, except null."""
    return [each for each in union.branches if each.kind != "null"]


def widened(union: Node) -> str:
    """Return ``long`` for a union of int and long, ``double`` for a union of float and double, and an empty text for
    others."""
    kinds = sorted(each.logical or each.kind for each in values_of(union))
    return "long" if kinds == ["int", "long"] else "double" if kinds == ["double", "float"] else ""


def union_type(node: Node) -> pa.DataType:
    """Return the Arrow type of a union. A union of null and one branch has the type of that branch. A union of several
    branches is a struct with a member for each, ``member0`` and so on, as in Spark's Avro reader and pulsar-spark."""
    values = values_of(node)
    if not values:
        return pa.null()
    if len(values) == 1:
        return arrow_type(values[0])
    if kind := widened(node):
        return _SIMPLE[kind]
    return pa.struct([pa.field(f"member{place}", arrow_type(each)) for place, each in enumerate(values)])
