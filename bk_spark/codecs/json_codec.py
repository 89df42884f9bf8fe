# SPDX-License-Identifier: Apache-2.0
"""Codec ``json``: one entry is one JSON object and one row. Reading needs ``.schema(…)``: JSON has no schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns import texts
from bk_core.columns.arrow_schema import conformed
from bk_core.columns.json import rows as json_rows
from bk_core.columns.json import text as json_text
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_spark.codecs import spark_types
from bk_spark.codecs.codec import Codec, LogSchemas, check_rows
from bk_spark.codecs.read_columns import Decoded, EntryRows, ReadColumns

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions

NAME = "json"


def _reader(columns: ReadColumns, spark_schema: Any, schemas: LogSchemas, options: BkOptions) -> EntryRows:
    """Return the reader. It ignores members without a column and reads missing members as null. It accepts raw entries
    too, because another program may have written JSON as bytes. Raises InvalidArgumentError for types without a JSON
    form."""
    _check_types([(name, columns.kind(name)) for name in columns.data], "read")
    return EntryRows(NAME, columns, _decoded, options.corrupt_entries, ("raw",))


def _decoded(batch: EntryBatch, columns: ReadColumns) -> Decoded:
    kind = pa.struct([pa.field(name, columns.kind(name)) for name in columns.data])
    found = json_rows.objects_of(batch, kind)
    return Decoded(lambda name: pc.struct_field(found.structs, [columns.data.index(name)]), found.bad, found.why)


@dataclass(frozen=True, slots=True)
class JsonEntries:
    """Encodes rows as JSON objects and leaves out null members. ``types`` is the schema of the columns, in order."""

    types: pa.Schema
    entry_bytes_max: int = ENTRY_BYTES_MAX
    schema: bytes | None = None

    @classmethod
    def of(cls, spark_schema: Any, newest: bytes | None, options: BkOptions) -> JsonEntries:
        """Return the writer of a StructType. Raises InvalidArgumentError for types without a JSON form."""
        schema = spark_types.all_nullable(spark_types.arrow_schema_of(spark_schema))
        _check_types([(field.name, field.type) for field in schema], "write")
        return cls(schema, options.max_entry_bytes or ENTRY_BYTES_MAX)

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        conforming = conformed(rows, self.types)
        texts.check(conforming, first_row)
        try:
            made = json_text.objects(conforming)
        except json_text.NoText as error:
            raise InvalidArgumentError(
                "a value has no JSON form", value=f"row {first_row + error.row}: {error}", remedy="cast it to STRING"
            ) from error
        check_rows(made, self.entry_bytes_max, first_row)
        yield EntryBatch.from_arrow(made)


def _check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
    """Check that a DataFrame of (name, Spark type) can be written, as far as the names show. Raises
    InvalidArgumentError."""
    names = [name for name, _ in columns]
    if not names or len(set(names)) != len(names):
        raise InvalidArgumentError("columns must be given, once each", value=", ".join(names))


def _check_types(columns: Sequence[tuple[str, pa.DataType]], doing: str) -> None:
    wrong = [f"{name} {spark_types.name_of(kind)}" for name, kind in columns if json_text.unwritable(kind)]
    if wrong:
        raise InvalidArgumentError(
            f"columns have types that codec json cannot {doing}",
            value=", ".join(wrong),
            remedy="codec=raw with from_json or to_json of Spark, base64 for BINARY",
        )


def _default_schema(schemas: LogSchemas, metadata: Mapping[str, str]) -> Any:
    raise InvalidArgumentError(
        "codec json needs to know the columns",
        value="codec=json",
        remedy='.schema("id BIGINT, name STRING, offset BIGINT"), or codec=raw and from_json',
    )


CODEC = Codec(
    name=NAME, default_schema=_default_schema, reader=_reader, writer=JsonEntries.of, check_input=_check_input
)
