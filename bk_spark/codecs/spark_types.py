# SPDX-License-Identifier: Apache-2.0
"""Converts Spark's types to Arrow's and back, as the installed pyspark maps them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns import arrow_schema
from bk_core.errors import InvalidArgumentError
from bk_core.logs.model import schemas

UTC = "UTC"
CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The key in a string column's metadata by which Spark notes that a table declares it CHAR or VARCHAR."""
NOT_DATA = ("variant", "geometry", "geography", "void", "calendarinterval")
"""Spark types that have no Arrow type of their own, or one that loses information."""


def arrow_schema_of(spark_schema: Any) -> pa.Schema:
    """Return the Arrow schema that Spark compares the first batch with: order, types and nullability, no metadata.
    Raises InvalidArgumentError that names every column whose type has no Arrow form."""
    unknown = [
        f"{field.name} {field.dataType.simpleString()}" for field in spark_schema.fields if not is_data(field.dataType)
    ]
    if unknown:
        raise InvalidArgumentError(
            "columns have types that Arrow does not have", value=", ".join(unknown), remedy="cast them to STRING"
        )
    return pa.schema([pa.field(f.name, arrow_type_of(f.dataType), nullable=f.nullable) for f in spark_schema.fields])


def check_kept(spark_schema: Any) -> None:
    """Check that no column's type has attributes that Arrow cannot express: the log's schema would lose them, and a
    read would return another type than was written. Raises InvalidArgumentError that names every such column and the
    type to cast it to."""
    casts, wrong = list[str](), list[str]()
    for field in spark_schema.fields:
        declared = (field.metadata or {}).get(CHAR_TYPE)  # the column's type does not show this
        kept = _kept(field.dataType)
        if declared is not None or kept != field.dataType:
            wrong.append(f"{field.name} {declared or field.dataType.simpleString()}")
            casts.append(f"CAST(`{field.name}` AS {kept.simpleString().upper()})")
    if wrong:
        raise InvalidArgumentError(
            "columns have attributes of their types that codec arrow does not keep",
            value=", ".join(wrong),
            remedy=f"cast them: {', '.join(casts)}",
        )


def _kept(kind: Any) -> Any:
    """Return the type that a read gives for a column written with this type."""
    from pyspark.sql import types

    match kind:
        case types.StructType():
            return types.StructType([types.StructField(f.name, _kept(f.dataType), f.nullable) for f in kind.fields])
        case types.ArrayType():
            return types.ArrayType(_kept(kind.elementType), kind.containsNull)
        case types.MapType():
            return types.MapType(_kept(kind.keyType), _kept(kind.valueType), kind.valueContainsNull)
        case types.StringType() | types.CharType() | types.VarcharType():
            return types.StringType()
        case types.DayTimeIntervalType():
            return types.DayTimeIntervalType()
    return type(kind)() if kind.typeName() == "time" else kind


def is_data(kind: Any) -> bool:
    """Return whether Arrow columns can hold values of a Spark type without loss."""
    from pyspark.sql import types

    if isinstance(kind, types.UserDefinedType) or kind.typeName() in NOT_DATA:
        return False
    if isinstance(kind, types.YearMonthIntervalType):
        return False
    return all(is_data(part) for part in _parts(kind))


def _parts(kind: Any) -> Iterator[Any]:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        yield from (field.dataType for field in kind.fields)
    elif isinstance(kind, types.ArrayType):
        yield kind.elementType
    elif isinstance(kind, types.MapType):
        yield from (kind.keyType, kind.valueType)


def arrow_type_of(kind: Any) -> pa.DataType:
    """Return the Arrow type of a Spark type. Timestamps are in microseconds; those with a zone are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    zone = {"timezone": UTC} if "timezone" in inspect.signature(to_arrow_type).parameters else {"timestamp_utc": True}
    return to_arrow_type(kind, **zone)


def struct_of(columns: Mapping[str, str]) -> Any:
    """Return a StructType of nullable columns, from their names and Spark types. It knows only the types of fixed and
    of metadata columns."""
    from pyspark.sql import types

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    simple = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "bigint": types.LongType(),
        "int": types.IntegerType(),
        "boolean": types.BooleanType(),
        "timestamp": types.TimestampType(),
        "array<struct<key:string,value:binary>>": types.ArrayType(header),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    return types.StructType([types.StructField(name, simple[kind]) for name, kind in columns.items()])


def spark_schema_of(schema: pa.Schema) -> Any:
    """Return the StructType of an Arrow schema. Timestamps without a zone stay without one."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True), field.nullable)
            for field in schema
        ]
    )


def name_of(kind: pa.DataType) -> str:
    """Return Spark's name of a type for messages, or Arrow's name if Spark has none."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        return str(from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString())
    except PySparkException:
        return str(kind)


def name_of_field(field: Mapping[str, Any]) -> str:
    """Return the name of a field's type, as :func:`name_of` does. ``field`` is part of a log's schema, in Arrow's JSON
    form."""
    return name_of(arrow_schema.from_bytes(schemas.encode([dict(field)])).field(0).type)


def tightened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``column`` with the type ``kind``, which differs from its type only in NOT NULL inside. Raises ValueError
    for a null where ``kind`` has NOT NULL."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        parts = []
        for place, field in enumerate(kind):
            part = column.field(place)
            if not field.nullable and pc.any(pc.and_(column.is_valid(), part.is_null())).as_py():
                raise ValueError(f"{field.name} is null")
            parts.append(tightened(part, field.type))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if pa.types.is_map(kind):
        inside = (column.keys, kind.key_field), (column.items, kind.item_field)
        fields = [field for _, field in inside]
        child = pa.StructArray.from_arrays([_part(column, part, field) for part, field in inside], fields=fields)
    else:
        child = _part(column, column.values, kind.value_field)
    buffers = column.buffers()[:2]
    return pa.Array.from_buffers(kind, len(column), buffers, offset=column.offset, children=[child])


def _part(column: pa.Array, inside: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values inside a list or map, tightened. Nulls count only among the values that the column uses, which
    are a part of them if it is a slice."""
    if not field.nullable and len(column):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        if inside.slice(first, last - first).null_count:
            raise ValueError(f"{field.name} is null")
    return tightened(inside, field.type)


def all_nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every column nullable, because the next DataFrame may hold nulls even if this one does
    not."""
    return pa.schema([pa.field(field.name, nullable(field.type)) for field in schema])


def nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with everything inside nullable, except keys of maps."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, nullable(f.type)) for f in (kind.field(i) for i in range(kind.num_fields))])
    if pa.types.is_map(kind):
        key = pa.field("key", nullable(kind.key_type), nullable=False)
        return pa.map_(key, pa.field("value", nullable(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable(kind.value_type)))
    return kind
