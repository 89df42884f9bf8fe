# SPDX-License-Identifier: Apache-2.0
"""Codec ``json``: one entry is one JSON object and one row. Reading needs ``.schema(…)``, because JSON has no schema.

Theory. Arrow parses a block of many objects in one call, but does not tell which entry a row came from, nor that one
entry had two objects. So each entry is wrapped in an object of its own, ``{"v":<entry>}``, on a line of its own. If a
line is no such object the whole block ends in an error, because no string may hold a line feed and no structure goes on
after two objects side by side. An entry without an error gives at least one row. So if there are as many rows as
entries, each entry gave one. After an error each entry of the block is checked quickly (:mod:`json_suspects`), and the
rest is halved until the entries with errors are alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane import ENTRY_BYTES_MAX
from bk_spark.codecs import json_suspects, json_text, spark_types
from bk_spark.codecs.codec import Codec, LogSchemas, check_rows
from bk_spark.codecs.read_columns import Decoded, EntryRows, ReadColumns

if TYPE_CHECKING:
    from bk_spark.codecs.read_columns import Mask
    from bk_spark.options.options import BkOptions

NAME = "json"
_ERRORS = (pa.ArrowException, ValueError)


def _reader(columns: ReadColumns, spark_schema: Any, schemas: LogSchemas, options: BkOptions) -> EntryRows:
    """Members without a column are ignored; missing members are null. Reads raw entries too: somebody else may have
    written JSON as bytes. Raises InvalidArgumentError for types without JSON form."""
    _check_types([(name, columns.kind(name)) for name in columns.data], "read")
    return EntryRows(NAME, columns, _decoded, options.corrupt_entries, ("raw",))


def _decoded(batch: EntryBatch, columns: ReadColumns) -> Decoded:
    kind = pa.struct([pa.field(name, columns.kind(name)) for name in columns.data])
    values = batch.to_arrow()
    try:
        return _members(parse(values, kind), columns)
    except _ERRORS:
        bad = json_suspects.implausible(batch.to_list(), kind)
    good = np.flatnonzero(~bad)
    parsed, wrong = _halved(values.take(pa.array(good)), kind)
    bad[good[wrong]] = True
    places = np.cumsum(~bad) - 1
    found = parsed.take(pa.array(places, mask=bad))
    return _members(found, columns, bad, lambda place: _why(values.slice(place, 1), kind))


def _members(
    parsed: pa.Array, columns: ReadColumns, bad: Mask | None = None, why: Callable[[int], str] = str
) -> Decoded:
    return Decoded(lambda name: pc.struct_field(parsed, [columns.data.index(name)]), bad, why)


@dataclass(frozen=True, slots=True)
class JsonEntries:
    """Rows become JSON objects; null members are left out. ``types`` are those of the columns, in order."""

    types: pa.Schema
    entry_bytes_max: int = ENTRY_BYTES_MAX
    schema: bytes | None = None

    @classmethod
    def of(cls, spark_schema: Any, newest: bytes | None, options: BkOptions) -> JsonEntries:
        """For a StructType. Raises InvalidArgumentError for types without a JSON form."""
        schema = spark_types.all_nullable(spark_types.arrow_schema_of(spark_schema))
        _check_types([(field.name, field.type) for field in schema], "write")
        return cls(schema, options.max_entry_bytes or ENTRY_BYTES_MAX)

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        try:
            made = json_text.objects(spark_types.conformed(rows, self.types))
        except json_text.NoText as error:
            raise InvalidArgumentError(
                "a value has no JSON form", value=f"row {first_row + error.row}: {error}", remedy="cast it to STRING"
            ) from error
        check_rows(made, self.entry_bytes_max, first_row)
        yield EntryBatch.from_arrow(made)


def _halved(values: pa.Array, kind: pa.StructType) -> tuple[pa.Array, list[int]]:
    """The entries that are objects, as structs, and the places of those that are not, found by halving."""
    pieces: list[pa.Array] = [pa.nulls(0, kind)]
    wrong: list[int] = []
    todo = [(0, len(values))]
    while todo:
        start, stop = todo.pop()
        try:
            pieces.append(parse(values.slice(start, stop - start), kind))
        except _ERRORS:
            middle = (start + stop) // 2
            if middle > start:
                todo += [(middle, stop), (start, middle)]
            else:
                wrong.append(start)
    return pa.concat_arrays(pieces), wrong


def _why(value: pa.Array, kind: pa.StructType) -> str:
    try:
        parse(value, kind)
    except _ERRORS as error:
        return str(error)
    raise AssertionError("an entry that is JSON was taken for one that is not")


def parse(values: pa.Array, kind: pa.StructType) -> pa.Array:
    """All entries, a binary array, as structs. Raises ArrowInvalid or ValueError if any is no object."""
    if not len(values):
        return pa.nulls(0, kind)
    text = values.cast(pa.string())  # this checks that it is UTF-8, which the parser does not
    wrapped = pc.binary_join_element_wise('{"v":', text, "}\n", "")
    _, offsets, data = wrapped.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)
    block = data.slice(int(ends[wrapped.offset]), int(ends[wrapped.offset + len(wrapped)] - ends[wrapped.offset]))
    table = pj.read_json(
        pa.BufferReader(block),
        read_options=pj.ReadOptions(use_threads=False, block_size=block.size + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([pa.field("v", _parsed_as(kind))]), unexpected_field_behavior="ignore"
        ),
    )
    found = table.column("v").combine_chunks()
    if len(found) != len(values) or found.null_count:
        raise ValueError("not one JSON object")
    return found if found.type == kind else found.cast(kind)


def _check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
    """Raises InvalidArgumentError if a DataFrame of (name, Spark type) cannot be written, as far as the names tell."""
    names = [name for name, _ in columns]
    if not names or len(set(names)) != len(names):
        raise InvalidArgumentError("columns must be given, once each", value=", ".join(names))


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """The type to parse as. Dates are read as text and cast, because the parser takes numbers of days for dates."""
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return pa.struct([field.with_type(_parsed_as(field.type)) for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_parsed_as(kind.value_type)))
    return pa.string() if pa.types.is_date32(kind) else kind


def _check_types(columns: Sequence[tuple[str, pa.DataType]], doing: str) -> None:
    wrong = [f"{name} {kind}" for name, kind in columns if json_text.unwritable(kind)]
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
