# SPDX-License-Identifier: Apache-2.0
"""The bytes of a checkpoint: the folded state of every ledger, the deleted ids, the segments that must exist (S4).
docs/formats.md §3.6 is the specification.

A checkpoint lets segments be recycled, because it has all ledger state of the segments up to ``through``. It may also
have newer facts, because state folds in any order. Each block's checksum covers the checkpoint's number and the block's
place. So a block of an older checkpoint, or one in the wrong place, fails its check like one with a flipped bit.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bk_core.errors import IntegrityError
from bookie_server.storage.bytes.blocks import BlockFile, blocks_of, records_per_block
from bookie_server.storage.bytes.index_rows import I64, Rows
from bookie_server.storage.disk.files import BLOCK, Files
from bookie_server.storage.index.ledger_table import LEDGER_ROW

CHECKPOINT_MAGIC = b"BKCHKPT1"
FORMAT_VERSION = 1
PAIR_ROW = np.dtype([("first", "<i8"), ("last", "<i8")])

_HEADER = struct.Struct("<8sIIQ16sQ6Q")
_CHUNK_BLOCKS = 1024
_WHAT = "a checkpoint"
_NAME = re.compile(r"([0-9a-f]{16})\.checkpoint")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A decoded checkpoint. ``ledgers`` and ``deleted`` (closed intervals as rows of two) have the state of every
    segment with a generation up to ``through``. ``segments`` are those up to ``through`` that may hold live entries,
    ascending; all others are drained."""

    number: int
    incarnation: bytes
    through: int
    ledgers: Rows
    deleted: I64
    segments: tuple[int, ...]


@dataclass(slots=True)
class CheckpointParts:
    """Makes the blocks of a checkpoint. Each ``add_…`` returns bytes to append to the file, in this order: ledgers (any
    number of calls), :meth:`add_deleted`, :meth:`add_segments`. :meth:`header` then goes to the first block, which is
    empty until then, so that an incomplete file has no header."""

    number: int
    incarnation: bytes
    through: int
    blocks: int = 1
    _counts: list[int] = field(default_factory=lambda: [0] * 6)
    _waiting: list[Rows] = field(default_factory=list)
    _last: int = -(1 << 63)

    def add_ledgers(self, rows: Rows) -> bytes:
        """Return blocks with ledgers, which are sorted and greater than those of earlier calls. Rows that do not fill a
        block wait for the next call."""
        if not rows.size:
            return b""
        assert int(rows["ledger"][0]) >= self._last
        assert (np.diff(rows["ledger"]) > 0).all()
        self._last = int(rows["ledger"][-1])
        rows = np.concatenate([*self._waiting, rows])
        whole = len(rows) - len(rows) % records_per_block(LEDGER_ROW)
        self._waiting = [rows[whole:]]
        return self._blocks(rows[:whole], 0)

    def add_deleted(self, intervals: I64) -> bytes:
        """Return blocks with the rest of the ledgers, and with the deleted ids."""
        rest = self._waiting or [np.empty(0, LEDGER_ROW)]
        self._waiting = []
        pairs = np.ascontiguousarray(intervals, dtype="<i8").reshape(-1).view(PAIR_ROW)
        return self._blocks(rest[0], 0) + self._blocks(pairs, 2)

    def add_segments(self, generations: tuple[int, ...]) -> bytes:
        """Return blocks with the segments up to ``through`` that must exist, ascending."""
        pairs = np.zeros(len(generations), PAIR_ROW)
        pairs["first"] = generations
        return self._blocks(pairs, 4)

    def header(self) -> bytes:
        """Return the first block. Call this after all others are added."""
        fields = _HEADER.pack(
            CHECKPOINT_MAGIC, FORMAT_VERSION, BLOCK, self.number, self.incarnation, self.through, *self._counts
        )
        return self._file.header(fields)

    @property
    def _file(self) -> BlockFile:
        return BlockFile(_WHAT, self.incarnation, self.number)

    def _blocks(self, rows: Rows, section: int) -> bytes:
        data = self._file.encode(rows, self.blocks)
        count = len(data) // BLOCK
        self.blocks += count
        self._counts[section] += count
        self._counts[section + 1] += len(rows)
        return data


def read_checkpoint(read: Callable[[int, int], bytes], size: int) -> Checkpoint:
    """Decode the checkpoint in a file of ``size`` bytes; ``read(bytes, offset)`` returns a part of it. It is read in
    pieces, so that memory holds its records only once. Raises IntegrityError for anything but an intact file of this
    version."""
    block = read(BLOCK, 0)
    if len(block) < BLOCK:
        raise IntegrityError("a checkpoint is shorter than its header", value=f"{size} bytes")
    fields: tuple[Any, ...] = _HEADER.unpack_from(block)
    magic, version, block_bytes, number, incarnation, through, *counts = fields
    file = BlockFile(_WHAT, incarnation, number)
    file.check_header(block)
    if magic != CHECKPOINT_MAGIC or version != FORMAT_VERSION or block_bytes != BLOCK:
        raise IntegrityError("a checkpoint is of another format", value=f"version {version}")
    if size != BLOCK * (1 + counts[0] + counts[2] + counts[4]):
        raise IntegrityError("a checkpoint has another size than its header says", value=f"{size} bytes")
    place, sections = 1, list[Rows]()
    for blocks, records, dtype in zip(counts[::2], counts[1::2], (LEDGER_ROW, PAIR_ROW, PAIR_ROW), strict=True):
        sections.append(_section(read, file, place, blocks, records, dtype))
        place += blocks
    ledgers, deleted, segments = sections
    return Checkpoint(
        number, incarnation, through, ledgers, deleted.view("<i8").reshape(-1, 2), tuple(segments["first"].tolist())
    )


def _section(
    read: Callable[[int, int], bytes], file: BlockFile, place: int, blocks: int, records: int, dtype: np.dtype[np.void]
) -> Rows:
    per_block = records_per_block(dtype)
    rows, counted = np.empty(blocks * per_block, dtype), 0
    for start in range(0, blocks, _CHUNK_BLOCKS):
        count = min(_CHUNK_BLOCKS, blocks - start)
        data = read(count * BLOCK, (place + start) * BLOCK)
        if len(data) != count * BLOCK:
            raise IntegrityError("a checkpoint ends early", value=f"block {place + start}")
        counted += file.decode_into(data, place + start, rows[start * per_block : (start + count) * per_block])
    if counted != records or blocks != blocks_of(records, dtype):
        raise IntegrityError("a checkpoint has another number of records than its header says", value=f"{records}")
    return rows[:records]


@dataclass(frozen=True, slots=True)
class FoundCheckpoints:
    """The newest readable checkpoint of a directory and its size. ``damage`` has a line for each newer checkpoint, all
    of which are damaged."""

    newest: Checkpoint | None
    file_bytes: int
    damage: tuple[str, ...]


def find_checkpoint(files: Files, path: str, incarnation: bytes) -> FoundCheckpoints:
    """Find the newest readable checkpoint in the folder of segments. Raises OSError if the folder cannot be read."""
    damage = list[str]()
    for number in reversed(checkpoint_numbers(files.names(path))):
        name = checkpoint_name(number)
        try:
            checkpoint, size = _read_file(files, os.path.join(path, name))
            if checkpoint.number == number and checkpoint.incarnation == incarnation:
                return FoundCheckpoints(checkpoint, size, tuple(damage))
            damage.append(f"{name} is checkpoint {checkpoint.number} or of another directory")
        except (IntegrityError, OSError) as error:
            damage.append(f"{name}: {error}")
    return FoundCheckpoints(None, 0, tuple(damage))


def _read_file(files: Files, path: str) -> tuple[Checkpoint, int]:
    handle = files.open_read(path)
    try:
        size = files.size(handle)
        return read_checkpoint(lambda count, offset: files.read(handle, count, offset), size), size
    finally:
        files.close(handle)


def checkpoint_numbers(names: Iterable[str]) -> list[int]:
    return sorted(number for number in map(parse_checkpoint_name, names) if number is not None)


def checkpoint_name(number: int) -> str:
    return f"{number:016x}.checkpoint"


def parse_checkpoint_name(name: str) -> int | None:
    """Return the number in the name of a checkpoint, or None for another name."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None
