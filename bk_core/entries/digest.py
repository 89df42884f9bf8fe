# SPDX-License-Identifier: Apache-2.0
"""Computes Apache's entry digests for many entries at once, bit for bit as Apache does.

A digest covers Apache's 32-byte header of the entry and then the payload. A CRC is linear over GF(2), so crc(header ‖
payload) = shift(crc(header), |payload|) ⊕ crc(payload). The CRC of each header is computed from the CRC of the first
header, by table look-ups (``gf2.py``) for the few bytes that differ. So a CRC costs one C call per entry, for the
payload. An HMAC costs four C calls per entry, and no Python code.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import add, methodcaller
from typing import cast

import crc32c as _crc32c
import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64, U8, U32, Bytes, EntryBatch, byte_view
from bk_core.entries.gf2 import CRC32_TABLES, CRC32C_TABLES, CrcTables
from bk_core.errors import InvalidArgumentError
from bk_core.model import DigestType

crc32c: Callable[..., int] = _crc32c.crc32c

_BLOCK_BYTES = 64  # of SHA-1
_finish = methodcaller("digest")
ENTRY_HEADER = struct.Struct(">qqqq")
FEW_ENTRIES = 32  # up to here a loop is faster than numpy's fixed cost
WIDE_ROW_BYTES = 256  # from here a view of each row is faster than a copy
CRC_READ_BYTES = 256 << 10
"""The number of bytes whose CRC costs about as much as computing CRCs from digests, which is 30 µs."""
COPIED_BYTES = 64 << 10
"""The maximum number of bytes of rows that are copied at a time. To copy a whole frame, Python's allocator would get
memory from the system and return it each time, with a page fault for every 4 KiB."""


def ledger_key(password: bytes) -> bytes:
    """Return the 20 bytes that a bookie compares at attach and fence: SHA-1("ledger" ‖ password)."""
    return hashlib.sha1(b"ledger" + password).digest()


def mac_key(password: bytes) -> bytes:
    """Return the key of HMAC digests: SHA-1("mac" ‖ password)."""
    return hashlib.sha1(b"mac" + password).digest()


def payload_rows(lengths: U32, payload: memoryview) -> Iterable[Bytes]:
    """Yield the payload of each entry as an object: copies of short payloads of equal length, views of all others."""
    width = int(lengths[0])
    if 0 < width < WIDE_ROW_BYTES and payload.nbytes == width * lengths.size and bool((lengths == width).all()):
        rows, step = np.frombuffer(payload, dtype=f"V{width}"), max(1, COPIED_BYTES // width)
        return chain.from_iterable(rows[at : at + step].tolist() for at in range(0, rows.size, step))
    ends = np.cumsum(lengths, dtype=np.int64)
    return map(payload.__getitem__, map(slice, (ends - lengths).tolist(), ends.tolist()))


def _each(lengths: U32, payload: Bytes | list[memoryview]) -> Iterable[Bytes]:
    return payload if isinstance(payload, list) else payload_rows(lengths, byte_view(payload))


def entry_headers(ledger_id: int, ids: I64, lacs: I64 | int, cumulative_lengths: I64) -> U8:
    """Return Apache's 32-byte header of each entry, one row per entry."""
    headers = np.empty((ids.size, 4), dtype=">i8")
    headers[:, 0] = ledger_id
    headers[:, 1] = ids
    headers[:, 2] = lacs
    headers[:, 3] = cumulative_lengths
    return headers.view(np.uint8)


class Mac:
    """HMAC-SHA-1 with one key, computed as RFC 2104 defines it, by two hashes that each begin with a padded key.
    ``hmac.digest`` gives the same result, but OpenSSL 3 looks the algorithm up in each call, which costs four times as
    much as the hashes."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        assert len(key) <= _BLOCK_BYTES
        padded = np.frombuffer(key.ljust(_BLOCK_BYTES, b"\0"), dtype=np.uint8)
        self._inner, self._outer = (padded ^ 0x36).tobytes(), (padded ^ 0x5C).tobytes()

    def digest(self, message: bytes) -> bytes:
        return hashlib.sha1(self._outer + hashlib.sha1(self._inner + message).digest()).digest()

    def digests(self, heads: U8, rests: Iterable[Bytes]) -> bytes:
        """Return the digests of many messages, joined. Message k is row k of ``heads`` followed by item k of
        ``rests``."""
        inner = hashes(map(add, _rows_behind(self._inner, heads), rests))
        rows = np.frombuffer(inner, dtype=np.uint8).reshape(len(heads), -1)
        return hashes(_rows_behind(self._outer, rows))


def hashes(messages: Iterable[bytes]) -> bytes:
    """Return the SHA-1 hashes of the messages, joined."""
    return b"".join(map(_finish, map(hashlib.sha1, messages)))


def _rows_behind(prefix: bytes, rows: U8) -> list[bytes]:
    width = len(prefix) + rows.shape[1]
    joined = np.empty((len(rows), width), dtype=np.uint8)
    joined[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    joined[:, len(prefix) :] = rows
    return cast(list[bytes], joined.view(f"V{width}").ravel().tolist())


CHECKSUMS: Mapping[DigestType, tuple[Callable[..., int], CrcTables]] = {
    DigestType.CRC32C: (crc32c, CRC32C_TABLES),
    DigestType.CRC32: (zlib.crc32, CRC32_TABLES),
}
"""Maps each checksum type to the function that computes a checksum, and to the tables that compute how appended bytes
change it."""


def contradicts(digest: Bytes, data: bytes) -> bool:
    """Return whether ``digest`` is certainly wrong for ``data``. The caller knows only the digest's width, so every
    type of this width is tried. Return False if no type has this width, or if some type of this width is not a
    checksum."""
    kinds = [kind for kind in DigestType if kind.digest_bytes == len(digest)]
    if not kinds or not all(kind.is_checksum for kind in kinds):
        return False
    return all(CHECKSUMS[kind][0](data) != int.from_bytes(digest, "big") for kind in kinds)


class Digester:
    """Computes and checks the digests of one ledger. A digester never changes, so threads may share it."""

    __slots__ = ("_crc", "_mac", "_tables", "digest_bytes", "digest_type", "ledger_id")

    def __init__(self, digest_type: DigestType, password: bytes, ledger_id: int) -> None:
        self.digest_type = digest_type
        self.ledger_id = ledger_id
        self.digest_bytes = digest_type.digest_bytes
        self._mac = Mac(mac_key(password))
        self._crc, self._tables = CHECKSUMS.get(digest_type, CHECKSUMS[DigestType.CRC32C])

    def digest(self, header: bytes, payload: Bytes = b"") -> bytes:
        """Return the digest of one entry, computed without numpy."""
        if not self.digest_bytes:
            return b""
        if self.digest_type.needs_key:
            return self._mac.digest(header + payload)
        return self._crc(payload, self._crc(header)).to_bytes(self.digest_bytes, "big")

    def payload_crcs(self, payloads: list[memoryview]) -> U32 | None:
        """Return the CRC32C of each payload, from which :meth:`compute` makes the digests. Return None if the digests
        are of another type, or if the payloads are so few that this would cost more."""
        if self.digest_type is not DigestType.CRC32C or len(payloads) <= FEW_ENTRIES:
            return None
        return np.fromiter(map(crc32c, payloads), dtype=np.uint32, count=len(payloads))

    def crcs_of_digests(self, headers: Sequence[bytes], digests: U8, lengths: U32) -> U32 | None:
        """Return the CRC32C of each payload, computed from the digest of its entry, which must be right, and from
        Apache's header of the entry. No payload is read. Return None if the digests are of another type, or if the
        payloads are so short that reading them would cost less."""
        if self.digest_type is not DigestType.CRC32C or int(lengths.sum()) < CRC_READ_BYTES:
            return None
        of_headers = np.fromiter(map(crc32c, headers), dtype=np.uint32, count=len(headers))
        return digests.view(">u4").ravel() ^ CRC32C_TABLES.shift(of_headers, lengths)

    def compute(
        self,
        ids: I64,
        lacs: I64 | int,
        cumulative_lengths: I64,
        lengths: U32,
        payload: Bytes | list[memoryview],
        crcs: U32 | None = None,
    ) -> U8:
        """Return the digest of each entry, one row per entry. ``lacs`` may be one LAC that all entries have.
        ``payload`` has the payloads joined, or a list of them. ``crcs`` are their CRCs, if :meth:`payload_crcs` has
        returned them."""
        count = int(lengths.size)
        if count == 0 or self.digest_bytes == 0:
            return np.empty((count, self.digest_bytes), dtype=np.uint8)
        if self.digest_type.needs_key:
            headers = entry_headers(self.ledger_id, ids, lacs, cumulative_lengths)
            digests = np.frombuffer(self._mac.digests(headers, _each(lengths, payload)), dtype=np.uint8)
            return digests.reshape(count, self.digest_bytes)
        if count <= FEW_ENTRIES:
            heads = entry_headers(self.ledger_id, ids, lacs, cumulative_lengths).view("V32").ravel().tolist()
            digested = b"".join(map(self.digest, heads, _each(lengths, payload)))
            return np.frombuffer(digested, dtype=np.uint8).reshape(count, self.digest_bytes)
        if crcs is None:
            crcs = np.fromiter(map(self._crc, _each(lengths, payload)), dtype=np.uint32, count=count)
        crcs = crcs ^ self._shifted_header_crcs(ids, lacs, cumulative_lengths, lengths)
        columns = np.zeros((count, self.digest_bytes // 4), dtype=">u4")
        columns[:, -1] = crcs
        return columns.view(np.uint8)

    def compute_run(self, first_entry_id: int, lac: int, length_before: int, lengths: U32, payload: Bytes) -> U8:
        """Do the same as :meth:`compute` for entries with consecutive ids and the same LAC. Up to FEW_ENTRIES entries
        do not pay numpy's fixed cost."""
        count = int(lengths.size)
        if count <= FEW_ENTRIES and self.digest_bytes:
            return self._few(first_entry_id, lac, length_before, lengths.tolist(), byte_view(payload))
        ids = np.arange(first_entry_id, first_entry_id + count, dtype=np.int64)
        cumulative = length_before + np.cumsum(lengths, dtype=np.int64)
        return self.compute(ids, lac, cumulative, lengths, payload)

    def for_batch(self, batch: EntryBatch) -> U8:
        """Return the digests of a batch, computed from its ids, LACs and ledger lengths."""
        if batch.ids is None and batch.lacs is None and batch.ledger_lengths is None and batch.length_before >= 0:
            return self.compute_run(batch.first_entry_id, batch.lac, batch.length_before, batch.lengths, batch.payload)
        lacs = batch.lac if batch.lacs is None else batch.lacs
        return self.compute(batch.entry_ids(), lacs, batch.cumulative_lengths(), batch.lengths, batch.payload)

    def verify(self, batch: EntryBatch) -> npt.NDArray[np.bool_]:
        """Return for each entry whether its digest is right. Raises InvalidArgumentError if the batch has no digests,
        or has another ledger or digest type than the digester."""
        if batch.digests is None or batch.digest_type is not self.digest_type or batch.ledger_id != self.ledger_id:
            raise InvalidArgumentError(
                "this batch cannot be verified with this ledger's digest",
                value=f"batch: ledger {batch.ledger_id}, {batch.digest_type!r}; "
                f"ledger {self.ledger_id}, {self.digest_type!r}",
            )
        right: npt.NDArray[np.bool_] = (self.for_batch(batch) == batch.digests).all(axis=1)
        return right

    def is_right(self, batch: EntryBatch) -> bool:
        """Return whether all digests of a batch are right. The batch must have this digester's ledger and digest type.
        A batch of few entries does not pay numpy's fixed cost."""
        if batch.digests is None:
            return False
        size = batch.payload.nbytes
        plain = batch.ids is None and batch.lacs is None and batch.ledger_lengths is None and batch.length_before >= 0
        if plain and batch.lengths.size == 1 and batch.lengths[0] == size:
            header = ENTRY_HEADER.pack(self.ledger_id, batch.first_entry_id, batch.lac, batch.length_before + size)
            return self.digest(header, batch.payload) == batch.digests.tobytes()
        return self.for_batch(batch).tobytes() == batch.digests.tobytes()

    def _few(self, entry_id: int, lac: int, ledger_length: int, lengths: list[int], payload: memoryview) -> U8:
        digests = bytearray()
        end = 0
        for length in lengths:
            begin, end = end, end + length
            ledger_length += length
            header = ENTRY_HEADER.pack(self.ledger_id, entry_id, lac, ledger_length)
            digests += self.digest(header, payload[begin:end])
            entry_id += 1
        return np.frombuffer(digests, dtype=np.uint8).reshape(len(lengths), self.digest_bytes)

    def _shifted_header_crcs(self, ids: I64, lacs: I64 | int, cumulative: I64, lengths: U32) -> U32:
        """Return shift(crc(header), |payload|) of each entry. The caller xors it with the payload's CRC."""
        tables = self._tables
        lac = lacs if isinstance(lacs, int) else int(lacs[0])
        base = self._crc(ENTRY_HEADER.pack(self.ledger_id, int(ids[0]), lac, int(cumulative[0])))
        low, high = int(lengths.min()), int(lengths.max())
        header_tables = tables.shifted_header(low) if low == high else tables.header
        crcs = np.full(ids.size, tables.shift_one(base, low) if low == high else base, dtype=np.uint32)
        fields = [(8, ids), (24, cumulative)]
        if not isinstance(lacs, int):
            fields.append((16, lacs))
        for offset, values in fields:
            differs = (values ^ values[0]).astype("<i8", copy=False)
            varying = int(np.bitwise_or.reduce(differs)) & 0xFFFFFFFFFFFFFFFF
            columns = differs.view(np.uint8).reshape(-1, 8)
            for k in range(8):  # byte k of a little-endian number is byte 7 − k of the header's field
                if varying >> 8 * k & 0xFF:
                    crcs ^= header_tables[offset + 7 - k].take(columns[:, k])
        return crcs if low == high else tables.shift(crcs, lengths)
