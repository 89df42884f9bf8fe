# SPDX-License-Identifier: Apache-2.0
"""Turns rows into entries and entries into rows. Each codec has a module of its own. Reads, writes and streams use only
this module and :mod:`bk_spark.codecs.codec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bk_core.columns.row_origins import LedgerAt
from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.schemas import fields_of
from bk_spark import compat
from bk_spark.codecs import arrow, envelope, json_codec, metadata_columns, raw, spelling
from bk_spark.codecs.codec import Codec, EntryCodec, LogSchemas, Respelled, RowCodec
from bk_spark.codecs.read_columns import ReadColumns

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions

__all__ = [
    "CODECS",
    "EntryCodec",
    "LedgerAt",
    "LogSchemas",
    "RowCodec",
    "check_input",
    "check_named",
    "codec_of",
    "default_schema",
    "entry_codec",
    "keeps_schema",
    "pruned",
    "row_codec",
]

CODECS: Mapping[str, Codec] = {
    codec.name: codec for codec in (raw.CODEC, envelope.CODEC, json_codec.CODEC, arrow.CODEC)
}
"""All codecs by name: the choices of option ``codec``."""
NO_SCHEMAS: LogSchemas = {}


def codec_of(options: BkOptions) -> Codec:
    return CODECS[options.codec]


def keeps_schema(options: BkOptions) -> bool:
    """Return whether the log stores the schema of the codec's rows. If so, the functions here need the schemas of the
    logs."""
    return codec_of(options).keeps_schema


def default_schema(options: BkOptions, schemas: LogSchemas = NO_SCHEMAS) -> Any:
    """Return the columns of a read without ``.schema(…)`` as a StructType: the codec's columns, then the columns that
    say where a row comes from.

    Raises InvalidArgumentError if option ``columns`` names other columns, for JSON, which has no columns of its own,
    and for logs without an Arrow schema. Raises SchemaMismatchError for logs whose schemas conflict.
    """
    _check_selection(options)
    codec = codec_of(options)
    found = codec.default_schema(schemas, codec.metadata if options.include_metadata else metadata_columns.PLACES)
    return found if options.columns is None else pruned(found, options.columns)


def row_codec(options: BkOptions, spark_schema: Any, schemas: LogSchemas = NO_SCHEMAS) -> RowCodec:
    """Return the codec for a read of ``spark_schema``, a StructType. Raises InvalidArgumentError for columns or types
    that the codec does not have."""
    _check_selection(options)
    check_named(options, spark_schema)
    codec, has_log = codec_of(options), not options.reads_ledgers
    stored = {name for of_log in schemas.values() for name in _newest(of_log)} if codec.keeps_schema else None
    columns = ReadColumns.of(spark_schema, has_log=has_log, data=codec.columns, metadata=codec.metadata, stored=stored)
    return codec.reader(columns, spark_schema, schemas, options)


def check_named(options: BkOptions, spark_schema: Any) -> None:
    """Check that option ``columns``, if given, names the columns of a StructType. Raises InvalidArgumentError."""
    if options.columns is not None and _folded(options.columns) != _folded(spark_schema.names):
        raise InvalidArgumentError(
            "option columns and the schema name different columns",
            value=f"columns={','.join(options.columns)}, schema {', '.join(spark_schema.names)}",
            remedy="leave one of the two out",
        )


def entry_codec(options: BkOptions, spark_schema: Any, schemas: LogSchemas = NO_SCHEMAS) -> EntryCodec:
    """Return the codec for a write of ``spark_schema``, a StructType. ``schemas`` has the schemas of the log to write.
    Raises what :func:`check_input` raises, and SchemaMismatchError for columns that do not fit the log's (RULES K8)."""
    check_input(options, spark_schema)
    of_log, codec = schemas.get(options.log or "", {}), codec_of(options)
    newest = of_log[max(of_log)] if of_log else None
    written = _written(options, spark_schema)
    names = spelling.respelled(written.names, _newest(of_log) if codec.keeps_schema else codec.columns or ())
    made = codec.writer(_named(written, names), newest, options)
    return made if names == written.names else Respelled(made, tuple(written.names), tuple(names))


def check_input(options: BkOptions, spark_schema: Any) -> None:
    """Check that a DataFrame of this schema can be written. Raises InvalidArgumentError that names all columns that
    prevent it and, where that helps, prints the ``select`` to paste."""
    codec, written = codec_of(options), _written(options, spark_schema)
    named = _named(written, spelling.respelled(written.names, codec.columns or ()))
    columns = [(name, kind) for name, kind, _ in compat.columns_of(named)]
    codec.check_input(columns, "each log" if options.log is None else f"log {options.log}")


def _written(options: BkOptions, spark_schema: Any) -> Any:
    """Return the columns to write. ``ignoreMetadataColumns`` leaves out the columns that a read adds."""
    if not options.ignore_metadata_columns:
        return spark_schema
    has_any_columns = codec_of(options).columns is None  # then a name in another case may be a data column
    return pruned(
        spark_schema,
        [
            name
            for name in spark_schema.names
            if (name if has_any_columns else name.lower()) not in metadata_columns.RESERVED
        ],
    )


def _named(spark_schema: Any, names: Sequence[str]) -> Any:
    """Return a StructType with its columns renamed to ``names``."""
    from pyspark.sql.types import StructField, StructType

    fields = zip(names, spark_schema.fields, strict=True)
    return StructType([StructField(name, each.dataType, each.nullable, each.metadata) for name, each in fields])


def _newest(schemas: Mapping[int, bytes]) -> list[str]:
    """Return the column names in a log's newest schema."""
    return list(fields_of(schemas[max(schemas)])) if schemas else []


def _folded(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _check_selection(options: BkOptions) -> None:
    if keeps_schema(options) and options.reads_ledgers:
        raise InvalidArgumentError(
            f"codec {options.codec} reads logs: a ledger alone has no schema",
            value=str(options.selection),
            remedy='name its log: .option("log", "events")',
        )


def pruned(spark_schema: Any, names: list[str] | tuple[str, ...]) -> Any:
    """Return the columns of a StructType with these names, in this order. Raises InvalidArgumentError."""
    from pyspark.sql.types import StructType

    fields = {field.name: field for field in spark_schema.fields}
    names = spelling.respelled(names, fields)
    if unknown := [name for name in names if name not in fields]:
        raise InvalidArgumentError(
            "option columns names columns that are not there",
            value=", ".join(unknown),
            remedy=f"choose from {', '.join(fields)}",
        )
    return StructType([fields[name] for name in names])
