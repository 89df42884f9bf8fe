# SPDX-License-Identifier: Apache-2.0
"""Codec ``arrow``: columns of any types, many rows in an entry. An entry is an encapsulated RecordBatch message of
Arrow.

The schema is not in the entry: the log keeps it once, under a number that the extent names (RULES K8). A read has the
columns of the newest schema at the time of its planning; columns that an older extent lacks are null.
:mod:`arrow_schema` has the logs' schemas, :mod:`arrow_rows` reads and :mod:`bk_core.columns.arrow_entries` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bk_core.columns.arrow_entries import ENTRY_BYTES_WANTED, ArrowEntries
from bk_core.columns.arrow_schema import to_bytes
from bk_core.columns.writable import check_names
from bk_core.logs.model import schemas as log_schemas
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_spark.codecs import arrow_schema, metadata_columns, spark_types
from bk_spark.codecs.arrow_rows import NAME, PLANNED_WITH, ArrowRows
from bk_spark.codecs.codec import Codec, LogSchemas

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions


def _default_schema(schemas: LogSchemas, metadata: Mapping[str, str]) -> Any:
    """Return the merged columns of the logs' newest schemas, then the metadata columns. Raises what
    :func:`arrow_schema.together` raises."""
    data = spark_types.spark_schema_of(arrow_schema.together(schemas))
    found = type(data)([*data.fields, *spark_types.struct_of(metadata).fields])
    found.fields[-1].metadata = {PLANNED_WITH: {log: max(numbers, default=0) for log, numbers in schemas.items()}}
    return found


def _check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
    """Check that a DataFrame of (name, Spark type) can be written, as far as the names show. Raises
    InvalidArgumentError."""
    names = [name for name, _ in columns]
    taken = [name for name in names if name in metadata_columns.RESERVED]
    remedy = (
        f"rename them, or leave them out: df.drop({', '.join(map(repr, taken))}) or "
        'option("ignoreMetadataColumns", "true")'
    )
    check_names(names, target, remedy=remedy)


def _writer(spark_schema: Any, newest: bytes | None, options: BkOptions) -> ArrowEntries:
    """Return the writer of a StructType to a log whose newest schema is ``newest``. Raises SchemaMismatchError for
    columns that do not fit that schema, and InvalidArgumentError for types that Arrow cannot represent in full."""
    spark_types.check_kept(spark_schema)
    wanted = to_bytes(spark_types.arrow_schema_of(spark_schema))
    return ArrowEntries(
        log_schemas.merged(newest, wanted, options.merge_schema, named=spark_types.name_of_field),
        options.compression,
        options.max_entry_bytes or ENTRY_BYTES_WANTED,
        options.max_entry_bytes or ENTRY_BYTES_MAX,
    )


CODEC = Codec(
    name=NAME,
    keeps_schema=True,
    default_schema=_default_schema,
    reader=ArrowRows.of,
    writer=_writer,
    check_input=_check_input,
)
