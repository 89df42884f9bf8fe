# SPDX-License-Identifier: Apache-2.0
"""Checked blocks of 4096 bytes, the form of ``.idx`` files and checkpoints (docs/formats.md §3.5).

A block holds records of one kind and their number. Its CRC32C also covers the directory's incarnation, the file's
number and the block's place. So a block of another file, or at another place, fails its check like one with a flipped
bit.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.digest import crc32c
from bk_core.errors import IntegrityError
from bookie_server.storage.disk.files import BLOCK

Rows: TypeAlias = npt.NDArray[np.void]
"""A structured array of records of one kind."""

_COUNT_AT = 4032  # the records are before it
_SEED = struct.Struct("<16sQQ")
_U32 = struct.Struct("<I")


def records_per_block(dtype: np.dtype[np.void]) -> int:
    return _COUNT_AT // dtype.itemsize


def blocks_of(records: int, dtype: np.dtype[np.void]) -> int:
    """Return how many blocks this many records take."""
    return -(-records // records_per_block(dtype))


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A file of checked blocks. ``what`` describes it in errors, ``incarnation`` is the directory's incarnation, and
    ``number`` the number in the file's name."""

    what: str
    incarnation: bytes
    number: int

    def _crc(self, block: bytes | memoryview | npt.NDArray[np.uint8], place: int) -> int:
        return crc32c(block[: BLOCK - 4], crc32c(_SEED.pack(self.incarnation, self.number, place)))

    def header(self, fields: bytes) -> bytes:
        """Return the first block of the file."""
        body = fields.ljust(BLOCK - 4, b"\0")
        return body + _U32.pack(self._crc(body, 0))

    def check_header(self, block: bytes | memoryview) -> None:
        """Check the first block. Raises IntegrityError unless :meth:`header` made it."""
        if self._crc(memoryview(block), 0) != _U32.unpack_from(block, BLOCK - 4)[0]:
            raise IntegrityError(f"the header of {self.what} fails its check")

    def encode(self, records: Rows, place: int) -> bytes:
        """Return the records in blocks, the first of which is block ``place`` of the file. Only the last block may have
        fewer records than fit."""
        per_block, count = records_per_block(records.dtype), blocks_of(records.size, records.dtype)
        used = per_block * records.dtype.itemsize
        blocks = np.zeros((count, BLOCK), dtype=np.uint8)
        padded = np.zeros(count * per_block, dtype=records.dtype)
        padded[: records.size] = records
        blocks[:, :used] = padded.view(np.uint8).reshape(count, used)
        numbers = blocks.view("<u4")
        numbers[:, _COUNT_AT // 4] = per_block
        if count:
            numbers[-1, _COUNT_AT // 4] = records.size - (count - 1) * per_block
        for k in range(count):
            numbers[k, -1] = self._crc(blocks[k], place + k)
        return blocks.tobytes()

    def decode(self, data: bytes, place: int, count: int, dtype: np.dtype[np.void]) -> Rows:
        """Return the ``count`` records in whole blocks from ``place`` on. Raises IntegrityError for any other
        content."""
        blocks = blocks_of(count, dtype)
        if len(data) != blocks * BLOCK:
            raise IntegrityError(f"{self.what} ends inside a section", value=f"{len(data)} bytes, {blocks} blocks")
        rows = np.empty(blocks * records_per_block(dtype), dtype)
        if self.decode_into(data, place, rows) != count:
            raise IntegrityError(f"{self.what} has another number of records than its header says", value=f"{count}")
        return rows[:count]

    def decode_into(self, data: bytes, place: int, target: Rows) -> int:
        """Put the records of whole blocks into ``target``, which has room for full blocks; return their number. Raises
        IntegrityError for a block that fails its check."""
        blocks = np.frombuffer(data, dtype=np.uint8).reshape(-1, BLOCK)
        numbers = blocks.view("<u4")
        for k in range(len(blocks)):
            if self._crc(blocks[k], place + k) != int(numbers[k, -1]):
                raise IntegrityError(f"a block of {self.what} fails its check", value=f"block {place + k}")
        used = records_per_block(target.dtype) * target.dtype.itemsize
        target.view(np.uint8).reshape(len(blocks), used)[:] = blocks[:, :used]
        return int(numbers[:, _COUNT_AT // 4].sum())
