# SPDX-License-Identifier: Apache-2.0
"""The head of an Arrow RecordBatch message: Arrow's description of the buffers that follow it (Arrow's Message.fbs).

Arrow checks a message's structure when it decodes it, and then the decoded columns. But Arrow believes the length that
a compressed buffer claims, allocates that much, and takes any number of rows. So the head is checked here first,
without reading beyond its bytes. This file also makes new heads: it takes a head that Arrow wrote and replaces the
numbers in it. This costs Python once for each entry, never for each row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import pyarrow as pa
import pyarrow.ipc as ipc

ROWS_MAX = 1 << 16
"""The maximum number of rows in an entry."""
BODY_BYTES_MAX = 64 << 20
"""The maximum size of an entry's columns, in bytes after decompression."""
COMPRESSIONS = {None: "none", 0: "lz4", 1: "zstd"}
"""Arrow's numbers for compression methods."""

_CONTINUATION = 0xFFFFFFFF
_BEGIN = struct.Struct("<II")
_RECORD_BATCH = 3
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)
_V5 = 4
_NUMBER, _PAIR = struct.Struct("<q"), struct.Struct("<qq")


class NotABatch(ValueError):
    """The bytes are not one RecordBatch message, or its size is over a limit."""


Pair: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a RecordBatch message and its contents.

    ``nodes`` are the rows and nulls of each column; columns inside a column follow it. ``buffers`` are pairs of offset
    in the body and length. ``compression`` is Arrow's number; None: not compressed.
    """

    data: memoryview
    rows: int
    body_bytes: int
    nodes: list[Pair]
    buffers: list[Pair]
    compression: int | None
    _places: tuple[int, int, int, int]  # where ``data`` has rows, body length, nodes, buffers; 0: absent

    def with_numbers(self, rows: int, nodes: Sequence[Pair], buffers: Sequence[Pair], body_bytes: int) -> bytearray:
        """Return the head with other numbers, for the same number of nodes and buffers. The head must have been written
        for a batch with rows and a body, because Arrow leaves zeros out."""
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
    """The nodes and buffers of a message that belong to each top-level column. Column k has the nodes from ``nodes[k]``
    to below ``nodes[k + 1]``, and its buffers likewise."""

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


def written(rows: pa.RecordBatch, compression: str) -> memoryview:
    """Return the encapsulated message of ``rows`` as Arrow writes it."""
    if compression == "none":
        return memoryview(rows.serialize())
    sink = pa.BufferOutputStream()
    writer = ipc.new_stream(sink, rows.schema, options=ipc.IpcWriteOptions(compression=compression, use_threads=False))
    writer.write_batch(rows)
    stream = memoryview(sink.getvalue())
    return stream[_BEGIN.size + _BEGIN.unpack_from(stream)[1] :]  # after the schema's message


def template(schema: pa.Schema, compression: str = "none") -> Head:
    """Return a head that contains every number, for :meth:`Head.with_numbers`."""
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    return head_of(written(rows, compression))


def head_of(message: memoryview) -> Head:
    """Parse the head at the start of ``message``. Raises NotABatch if the bytes are not such a message."""
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
    if compression not in COMPRESSIONS:
        raise NotABatch(f"its columns are compressed with method {compression}")
    rows, body_bytes = batch.read(_LENGTH, "<q", 0), table.read(_BODY_LENGTH, "<q", 0)
    places = batch.place(_LENGTH), table.place(_BODY_LENGTH), nodes_at, buffers_at
    return Head(data, rows, body_bytes, nodes, buffers, compression, places)


def decoded_bytes(body: memoryview, buffers: Sequence[Pair]) -> int:
    """Return the decompressed size of buffers in ``body``. Each begins with its decompressed length; −1 means that this
    buffer is not compressed. Raises NotABatch for an impossible length."""
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
    """A flatbuffers table at ``at``, whose fields are found by number through its vtable."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._places = at - _number(data, "<i", at)
        self._count = (_number(data, "<H", self._places) - 4) // 2

    def has(self, field: int) -> bool:
        return self.place(field) != 0

    def place(self, field: int) -> int:
        """Return the field's place in the data, or 0 if the field is absent."""
        offset = _number(self._data, "<H", self._places + 4 + 2 * field) if field < self._count else 0
        return self._at + offset if offset else 0

    def read(self, field: int, form: str, default: int) -> int:
        place = self.place(field)
        return _number(self._data, form, place) if place else default

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._pointed(field))

    def structs(self, field: int) -> tuple[int, list[Pair]]:
        """Return the place of a vector of structs of two 64-bit numbers, and the structs."""
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
