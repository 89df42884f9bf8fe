# SPDX-License-Identifier: Apache-2.0
"""A look at an entry before Arrow decodes it: is it one RecordBatch message, and how much memory would it take.

Arrow checks a message's structure, and afterwards the columns that came of it; but it believes what a compressed
buffer says of its length, and allocates so much, and it would take any number of rows. So that is read first, from the
message's own table (Arrow's Message.fbs), within the entry's bytes whatever they say. Once an entry, not once a row.
"""

from __future__ import annotations

import struct

import numpy as np

ROWS_MAX = 1 << 16
"""Rows of an entry."""
BODY_BYTES_MAX = 64 << 20
"""Bytes of an entry's columns when they are decompressed."""

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)
_V5 = 4
_I64 = np.dtype("<i8")


class NotABatch(ValueError):
    """The bytes are not one RecordBatch message of a size that may be decoded."""


def check(entry: memoryview) -> None:
    """Raises NotABatch unless Arrow may decode the entry."""
    try:
        _check(entry)
    except (struct.error, IndexError, OverflowError) as error:
        raise NotABatch(f"its Arrow message ends early: {error}") from error


def _check(entry: memoryview) -> None:
    marker, size = struct.unpack_from("<II", entry)
    if marker != _CONTINUATION or size > len(entry) - 8 or len(entry) % 8:
        raise NotABatch("it is no Arrow message")
    table = entry[8 : 8 + size]
    message = _Table(table, _number(table, "<I", 0))
    if message.read(_HEADER_TYPE, "<B", 0) != _RECORD_BATCH or message.read(_VERSION, "<h", 0) != _V5:
        raise NotABatch("it is another Arrow message than a record batch")
    body = message.read(_BODY_LENGTH, "<q", 0)
    if body != len(entry) - 8 - size:
        raise NotABatch("its Arrow message has another length")
    batch = message.table(_HEADER)
    rows = batch.read(_LENGTH, "<q", 0)
    if not 0 <= rows <= ROWS_MAX:
        raise NotABatch(f"it has {rows} rows, at most {ROWS_MAX}")
    buffers = batch.structs(_BUFFERS, 2)
    if ((buffers < 0) | (buffers > body)).any() or (buffers.sum(axis=1) > body).any():
        raise NotABatch("a column lies outside of it")
    decoded = _decoded_bytes(entry[8 + size :], buffers) if batch.has(_COMPRESSION) else int(buffers[:, 1].sum())
    if decoded > BODY_BYTES_MAX:
        raise NotABatch(f"its columns have {decoded} bytes, at most {BODY_BYTES_MAX}")


def _decoded_bytes(body: memoryview, buffers: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> int:
    """What compressed buffers take: each begins with its length, −1 for one that is not compressed after all."""
    starts, sizes = buffers[buffers[:, 1] > 0].T
    if (sizes < _I64.itemsize).any():
        raise NotABatch("a column is shorter than its length")
    found = np.frombuffer(body, dtype=np.uint8)[starts[:, None] + np.arange(_I64.itemsize)]
    claimed = np.ascontiguousarray(found).view(_I64).reshape(len(starts))
    if ((claimed < -1) | (claimed > BODY_BYTES_MAX)).any():
        raise NotABatch(f"a column claims {int(claimed.max())} bytes, at most {BODY_BYTES_MAX}")
    return int(np.where(claimed < 0, sizes, claimed).sum())


class _Table:
    """A flatbuffers table at ``at``: fields by number, found through its list of places."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._places = at - _number(data, "<i", at)
        self._count = (_number(data, "<H", self._places) - 4) // 2

    def has(self, field: int) -> bool:
        return self._place(field) != 0

    def read(self, field: int, form: str, default: int) -> int:
        place = self._place(field)
        return _number(self._data, form, self._at + place) if place else default

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._pointed(field))

    def structs(self, field: int, numbers: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """A vector of structs of so many 64-bit numbers."""
        if not self.has(field):
            return np.zeros((0, numbers), dtype=_I64)
        at = self._pointed(field)
        count = _number(self._data, "<I", at)
        if count * numbers * _I64.itemsize > len(self._data) - at - 4:
            raise NotABatch("its Arrow message ends early")
        return np.frombuffer(self._data, dtype=_I64, count=count * numbers, offset=at + 4).reshape(count, numbers)

    def _place(self, field: int) -> int:
        return _number(self._data, "<H", self._places + 4 + 2 * field) if field < self._count else 0

    def _pointed(self, field: int) -> int:
        at = self._at + self._place(field)
        return at + _number(self._data, "<I", at)


def _number(data: memoryview, form: str, at: int) -> int:
    if at < 0:
        raise NotABatch("its Arrow message points before itself")
    (number,) = struct.unpack_from(form, data, at)
    return int(number)
