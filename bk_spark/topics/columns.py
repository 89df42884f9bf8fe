# SPDX-License-Identifier: Apache-2.0
"""The columns of topics, which are those of the pulsar-spark connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bk_spark import codecs
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
"""The columns of a read that does not choose, with Spark's types."""
MORE: Mapping[str, str] = {"__partition": "int", "__producer": "string", "__sequenceId": "bigint"}
"""The columns that ``includeMetadata`` adds."""
BY_NAME: Mapping[str, str] = {"__orderingKey": "binary", "__schemaVersion": "binary"}
"""Columns that a read has only if it names them."""
ALL: Mapping[str, str] = {**COLUMNS, **MORE, **BY_NAME}


def default_schema(options: BkOptions) -> Any:
    """Return the columns of a read without ``.schema(…)`` as a StructType. Raises InvalidArgumentError if option
    ``columns`` names others."""
    if options.columns is not None:
        return codecs.pruned(spark_types.struct_of(ALL), options.columns)
    return spark_types.struct_of({**COLUMNS, **MORE} if options.include_metadata else COLUMNS)


def columns_of(options: BkOptions, spark_schema: Any) -> ReadColumns:
    """Return the columns of a read of ``spark_schema``, a StructType. Raises InvalidArgumentError for columns or types
    that topics do not have."""
    codecs.check_named(options, spark_schema)
    return ReadColumns.of(spark_schema, has_log=True, data=ALL, metadata={})
