# SPDX-License-Identifier: Apache-2.0
"""Spark's types as Arrow's and back, as the running pyspark maps them (facts: spark.md §4)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from bk_core.errors import InvalidArgumentError

UTC = "UTC"
NOT_DATA = ("variant", "geometry", "geography", "void", "calendarinterval")
"""Spark types that have no Arrow type of their own, or one that says less."""


def arrow_schema_of(spark_schema: Any) -> pa.Schema:
    """The Arrow schema that Spark compares the first batch with: order, types and nullability, no metadata.

    Raises InvalidArgumentError that names every column whose type has no Arrow form, and those with NOT NULL inside a
    type, which no codec can promise.
    """
    unknown = [
        f"{field.name} {field.dataType.simpleString()}" for field in spark_schema.fields if not is_data(field.dataType)
    ]
    if unknown:
        raise InvalidArgumentError(
            "columns have types that Arrow does not have", value=", ".join(unknown), remedy="cast them to STRING"
        )
    schema = pa.schema([pa.field(f.name, arrow_type_of(f.dataType), nullable=f.nullable) for f in spark_schema.fields])
    strict = [f"{field.name} {field.type}" for field in schema if field.type != nullable(field.type)]
    if strict:
        raise InvalidArgumentError(
            "a column has NOT NULL inside its type", value=", ".join(strict), remedy="declare its parts nullable"
        )
    return schema


def is_data(kind: Any) -> bool:
    """Whether a Spark type can be held in Arrow columns without losing what it is."""
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
    """The Arrow type of a Spark type; timestamps are microseconds, with zone in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    zone = {"timezone": UTC} if "timezone" in inspect.signature(to_arrow_type).parameters else {"timestamp_utc": True}
    return to_arrow_type(kind, **zone)


def struct_of(columns: Mapping[str, str]) -> Any:
    """A StructType of nullable columns, from names and the types that fixed columns have."""
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
    }
    return types.StructType([types.StructField(name, simple[kind]) for name, kind in columns.items()])


def spark_schema_of(schema: pa.Schema) -> Any:
    """The StructType of an Arrow schema; timestamps without zone stay without."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True), field.nullable)
            for field in schema
        ]
    )


def all_nullable(spark_schema: Any) -> Any:
    """The same columns with no NOT NULL anywhere: that one DataFrame holds no nulls says nothing of the next."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _nullable(field.dataType), True) for field in spark_schema.fields])


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, by name and in its order and types: large, view and dictionary types, zones and names
    inside a type are Spark's settings and not data."""
    columns = [rows.column(field.name) for field in schema]
    cast = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _nullable(kind: Any) -> Any:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return all_nullable(kind)
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, types.MapType):
        return types.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def nullable(kind: pa.DataType) -> pa.DataType:
    """The same type with everything inside nullable, but keys of maps."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, nullable(f.type)) for f in (kind.field(i) for i in range(kind.num_fields))])
    if pa.types.is_map(kind):
        key = pa.field("key", nullable(kind.key_type), nullable=False)
        return pa.map_(key, pa.field("value", nullable(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable(kind.value_type)))
    return kind
