# SPDX-License-Identifier: Apache-2.0
"""Parses, checks and makes the head of an Arrow RecordBatch message, which describes the buffers that follow it
(Arrow's Message.fbs).

Arrow checks a message's structure when it decodes the message, and then the decoded columns. But it trusts the length
that a compressed buffer claims, allocates as many bytes, and accepts any number of rows. So the head is checked here
first, without reading beyond its bytes. A new head is made from a head that Arrow wrote, with other numbers in it. The
Python code runs once for each entry, and never for each row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import pyarrow as pa
import pyarrow.ipc as ipc

from bk_core.logs.model.head import COMPRESSIONS

ROWS_MAX = 1 << 16
"""The maximum number of rows in an entry."""
BODY_BYTES_MAX = 64 << 20
"""The maximum size of an entry's columns, in bytes after decompression."""
COMPRESSION_OF = dict(zip((None, 0, 1), COMPRESSIONS, strict=True))
"""The names of compression methods by Arrow's number. None means that the message has no such field."""

_CONTINUATION = 0xFFFFFFFF
_BEGIN = struct.Struct("<II")
_RECORD_BATCH = 3
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)
_V5 = 4
_NUMBER, _PAIR = struct.Struct("<q"), struct.Struct("<qq")


class NotABatch(ValueError):
    """The error for bytes that are not one RecordBatch message, or whose size is over a limit."""


Pair: TypeAlias = tuple[int, int]

BUFFER_PADDING = 8
"""Arrow pads each buffer in a message to a multiple of this number of bytes."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a RecordBatch message.

    ``data`` are the bytes of the head, and the other fields its contents. ``nodes`` has a pair of rows and nulls for
    each column; the columns inside a column follow it. ``buffers`` are pairs of offset in the body and length.
    ``compression`` is Arrow's number, or None if nothing is compressed.
    """

    data: memoryview
    rows: int
    body_bytes: int
    nodes: list[Pair]
    buffers: list[Pair]
    compression: int | None
    _places: tuple[int, int, int, int]  # positions in ``data`` of rows, body length, nodes, buffers; 0: absent

    def with_numbers(self, rows: int, nodes: Sequence[Pair], buffers: Sequence[Pair], body_bytes: int) -> bytearray:
        """Return the head with other numbers in it. The numbers of nodes and of buffers must not change. The head must
        have been written for a batch with rows and a body, because Arrow leaves zeros out."""
        made = bytearray(self.data)
        rows_at, body_at, nodes_at, buffers_at = self._places
        assert rows_at * body_at, "Arrow left one of the numbers out"
        assert (len(nodes), len(buffers)) == (len(self.nodes), len(self.buffers))
        _NUMBER.pack_into(made, rows_at, rows)
        _NUMBER.pack_into(made, body_at, body_bytes)
        for at, pairs in ((nodes_at, nodes), (buffers_at, buffers)):
            struct.pack_into(f"<{2 * len(pairs)}q", made, at, *chain.from_iterable(pairs))
        return made


@dataclass(frozen=True, slots=True)
class Shape:
    """Says which nodes and buffers of a message belong to each top-level column. Column k has the nodes from
    ``nodes[k]`` to before ``nodes[k + 1]``, and the buffers from ``buffers[k]`` to before ``buffers[k + 1]``."""

    nodes: list[int]
    buffers: list[int]

    @classmethod
    def of(cls, schema: pa.Schema) -> Shape:
        """Return the shape of Arrow's messages with this schema."""
        nodes, buffers = [0], [0]
        for field in schema:
            head = template(pa.schema([field]))
            nodes.append(nodes[-1] + len(head.nodes))
            buffers.append(buffers[-1] + len(head.buffers))
        return cls(nodes, buffers)


def written(rows: pa.RecordBatch, compression: str, level: int | None = None) -> memoryview:
    """Return the message of ``rows`` that Arrow writes, in Arrow's encapsulated format. ``level`` is the level of the
    compression, or None for Arrow's default."""
    if compression == "none":
        return memoryview(rows.serialize())
    sink = pa.BufferOutputStream()
    codec = pa.Codec(compression, compression_level=level)
    writer = ipc.new_stream(sink, rows.schema, options=ipc.IpcWriteOptions(compression=codec, use_threads=False))
    writer.write_batch(rows)
    stream = memoryview(sink.getvalue())
    return stream[_BEGIN.size + _BEGIN.unpack_from(stream)[1] :]  # after the schema's message


def template(schema: pa.Schema, compression: str = "none") -> Head:
    """Return a head of this schema in which Arrow left out no number, so that :meth:`Head.with_numbers` can be used."""
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    return head_of(written(rows, compression))


def head_of(message: memoryview) -> Head:
    """Parse the head at the start of ``message``. Raises NotABatch if the bytes are not a RecordBatch message."""
    try:
        return _head_of(message)
    except (struct.error, IndexError, OverflowError) as error:
        raise NotABatch(f"its Arrow message ends early: {error}") from error


def _head_of(message: memoryview) -> Head:
    marker, size = _BEGIN.unpack_from(message)
    if marker != _CONTINUATION or size > len(message) - _BEGIN.size:
        raise NotABatch("it is not an Arrow message")
    data = message[: _BEGIN.size + size]
    table = _Table(data, _BEGIN.size + _number(data, "<I", _BEGIN.size))
    if table.read(_HEADER_TYPE, "<B", 0) != _RECORD_BATCH or table.read(_VERSION, "<h", 0) != _V5:
        raise NotABatch("its Arrow message is not a record batch")
    batch = table.table(_HEADER)
    (nodes_at, nodes), (buffers_at, buffers) = batch.structs(_NODES), batch.structs(_BUFFERS)
    compression = batch.table(_COMPRESSION).read(0, "<b", 0) if batch.has(_COMPRESSION) else None
    if compression not in COMPRESSION_OF:
        raise NotABatch(f"its columns are compressed with method {compression}")
    rows, body_bytes = batch.read(_LENGTH, "<q", 0), table.read(_BODY_LENGTH, "<q", 0)
    places = batch.place(_LENGTH), table.place(_BODY_LENGTH), nodes_at, buffers_at
    return Head(data, rows, body_bytes, nodes, buffers, compression, places)


def decoded_bytes(body: memoryview, buffers: Sequence[Pair]) -> int:
    """Return the total decompressed size of buffers in ``body``. Each buffer begins with its decompressed length, or
    with −1 if it is not compressed. Raises NotABatch for an impossible length."""
    total = 0
    for offset, size in buffers:
        if not size:
            continue
        if size < _NUMBER.size:
            raise NotABatch("a compressed column is too short to hold its length")
        (claimed,) = _NUMBER.unpack_from(body, offset)
        if not -1 <= claimed <= BODY_BYTES_MAX:
            raise NotABatch(f"a column claims {claimed} bytes, at most {BODY_BYTES_MAX}")
        total += size if claimed < 0 else claimed
    return total


class _Table:
    """Reads a flatbuffers table at position ``at``. It finds a field by its number in the table's vtable."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._places = at - _number(data, "<i", at)
        self._count = (_number(data, "<H", self._places) - 4) // 2

    def has(self, field: int) -> bool:
        return self.place(field) != 0

    def place(self, field: int) -> int:
        """Return the field's position in the data, or 0 if the field is absent."""
        offset = _number(self._data, "<H", self._places + 4 + 2 * field) if field < self._count else 0
        return self._at + offset if offset else 0

    def read(self, field: int, form: str, default: int) -> int:
        place = self.place(field)
        return _number(self._data, form, place) if place else default

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._pointed(field))

    def structs(self, field: int) -> tuple[int, list[Pair]]:
        """Return the position of a vector of structs, and the structs, each of which is two 64-bit numbers."""
        if not self.has(field):
            return 0, []
        at = self._pointed(field) + 4
        size = _number(self._data, "<I", at - 4) * _PAIR.size
        if size > len(self._data) - at:
            raise NotABatch("its Arrow message ends early")
        return at, list(_PAIR.iter_unpack(self._data[at : at + size]))

    def _pointed(self, field: int) -> int:
        at = self.place(field)
        return at + _number(self._data, "<I", at)


def _number(data: memoryview, form: str, at: int) -> int:
    if at < 0:
        raise NotABatch("its Arrow message points before itself")
    (number,) = struct.unpack_from(form, data, at)
    return int(number)
