# SPDX-License-Identifier: Apache-2.0
"""The columns of a read: those that the codec makes, those that say where the row comes from, and what Spark expects of
both. :class:`EntryRows` reads them if each entry is one row.

``.schema("entry_id BIGINT, value BINARY")`` or option ``columns`` choose columns. Only the chosen columns are made. If
the plan alone determines all of them, no entry is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from bk_core.columns import row_origins as places
from bk_core.columns.row_origins import LedgerAt, corrupt
from bk_core.entries.parts import ColumnBatch
from bk_core.errors import InvalidArgumentError
from bk_spark import compat
from bk_spark.codecs import metadata_columns, spark_types, spelling

if TYPE_CHECKING:
    import numpy.typing as npt

    from bk_core.entries.batch import EntryBatch
    from bk_core.entries.parts import ColumnsWanted

    I64 = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

FAIL, SKIP, NULL = "fail", "skip", "null"
"""The values of ``corruptEntries``."""
GO_ON = "corruptEntries=skip or null goes on, codec=raw shows its bytes"
"""The remedy for an entry that cannot be decoded."""

Written: TypeAlias = tuple[str, int]
"""The codec and schema number of an extent."""


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """The columns of a read. ``schema`` is the schema that Spark compares, with names as the query spells them.
    ``names`` are the same columns as the codec spells them. ``data`` are the columns that the codec makes; all others
    are metadata columns."""

    schema: pa.Schema
    names: tuple[str, ...]
    data: tuple[str, ...]

    @classmethod
    def of(
        cls,
        spark_schema: Any,
        *,
        has_log: bool,
        data: Mapping[str, str] | None,
        metadata: Mapping[str, str],
        stored: Collection[str] | None = None,
    ) -> ReadColumns:
        """Return the columns of a StructType. ``data`` and ``metadata`` map the codec's column names to Spark types. If
        ``data`` is None, any name that is not metadata is data, of any type. ``stored`` are then the names in the logs'
        schemas. If that is None too (codec ``json``), names stay as the query spells them.

        Raises InvalidArgumentError for a column or type that the codec does not have, for a column named twice, and for
        NOT NULL on a column that will be null.
        """
        columns = compat.columns_of(spark_schema)
        names = tuple(name for name, _, _ in columns)
        if data is not None or stored is not None:
            names = tuple(spelling.respelled(names, {**dict.fromkeys(data or stored or ()), **metadata}))
        columns = [(name, kind, nullable) for name, (_, kind, nullable) in zip(names, columns, strict=True)]
        if not names or len(set(names)) != len(names):
            raise InvalidArgumentError(
                "columns must be given, once each",
                value=", ".join(names),
                remedy=f"{ddl({**(data or {}), **metadata})}",
            )
        for name, kind, _ in columns:
            known = {**(data or {}), **metadata}.get(name)
            if known is not None:
                _check_type(name, kind, known)
            elif data is not None:
                choices = ddl({**data, **metadata})
                raise InvalidArgumentError(
                    "no such column", value=f"{name} {kind}", remedy=f'choose from .schema("{choices}")'
                )
        metadata_columns.check_nullable(columns, has_log=has_log)
        made = tuple(name for name in names if name not in metadata)
        return cls(spark_types.arrow_schema_of(spark_schema), names, made)

    @property
    def needs_entries(self) -> bool:
        """Whether a column needs the entries themselves."""
        return bool(self.data) or places.ENTRY_LENGTH in self.names

    def kind(self, name: str) -> pa.DataType:
        """Return the type in which a codec makes a column: without NOT NULL, which :meth:`assemble` checks."""
        return spark_types.nullable(self.schema.field(self.names.index(name)).type)

    def assemble(self, data: Callable[[str], pa.Array], rows: places.Origins, at: LedgerAt) -> pa.RecordBatch:
        """Return the batch for Spark. ``data`` returns a column of the codec by name. Raises InvalidArgumentError for a
        null in or inside a column that was declared NOT NULL, because Spark would crash on it."""
        columns = []
        for name, field in zip(self.names, self.schema, strict=True):
            column = data(name) if name in self.data else places.column(name, rows, at)
            kind = self.kind(name)
            if column.type != kind:
                column = column.cast(kind)
            if not field.nullable and column.null_count:
                raise _not_null(field.name, at)
            try:
                columns.append(spark_types.tightened(column, field.type))
            except ValueError as error:
                raise _not_null(f"{field.name}, in which {error}", at) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _not_null(what: str, at: LedgerAt) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a column that was declared NOT NULL holds nulls",
        value=f"{what}, ledger {at.ledger_id}",
        remedy="declare it nullable",
    )


def ddl(columns: Mapping[str, str]) -> str:
    """Return the columns as text for ``.schema``."""
    return ", ".join(f"{name} {kind.upper()}" for name, kind in columns.items())


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns of some entries, by name. ``bad`` marks the entries that the codec could not decode, whose columns
    are null; it is None if all were decoded. ``why`` returns the reason for the entry at an index."""

    column: Callable[[str], pa.Array]
    bad: Mask | None = None
    why: Callable[[int], str] = str


@dataclass(frozen=True, slots=True)
class EntryRows:
    """The :class:`RowCodec` of a ``codec`` whose entries are one row each. ``decode`` makes the data columns and drops
    no row; it may leave out columns that are not wanted. ``accepted`` names the other codecs whose extents it reads, or
    is None if it reads all."""

    codec: str
    columns: ReadColumns
    decode: Callable[[EntryBatch, ReadColumns], Decoded]
    corrupt_entries: str = FAIL
    accepted: tuple[str, ...] | None = None

    @property
    def reads_values(self) -> bool:
        return self.columns.needs_entries or self.corrupt_entries == SKIP  # skipped rows must not depend on the columns

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema

    def check(
        self, log: str | None, written: Collection[Written], schemas: Mapping[int, bytes], *, stream: bool = False
    ) -> None:
        if self.accepted is not None:
            check_written(self.codec, log, written, (self.codec, *self.accepted))

    def columns_wanted(self, at: LedgerAt) -> ColumnsWanted | None:
        return None

    def rows(self, batch: EntryBatch | ColumnBatch | None, entry_ids: I64, at: LedgerAt) -> Iterator[pa.RecordBatch]:
        """Yield one batch. Entries are not decoded if only their lengths are wanted."""
        assert not isinstance(batch, ColumnBatch), "each entry is one row"
        found = Decoded(_nothing)
        if batch is not None and (self.columns.data or self.corrupt_entries == SKIP):
            found = self.decode(batch, self.columns)
        if found.bad is not None and self.corrupt_entries == FAIL:
            first = int(np.flatnonzero(found.bad)[0])
            raise corrupt(self.codec, found.why(first), int(entry_ids[first]), at, GO_ON)
        rows = places.Rows(entry_ids, None if batch is None else batch.lengths)
        made = self.columns.assemble(found.column, rows, at)
        yield made.filter(pa.array(~found.bad)) if found.bad is not None and self.corrupt_entries == SKIP else made


def _nothing(name: str) -> pa.Array:
    raise AssertionError(f"column {name} is not made without entries")


def check_written(codec: str, log: str | None, written: Collection[Written], accepted: tuple[str, ...]) -> None:
    """Check that all extents were written by an ``accepted`` codec. Raises InvalidArgumentError."""
    others = sorted({name for name, _ in written if name not in accepted})
    if others:
        wrote = sorted({name for name, _ in written})
        only = f'.option("codec", "{wrote[0]}"), or raw for the bytes'
        raise InvalidArgumentError(
            f"log {log} holds entries of {'another codec' if len(wrote) == 1 else 'several codecs'}",
            value=f"codec={codec}, written with {', '.join(wrote)}",
            remedy=only if len(wrote) == 1 else '.option("codec", "raw") alone reads all of them, as bytes',
        )


def _check_type(name: str, kind: str, known: str) -> None:
    if kind != known:
        cast = f", then CAST({name} AS STRING)" if kind == "string" and known == "binary" else ""
        wanted = f"{name} {known.upper()}"
        raise InvalidArgumentError(
            "a column has another type", value=f"{name} {kind}", remedy=f"declare {wanted}{cast}"
        )
