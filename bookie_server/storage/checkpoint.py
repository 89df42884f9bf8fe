# SPDX-License-Identifier: Apache-2.0
"""The bytes of a checkpoint: the folded state of every ledger, the deleted ids, the segments that must exist (S4).

docs/formats.md §3.6 is the specification. A checkpoint is what allows a segment to be recycled: everything that the
segments up to ``through`` say of a ledger's state is in it. It may hold newer facts too, because state folds without
regard to order. Each block's check covers the checkpoint's number and the block's place, so that a block of an older
checkpoint, or one in the wrong place, is noticed like a flipped bit.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.digest import crc32c
from bk_core.errors import IntegrityError
from bookie_server.storage.files import BLOCK, Files
from bookie_server.storage.index_rows import I64, Rows
from bookie_server.storage.ledger_table import LEDGER_ROW

Intervals: TypeAlias = I64
"""Closed intervals, one a row of two: first, last."""

CHECKPOINT_MAGIC = b"BKCHKPT1"
FORMAT_VERSION = 1
PAIR_ROW = np.dtype([("first", "<i8"), ("last", "<i8")])
LEDGERS_PER_BLOCK, PAIRS_PER_BLOCK = 42, 252
_USED = LEDGERS_PER_BLOCK * LEDGER_ROW.itemsize
assert _USED == PAIRS_PER_BLOCK * PAIR_ROW.itemsize == 4032

_HEADER = struct.Struct("<8sIIQ16sQ6Q")
_SEED = struct.Struct("<16sQQ")
_U32 = struct.Struct("<I")
_CHUNK_BLOCKS = 1024
_NAME = re.compile(r"([0-9a-f]{16})\.checkpoint")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``through``: the state of every segment with a generation up to it is in ``ledgers`` and ``deleted``.
    ``segments``: those up to ``through`` that may hold live entries, ascending; what is not among them is drained."""

    number: int
    incarnation: bytes
    through: int
    ledgers: Rows
    deleted: Intervals
    segments: tuple[int, ...]


@dataclass(slots=True)
class CheckpointParts:
    """Blocks of a checkpoint in the making. Each ``add_…`` returns bytes to append to the file, in this order: ledgers
    (any number of calls), :meth:`add_deleted`, :meth:`add_segments`; :meth:`header` then goes to the first block, which
    is left empty until then: a file that was cut short has no header."""

    number: int
    incarnation: bytes
    through: int
    blocks: int = 1
    _counts: list[int] = field(default_factory=lambda: [0] * 6)
    _waiting: list[Rows] = field(default_factory=list)
    _last: int = -(1 << 63)

    def add_ledgers(self, rows: Rows) -> bytes:
        """Blocks for ledgers of greater ids than before, sorted; what does not fill a block waits for more."""
        if not rows.size:
            return b""
        assert int(rows["ledger"][0]) >= self._last
        assert (np.diff(rows["ledger"]) > 0).all()
        self._last = int(rows["ledger"][-1])
        rows = np.concatenate([*self._waiting, rows])
        whole = len(rows) // LEDGERS_PER_BLOCK * LEDGERS_PER_BLOCK
        self._waiting = [rows[whole:]]
        return self._blocks(rows[:whole], LEDGERS_PER_BLOCK, 0)

    def add_deleted(self, intervals: Intervals) -> bytes:
        """The rest of the ledgers, and the deleted ids."""
        rest = self._waiting or [np.empty(0, LEDGER_ROW)]
        self._waiting = []
        pairs = np.ascontiguousarray(intervals, dtype="<i8").reshape(-1).view(PAIR_ROW)
        return self._blocks(rest[0], LEDGERS_PER_BLOCK, 0) + self._blocks(pairs, PAIRS_PER_BLOCK, 2)

    def add_segments(self, generations: tuple[int, ...]) -> bytes:
        """The segments up to ``through`` that must exist, ascending."""
        pairs = np.zeros(len(generations), PAIR_ROW)
        pairs["first"] = generations
        return self._blocks(pairs, PAIRS_PER_BLOCK, 4)

    def header(self) -> bytes:
        """The first block, once all the others are there."""
        fields = _HEADER.pack(
            CHECKPOINT_MAGIC, FORMAT_VERSION, BLOCK, self.number, self.incarnation, self.through, *self._counts
        )
        body = fields.ljust(BLOCK - 4, b"\0")
        return body + _U32.pack(crc32c(body, _seed(self.incarnation, self.number, 0)))

    def _blocks(self, rows: Rows, per_block: int, section: int) -> bytes:
        count = -(-len(rows) // per_block)
        blocks = np.zeros((count, BLOCK), np.uint8)
        padded = np.zeros(count * per_block, rows.dtype)
        padded[: len(rows)] = rows
        blocks[:, :_USED] = padded.view(np.uint8).reshape(count, _USED)
        numbers = blocks.view("<u4")
        numbers[:, _USED // 4] = per_block
        if count:
            numbers[-1, _USED // 4] = len(rows) - (count - 1) * per_block
        for k in range(count):
            seed = _seed(self.incarnation, self.number, self.blocks + k)
            numbers[k, -1] = crc32c(blocks[k, : BLOCK - 4], seed)
        self.blocks += count
        self._counts[section] += count
        self._counts[section + 1] += len(rows)
        return blocks.tobytes()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The whole file. Its ledgers are sorted by id, its intervals and segments ascending."""
    parts = CheckpointParts(checkpoint.number, checkpoint.incarnation, checkpoint.through)
    body = parts.add_ledgers(checkpoint.ledgers) + parts.add_deleted(checkpoint.deleted)
    body += parts.add_segments(checkpoint.segments)
    return parts.header() + body


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises IntegrityError for anything but an intact file of this version."""
    return read_checkpoint(lambda size, offset: data[offset : offset + size], len(data))


def read_checkpoint(read: Callable[[int, int], bytes], size: int) -> Checkpoint:
    """The checkpoint in a file of ``size`` bytes, of which ``read(bytes, offset)`` gives a part; read in pieces, so
    that memory holds its records once. Raises IntegrityError for anything but an intact file of this version."""
    block = read(BLOCK, 0)
    if len(block) < BLOCK:
        raise IntegrityError("a checkpoint is shorter than its header", value=f"{size} bytes")
    fields: tuple[Any, ...] = _HEADER.unpack_from(block)
    magic, version, block_bytes, number, incarnation, through, *counts = fields
    if crc32c(block[: BLOCK - 4], _seed(incarnation, number, 0)) != _U32.unpack_from(block, BLOCK - 4)[0]:
        raise IntegrityError("a checkpoint's header fails its check")
    if magic != CHECKPOINT_MAGIC or version != FORMAT_VERSION or block_bytes != BLOCK:
        raise IntegrityError("a checkpoint is of another format", value=f"version {version}")
    if size != BLOCK * (1 + counts[0] + counts[2] + counts[4]):
        raise IntegrityError("a checkpoint has another size than its header says", value=f"{size} bytes")
    reader = _Sections(read, incarnation, number)
    ledgers = reader.section(counts[0], counts[1], LEDGER_ROW, LEDGERS_PER_BLOCK)
    deleted = reader.section(counts[2], counts[3], PAIR_ROW, PAIRS_PER_BLOCK)
    segments = reader.section(counts[4], counts[5], PAIR_ROW, PAIRS_PER_BLOCK)
    return Checkpoint(
        number, incarnation, through, ledgers, deleted.view("<i8").reshape(-1, 2), tuple(segments["first"].tolist())
    )


class _Sections:
    """Reads sections one after another, checking every block."""

    def __init__(self, read: Callable[[int, int], bytes], incarnation: bytes, number: int) -> None:
        self._read, self._incarnation, self._number = read, incarnation, number
        self._block = 1

    def section(self, blocks: int, records: int, dtype: np.dtype[np.void], per_block: int) -> Rows:
        if -(-records // per_block) != blocks:
            raise IntegrityError("a checkpoint has another number of records than its header says", value=f"{records}")
        rows = np.empty(blocks * per_block, dtype)
        raw = rows.view(np.uint8).reshape(blocks, _USED)
        counted = 0
        for start in range(0, blocks, _CHUNK_BLOCKS):
            count = min(_CHUNK_BLOCKS, blocks - start)
            counted += self._take(raw[start : start + count])
        if counted != records:
            raise IntegrityError("a checkpoint has another number of records than its header says", value=f"{records}")
        return rows[:records]

    def _take(self, target: npt.NDArray[np.uint8]) -> int:
        """Read so many blocks into ``target``; the records they count."""
        count = len(target)
        data = self._read(count * BLOCK, self._block * BLOCK)
        if len(data) != count * BLOCK:
            raise IntegrityError("a checkpoint ends early", value=f"block {self._block}")
        blocks = np.frombuffer(data, np.uint8).reshape(count, BLOCK)
        numbers = blocks.view("<u4")
        for k in range(count):
            seed = _seed(self._incarnation, self._number, self._block + k)
            if crc32c(blocks[k, : BLOCK - 4], seed) != int(numbers[k, -1]):
                raise IntegrityError("a block of a checkpoint fails its check", value=f"block {self._block + k}")
        target[:] = blocks[:, :_USED]
        self._block += count
        return int(numbers[:, _USED // 4].sum())


@dataclass(frozen=True, slots=True)
class FoundCheckpoints:
    """What a directory holds. ``greatest``: the highest number in any name; ``damage``: what is wrong with those that
    are newer than the newest readable one, a line each."""

    newest: Checkpoint | None
    file_bytes: int
    greatest: int
    damage: tuple[str, ...]


def find_checkpoint(files: Files, path: str, incarnation: bytes) -> FoundCheckpoints:
    """The newest readable checkpoint in the folder of segments. OSError if the folder cannot be read."""
    numbers, damage = checkpoint_numbers(files.names(path)), list[str]()
    for number in reversed(numbers):
        name = checkpoint_name(number)
        try:
            checkpoint, size = _read_file(files, os.path.join(path, name))
            if checkpoint.number == number and checkpoint.incarnation == incarnation:
                return FoundCheckpoints(checkpoint, size, numbers[-1], tuple(damage))
            damage.append(f"{name} is checkpoint {checkpoint.number} or of another directory")
        except (IntegrityError, OSError) as error:
            damage.append(f"{name}: {error}")
    return FoundCheckpoints(None, 0, max(numbers, default=0), tuple(damage))


def _read_file(files: Files, path: str) -> tuple[Checkpoint, int]:
    handle = files.open_read(path)
    try:
        size = files.size(handle)
        return read_checkpoint(lambda count, offset: files.read(handle, count, offset), size), size
    finally:
        files.close(handle)


def checkpoint_numbers(names: Iterable[str]) -> list[int]:
    """Numbers of the checkpoints among these file names, ascending."""
    return sorted(number for number in map(parse_checkpoint_name, names) if number is not None)


def checkpoint_name(number: int) -> str:
    return f"{number:016x}.checkpoint"


def parse_checkpoint_name(name: str) -> int | None:
    """The number in the name of a checkpoint, or None for another name."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def _seed(incarnation: bytes, number: int, block: int) -> int:
    return crc32c(_SEED.pack(incarnation, number, block))
