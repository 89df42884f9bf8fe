# SPDX-License-Identifier: Apache-2.0
"""Decodes the objects of Pulsar's jcloud offloader into columns. Pure.

A data object is a sequence of blocks. A block has a head, entries (length, id, bytes) and a fill. An index object has
the first entry and the offset of each block. Integers are big-endian. The objects have no checksums, so numbers are
compared with each other: lengths must add up, ids must ascend by one, and the fill must have its pattern. Only the
checksum of a message covers the bytes within an entry. docs/decisions/0078-offloaded-ledgers.md has the layout.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64, Bytes, EntryBatch, array_view, byte_view

INDEX_MAGIC, STREAMING_INDEX_MAGIC = 0xDE47DE47, 0x3D1FB0BC
BLOCK_MAGIC, STREAMING_BLOCK_MAGIC = 0xFBDBABCB, 0x26A66D32
INDEX_BYTES_MAX = 4 << 20
"""The maximum size of an index object that is read, in bytes. It is enough for 200,000 blocks, and Pulsar's blocks have
5 MiB or more."""
ENTRY_BYTES_MAX = 128 << 20
"""The maximum size of an entry in a block, in bytes. It is the limit of all messages."""
HEAD_BYTES_MAX = 1 << 16
"""The maximum size of the head of a block, in bytes. Pulsar writes heads of 128 bytes."""
JOIN_FROM_BYTES = 512
"""Entries of at least this average size, in bytes, are copied one by one. Below it, choosing bytes by a mask is
faster."""

_INDEX = struct.Struct(">IIQQ")  # magic, index length, data object length, block head length
_COUNTS = struct.Struct(">II")  # blocks, bytes of the ledger's record
_LEDGER = struct.Struct(">QII")  # ledger id, blocks, bytes of the ledger's record
_ROW: np.dtype[Any] = np.dtype([("first", ">i8"), ("part", ">i4"), ("offset", ">i8")])
_HEAD = struct.Struct(">IQQQ")  # magic, head length, block length, first entry id
_STREAMING_HEAD = struct.Struct(">IQQQQ")  # and the ledger id
_LENGTH = struct.Struct(">i")
_ENTRY_HEAD = 12  # u32 length, u64 entry id
_FILL = np.array([0xFE, 0xDC, 0xDE, 0xAD], dtype=np.uint8)

_HEADS = {BLOCK_MAGIC: _HEAD, STREAMING_BLOCK_MAGIC: _STREAMING_HEAD}


class OffloadFormatError(ValueError):
    """The error for an object whose bytes an offloader would not write. Its text says where they are."""


@dataclass(frozen=True, slots=True, eq=False)
class OffloadIndex:
    """The blocks of one ledger in a data object, in the order of their entries. Three columns have the first entry id,
    the offset and the length of each block. The data object has ``object_bytes`` bytes, and the head of each block has
    ``head_bytes``."""

    ledger_id: int
    object_bytes: int
    head_bytes: int
    block_magic: int
    firsts: I64
    offsets: I64
    lengths: I64

    def __len__(self) -> int:
        return int(self.firsts.size)


def parse_index(data: Bytes, ledger_id: int) -> OffloadIndex:
    """Return the blocks of a ledger from an index object of either format. Raises OffloadFormatError."""
    view = byte_view(data)
    if view.nbytes < _INDEX.size:
        _refuse(f"the index has {view.nbytes} bytes")
    magic, size, object_bytes, head_bytes = _INDEX.unpack_from(view)
    if magic not in (INDEX_MAGIC, STREAMING_INDEX_MAGIC):
        _refuse(f"the index begins with {magic:#010x}")
    if size != view.nbytes:
        _refuse(f"the index has {view.nbytes} bytes, and says {size}")
    if object_bytes >= 1 << 62 or not _HEAD.size <= head_bytes <= HEAD_BYTES_MAX:
        _refuse(f"the index says {object_bytes} bytes of data, and heads of {head_bytes} bytes")
    is_streaming = magic == STREAMING_INDEX_MAGIC
    rows, offsets = _rows_of_ledgers(view, ledger_id) if is_streaming else _rows(view, _INDEX.size)
    return _index(rows, offsets, ledger_id, object_bytes, head_bytes, is_streaming=is_streaming)


def _rows(view: memoryview, at: int) -> tuple[npt.NDArray[Any], I64]:
    if view.nbytes < at + _COUNTS.size:
        _refuse("the index is cut off")
    count, record_bytes = _COUNTS.unpack_from(view, at)
    rows, end = _table(view, at + _COUNTS.size + record_bytes, count)
    if end != view.nbytes:
        _refuse(f"the index has {view.nbytes - end} bytes behind its last block")
    return rows, rows["offset"].astype(np.int64)


def _rows_of_ledgers(view: memoryview, ledger_id: int) -> tuple[npt.NDArray[Any], I64]:
    """Return the index rows of one ledger, and the offsets of the blocks of all ledgers."""
    at, found, offsets = _INDEX.size, list[npt.NDArray[Any]](), list[I64]()
    while at < view.nbytes:
        if view.nbytes < at + _LEDGER.size:
            _refuse("the index is cut off")
        of, count, record_bytes = _LEDGER.unpack_from(view, at)
        rows, at = _table(view, at + _LEDGER.size + record_bytes, count)
        offsets.append(rows["offset"].astype(np.int64))
        if of == ledger_id:
            found.append(rows)
    if len(found) != 1:
        _refuse(f"the index names ledger {ledger_id} {len(found)} times")
    return found[0], np.sort(np.concatenate(offsets))


def _table(view: memoryview, at: int, count: int) -> tuple[npt.NDArray[Any], int]:
    end = at + count * _ROW.itemsize
    if not count or end > view.nbytes:
        _refuse(f"the index says {count} blocks, and has {max(0, view.nbytes - at)} bytes for them")
    return np.frombuffer(view, dtype=_ROW, count=count, offset=at), end


def _index(
    rows: npt.NDArray[Any], offsets: I64, ledger_id: int, object_bytes: int, head_bytes: int, *, is_streaming: bool
) -> OffloadIndex:
    """Return the index after its checks. ``offsets`` has the offsets of all blocks of the object, because a block ends
    where the next block begins."""
    firsts, begins = rows["first"].astype(np.int64), rows["offset"].astype(np.int64)
    lengths = np.append(offsets[1:], object_bytes) - offsets
    if firsts[0] < 0 or offsets[0] != 0 or np.any(lengths <= head_bytes) or not _ascend(firsts) or not _ascend(begins):
        _refuse("the blocks in the index overlap, or are out of order")
    of_ledger = lengths[np.searchsorted(offsets, begins)]
    magic = STREAMING_BLOCK_MAGIC if is_streaming else BLOCK_MAGIC
    return OffloadIndex(ledger_id, object_bytes, head_bytes, magic, firsts, begins, of_ledger)


def _ascend(values: I64) -> bool:
    return bool(np.all(values[1:] > values[:-1]))


class BlockParser:
    """Takes the bytes of one block, in order and in pieces of any size, and returns its entries.

    ``last`` is the block's last entry. Entries before ``wanted`` are checked and left out. The parser holds one piece,
    and the beginning of an entry whose end is in a later piece.
    """

    def __init__(self, index: OffloadIndex, number: int, last: int, wanted: int = 0) -> None:
        self._index, self._number = index, number
        self._bytes = int(index.lengths[number])
        self._next, self._last, self._wanted = int(index.firsts[number]), last, wanted
        self._pieces: list[memoryview] = []
        self._held, self._needed = 0, index.head_bytes
        self._at = 0  # the place in the block of the first byte that is held
        self._fill_from: int | None = None

    @property
    def next_entry(self) -> int:
        """The id of the entry after the last entry that was parsed."""
        return self._next

    def feed(self, data: Bytes) -> EntryBatch | None:
        """Take the next bytes of the block. Return the entries that are complete now, or None if there are none. Raises
        OffloadFormatError."""
        view = byte_view(data)
        if self._at + self._held + view.nbytes > self._bytes:
            _refuse(f"a block of {self._bytes} bytes has more")
        self._pieces.append(view)
        self._held += view.nbytes
        if self._held < self._needed:
            return None
        buffer = self._pieces[0] if len(self._pieces) == 1 else memoryview(b"".join(self._pieces))
        begin = self._check_head(buffer) if self._at == 0 else 0
        starts, end = self._walk(buffer, begin)
        self._at += end
        self._pieces, self._held = [buffer[end:]], buffer.nbytes - end
        found = self._entries(buffer, np.array(starts, dtype=np.int64), end) if starts else None
        if self._next > self._last:
            self._check_fill()
        return found

    def finish(self) -> None:
        """Check that the block is complete. Raises OffloadFormatError."""
        if self._next <= self._last or self._at + self._held != self._bytes:
            _refuse(f"the block ends before entry {self._next}, of entries up to {self._last}")

    def _check_head(self, buffer: memoryview) -> int:
        index, number = self._index, self._number
        head = _HEADS[index.block_magic]
        expected = (index.block_magic, index.head_bytes, self._bytes, self._next, index.ledger_id)
        if index.head_bytes < head.size or (found := head.unpack_from(buffer)) != expected[: len(found)]:
            _refuse(f"the head of block {number}, at byte {int(index.offsets[number])}, is not that of the index")
        return index.head_bytes

    def _walk(self, buffer: memoryview, at: int) -> tuple[list[int], int]:
        """Return the begins of the complete entries in ``buffer``, and the end of the last one. An entry's begin
        depends on the length of the entry before it, so Python code runs once for each entry."""
        starts, size, left = list[int](), buffer.nbytes, self._last + 1 - self._next
        length_at, room = _LENGTH.unpack_from, self._bytes - self._at
        self._needed = 1
        while len(starts) < left:
            if at + _ENTRY_HEAD > size:
                self._needed = _ENTRY_HEAD
                break
            (length,) = length_at(buffer, at)
            end = at + _ENTRY_HEAD + length
            if not 0 <= length <= ENTRY_BYTES_MAX or end > room:
                _refuse(f"entry {self._next + len(starts)} has a length of {length}, at byte {self._at + at}")
            if end > size:
                self._needed = end - at
                break
            starts.append(at)
            at = end
        if len(starts) < left and self._at + at + self._needed > self._bytes:
            _refuse(f"the block ends before entry {self._next + len(starts)}, of entries up to {self._last}")
        return starts, at

    def _entries(self, buffer: memoryview, starts: I64, end: int) -> EntryBatch | None:
        """Return the wanted entries as a batch, without the heads between them."""
        raw = np.frombuffer(buffer, dtype=np.uint8)
        ids = raw[starts[:, None] + np.arange(4, _ENTRY_HEAD)].view(">i8").reshape(-1)
        first = self._next
        wrong = np.flatnonzero(ids != np.arange(first, first + ids.size))
        if wrong.size:
            _refuse(f"entry {first + int(wrong[0])} has the id {int(ids[wrong[0]])}")
        self._next = first + int(ids.size)
        ends = np.append(starts[1:], end)
        skipped = min(max(0, self._wanted - first), int(ids.size))
        if skipped == ids.size:
            return None
        starts, ends = starts[skipped:], ends[skipped:]
        return EntryBatch(
            lengths=(ends - starts - _ENTRY_HEAD).astype(np.uint32),
            payload=_without_heads(buffer, starts, ends),
            ledger_id=self._index.ledger_id,
            first_entry_id=first + skipped,
            length_before=-1,
        )

    def _check_fill(self) -> None:
        """Check the fill bytes after the last entry, and drop them."""
        if self._fill_from is None:
            self._fill_from = self._at
        raw = np.frombuffer(self._pieces[0], dtype=np.uint8)
        phase = (self._at - self._fill_from) % _FILL.size
        if not np.array_equal(raw, np.resize(np.roll(_FILL, -phase), raw.size)):
            _refuse(f"bytes after entry {self._last}, from byte {self._at} of the block on, are not its fill")
        self._at, self._held, self._pieces, self._needed = self._at + raw.size, 0, [], 0


def _without_heads(buffer: memoryview, starts: I64, ends: I64) -> memoryview:
    begin, end = int(starts[0]), int(ends[-1])
    if end - begin >= JOIN_FROM_BYTES * starts.size:
        bodies = zip((starts + _ENTRY_HEAD).tolist(), ends.tolist(), strict=True)
        return memoryview(b"".join([buffer[a:b] for a, b in bodies]))
    is_body = np.ones(end - begin, dtype=np.bool_)
    for place in range(_ENTRY_HEAD):
        is_body[starts - begin + place] = False
    return array_view(np.frombuffer(buffer, dtype=np.uint8)[begin:end][is_body])


def _refuse(why: str) -> NoReturn:
    raise OffloadFormatError(why)
