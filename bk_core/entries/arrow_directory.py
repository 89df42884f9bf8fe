# SPDX-License-Identifier: Apache-2.0
"""The directory at the beginning of an entry of codec ``arrow``, which docs/formats.md §7 defines.

Such an entry consists of the directory, the head of an Arrow message, and one region for each top-level column, in this
order. The directory holds the length and the CRC32C of each region, so a reader that has only some columns can check
each of them. The regions cover the entry, so their CRC32Cs combine to the CRC32C of the whole payload. Together with
the CRC32C of Apache's header they give the entry's digest, which binds a column to its ledger and entry id
(docs/decisions/0034).

This file handles only bytes and numbers; the codec computes the least and greatest value of a column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np

from bk_core.entries.batch import U32, Bytes
from bk_core.entries.digest import crc32c
from bk_core.entries.gf2 import CRC32C_TABLES
from bk_core.errors import IntegrityError

MAGIC = b"BKAD"
VERSION = 1
UNIT = 8
"""Each region begins at a multiple of this number of bytes, as Arrow requires of its buffers."""
UNIT_MAX = 64
"""The greatest ``unit`` in bytes that a caller of :func:`encode` may give. :func:`bytes_max` reserves space for it."""
BOUND_BYTES_MAX = 32
"""The maximum size of a bound in bytes, so that a directory stays small. A longer value is rounded outward."""

HAS_MIN, HAS_MAX, MIN_CUT, MAX_RAISED = 1, 2, 4, 8
"""Bits of a column. The first two say which bounds it has, the last two which bounds were rounded. A rounded bound may
not be a value of the column."""

HEAD = struct.Struct("<4sHHIIIIII")
ROW = struct.Struct("<IIIBBBB")
_CRC_AT = 12
_BITS = HAS_MIN | HAS_MAX | MIN_CUT | MAX_RAISED


class Bounds(NamedTuple):
    """The bounds of a column. No value is below ``low`` or above ``high``. A bound that is None does not exist."""

    low: bytes | None = None
    high: bytes | None = None
    bits: int = 0


NO_BOUNDS = Bounds()


class Column(NamedTuple):
    """The directory's row for one top-level column: the size and CRC32C of its region, its number of nulls, and its
    bounds."""

    size: int
    crc: int
    nulls: int
    bounds: Bounds = NO_BOUNDS


def rounded_outward(least: bytes, greatest: bytes) -> Bounds:
    """Return bounds of at most BOUND_BYTES_MAX bytes for values that are compared byte by byte.

    A least value that is too long is cut, which makes it smaller. A greatest value that is too long is cut, too. Then
    its last byte that is not 0xff is raised by one, and all bytes after it are dropped, which makes the value greater.
    If all bytes that are left are 0xff, there is no upper bound.
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
    """Encode the directory of an entry with these regions. The directory ends with zeros, so that the first column
    begins at a multiple of ``unit``, which must be a multiple of UNIT."""
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
    """The parsed and checked directory of one entry.

    ``size`` is its length in bytes, and ``crc`` the CRC32C of all its bytes. ``offsets`` holds the position of each
    column in the entry, and then the length of the entry. The head of the Arrow message lies between the directory and
    the first column.
    """

    size: int
    crc: int
    rows: int
    head_crc: int
    offsets: list[int]
    columns: list[Column]

    @property
    def head(self) -> slice:
        """The range of bytes of the entry that holds the head of the Arrow message."""
        return slice(self.size, self.offsets[0])

    def column(self, k: int) -> slice:
        """Return the range of bytes of the entry that holds column ``k``."""
        return slice(self.offsets[k], self.offsets[k + 1])

    def check_head(self, region: Bytes) -> None:
        """Raise IntegrityError unless ``region`` is the head of the entry's Arrow message, by its length and CRC32C."""
        if len(region) != self.offsets[0] - self.size or crc32c(region) != self.head_crc:
            _refuse("the head of its Arrow message fails its check")

    def check_column(self, k: int, region: Bytes) -> None:
        """Raise IntegrityError unless ``region`` is column ``k`` of the entry, by its length and CRC32C."""
        if len(region) != self.columns[k].size or crc32c(region) != self.columns[k].crc:
            _refuse(f"column {k} fails its check")


def crcs_behind(before: Sequence[int], directories: Sequence[Directory]) -> U32:
    """Return for each directory the CRC32C of some bytes and the whole entry behind them, computed from the CRCs of the
    entry's regions. ``before`` has the CRC32C of these bytes for each entry. Entries are below 16 MiB."""
    crcs, behind, starts = list[int](), list[int](), list[int]()
    for crc, directory in zip(before, directories, strict=True):
        starts.append(len(crcs))
        end = directory.offsets[-1]
        crcs += [crc, directory.crc, directory.head_crc, *(column.crc for column in directory.columns)]
        behind += [end, end - directory.size, *(end - offset for offset in directory.offsets)]
    shifted = CRC32C_TABLES.shift(np.array(crcs, dtype=np.uint32), np.array(behind, dtype=np.uint32))
    found: U32 = np.bitwise_xor.reduceat(shifted, starts) if starts else shifted
    return found


def bytes_max(columns: int) -> int:
    """Return the greatest size in bytes of a directory with this number of columns."""
    return HEAD.size + columns * (ROW.size + 2 * BOUND_BYTES_MAX) + UNIT_MAX


def parse(entry: memoryview, entry_bytes: int | None) -> Directory:
    """Parse the directory at the beginning of an entry. ``entry`` holds at least the directory.

    ``entry_bytes`` is the length of the entry, which the regions must cover. A caller that compared the length with
    this directory before gives None. Raises IntegrityError if the directory is damaged, has another version, or does
    not cover the entry.
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
    entry_bytes = offsets[-1] if entry_bytes is None else entry_bytes
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
