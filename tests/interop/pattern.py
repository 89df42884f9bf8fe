# SPDX-License-Identifier: Apache-2.0
"""Payloads that Python and Java compute alike (java/Pattern.java), so that a test compares checksums, not bytes.

Entry ``i`` has ``size_min + (i * 2654435761 mod 2^32) mod (size_max - size_min + 1)`` bytes. They come from a block of
64 KiB of SHA-256 hashes of seed and counter, from place ``i * 7919`` on, and from its beginning again after its end. If
there is room, the id comes first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

_BLOCK = 65536


@dataclass(frozen=True, slots=True)
class Pattern:
    """The payloads of a ledger."""

    seed: int = 1
    size_min: int = 100
    size_max: int = 100

    def payload(self, entry_id: int) -> bytes:
        """Return the payload of one entry."""
        size = self.size_min + (entry_id * 2654435761 & 0xFFFFFFFF) % (self.size_max - self.size_min + 1)
        start = entry_id * 7919 & (_BLOCK - 1)
        block = _block(self.seed)
        payload = (block * ((start + size) // _BLOCK + 1))[start : start + size]
        return struct.pack(">q", entry_id) + payload[8:] if size >= 8 else payload

    def payloads(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the payloads of the entries ``first`` to ``last``, both included."""
        return (self.payload(entry_id) for entry_id in range(first, last + 1))

    def checksum(self, first: int, last: int) -> str:
        """Return the checksum that a Java program answers when it has read these entries."""
        return checksum(self.payloads(first, last))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for a Java program."""
        return {"seed": self.seed, "size_min": self.size_min, "size_max": self.size_max}


def checksum(payloads: Iterable[bytes]) -> str:
    """Return the SHA-256 over payloads, each with its length before it."""
    sum = hashlib.sha256()
    for payload in payloads:
        sum.update(struct.pack(">i", len(payload)))
        sum.update(payload)
    return sum.hexdigest()


@cache
def _block(seed: int) -> bytes:
    return b"".join(hashlib.sha256(struct.pack(">qq", seed, n)).digest() for n in range(_BLOCK // 32))
