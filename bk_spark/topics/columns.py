# SPDX-License-Identifier: Apache-2.0
"""Defines the columns of topics. They are those of the pulsar-spark connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from bk_spark import codecs, compat
from bk_spark.codecs import spark_types
from bk_spark.codecs.read_columns import ReadColumns
from bk_spark.options.options import BkOptions

COLUMNS: Mapping[str, str] = {
    "value": "binary",
    "__key": "binary",
    "__topic": "string",
    "__messageId": "binary",
    "__publishTime": "timestamp",
    "__eventTime": "timestamp",
    "__messageProperties": "map<string,string>",
}
"""The columns of a read that names no columns, with Spark's types."""
MORE: Mapping[str, str] = {"__partition": "int", "__producer": "string", "__sequenceId": "bigint"}
"""The columns that ``includeMetadata`` adds."""
BY_NAME: Mapping[str, str] = {"__orderingKey": "binary", "__schemaVersion": "binary"}
"""Columns that a read has only if it names them."""
VALUE = "value"
ALL: Mapping[str, str] = {**COLUMNS, **MORE, **BY_NAME}


def default_schema(options: BkOptions) -> Any:
    """Return, as a StructType, the columns of a read without ``.schema(…)``. With ``topicSchema`` the driver looks up
    the topics' schemas. Raises InvalidArgumentError if option ``columns`` names other columns, and the errors of
    :func:`bk_spark.topics.schemas.default_columns`."""
    from pyspark.sql.types import StructType

    messages = {name: kind for name, kind in COLUMNS.items() if name != VALUE}
    if options.include_metadata or options.columns is not None:
        messages |= MORE
    if options.columns is not None:
        messages |= BY_NAME
    found = StructType([*_values(options).fields, *spark_types.struct_of(messages).fields])
    return found if options.columns is None else codecs.pruned(found, options.columns)


def _values(options: BkOptions) -> Any:
    """Return the columns of values as a StructType."""
    if options.topics is None or not options.topics.decodes:
        return spark_types.struct_of({VALUE: COLUMNS[VALUE]})
    from bk_spark.topics.schemas import default_columns

    return spark_types.spark_schema_of(pa.schema(list(default_columns(options).items())))


def columns_of(options: BkOptions, spark_schema: Any) -> ReadColumns:
    """Return the columns of a read with the schema ``spark_schema``, a StructType. Raises InvalidArgumentError for
    columns or types that topics do not have. The planning of the read checks the columns that a topic's schema
    makes."""
    codecs.check_named(options, spark_schema)
    data = dict(ALL)
    if options.topics is not None and options.topics.decodes:
        del data[VALUE]
        data = {**{name: kind for name, kind, _ in compat.columns_of(spark_schema) if name not in data}, **data}
    return ReadColumns.of(spark_schema, has_log=True, data=data, metadata={})


def decoded(columns: ReadColumns) -> dict[str, pa.DataType]:
    """Return the columns of a read that a topic's schema must make."""
    return {name: columns.kind(name) for name in columns.data if name == VALUE or name not in ALL}
