# SPDX-License-Identifier: Apache-2.0
"""Codec ``arrow``, reading: entries become rows, with only the wanted columns.

An entry's directory says where they are. Each is checked by its own CRC32C, then Arrow decodes a message of these
columns alone: other columns are neither copied nor checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from bk_core.entries import arrow_directory
from bk_core.entries.arrow_directory import Directory
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import IntegrityError, SchemaChangedError, SchemaMismatchError
from bk_spark.codecs import arrow_message, arrow_schema, metadata_columns
from bk_spark.codecs.arrow_message import Head, NotABatch, Pair, Shape
from bk_spark.codecs.arrow_schema import check_columns, together
from bk_spark.codecs.codec import LedgerAt, LogSchemas, Written
from bk_spark.codecs.read_columns import FAIL, NULL, ReadColumns, check_written, corrupt

if TYPE_CHECKING:
    import numpy.typing as npt

    from bk_spark.options.options import BkOptions

NAME = "arrow"
PLANNED_WITH = "bookkeeper.schemas"
"""Metadata key of the last column: for each log the number of the newest schema that the columns were made of."""
ROWS_AT_ONCE, BYTES_AT_ONCE = 10_000, 4 << 20
"""Rows of small entries are joined into batches of up to this size."""


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Record batches become rows. ``planned_with`` is for each log the newest schema number in Spark's columns."""

    columns: ReadColumns
    planned_with: Mapping[str, int]
    corrupt_entries: str = FAIL

    @classmethod
    def of(cls, columns: ReadColumns, spark_schema: Any, schemas: LogSchemas, options: BkOptions) -> ArrowRows:
        """Raises SchemaMismatchError for columns that no log has, or has with another type. If no log has a schema yet,
        :meth:`check` does that."""
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
        """As :meth:`RowCodec.check`."""
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
        """The rows of each entry; rows of small entries come together. With ``null`` a corrupt entry is one row of
        nulls."""
        assert batch is not None, "the number of rows stands in the entries"
        assert at.schema is not None, "the plan carries the schema of each extent"
        stored = _stored(at.schema, self.columns.data)
        group = _Group(self.columns, stored, at)
        for number, (found, size) in enumerate(_decoded(batch, stored)):
            if isinstance(found, Exception):
                if self.corrupt_entries == FAIL:
                    raise corrupt(NAME, str(found), int(entry_ids[number]), at) from found
                if self.corrupt_entries != NULL:
                    continue
                nulls = [pa.nulls(1, field.type) for field in stored.shown]
                found = pa.RecordBatch.from_arrays(nulls, schema=stored.shown) if nulls else _without_columns(1)
            group.add(found, size, int(entry_ids[number]), int(batch.lengths[number]))
            if group.is_full:
                yield group.take()
        if group.batches:
            yield group.take()


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """How to read the entries of an extent. ``places`` are the columns to read among those of its schema, whose
    ``shape`` this is. ``shown`` are their types, and ``message`` is Arrow's message of these as a schema."""

    key: tuple[bytes, tuple[str, ...]]
    message: bytes
    shown: pa.Schema
    shape: Shape
    places: list[int]


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

    def add(self, batch: pa.RecordBatch, size: int, entry_id: int, length: int) -> None:
        """Add an entry of ``length`` bytes whose columns take ``size``."""
        self.batches.append(batch)
        self._entry_ids.append(entry_id)
        self._lengths.append(length)
        self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + size

    @property
    def is_full(self) -> bool:
        return self._rows >= ROWS_AT_ONCE or self._bytes >= BYTES_AT_ONCE

    def take(self) -> pa.RecordBatch:
        """All rows; the group is empty afterwards."""
        counts = [batch.num_rows for batch in self.batches]
        joined = self.batches[0]
        if len(self.batches) > 1 and len(self._stored.shown):
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


class _Message(NamedTuple):
    """An Arrow message of the wanted columns, and their decoded size."""

    pieces: list[Bytes]
    size: int


def _decoded(batch: EntryBatch, stored: _Stored) -> Iterator[tuple[pa.RecordBatch | Exception, int]]:
    """Each entry's columns and their size, or the reason why it has none. Arrow reads all entries as one stream until
    one fails."""
    found = [_looked_at(entry, stored) for entry in batch.entry_views()]
    reader = _open([piece for each in found if isinstance(each, _Message) for piece in each.pieces], stored)
    for each in found:
        if not isinstance(each, _Message):
            yield each, 0
            continue
        try:
            yield _next(reader if reader is not None else _open(each.pieces, stored)), each.size
        except (pa.ArrowException, OSError, ValueError) as error:
            reader = None
            yield error, 0


def _looked_at(entry: memoryview, stored: _Stored) -> _Message | pa.RecordBatch | Exception:
    """The message of the wanted columns, each of them checked, or the reason why there is none. If no column is wanted,
    nothing is decoded: the directory has the number of rows."""
    try:
        directory = arrow_directory.parse(entry, len(entry))
        if directory.rows > arrow_message.ROWS_MAX:
            raise NotABatch(f"it has {directory.rows} rows, at most {arrow_message.ROWS_MAX}")
        if len(directory.columns) != len(stored.shape.buffers) - 1:
            raise NotABatch(f"it has {len(directory.columns)} columns, its schema has another number")
        return _message(entry, directory, stored) if stored.places else _without_columns(directory.rows)
    except IntegrityError as error:
        return NotABatch(error.what)
    except NotABatch as error:
        return error


def _message(entry: memoryview, directory: Directory, stored: _Stored) -> _Message:
    """The head and the body of a message of the wanted columns. Raises IntegrityError or NotABatch."""
    directory.check_head(entry[directory.head])
    head, shape = arrow_message.head_of(entry[directory.head]), stored.shape
    if (len(head.nodes), len(head.buffers)) != (shape.nodes[-1], shape.buffers[-1]):
        raise NotABatch("its Arrow message has other columns than its schema")
    base = directory.offsets[0]
    body = entry[base:]
    if (len(head.data), head.rows, head.body_bytes) != (base - directory.size, directory.rows, len(body)):
        raise NotABatch("its directory and its Arrow message contradict each other")
    regions, nodes = list[Bytes](), list[Pair]()
    found, moved, end = list[Pair](), list[Pair](), 0
    for k in stored.places:
        region = entry[directory.column(k)]
        directory.check_column(k, region)
        start, stop = directory.offsets[k] - base, directory.offsets[k + 1] - base
        buffers = head.buffers[shape.buffers[k] : shape.buffers[k + 1]]
        if any(offset < start or size < 0 or offset + size > stop for offset, size in buffers):
            raise NotABatch("a buffer lies outside of its column")
        if head.nodes[shape.nodes[k]][1] != directory.columns[k].nulls:
            raise NotABatch("its directory and its Arrow message tell of other nulls")
        found += buffers
        moved += [(offset - start + end, size) for offset, size in buffers]
        nodes += head.nodes[shape.nodes[k] : shape.nodes[k + 1]]
        regions.append(region)
        end += len(region)
    decoded = sum(size for _, size in found)
    if head.compression is not None:
        decoded = arrow_message.decoded_bytes(body, found)
    if decoded > arrow_message.BODY_BYTES_MAX:
        raise NotABatch(f"its columns have {decoded} bytes, at most {arrow_message.BODY_BYTES_MAX}")
    if len(regions) == len(directory.columns):
        return _Message([head.data, body], decoded)
    like = _template(*stored.key, arrow_message.COMPRESSIONS[head.compression])
    return _Message([like.with_numbers(head.rows, nodes, moved, end), *regions], decoded)


def _without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def _open(pieces: Sequence[Bytes], stored: _Stored) -> ipc.RecordBatchStreamReader:
    whole = pa.py_buffer(b"".join((stored.message, *pieces)))
    return ipc.open_stream(whole, options=ipc.IpcReadOptions(use_threads=False))


def _next(reader: ipc.RecordBatchStreamReader) -> pa.RecordBatch:
    batch = reader.read_next_batch()
    batch.validate(full=True)
    return batch


@lru_cache(maxsize=64)
def _stored(schema: bytes, wanted: tuple[str, ...]) -> _Stored:
    whole = arrow_schema.from_bytes(schema)
    places = [place for place, name in enumerate(whole.names) if name in wanted]
    shown, shape = pa.schema([whole.field(place) for place in places]), Shape.of(whole)
    return _Stored((schema, wanted), bytes(shown.serialize()), shown, shape, places)


@lru_cache(maxsize=64)
def _template(schema: bytes, wanted: tuple[str, ...], compression: str) -> Head:
    return arrow_message.template(_stored(schema, wanted).shown, compression)
