# SPDX-License-Identifier: Apache-2.0
"""Makes frames with flags that may not be sent yet. Everything else in these frames is correct."""

from __future__ import annotations

import struct

from bk_core.entries.digest import crc32c
from bk_core.entries.frame import DEFERRED_SYNC, MANY_LEDGERS, PARTIAL, parse_header

UNKNOWN_FLAGS = (DEFERRED_SYNC, MANY_LEDGERS, PARTIAL, 0x8000)


def with_flags(frame: bytes, flags: int = PARTIAL) -> bytes:
    """Return ``frame`` with ``flags`` added and the CRC32C of its header computed again."""
    columns_end = 64 + parse_header(frame).columns_bytes
    made = bytearray(frame)
    struct.pack_into("<H", made, 4, struct.unpack_from("<H", frame, 4)[0] | flags)
    struct.pack_into("<I", made, 52, crc32c(bytes(made[64:columns_end]), crc32c(bytes(made[:52]))))
    return bytes(made)
