# SPDX-License-Identifier: Apache-2.0
"""Converts Arrow schemas into the bytes that a log keeps, and back. The bytes are Arrow's JSON form of a schema, in
canonical form (docs/formats.md §7).

Everything is nullable except keys of maps. Names inside lists and maps, and metadata, are not kept, because they
describe how a DataFrame was made and not its contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from bk_core.errors import MetadataCorruptError
from bk_core.logs.model import schemas

_SIMPLE: dict[pa.DataType, dict[str, Any]] = {
    pa.bool_(): {"name": "bool"},
    pa.string(): {"name": "utf8"},
    pa.binary(): {"name": "binary"},
    pa.float32(): {"name": "floatingpoint", "precision": "SINGLE"},
    pa.float64(): {"name": "floatingpoint", "precision": "DOUBLE"},
    pa.date32(): {"name": "date", "unit": "DAY"},
    pa.time64("ns"): {"name": "time", "unit": "NANOSECOND", "bitWidth": 64},
    pa.timestamp("us"): {"name": "timestamp", "unit": "MICROSECOND"},
    pa.timestamp("us", tz="UTC"): {"name": "timestamp", "unit": "MICROSECOND", "timezone": "UTC"},
    pa.duration("us"): {"name": "duration", "unit": "MICROSECOND"},
    **{
        kind: {"name": "int", "bitWidth": kind.bit_width, "isSigned": True}
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
}
_LIST, _STRUCT, _MAP, _DECIMAL = "list", "struct", "map", "decimal"


def to_bytes(schema: pa.Schema) -> bytes:
    """Return the canonical bytes of a schema. A log must be able to keep its types."""
    return schemas.encode([_field(field.name, field.type) for field in schema])


def is_simple(kind: pa.DataType) -> bool:
    """Return whether this type contains no other type, and a log keeps it unchanged."""
    return kind in _SIMPLE


@lru_cache(maxsize=64)
def from_bytes(data: bytes) -> pa.Schema:
    """Return the schema in these bytes, with all fields nullable. Raises MetadataCorruptError for bytes that are not in
    the form of :func:`to_bytes`."""
    try:
        return pa.schema([pa.field(name, _type(field)) for name, field in schemas.fields_of(data).items()])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MetadataCorruptError(
            "cannot read the Arrow schema of a log",
            value=str(error),
            remedy="a newer version wrote it or it is damaged",
        ) from error


def _field(name: str, kind: pa.DataType, *, nullable: bool = True) -> dict[str, Any]:
    children: list[dict[str, Any]] = []
    if kind in _SIMPLE:
        described = _SIMPLE[kind]
    elif pa.types.is_decimal128(kind):
        described = {"name": _DECIMAL, "precision": kind.precision, "scale": kind.scale, "bitWidth": 128}
    elif pa.types.is_struct(kind):
        described = {"name": _STRUCT}
        children = [_field(field.name, field.type) for field in (kind.field(i) for i in range(kind.num_fields))]
    elif pa.types.is_map(kind):
        described = {"name": _MAP, "keysSorted": False}
        inside = [_field("key", kind.key_type, nullable=False), _field("value", kind.item_type)]
        children = [{"name": "entries", "nullable": False, "type": {"name": _STRUCT}, "children": inside}]
    else:
        assert pa.types.is_list(kind), kind
        described = {"name": _LIST}
        children = [_field("element", kind.value_type)]
    return {"name": name, "nullable": nullable, "type": described, "children": children}


def _type(field: Mapping[str, Any]) -> pa.DataType:
    described, children = field["type"], field.get("children", [])
    for kind, known in _SIMPLE.items():
        if described == known:
            return kind
    match described["name"]:
        case "decimal" if described["bitWidth"] == 128:
            return pa.decimal128(described["precision"], described["scale"])
        case "struct":
            return pa.struct([pa.field(child["name"], _type(child)) for child in children])
        case "list":
            (element,) = children
            return pa.list_(pa.field("element", _type(element)))
        case "map":
            ((key, value),) = (entries["children"] for entries in children)
            return pa.map_(pa.field("key", _type(key), nullable=False), pa.field("value", _type(value)))
    raise ValueError(f"no such type: {described}")


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema``, found by name, in its order and its types. Large, view and dictionary types,
    zones, and names inside a type depend on the program that made the rows, so they are replaced by a cast."""
    if rows.schema.equals(schema):
        return rows
    columns = [rows.column(field.name) for field in schema]
    cast = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)
