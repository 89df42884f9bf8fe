# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the fields of many frames together. It gathers rows from a buffer, converts protobuf's varints, and
builds rows from columns.

A *row* is the fixed part of one frame. Rows of one width form a matrix of bytes, so a few operations of numpy handle a
field of all frames. Rows whose varints differ in width are first grouped by these widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from bk_core.wire.bookie_rpc.frames import I64

U8: TypeAlias = npt.NDArray[np.uint8]
U64: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = int | I64 | U64

VARINT_BYTES_MAX = 10
WORD = 8
FEW_ROWS = 12  # for up to 12 rows a loop in Python costs less than numpy's fixed cost

# Decoding moves the 7-bit groups of up to 8 varint bytes together, in three steps of doubled width; encoding moves them
# apart.
_SQUEEZE = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
_KEPT = tuple(np.uint64(0x7F7F7F7F7F7F7F7F & (1 << 8 * width) - 1) for width in range(WORD + 1))
_LOW, _SEVEN = np.uint64(0x7F), np.uint64(7)
_CONTINUES = 0x8080808080808080
_WIDER_FROM = np.array([1 << 7 * k for k in range(1, VARINT_BYTES_MAX)], dtype=np.uint64)


def windows(raw: U8, width: int) -> npt.NDArray[np.void]:
    """Return a view of a buffer in which item k is the ``width`` bytes from position k on. Only indexing copies bytes,
    with one move for each item."""
    return np.ndarray((max(0, raw.size - width + 1),), f"V{width}", raw, 0, (1,))


def gather(raw: U8, at: I64, width: int) -> U8:
    """Return a matrix with a copy of the ``width`` bytes from each position on, one row for each position. The
    positions must ascend. Bytes beyond the buffer's end are 0."""
    whole = int(at.searchsorted(raw.size - width, side="right"))
    if whole == at.size:
        return windows(raw, width)[at].view(np.uint8).reshape(-1, width)
    begin = int(at[whole])
    tail = np.zeros(raw.size - begin + width, dtype=np.uint8)
    tail[: raw.size - begin] = raw[begin:]
    rows = np.concatenate((windows(raw, width)[at[:whole]], windows(tail, width)[at[whole:] - begin]))
    return rows.view(np.uint8).reshape(-1, width)


def column(rows: U8, at: int, dtype: str) -> npt.NDArray[np.int64]:
    """Return the numbers of type ``dtype`` at byte ``at`` of each row of a contiguous matrix, as int64."""
    return np.ndarray((rows.shape[0],), dtype, rows, at, (rows.shape[1],)).astype(np.int64)


def decode_varints(rows: U8, at: int, width: int) -> U64:
    """Decode the varints of ``width`` bytes at byte ``at`` of each row. If ``width`` exceeds 2, the rows must be
    contiguous and have 8 bytes from ``at`` on. Continuation bits are not checked here; the caller has compared them."""
    values: U64
    if width <= 2:
        values = rows[:, at].astype(np.uint64)
        return values if width == 1 else values & _LOW | (rows[:, at + 1].astype(np.uint64) & _LOW) << _SEVEN
    values = np.ndarray((rows.shape[0],), "<u8", rows, at, (rows.shape[1],)) & _KEPT[min(width, WORD)]
    for still, moved, by in _SQUEEZE:
        values = values & still | (values & moved) >> by
    for more in range(WORD, width):
        values |= (rows[:, at + more].astype(np.uint64) & _LOW) << np.uint64(7 * more)
    return values


def varint_width(value: int) -> int:
    """Return the number of bytes in the varint of a number. A negative number is encoded as unsigned and has ten."""
    return VARINT_BYTES_MAX if value < 0 else max(1, (value.bit_length() + 6) // 7)


def only(values: Ints) -> int:
    """Return an int unchanged, or the only item of an array."""
    return values if isinstance(values, int) else int(values[0])


_SHORT = tuple(bytes((value,)) for value in range(0x80))


def encode_varint(value: int) -> bytes:
    """Encode one number of 64 bits, signed or unsigned, as a varint."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 <= value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes) -> int:
    """Decode a varint to an unsigned number of 64 bits. ``data`` must be exactly one varint."""
    if len(data) == 1:
        return data[0]
    if len(data) == 2:
        return data[0] & 0x7F | data[1] << 7
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 0x7F
    return value


@dataclass(slots=True)
class Varint:
    """A varint in each row. ``values`` is uint64. ``width`` is the number of bytes of each varint, as one int if all
    rows have the same width."""

    values: U64
    width: int | I64


Piece: TypeAlias = bytes | U8 | Varint


def varint(values: Ints) -> bytes | Varint:
    """Make a piece of rows from numbers. One number becomes the same varint in each row, and an array becomes one
    varint for each row."""
    if isinstance(values, int):
        return encode_varint(values)
    if values.size == 1:
        return encode_varint(int(values[0]))
    unsigned = values.astype(np.uint64, copy=False)
    if not unsigned.size:
        return Varint(unsigned, 1)
    least, greatest = varint_width(int(unsigned.min())), varint_width(int(unsigned.max()))
    if least == greatest:
        return Varint(unsigned, least)
    return Varint(unsigned, _WIDER_FROM.searchsorted(unsigned, side="right") + 1)


def width_of(*pieces: Piece) -> int | I64:
    """Return the total width of some pieces in bytes, as one int if it is the same in all rows."""
    return sum((_width(piece) for piece in pieces), 0)


def _width(piece: Piece) -> int | I64:
    if isinstance(piece, Varint):
        return piece.width
    return len(piece) if isinstance(piece, bytes) else int(piece.shape[1])


class Rows:
    """Rows that were built from pieces. If all rows are equal, ``same`` is that row. If there are at most FEW_ROWS,
    ``few`` is the list of rows. Otherwise each of ``groups`` has the positions of some rows and the matrix of these
    rows; positions of None mean all rows."""

    __slots__ = ("count", "few", "groups", "same")

    def __init__(self, count: int, pieces: Sequence[Piece]) -> None:
        self.count = count
        self.same: bytes | None = None
        self.few: list[bytes] | None = None
        self.groups: list[tuple[I64 | None, U8]] = []
        equal = [piece for piece in pieces if isinstance(piece, bytes)]
        if len(equal) == len(pieces):
            self.same = b"".join(equal)
            return
        if count <= FEW_ROWS:
            self.few = [b"".join([_of_row(piece, k) for piece in pieces]) for k in range(count)]
            return
        varying = [piece.width for piece in pieces if isinstance(piece, Varint) and not isinstance(piece.width, int)]
        if not varying:
            self.groups.append((None, _matrix(count, pieces)))
            return
        key = np.zeros(count, dtype=np.int64)
        for width in varying:
            key = key * (VARINT_BYTES_MAX + 1) + width
        order = np.argsort(key, kind="stable")
        for at in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            self.groups.append((at, _matrix(at.size, [_taken(piece, at) for piece in pieces])))

    def matrix(self) -> U8 | None:
        """Return all rows as a matrix, or None if there are few rows or their widths differ. If all rows are equal, the
        matrix has one row."""
        if self.same is not None:
            return np.frombuffer(self.same or b"\0", dtype=np.uint8)[: len(self.same)].reshape(1, -1)
        return self.groups[0][1] if self.few is None and self.groups[0][0] is None else None

    def joined(self) -> bytes:
        """Return all rows, joined."""
        if self.same is not None:
            return self.same * self.count
        if self.few is not None:
            return b"".join(self.few)
        if self.groups[0][0] is None:
            return self.groups[0][1].tobytes()
        widths = np.empty(self.count, dtype=np.int64)
        for at, matrix in self.groups:
            widths[at] = matrix.shape[1]
        ends = widths.cumsum()
        out = np.empty(int(ends[-1]), dtype=np.uint8)
        begins = ends - widths
        for at, matrix in self.groups:
            windows(out, matrix.shape[1])[begins[at]] = matrix.view(f"V{matrix.shape[1]}").ravel()
        return out.tobytes()

    def listed(self) -> list[bytes]:
        """Return the rows as a list of bytes."""
        if self.same is not None:
            return [self.same] * self.count
        if self.few is not None:
            return self.few
        if self.groups[0][0] is None:
            return _listed(self.groups[0][1])
        out = np.empty(self.count, dtype=object)
        for at, matrix in self.groups:
            out[at] = _listed(matrix)
        return cast(list[bytes], out.tolist())


def _listed(matrix: U8) -> list[bytes]:
    if not matrix.shape[1]:
        return [b""] * matrix.shape[0]
    return cast(list[bytes], matrix.view(f"V{matrix.shape[1]}").ravel().tolist())


def _of_row(piece: Piece, k: int) -> bytes:
    if isinstance(piece, bytes):
        return piece
    return encode_varint(int(piece.values[k])) if isinstance(piece, Varint) else piece[k].tobytes()


def _taken(piece: Piece, at: I64) -> Piece:
    """Return the part of a piece for the rows at some positions. The varints of these rows must have the same width."""
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, Varint):
        return Varint(piece.values[at], piece.width if isinstance(piece.width, int) else int(piece.width[at[0]]))
    return piece[at]


def _matrix(count: int, pieces: Sequence[Piece]) -> U8:
    template = b"".join(piece if isinstance(piece, bytes) else bytes(cast(int, _width(piece))) for piece in pieces)
    out = np.empty((count, len(template)), dtype=np.uint8)
    out[:] = np.frombuffer(template, dtype=np.uint8)
    at = 0
    for piece in pieces:
        width = cast(int, _width(piece))
        if isinstance(piece, Varint):
            _encode_varints(out, at, width, piece.values)
        elif not isinstance(piece, bytes):
            out[:, at : at + width] = piece
        at += width
    return out


def _encode_varints(out: U8, at: int, width: int, values: U64) -> None:
    if width == 1:
        out[:, at] = values
        return
    if width == 2:
        out[:, at] = values & 0x7F | 0x80
        out[:, at + 1] = values >> 7
        return
    spread = values & 0x00FFFFFFFFFFFFFF
    for still, moved, by in reversed(_SQUEEZE):
        spread = spread & still | spread << by & moved
    spread |= _CONTINUES >> 8 * max(0, WORD + 1 - width)
    first = min(width, WORD)
    out[:, at : at + first] = spread.astype("<u8", copy=False).view(np.uint8).reshape(-1, WORD)[:, :first]
    for more in range(WORD, width):
        out[:, at + more] = values >> 7 * more & 0x7F | (0x80 if more < width - 1 else 0)
