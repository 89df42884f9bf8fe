# SPDX-License-Identifier: Apache-2.0
"""The directory at the beginning of an entry of codec ``arrow``. docs/formats.md §7 is the definition.

An entry is the directory, the head of an Arrow message and a region for each top-level column, one behind the other.
The directory says how long each region is and its CRC32C, so a reader that has only some columns checks each by itself.
The regions cover the entry, so their CRC32Cs combine to that of the whole payload and, behind Apache's header, to the
entry's own CRC32C digest: that binds a column to its ledger and entry id (docs/decisions/0034).

Here are bytes and numbers only: the codec says what the least and greatest value of a column are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np

from bk_core.entries.batch import Bytes
from bk_core.entries.digest import crc32c
from bk_core.entries.gf2 import CRC32C_TABLES
from bk_core.errors import IntegrityError

MAGIC = b"BKAD"
VERSION = 1
UNIT = 8
"""Every region begins at a multiple of this."""
BOUND_BYTES_MAX = 32
"""Longest bound of a column's values. A longer value is rounded outward."""

HAS_MIN, HAS_MAX, MIN_CUT, MAX_RAISED = 1, 2, 4, 8
"""Bits of a column: which bounds are there, and which are not themselves values of the column."""

HEAD = struct.Struct("<4sHHIIIIII")
ROW = struct.Struct("<IIIBBBB")
_CRC_AT = 12
_BITS = HAS_MIN | HAS_MAX | MIN_CUT | MAX_RAISED


class Bounds(NamedTuple):
    """No value of the column is below ``low`` or above ``high``. None: nothing is said on that side."""

    low: bytes | None = None
    high: bytes | None = None
    bits: int = 0


NO_BOUNDS = Bounds()


class Column(NamedTuple):
    """What the directory says of a top-level column."""

    size: int
    crc: int
    nulls: int
    bounds: Bounds = NO_BOUNDS


def rounded_outward(least: bytes, greatest: bytes) -> Bounds:
    """Bounds of values that are compared byte by byte.

    Of a longer least value the first BOUND_BYTES_MAX bytes stay, which is less. Of a longer greatest value the last of
    those bytes that is not 0xff is made greater by one and ends the bound, which is more; there is no such bound where
    all of them are 0xff.
    """
    low, high, bits = least[:BOUND_BYTES_MAX], greatest[:BOUND_BYTES_MAX], HAS_MIN
    if len(least) > BOUND_BYTES_MAX:
        bits |= MIN_CUT
    if len(greatest) > BOUND_BYTES_MAX:
        high = high.rstrip(b"\xff")
        if not high:
            return Bounds(low, None, bits)
        high, bits = high[:-1] + bytes([high[-1] + 1]), bits | MAX_RAISED
    return Bounds(low, high, bits | HAS_MAX)


def encode(rows: int, head_bytes: int, head_crc: int, columns: Sequence[Column], *, unit: int = UNIT) -> bytes:
    """The directory of an entry whose regions these are. Zeros at its end make the first column begin at a multiple of
    ``unit``, which is itself one of UNIT."""
    table, values = bytearray(), bytearray()
    for size, crc, nulls, (low, high, bits) in columns:
        low, high = low or b"", high or b""
        table += ROW.pack(size, crc, nulls, bits, len(low), len(high), 0)
        values += low + high
    used = HEAD.size + len(table) + len(values)
    padding = -(used + head_bytes) % unit
    begin = struct.pack("<4sHHI", MAGIC, VERSION, 0, used + padding)
    rest = struct.pack("<IIII", rows, len(columns), head_bytes, head_crc) + table + values + bytes(padding)
    return b"".join((begin, crc32c(rest, crc32c(begin)).to_bytes(4, "little"), rest))


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that was checked.

    ``size`` is its own length, ``crc`` that of all its bytes. ``offsets`` are where the columns begin in the entry, and
    where the entry ends; the message's head lies between the directory and the first column.
    """

    size: int
    crc: int
    rows: int
    head_crc: int
    offsets: list[int]
    columns: list[Column]

    @property
    def head(self) -> slice:
        """Where the head of the Arrow message is in the entry."""
        return slice(self.size, self.offsets[0])

    def column(self, k: int) -> slice:
        """Where column ``k`` is in the entry."""
        return slice(self.offsets[k], self.offsets[k + 1])

    def check_head(self, region: Bytes) -> None:
        """Raises IntegrityError for other bytes than those of the message's head."""
        if len(region) != self.offsets[0] - self.size or crc32c(region) != self.head_crc:
            _refuse("the head of its Arrow message fails its check")

    def check_column(self, k: int, region: Bytes) -> None:
        """Raises IntegrityError for other bytes than those of column ``k``."""
        if len(region) != self.columns[k].size or crc32c(region) != self.columns[k].crc:
            _refuse(f"column {k} fails its check")

    def payload_crc(self) -> int:
        """CRC32C of the whole entry, from those of its regions."""
        sizes = np.array([self.size, self.offsets[0] - self.size, *(column.size for column in self.columns)])
        crcs = np.array([self.crc, self.head_crc, *(column.crc for column in self.columns)], dtype=np.uint32)
        return CRC32C_TABLES.joined(crcs, sizes)


def parse(entry: memoryview, entry_bytes: int) -> Directory:
    """The directory of an entry of ``entry_bytes`` bytes, of which ``entry`` has the first ones.

    Raises IntegrityError for anything but an intact directory of this version whose regions cover the entry.
    """
    try:
        magic, version, zero, size, crc, rows, count, head_bytes, head_crc = HEAD.unpack_from(entry)
    except struct.error:
        _refuse("shorter than a directory")
    if magic != MAGIC:
        _refuse("no directory at its beginning")
    if version != VERSION:
        _refuse(f"a directory of version {version}")
    values_at = HEAD.size + count * ROW.size
    if zero or not values_at <= size <= len(entry):
        _refuse("a directory of an impossible size")
    whole = entry[:size]
    if crc32c(whole[_CRC_AT + 4 :], crc32c(whole[:_CRC_AT])) != crc:
        _refuse("its directory fails its check")
    columns, offsets = list[Column](), [size + head_bytes]
    for region, region_crc, nulls, bits, low, high, zero in ROW.iter_unpack(whole[HEAD.size : values_at]):
        if bits > _BITS or zero or nulls > rows or max(low, high) > BOUND_BYTES_MAX or values_at + low + high > size:
            _refuse("its directory contradicts itself")
        columns.append(Column(region, region_crc, nulls, _bounds(whole, values_at, low, high, bits)))
        values_at += low + high
        offsets.append(offsets[-1] + region)
    if offsets[-1] != entry_bytes or size % UNIT or any(offset % UNIT for offset in offsets):
        _refuse("its regions do not cover it")
    return Directory(size, crc32c(whole), rows, head_crc, offsets, columns)


def _bounds(whole: memoryview, at: int, low: int, high: int, bits: int) -> Bounds:
    if not bits:
        return NO_BOUNDS
    least = bytes(whole[at : at + low]) if bits & HAS_MIN else None
    return Bounds(least, bytes(whole[at + low : at + low + high]) if bits & HAS_MAX else None, bits)


def _refuse(what: str) -> NoReturn:
    raise IntegrityError(f"not an entry of codec arrow: {what}", remedy="read another copy")
