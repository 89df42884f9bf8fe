# SPDX-License-Identifier: Apache-2.0
"""Codec ``arrow``, reading: record batches to rows, only the columns that are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from bk_core.entries.batch import EntryBatch
from bk_core.errors import SchemaChangedError, SchemaMismatchError
from bk_spark.codecs import arrow_message, arrow_schema, metadata_columns
from bk_spark.codecs.arrow import METADATA, NAME, PLANNED_WITH, check_columns, together
from bk_spark.codecs.codec import LedgerAt, LogSchemas, Written
from bk_spark.codecs.read_columns import FAIL, NULL, ReadColumns, check_written, corrupt

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS_AT_ONCE, BYTES_AT_ONCE = 10_000, 4 << 20
"""Rows of small entries are joined up to this."""


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Record batches to rows. ``planned_with`` is the newest schema number of each log that Spark's columns show."""

    columns: ReadColumns
    planned_with: Mapping[str, int]
    corrupt_entries: str = FAIL

    @classmethod
    def of(cls, spark_schema: Any, schemas: LogSchemas, *, corrupt_entries: str = FAIL) -> ArrowRows:
        """For a StructType. Raises InvalidArgumentError as :meth:`ReadColumns.of`, and SchemaMismatchError for columns
        that no log has, or has with another type; where none has a schema yet that is left to :meth:`check`."""
        columns = ReadColumns.of(spark_schema, has_log=True, data=None, metadata=METADATA)
        if any(schemas.values()):
            check_columns(columns, together(schemas), "no log has this column")
        marks = [mark for each in spark_schema.fields if (mark := (each.metadata or {}).get(PLANNED_WITH))]
        newest = {log: max(numbers, default=0) for log, numbers in schemas.items()}
        return cls(columns, {**newest, **(dict(marks[0]) if marks else {})}, corrupt_entries)

    @property
    def reads_values(self) -> bool:
        return True  # how many rows an entry has stands in it

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema

    def check(
        self, log: str | None, written: Collection[Written], schemas: Mapping[int, bytes], *, stream: bool = False
    ) -> None:
        """As the protocol says."""
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
        newest = arrow_schema.from_bytes(schemas[max(numbers)])
        check_columns(self.columns, newest, None)
        known = self.planned_with.get(log or "", 0)
        is_newer = max(numbers) > known if known else not set(self.columns.data).issuperset(newest.names)
        if stream and is_newer:
            raise SchemaChangedError(
                f"log {log} has a newer schema than the stream",
                value=f"schema {max(numbers)}, columns {', '.join(newest.names)}",
                remedy="start the query again with its checkpoint: it goes on with the new columns",
            )

    def rows(
        self, batch: EntryBatch | None, entry_ids: npt.NDArray[np.int64], at: LedgerAt
    ) -> Iterator[pa.RecordBatch]:
        """The rows of each entry, those of small ones together. A corrupt one is, as ``null``, one row of nulls."""
        assert batch is not None, "the number of rows stands in the entries"
        assert at.schema is not None, "the plan carries the schema of each extent"
        stored = _stored(at.schema, self.columns.data)
        group = _Group(self.columns, stored, at)
        for number, found in enumerate(_decoded(batch, stored)):
            if isinstance(found, Exception):
                if self.corrupt_entries == FAIL:
                    raise corrupt(NAME, str(found), int(entry_ids[number]), at) from found
                if self.corrupt_entries != NULL:
                    continue
                found = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in stored.shown], schema=stored.shown)
            group.add(found, int(entry_ids[number]), int(batch.lengths[number]))
            if group.is_full:
                yield group.take()
        if group.batches:
            yield group.take()


@dataclass(frozen=True, slots=True)
class _Stored:
    """How to read the entries of an extent: the message of its schema, and the columns to read, by place and type."""

    message: bytes
    options: ipc.IpcReadOptions
    shown: pa.Schema


class _Group:
    """Decoded entries whose rows become one batch."""

    def __init__(self, columns: ReadColumns, stored: _Stored, at: LedgerAt) -> None:
        self._columns, self._stored, self._at = columns, stored, at
        self._clear()

    def _clear(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._entry_ids: list[int] = []
        self._lengths: list[int] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch, entry_id: int, length: int) -> None:
        self.batches.append(batch)
        self._entry_ids.append(entry_id)
        self._lengths.append(length)
        self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + batch.nbytes

    @property
    def is_full(self) -> bool:
        return self._rows >= ROWS_AT_ONCE or self._bytes >= BYTES_AT_ONCE

    def take(self) -> pa.RecordBatch:
        """All rows, and begin anew."""
        counts = [batch.num_rows for batch in self.batches]
        joined = self.batches[0]
        if len(self.batches) > 1:
            whole = pa.Table.from_batches(self.batches, schema=self._stored.shown).combine_chunks()
            joined = next(iter(whole.to_batches()), joined)
        starts = np.cumsum([0, *counts[:-1]])
        rows = metadata_columns.Rows(
            np.repeat(np.array(self._entry_ids, dtype=np.int64), counts),
            np.repeat(np.array(self._lengths, dtype=np.uint32), counts),
            (np.arange(self._rows) - np.repeat(starts, counts)).astype(np.int32),
        )
        total, columns = self._rows, self._columns
        self._clear()

        def column(name: str) -> pa.Array:
            return joined.column(name) if name in joined.schema.names else pa.nulls(total, columns.kind(name))

        return columns.assemble(column, rows, self._at)


def _decoded(batch: EntryBatch, stored: _Stored) -> Iterator[pa.RecordBatch | Exception]:
    """Each entry's columns, or why it has none. All are one stream to Arrow until one of them fails."""
    entries, problems = batch.entry_views(), list[Exception | None]()
    for entry in entries:
        try:
            arrow_message.check(entry)
            problems.append(None)
        except arrow_message.NotABatch as error:
            problems.append(error)
    good = [entry for entry, problem in zip(entries, problems, strict=True) if problem is None]
    whole = batch.payload if len(good) == len(entries) else b"".join(good)
    reader = _open([whole], stored) if good else None
    for entry, problem in zip(entries, problems, strict=True):
        if problem is not None:
            yield problem
            continue
        try:
            yield _next(reader if reader is not None else _open([entry], stored))
        except (pa.ArrowException, OSError, ValueError) as error:
            reader = None
            yield error


def _open(messages: Sequence[Any], stored: _Stored) -> ipc.RecordBatchStreamReader:
    return ipc.open_stream(pa.py_buffer(b"".join((stored.message, *messages))), options=stored.options)


def _next(reader: ipc.RecordBatchStreamReader) -> pa.RecordBatch:
    batch = reader.read_next_batch()
    batch.validate(full=True)
    return batch


@lru_cache(maxsize=64)
def _stored(schema: bytes, wanted: tuple[str, ...]) -> _Stored:
    whole = arrow_schema.from_bytes(schema)
    places = [place for place, name in enumerate(whole.names) if name in wanted]
    places = places or [0]  # Arrow takes an empty list for "all", and one column is enough to count rows
    options = ipc.IpcReadOptions(use_threads=False, included_fields=places)
    return _Stored(bytes(whole.serialize()), options, pa.schema([whole.field(place) for place in places]))
