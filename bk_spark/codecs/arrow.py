# SPDX-License-Identifier: Apache-2.0
"""Codec ``arrow``: columns of any types, many rows in an entry. An entry is an encapsulated RecordBatch message of
Arrow.

The schema is not in the entry: the log keeps it once, under a number that the extent names (RULES K8). A read has the
columns of the newest schema at the time of its planning; columns that an older extent lacks are null.
:mod:`arrow_schema` has the logs' schemas, :mod:`arrow_rows` reads and :mod:`arrow_entries` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_spark.codecs import arrow_schema, metadata_columns, spark_types
from bk_spark.codecs.arrow_entries import ArrowEntries
from bk_spark.codecs.arrow_rows import NAME, PLANNED_WITH, ArrowRows
from bk_spark.codecs.codec import Codec, LogSchemas


def _default_schema(schemas: LogSchemas, metadata: Mapping[str, str]) -> Any:
    """The columns of the logs' newest schemas together. Raises as :func:`arrow_schema.together`."""
    data = spark_types.spark_schema_of(arrow_schema.together(schemas))
    found = type(data)([*data.fields, *spark_types.struct_of(metadata).fields])
    found.fields[-1].metadata = {PLANNED_WITH: {log: max(numbers, default=0) for log, numbers in schemas.items()}}
    return found


def _check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
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


CODEC = Codec(
    name=NAME,
    keeps_schema=True,
    default_schema=_default_schema,
    reader=ArrowRows.of,
    writer=ArrowEntries.of,
    check_input=_check_input,
)
