# SPDX-License-Identifier: Apache-2.0
"""Reads with codec ``arrow``: checks which extents a read accepts, and makes rows in the form that Spark wants.
:mod:`bk_core.columns.arrow_rows` decodes the entries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bk_core.columns import arrow_rows
from bk_core.columns.arrow_schema import from_bytes
from bk_core.columns.row_origins import LedgerAt, corrupt
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch, ColumnsWanted
from bk_core.errors import SchemaChangedError, SchemaMismatchError
from bk_spark.codecs import spelling
from bk_spark.codecs.arrow_schema import check_columns, together
from bk_spark.codecs.codec import LogSchemas
from bk_spark.codecs.read_columns import FAIL, GO_ON, NULL, ReadColumns, Written, check_written

if TYPE_CHECKING:
    import numpy.typing as npt

    from bk_spark.options.options import BkOptions

NAME = "arrow"


@lru_cache(maxsize=64)
def _spelled(schema: bytes, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(spelling.respelled(names, from_bytes(schema).names))


PLANNED_WITH = "bookkeeper.schemas"
"""Metadata key of the last column. Its value maps each log to the number of the newest schema that the columns were
made from."""


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The :class:`RowCodec` of codec ``arrow``. ``planned_with`` maps each log to the number of the newest schema that
    Spark's columns were made from."""

    columns: ReadColumns
    planned_with: Mapping[str, int]
    corrupt_entries: str = FAIL

    @classmethod
    def of(cls, columns: ReadColumns, spark_schema: Any, schemas: LogSchemas, options: BkOptions) -> ArrowRows:
        """Return the codec for these columns. Raises SchemaMismatchError for a column that no log has, or that a log
        has with another type. If no log has a schema yet, only :meth:`check` compares the types."""
        if any(schemas.values()):
            check_columns(columns, together(schemas), "no log has this column")
        marks = [mark for each in spark_schema.fields if (mark := (each.metadata or {}).get(PLANNED_WITH))]
        newest = {log: max(numbers, default=0) for log, numbers in schemas.items()}
        return cls(columns, {**newest, **(dict(marks[0]) if marks else {})}, options.corrupt_entries)

    @property
    def reads_values(self) -> bool:
        return True  # only the entry itself tells how many rows it has

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema

    def check(
        self, log: str | None, written: Collection[Written], schemas: Mapping[int, bytes], *, stream: bool = False
    ) -> None:
        """Check that extents can be read, as :meth:`RowCodec.check` describes."""
        check_written(NAME, log, written, (NAME,))
        numbers = {number for _, number in written}
        if unknown := numbers - schemas.keys():
            raise SchemaMismatchError(
                f"log {log} does not have the schema that entries were written with",
                value=f"schema {min(unknown)} of {sorted(schemas)}",
                remedy="this is damage: restore the log's record from a backup",
            )
        if not numbers:
            return
        newest = from_bytes(schemas[max(numbers)])
        check_columns(self.columns, newest, None)
        known = self.planned_with.get(log or "", 0)
        given = {name.lower() for name in self.columns.data}
        is_newer = max(numbers) > known if known else not given.issuperset(name.lower() for name in newest.names)
        if stream and is_newer:
            raise SchemaChangedError(
                f"log {log} has a newer schema than the stream",
                value=f"schema {max(numbers)}, columns {', '.join(newest.names)}",
                remedy="start the query again with its checkpoint: it goes on with the new columns",
            )

    def columns_wanted(self, at: LedgerAt) -> ColumnsWanted | None:
        stored = self._stored(at)
        count = len(stored.shape.buffers) - 1
        return None if len(stored.places) == count else ColumnsWanted(count, tuple(stored.places))

    def rows(
        self, batch: EntryBatch | ColumnBatch | None, entry_ids: npt.NDArray[np.int64], at: LedgerAt
    ) -> Iterator[pa.RecordBatch]:
        assert batch is not None, "the number of rows stands in the entries"
        stored = self._stored(at)
        if isinstance(batch, ColumnBatch):
            entries, lengths = arrow_rows.decoded_parts(batch.directories, batch.parts, stored), batch.entry_lengths()
        else:
            entries, lengths = arrow_rows.decoded(batch, stored), batch.lengths
        kept = self._kept(entries, lengths, entry_ids, at, stored)
        for found in arrow_rows.joined(kept, stored.shown):
            yield self._assembled(found, at)

    def _stored(self, at: LedgerAt) -> arrow_rows.Stored:
        """Return how to read the entries of an extent. Its schema may spell column names in another case."""
        assert at.schema is not None, "the plan carries the schema of each extent"
        return arrow_rows.stored_columns(at.schema, _spelled(at.schema, self.columns.data))

    def _assembled(self, found: arrow_rows.Joined, at: LedgerAt) -> pa.RecordBatch:
        shown, count, columns = found.columns, found.columns.num_rows, self.columns

        def column(name: str) -> pa.Array:
            spelt = spelling.found(name, shown.schema.names)
            return pa.nulls(count, columns.kind(name)) if spelt is None else shown.column(spelt)

        return columns.assemble(column, found.rows, at)

    def _kept(
        self,
        entries: Iterator[tuple[arrow_rows.Found, int]],
        lengths: npt.NDArray[np.uint32],
        entry_ids: npt.NDArray[np.int64],
        at: LedgerAt,
        stored: arrow_rows.Stored,
    ) -> Iterator[arrow_rows.Decoded]:
        """Yield the decoded entries. Treat entries that cannot be decoded, or only in part, as option
        ``corruptEntries`` says."""
        for number, (found, size) in enumerate(entries):
            row_index = None
            if isinstance(found, arrow_rows.BadText):
                if self.corrupt_entries == FAIL:
                    raise corrupt(NAME, found.why, int(entry_ids[number]), at, GO_ON)
                if self.corrupt_entries != NULL:
                    row_index = np.flatnonzero(~found.bad).astype(np.int32)
                    found = found.columns.take(pa.array(row_index))
                else:
                    found = found.columns
            if isinstance(found, Exception):
                if self.corrupt_entries == FAIL:
                    raise corrupt(NAME, str(found), int(entry_ids[number]), at, GO_ON) from found
                if self.corrupt_entries != NULL:
                    continue
                nulls = [pa.nulls(1, field.type) for field in stored.shown]
                without = arrow_rows.without_columns(1)
                found = pa.RecordBatch.from_arrays(nulls, schema=stored.shown) if nulls else without
            yield arrow_rows.Decoded(found, size, int(entry_ids[number]), int(lengths[number]), row_index)
