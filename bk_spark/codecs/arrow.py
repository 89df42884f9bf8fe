# SPDX-License-Identifier: Apache-2.0
"""Codec ``arrow``: columns of any types, many rows in an entry. An entry is an encapsulated RecordBatch message of
Arrow.

The schema is not in the entry: the log keeps it once, under a number that the extent names (RULES K8). A read has the
columns of the newest schema at the time of its planning; columns that an older extent lacks are null. This module
derives the columns of a read or write from the logs' schemas; :mod:`arrow_rows` reads and :mod:`arrow_entries` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from bk_core.errors import InvalidArgumentError, SchemaMismatchError
from bk_spark.codecs import arrow_schema, metadata_columns, spark_types
from bk_spark.codecs.codec import LogSchemas
from bk_spark.codecs.read_columns import ReadColumns

NAME = "arrow"
METADATA = {**metadata_columns.PLACES, **metadata_columns.MORE, **metadata_columns.ROW_INDEX}
PLANNED_WITH = "bookkeeper.schemas"
"""Metadata key of the last column: for each log the number of the newest schema that the columns were made of."""


def newest(schemas: Mapping[int, bytes]) -> bytes | None:
    """The newest of a log's schemas, or None."""
    return schemas[max(schemas)] if schemas else None


def default_schema(schemas: LogSchemas, *, include_metadata: bool = False) -> Any:
    """The columns of the logs' newest schemas together, and those that say where rows come from, as a StructType.
    Raises InvalidArgumentError if no log has a schema, SchemaMismatchError if they do not go together."""
    data = spark_types.spark_schema_of(together(schemas))
    more = {**metadata_columns.MORE, **metadata_columns.ROW_INDEX} if include_metadata else {}
    found = type(data)([*data.fields, *spark_types.struct_of({**metadata_columns.PLACES, **more}).fields])
    found.fields[-1].metadata = {PLANNED_WITH: {log: max(numbers, default=0) for log, numbers in schemas.items()}}
    return found


def check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
    """Raises InvalidArgumentError if a DataFrame of (name, Spark type) cannot be written, as far as the names tell."""
    names = [name for name, _ in columns]
    folded = [name.lower() for name in names]
    if wrong := [name for name in names if name in metadata_columns.RESERVED]:
        raise InvalidArgumentError(
            f"columns of {target} have names of columns that a read adds",
            value=", ".join(wrong),
            remedy=f"rename them, or leave them out: df.drop({', '.join(repr(name) for name in wrong)}) or "
            'option("ignoreMetadataColumns", "true")',
        )
    if not names or len(set(folded)) != len(names):
        raise InvalidArgumentError(
            "columns must be given, once each; case does not tell them apart", value=", ".join(names)
        )


def together(schemas: LogSchemas) -> pa.Schema:
    found: pa.Schema | None = None
    for log in sorted(schemas):
        if (data := newest(schemas[log])) is None:
            continue
        mine = arrow_schema.from_bytes(data)
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
            value=", ".join(sorted(schemas)) or "no log",
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
