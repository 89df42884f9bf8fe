# SPDX-License-Identifier: Apache-2.0
"""Turns entries of codec ``arrow`` into record batches with only the wanted columns.

An entry's directory says where the columns are. Each wanted column is checked by its CRC32C. Then Arrow decodes a
message of only the wanted columns. The remaining columns are neither copied nor checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from bk_core.columns import arrow_message, arrow_schema, texts
from bk_core.columns.arrow_message import Head, NotABatch, Pair, Shape
from bk_core.columns.row_origins import Origins
from bk_core.entries import arrow_directory
from bk_core.entries.arrow_directory import Directory
from bk_core.entries.batch import I64, U32, Bytes, EntryBatch
from bk_core.errors import IntegrityError

ROWS_AT_ONCE, BYTES_AT_ONCE = 10_000, 4 << 20
"""The number of rows, and the size of decoded columns in bytes, up to which the rows of consecutive entries are joined.
A batch is complete once it has reached one of the two."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Describes how to read the entries of an extent. ``places`` are the indices of the wanted columns in the extent's
    schema, and ``shape`` is the shape of that schema. ``shown`` is the schema of the wanted columns, and ``message`` is
    Arrow's message of ``shown``. ``key`` has the extent's schema and the names of the wanted columns."""

    key: tuple[bytes, tuple[str, ...]]
    message: bytes
    shown: pa.Schema
    shape: Shape
    places: list[int]


class Joined(NamedTuple):
    """Rows of some entries, and the origin of each row."""

    columns: pa.RecordBatch
    rows: Origins


class BadText(NamedTuple):
    """An entry with texts that are not UTF-8. These texts are null in ``columns``. ``bad`` marks their rows, and
    ``why`` describes the first of them."""

    columns: pa.RecordBatch
    bad: texts.Mask
    why: str


Found: TypeAlias = pa.RecordBatch | BadText | Exception
"""The result of reading an entry. It is the entry's columns, or the reason why it cannot be read."""


class Decoded(NamedTuple):
    """The columns of an entry of ``length`` bytes. ``size`` is the decoded size of the columns in bytes. ``row_index``
    has the positions of the rows in the entry, or is None if ``columns`` has all rows of the entry."""

    columns: pa.RecordBatch
    size: int
    entry_id: int
    length: int
    row_index: texts.I32 | None = None


def joined(entries: Iterable[Decoded], shown: pa.Schema) -> Iterator[Joined]:
    """Join the rows of consecutive entries until a batch has at least ROWS_AT_ONCE rows or BYTES_AT_ONCE, and yield
    each batch. ``shown`` is the schema of the columns."""
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
    whole = group[0].columns
    if len(group) > 1:
        whole = without_columns(sum(entry.columns.num_rows for entry in group))
        if len(shown):
            table = pa.Table.from_batches([entry.columns for entry in group], schema=shown).combine_chunks()
            whole = next(iter(table.to_batches()), group[0].columns)
    return Joined(whole, _EntryRows(group))


class _EntryRows:
    """The origin of the rows of some entries. Few reads ask for it, and an entry may have 65,536 rows, so each column
    is made when it is asked for."""

    def __init__(self, group: Sequence[Decoded]) -> None:
        self._counts = [entry.columns.num_rows for entry in group]
        self._of = [(entry.entry_id, entry.length, entry.row_index) for entry in group]  # without the columns

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def entry_ids(self) -> I64:
        return np.repeat(np.array([entry_id for entry_id, _, _ in self._of], dtype=np.int64), self._counts)

    @property
    def lengths(self) -> U32:
        return np.repeat(np.array([length for _, length, _ in self._of], dtype=np.uint32), self._counts)

    @property
    def row_index(self) -> texts.I32:
        starts = np.cumsum([0, *self._counts[:-1]])
        found: texts.I32 = (np.arange(self.count) - np.repeat(starts, self._counts)).astype(np.int32)
        for (_, _, row_index), start in zip(self._of, starts, strict=True):
            if row_index is not None:
                found[start : start + len(row_index)] = row_index
        return found


class _Message(NamedTuple):
    """An Arrow message of the wanted columns. ``size`` is their decoded size in bytes."""

    head: Bytes
    body: Bytes
    size: int


def decoded(batch: EntryBatch, stored: Stored, *, use_threads: bool = False) -> Iterator[tuple[Found, int]]:
    """Yield, for each entry, its columns or the reason why it cannot be read, and the size of the columns. Arrow reads
    all entries as one stream until an entry fails. With ``use_threads`` Arrow decompresses columns on all processors; a
    task of Spark has only one."""
    return _read([_looked_at(entry, stored) for entry in batch.entry_views()], stored, use_threads)


def decoded_parts(
    directories: Sequence[Directory], parts: EntryBatch, stored: Stored, *, use_threads: bool = False
) -> Iterator[tuple[Found, int]]:
    """Do the same as :func:`decoded` for entries of which only the wanted columns were read. ``parts`` has these
    columns, and ``directories`` the entries' directories."""
    views = zip(directories, parts.entry_views(), strict=True)
    return _read([_cut_out(directory, part, stored) for directory, part in views], stored, use_threads)


def _read(
    found: Sequence[_Message | pa.RecordBatch | Exception], stored: Stored, use_threads: bool
) -> Iterator[tuple[Found, int]]:
    reader = _open([each for each in found if isinstance(each, _Message)], stored, use_threads)
    for each in found:
        if not isinstance(each, _Message):
            yield each, 0
            continue
        try:
            yield _next(reader if reader is not None else _open([each], stored, use_threads)), each.size
        except (pa.ArrowException, OSError, ValueError) as error:
            reader = None
            mended = _without_bad_text(each, stored)
            yield (error, 0) if mended is None else (mended, each.size)


def _looked_at(entry: memoryview, stored: Stored) -> _Message | pa.RecordBatch | Exception:
    """Check the wanted columns and return their message, or the reason why the entry cannot be read. If no column is
    wanted, return a batch without columns, because the directory has the number of rows."""
    try:
        directory = arrow_directory.parse(entry, len(entry))
        _check_directory(directory, stored)
        if not stored.places:
            return without_columns(directory.rows)
        head, regions = entry[directory.head], [entry[directory.column(k)] for k in stored.places]
        directory.check_head(head)
        for k, region in zip(stored.places, regions, strict=True):
            directory.check_column(k, region)
        is_whole = len(regions) == len(directory.columns)
        body = entry[directory.offsets[0] :] if is_whole else b"".join(regions)
        return _message(directory, head, body, stored)
    except IntegrityError as error:
        return NotABatch(error.what)
    except NotABatch as error:
        return error


def _cut_out(directory: Directory, part: memoryview, stored: Stored) -> _Message | pa.RecordBatch | Exception:
    """Do the same as :func:`_looked_at` for a part of an entry, which is the message's head and the wanted columns.
    They were already checked when they were received."""
    try:
        _check_directory(directory, stored)
        if not stored.places:
            return without_columns(directory.rows)
        head_bytes = directory.offsets[0] - directory.size
        return _message(directory, part[:head_bytes], part[head_bytes:], stored)
    except NotABatch as error:
        return error


def _check_directory(directory: Directory, stored: Stored) -> None:
    if directory.rows > arrow_message.ROWS_MAX:
        raise NotABatch(f"it has {directory.rows} rows, at most {arrow_message.ROWS_MAX}")
    if len(directory.columns) != len(stored.shape.buffers) - 1:
        raise NotABatch(f"it has {len(directory.columns)} columns, not the number of its schema")


def _message(directory: Directory, head_bytes: memoryview, body: Bytes, stored: Stored) -> _Message:
    """Return a message of the wanted columns, which are consecutive in ``body``. ``head_bytes`` is the head of the
    entry's message. Raises NotABatch if the head and the directory do not fit each other or the schema."""
    head, shape, base = arrow_message.head_of(head_bytes), stored.shape, directory.offsets[0]
    if (len(head.nodes), len(head.buffers)) != (shape.nodes[-1], shape.buffers[-1]):
        raise NotABatch("the columns of its Arrow message differ from its schema's")
    told = len(head_bytes), directory.rows, directory.offsets[-1] - base
    if (len(head.data), head.rows, head.body_bytes) != told:
        raise NotABatch("its directory and its Arrow message contradict each other")
    nodes, moved, end = list[Pair](), list[Pair](), 0
    for k in stored.places:
        start, stop = directory.offsets[k] - base, directory.offsets[k + 1] - base
        buffers = head.buffers[shape.buffers[k] : shape.buffers[k + 1]]
        if any(offset < start or size < 0 or offset + size > stop for offset, size in buffers):
            raise NotABatch("a buffer lies outside of its column")
        if head.nodes[shape.nodes[k]][1] != directory.columns[k].nulls:
            raise NotABatch("its directory and its Arrow message differ in the number of nulls")
        moved += [(offset - start + end, size) for offset, size in buffers]
        nodes += head.nodes[shape.nodes[k] : shape.nodes[k + 1]]
        end += stop - start
    decoded = sum(size for _, size in moved)
    if head.compression is not None:
        decoded = arrow_message.decoded_bytes(memoryview(body), moved)
    if decoded > arrow_message.BODY_BYTES_MAX:
        raise NotABatch(f"its columns have {decoded} bytes, at most {arrow_message.BODY_BYTES_MAX}")
    body = _usable_in_place(body) if head.compression is None else body
    if len(stored.places) == len(directory.columns):
        return _Message(head.data, body, decoded)
    like = _template(*stored.key, arrow_message.COMPRESSION_OF[head.compression])
    return _Message(like.with_numbers(head.rows, nodes, moved, end), body, decoded)


def without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def _usable_in_place(body: Bytes) -> Bytes:
    """Return the body itself if its address is aligned, otherwise a copy of it. In an unaligned body, numbers would lie
    across words of memory."""
    return body if pa.py_buffer(body).address % arrow_directory.UNIT == 0 else bytes(body)


def _without_bad_text(message: _Message, stored: Stored) -> BadText | None:
    """Return the entry without the texts that are not UTF-8, or None if it has another error. Its columns are read with
    bytes in place of texts, so that Arrow still checks everything else."""
    try:
        columns = _next(_open([message], stored, use_threads=False, schema=_schema_of_bytes(*stored.key)))
    except (pa.ArrowException, OSError, ValueError):
        return None
    masks = [texts.in_column(column, field.type) for column, field in zip(columns, stored.shown, strict=True)]
    bad = np.logical_or.reduce(masks)
    if not bad.any():
        return None
    kept = [
        column.take(pa.array(np.arange(len(column)), mask=mask)).cast(field.type)
        for column, mask, field in zip(columns, masks, stored.shown, strict=True)
    ]
    row = int(np.flatnonzero(bad)[0])
    named = [name for name, mask in zip(stored.shown.names, masks, strict=True) if mask[row]]
    why = f"column {named[0]} of row {row} is not UTF-8"
    return BadText(pa.RecordBatch.from_arrays(kept, schema=stored.shown), bad, why)


def _open(
    messages: Sequence[_Message], stored: Stored, use_threads: bool, *, schema: bytes | None = None
) -> ipc.RecordBatchStreamReader:
    """Open Arrow's reader on a stream of these messages. Columns that are not compressed are not copied. ``schema`` is
    Arrow's message of the schema if it differs from ``stored.message``."""
    pieces = filter(len, chain([schema or stored.message], *((message.head, message.body) for message in messages)))
    file = pa.PythonFile(_Stream(pieces), mode="r")
    return ipc.open_stream(file, options=ipc.IpcReadOptions(use_threads=use_threads))


class _Stream:
    """A file over pieces of memory, which are read without a copy. Each piece is a head or a body, and Arrow never
    reads across the end of a piece."""

    closed = False

    def __init__(self, pieces: Iterator[Bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def read(self, size: int) -> memoryview:
        if not len(self._rest):
            self._rest = memoryview(next(self._pieces, b""))
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def close(self) -> None:
        """Do nothing: Arrow closes its files."""


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
def _schema_of_bytes(schema: bytes, wanted: tuple[str, ...]) -> bytes:
    """Return Arrow's message of the wanted columns' schema, with bytes in place of texts."""
    shown = stored_columns(schema, wanted).shown
    return bytes(pa.schema([field.with_type(texts.as_bytes(field.type)) for field in shown]).serialize())


@lru_cache(maxsize=64)
def _template(schema: bytes, wanted: tuple[str, ...], compression: str) -> Head:
    return arrow_message.template(stored_columns(schema, wanted).shown, compression)
