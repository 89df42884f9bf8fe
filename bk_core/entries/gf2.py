# SPDX-License-Identifier: Apache-2.0
"""CRC arithmetic over GF(2) for whole arrays. Table look-ups compute how n appended bytes change a CRC.

A CRC with init = xorout = all ones obeys crc(A ‖ B) = shift(crc(A), |B|) ⊕ crc(B). shift(·, n) is linear, that is, a
matrix of 32 columns of 32 bits. It is stored as four tables of 256 values, one for each byte of a CRC. A length is
split into its bytes: the shift by n is the shift by (n & 255), then by (n & 0xff00), then by (n & 0xff0000). For each
of these three there are tables for all 256 values of the byte (1 MiB), made when first needed.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from bk_core.entries.batch import U8, U32

HEADER_BYTES = 32
CACHED_LENGTHS = 256  # 32 KiB each


def _apply(tables: U32, values: U32) -> U32:
    """Apply a linear map to each value. ``tables`` are the four tables of 256 values of the map."""
    columns = np.ascontiguousarray(values, dtype="<u4").reshape(-1).view(np.uint8).reshape(-1, 4)
    out: U32 = tables[0].take(columns[:, 0])
    for k in (1, 2, 3):
        out ^= tables[k].take(columns[:, k])
    return out.reshape(values.shape)


def _spread(bits: U32) -> U32:
    """Turn matrices of 32 columns, with shape (…, 32), into four tables of 256 values each, with shape (…, 4, 256)."""
    lead = bits.shape[:-1]
    columns = bits.reshape(*lead, 4, 8)
    tables = np.zeros((*lead, 4, 256), dtype=np.uint32)
    for k in range(8):
        tables[..., 1 << k : 2 << k] = tables[..., : 1 << k] ^ columns[..., k : k + 1]
    return tables


class CrcTables:
    """The look-up tables for the CRCs of one reflected polynomial."""

    def __init__(self, polynomial: int) -> None:
        self._one_byte = _spread(self._one_byte_columns(polynomial))
        self._by_length: dict[int, U32] = {}
        self.header = self._header_tables()
        self.shifted_header = lru_cache(maxsize=CACHED_LENGTHS)(self._shifted_header)

    @staticmethod
    def _one_byte_columns(polynomial: int) -> U32:
        columns = []
        for bit in range(32):
            value = 1 << bit
            for _ in range(8):
                value = value >> 1 ^ (polynomial if value & 1 else 0)
            columns.append(value)
        return np.array(columns, dtype=np.uint32)

    def _header_tables(self) -> U32:
        """Return tables of shape (32, 256): the change of a header's CRC by each value of each of its 32 bytes."""
        tables = np.empty((HEADER_BYTES, 256), dtype=np.uint32)
        tables[-1] = self._one_byte[0]  # a message's last byte is xored into the low byte of the CRC, then shifted out
        for place in range(HEADER_BYTES - 2, -1, -1):
            tables[place] = _apply(self._one_byte, tables[place + 1])
        return tables

    def _tables_of(self, byte: int) -> U32:
        """Return the tables of the shifts by v << 8·``byte`` bytes for v from 0 to 255, as a flat array of 256 · 4 ·
        256 values."""
        if byte not in self._by_length:
            step = self._one_byte
            for _ in range(8 * byte):  # a map applied to itself shifts by twice as many bytes
                step = _spread(_apply(step, step[:, 1 << np.arange(8)].reshape(32)))
            columns = np.empty((256, 32), dtype=np.uint32)
            columns[0] = np.uint32(1) << np.arange(32, dtype=np.uint32)
            for k in range(8):
                columns[1 << k : 2 << k] = _apply(step, columns[: 1 << k])
                step = _spread(_apply(step, step[:, 1 << np.arange(8)].reshape(32)))
            self._by_length[byte] = _spread(columns).reshape(-1)
        return self._by_length[byte]

    def shift(self, crcs: U32, lengths: U32) -> U32:
        """Return each CRC after the number of bytes in ``lengths`` was appended to its message. Lengths are below 16
        MiB."""
        longest = int(lengths.max()) if lengths.size else 0
        out = crcs
        for byte in range(3):
            if longest >> 8 * byte == 0:
                break
            tables = self._tables_of(byte)
            base = (lengths >> np.uint32(8 * byte) & np.uint32(0xFF)).astype(np.int64) << 10
            columns = np.ascontiguousarray(out, dtype="<u4").view(np.uint8).reshape(-1, 4)
            out = tables.take(base + columns[:, 0])
            for k in (1, 2, 3):
                out ^= tables.take(base + (k << 8) + columns[:, k])
        return out

    def behind(self, prefix: int, tails: U8) -> U32:
        """Return the CRCs of messages that have the same begin, whose CRC is ``prefix`` if zeros follow in place of the
        bytes of ``tails``. A row of ``tails`` has the last bytes of each message, at most HEADER_BYTES."""
        count, size = tails.shape
        out = np.full(count, prefix, dtype=np.uint32)
        for k in range(size):
            out ^= self.header[HEADER_BYTES - size + k].take(tails[:, k])
        return out

    def shift_one(self, crc: int, length: int) -> int:
        """Return a CRC after ``length`` bytes, below 16 MiB, were appended to its message."""
        return int(self.shift(np.array([crc], dtype=np.uint32), np.array([length], dtype=np.uint32))[0])

    def _shifted_header(self, length: int) -> U32:
        """Return the header tables, shifted by ``length`` bytes of payload after the header."""
        flat = self.header.reshape(-1)
        return self.shift(flat, np.full(flat.size, length, dtype=np.uint32)).reshape(self.header.shape)


CRC32C_TABLES = CrcTables(0x82F63B78)
CRC32_TABLES = CrcTables(0xEDB88320)
