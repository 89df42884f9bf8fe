# SPDX-License-Identifier: Apache-2.0
"""Arrow schemas as the bytes that a log keeps, and back: Arrow's own JSON form, canonical (docs/formats.md §7). Also
those of several logs together, and whether columns fit them.

Everything is nullable except keys of maps. Names inside lists and maps and metadata are not kept: they tell how a
DataFrame was made and not what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bk_core.errors import InvalidArgumentError, MetadataCorruptError, SchemaMismatchError
from bk_core.logs.model import schemas

if TYPE_CHECKING:
    from bk_spark.codecs.codec import LogSchemas
    from bk_spark.codecs.read_columns import ReadColumns

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
    """The canonical bytes of a schema of Spark's types (:func:`bk_spark.codecs.spark_types.arrow_schema_of`)."""
    return schemas.encode([_field(field.name, field.type) for field in schema])


@lru_cache(maxsize=64)
def from_bytes(data: bytes) -> pa.Schema:
    """The schema of these bytes, all nullable. Raises MetadataCorruptError for bytes that :func:`to_bytes` does not
    make."""
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


def together(logs: LogSchemas) -> pa.Schema:
    """The columns of the logs' newest schemas. Raises InvalidArgumentError if no log has a schema, SchemaMismatchError
    if they do not go together."""
    found: pa.Schema | None = None
    for log in sorted(logs):
        if not logs[log]:
            continue
        mine = from_bytes(logs[log][max(logs[log])])
        if found is None:
            found = mine
        wrong = [f"{f.name} {f.type} and {found.field(f.name).type}" for f in mine if _differs(f, found)]
        if wrong:
            raise SchemaMismatchError(
                f"log {log} has columns of other types than the logs before it",
                value=", ".join(wrong),
                remedy="read the logs one by one and cast",
            )
        found = pa.schema([*found, *(f for f in mine if f.name not in found.names)])
    if found is None:
        raise InvalidArgumentError(
            "nothing was written with codec arrow yet, so there are no columns",
            value=", ".join(sorted(logs)) or "no log",
            remedy='write first, or read the bytes: .option("codec", "raw")',
        )
    return found


def _differs(column: pa.Field, schema: pa.Schema) -> bool:
    return column.name in schema.names and schema.field(column.name).type != column.type


def check_columns(columns: ReadColumns, stored: pa.Schema, missing: str | None) -> None:
    """Raises SchemaMismatchError for a data column that ``stored`` has with another type or, if ``missing`` (the
    message) is given, does not have."""
    problems = []
    for name in columns.data:
        kind = columns.kind(name)
        if name not in stored.names:
            problems += [f"{name}: {missing}"] if missing else []
        elif stored.field(name).type != kind:
            problems.append(f"{name} is {stored.field(name).type}, asked for as {kind}")
    if problems:
        raise SchemaMismatchError(
            "the columns are not those of the log",
            value=", ".join(problems),
            remedy=f"leave .schema(…) out, or choose from {', '.join(stored.names)}",
        )
