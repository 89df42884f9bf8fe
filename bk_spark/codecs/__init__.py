# SPDX-License-Identifier: Apache-2.0
"""How rows become entries and entries become rows, one module a codec.

Reads, writes and streams use what is here and in :mod:`bk_spark.codecs.codec`, and know of no codec by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bk_spark import compat
from bk_spark.codecs import raw
from bk_spark.codecs.codec import EntryCodec, LedgerAt, LogSchemas, RowCodec
from bk_spark.selection import LedgerSelection

if TYPE_CHECKING:
    from bk_spark.options import BkOptions

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
    """Whether the functions here want the schemas of the logs; otherwise nobody need look them up."""
    return options.codec == "arrow"


def default_schema(options: BkOptions, schemas: LogSchemas = NO_SCHEMAS) -> Any:
    """The columns of a read without ``.schema(…)``: DDL text or a StructType."""
    return raw.SCHEMA_DDL


def row_codec(options: BkOptions, spark_schema: Any, schemas: LogSchemas = NO_SCHEMAS) -> RowCodec:
    """The codec of a read of ``spark_schema``, a StructType, checked against what the codec has.

    Raises InvalidArgumentError for columns or types that it does not have.
    """
    has_log = not isinstance(options.selection, LedgerSelection)
    return raw.RawRows.of(compat.columns_of(spark_schema), has_log=has_log)


def entry_codec(options: BkOptions, spark_schema: Any, schemas: LogSchemas = NO_SCHEMAS) -> EntryCodec:
    """The codec of a write of ``spark_schema``, a StructType. Raises as :func:`check_input`."""
    check_input(options, spark_schema)
    return raw.RawEntries()


def check_input(options: BkOptions, spark_schema: Any) -> None:
    """Whether a DataFrame of this schema can be written: raises InvalidArgumentError that names all columns in the way
    and, where that helps, prints the ``select`` to paste."""
    raw.check_input([(name, kind) for name, kind, _ in compat.columns_of(spark_schema)], str(options.log))
