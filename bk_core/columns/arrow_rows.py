# SPDX-License-Identifier: Apache-2.0
"""Codec ``arrow``, reading: entries become record batches, with only the wanted columns.

An entry's directory says where they are. Each is checked by its own CRC32C, then Arrow decodes a message of these
columns alone: other columns are neither copied nor checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from bk_core.columns import arrow_message, arrow_schema
from bk_core.columns.arrow_message import Head, NotABatch, Pair, Shape
from bk_core.columns.places import Rows
from bk_core.entries import arrow_directory
from bk_core.entries.arrow_directory import Directory
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import IntegrityError

ROWS_AT_ONCE, BYTES_AT_ONCE = 10_000, 4 << 20
"""Rows of small entries are joined into batches of up to this size."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """How to read the entries of an extent. ``places`` are the columns to read among those of its schema, whose
    ``shape`` this is. ``shown`` are their types, and ``message`` is Arrow's message of these as a schema."""

    key: tuple[bytes, tuple[str, ...]]
    message: bytes
    shown: pa.Schema
    shape: Shape
    places: list[int]


class Joined(NamedTuple):
    """Rows of some entries, and where each of them comes from."""

    columns: pa.RecordBatch
    rows: Rows


class Decoded(NamedTuple):
    """An entry of ``length`` bytes, whose columns take ``size``."""

    columns: pa.RecordBatch
    size: int
    entry_id: int
    length: int


def joined(entries: Iterable[Decoded], shown: pa.Schema) -> Iterator[Joined]:
    """The rows of small entries as batches of up to ROWS_AT_ONCE rows or BYTES_AT_ONCE, those of a large one as they
    are. ``shown`` is the schema of the columns."""
    group, rows, size = list[Decoded](), 0, 0
    for entry in entries:
        group.append(entry)
        rows, size = rows + entry.columns.num_rows, size + entry.size
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield _join(group, shown)
            group, rows, size = [], 0, 0
    if group:
        yield _join(group, shown)


def _join(group: Sequence[Decoded], shown: pa.Schema) -> Joined:
    counts = [entry.columns.num_rows for entry in group]
    whole = group[0].columns
    if len(group) > 1:
        whole = without_columns(sum(counts))
        if len(shown):
            table = pa.Table.from_batches([entry.columns for entry in group], schema=shown).combine_chunks()
            whole = next(iter(table.to_batches()), group[0].columns)
    starts = np.cumsum([0, *counts[:-1]])
    rows = Rows(
        np.repeat(np.array([entry.entry_id for entry in group], dtype=np.int64), counts),
        np.repeat(np.array([entry.length for entry in group], dtype=np.uint32), counts),
        (np.arange(sum(counts)) - np.repeat(starts, counts)).astype(np.int32),
    )
    return Joined(whole, rows)


class _Message(NamedTuple):
    """An Arrow message of the wanted columns, and their decoded size."""

    head: Bytes
    body: Bytes
    size: int


def decoded(batch: EntryBatch, stored: Stored) -> Iterator[tuple[pa.RecordBatch | Exception, int]]:
    """Each entry's columns and their size, or the reason why it has none. Arrow reads all entries as one stream until
    one fails."""
    found = [_looked_at(entry, stored) for entry in batch.entry_views()]
    reader = _open([each for each in found if isinstance(each, _Message)], stored)
    for each in found:
        if not isinstance(each, _Message):
            yield each, 0
            continue
        try:
            yield _next(reader if reader is not None else _open([each], stored)), each.size
        except (pa.ArrowException, OSError, ValueError) as error:
            reader = None
            yield error, 0


def _looked_at(entry: memoryview, stored: Stored) -> _Message | pa.RecordBatch | Exception:
    """The message of the wanted columns, each of them checked, or the reason why there is none. If no column is wanted,
    nothing is decoded: the directory has the number of rows."""
    try:
        directory = arrow_directory.parse(entry, len(entry))
        if directory.rows > arrow_message.ROWS_MAX:
            raise NotABatch(f"it has {directory.rows} rows, at most {arrow_message.ROWS_MAX}")
        if len(directory.columns) != len(stored.shape.buffers) - 1:
            raise NotABatch(f"it has {len(directory.columns)} columns, its schema has another number")
        return _message(entry, directory, stored) if stored.places else without_columns(directory.rows)
    except IntegrityError as error:
        return NotABatch(error.what)
    except NotABatch as error:
        return error


def _message(entry: memoryview, directory: Directory, stored: Stored) -> _Message:
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
        return _Message(head.data, _usable_in_place(body) if head.compression is None else body, decoded)
    like = _template(*stored.key, arrow_message.COMPRESSIONS[head.compression])
    return _Message(like.with_numbers(head.rows, nodes, moved, end), b"".join(regions), decoded)


def without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def _usable_in_place(body: memoryview) -> Bytes:
    """The buffers of a body where they are, or at a better place if numbers would lie across words of memory."""
    return body if pa.py_buffer(body).address % arrow_directory.UNIT == 0 else bytes(body)


def _open(messages: Sequence[_Message], stored: Stored) -> ipc.RecordBatchStreamReader:
    """Arrow's reader of a stream of these messages. Columns that are not compressed stay where they are."""
    pieces = filter(len, chain([stored.message], *((message.head, message.body) for message in messages)))
    file = pa.PythonFile(_Stream(pieces), mode="r")
    return ipc.open_stream(file, options=ipc.IpcReadOptions(use_threads=False))


class _Stream:
    """Pieces of memory as a file, read without copying. Arrow never reads across the end of a head or body, which are
    pieces here."""

    closed = False

    def __init__(self, pieces: Iterator[Bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def read(self, size: int) -> memoryview:
        if not len(self._rest):
            self._rest = memoryview(next(self._pieces, b""))
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def close(self) -> None:
        """Arrow closes its files."""


def _next(reader: ipc.RecordBatchStreamReader) -> pa.RecordBatch:
    batch = reader.read_next_batch()
    batch.validate(full=True)
    return batch


@lru_cache(maxsize=64)
def stored_columns(schema: bytes, wanted: tuple[str, ...]) -> Stored:
    whole = arrow_schema.from_bytes(schema)
    places = [place for place, name in enumerate(whole.names) if name in wanted]
    shown, shape = pa.schema([whole.field(place) for place in places]), Shape.of(whole)
    return Stored((schema, wanted), bytes(shown.serialize()), shown, shape, places)


@lru_cache(maxsize=64)
def _template(schema: bytes, wanted: tuple[str, ...], compression: str) -> Head:
    return arrow_message.template(stored_columns(schema, wanted).shown, compression)
