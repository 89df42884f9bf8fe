# SPDX-License-Identifier: Apache-2.0
"""How rows become entries and entries become rows, one module for each codec. Reads, writes and streams use this module
and :mod:`bk_spark.codecs.codec`, and know no codec by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane import ENTRY_BYTES_MAX
from bk_spark import compat
from bk_spark.codecs import arrow, envelope, json_codec, metadata_columns, raw, spark_types
from bk_spark.codecs.arrow_entries import ENTRY_BYTES_WANTED, ArrowEntries
from bk_spark.codecs.arrow_rows import ArrowRows
from bk_spark.codecs.codec import EntryCodec, LedgerAt, LogSchemas, RowCodec
from bk_spark.options.selection import LedgerSelection, LogSelection

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions

__all__ = [
    "EntryCodec",
    "LedgerAt",
    "LogSchemas",
    "RowCodec",
    "check_input",
    "default_schema",
    "entry_codec",
    "needs_schemas",
    "row_codec",
]

NO_SCHEMAS: Mapping[str, Mapping[int, bytes]] = {}


def needs_schemas(options: BkOptions) -> bool:
    """Whether the functions here need the schemas of the logs."""
    return options.codec == arrow.NAME


def default_schema(options: BkOptions, schemas: LogSchemas = NO_SCHEMAS) -> Any:
    """The columns of a read without ``.schema(…)``, a StructType: the codec's, then those that say where the row comes
    from.

    Raises InvalidArgumentError for ``columns`` that are not among them, for JSON, which has no columns of its own, and
    for logs without an Arrow schema. Raises SchemaMismatchError for logs whose schemas do not go together.
    """
    _check_selection(options)
    match options.codec:
        case arrow.NAME:
            found = arrow.default_schema(schemas, include_metadata=options.include_metadata)
        case json_codec.NAME:
            raise InvalidArgumentError(
                "codec json needs to know the columns",
                value="codec=json",
                remedy='.schema("id BIGINT, name STRING, offset BIGINT"), or codec=raw and from_json',
            )
        case _:
            data = envelope.DATA if options.codec == envelope.NAME else raw.DATA
            more = metadata_columns.MORE if options.include_metadata else {}
            found = spark_types.struct_of({**data, **metadata_columns.PLACES, **more})
    return found if options.columns is None else _pruned(found, options.columns)


def row_codec(options: BkOptions, spark_schema: Any, schemas: LogSchemas = NO_SCHEMAS) -> RowCodec:
    """The codec of a read of ``spark_schema``, a StructType. Raises InvalidArgumentError for columns or types that the
    codec does not have."""
    _check_selection(options)
    if options.columns is not None and list(options.columns) != spark_schema.names:
        raise InvalidArgumentError(
            "option columns and the schema name different columns",
            value=f"columns={','.join(options.columns)}, schema {', '.join(spark_schema.names)}",
            remedy="leave one of the two out",
        )
    has_log, policy = not isinstance(options.selection, LedgerSelection), options.corrupt_entries
    match options.codec:
        case arrow.NAME:
            return ArrowRows.of(spark_schema, schemas, corrupt_entries=policy)
        case json_codec.NAME:
            return json_codec.JsonRows.of(spark_schema, has_log=has_log, corrupt_entries=policy)
        case envelope.NAME:
            return envelope.EnvelopeRows.of(spark_schema, has_log=has_log, corrupt_entries=policy)
    return raw.RawRows.of(spark_schema, has_log=has_log)


def entry_codec(options: BkOptions, spark_schema: Any, schemas: LogSchemas = NO_SCHEMAS) -> EntryCodec:
    """The codec of a write of ``spark_schema``, a StructType. ``schemas`` are those of the one log to write. Raises as
    :func:`check_input`, and SchemaMismatchError for columns that do not fit the log's (RULES K8)."""
    check_input(options, spark_schema)
    columns = _written(options, spark_schema)
    most = options.max_entry_bytes or ENTRY_BYTES_MAX
    match options.codec:
        case arrow.NAME:
            newest = arrow.newest(schemas.get(_target_log(options) or "", {}))
            return ArrowEntries.of(
                columns,
                newest,
                merge=options.merge_schema,
                compression=options.compression,
                entry_bytes_wanted=options.max_entry_bytes or ENTRY_BYTES_WANTED,
                entry_bytes_max=most,
            )
        case json_codec.NAME:
            return json_codec.JsonEntries.of(columns, most)
        case envelope.NAME:
            return envelope.EnvelopeEntries(most)
    return raw.RawEntries(options.null_values, most)


def check_input(options: BkOptions, spark_schema: Any) -> None:
    """Raises InvalidArgumentError if a DataFrame of this schema cannot be written. It names all columns that prevent it
    and, where that helps, prints the ``select`` to paste."""
    columns = [(name, kind) for name, kind, _ in compat.columns_of(_written(options, spark_schema))]
    log = _target_log(options)
    target = "each log" if log is None else f"log {log}"
    checks = {
        arrow.NAME: arrow.check_input,
        json_codec.NAME: json_codec.check_input,
        envelope.NAME: envelope.check_input,
    }
    checks.get(options.codec, raw.check_input)(columns, target)


def _written(options: BkOptions, spark_schema: Any) -> Any:
    """The columns to write. If ``ignoreMetadataColumns`` is set, those that a read adds are left out."""
    if not options.ignore_metadata_columns:
        return spark_schema
    return _pruned(spark_schema, [name for name in spark_schema.names if name not in metadata_columns.RESERVED])


def _target_log(options: BkOptions) -> str | None:
    """The log to write, or None if a column names it."""
    selection = options.selection
    return selection.names[0] if isinstance(selection, LogSelection) and len(selection.names) == 1 else None


def _check_selection(options: BkOptions) -> None:
    if options.codec == arrow.NAME and isinstance(options.selection, LedgerSelection):
        raise InvalidArgumentError(
            "codec arrow reads logs: a ledger alone has no schema",
            value=str(options.selection),
            remedy='name its log: .option("log", "events")',
        )


def _pruned(spark_schema: Any, names: list[str] | tuple[str, ...]) -> Any:
    from pyspark.sql.types import StructType

    fields = {field.name: field for field in spark_schema.fields}
    if unknown := [name for name in names if name not in fields]:
        raise InvalidArgumentError(
            "option columns names columns that are not there",
            value=", ".join(unknown),
            remedy=f"choose from {', '.join(fields)}",
        )
    return StructType([fields[name] for name in names])
