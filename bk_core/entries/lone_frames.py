# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes frames of one entry with a CRC32C, which have a fixed layout; docs/formats.md §1 defines
frames."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import add

import numpy as np

from bk_core.entries.batch import I64, Bytes, EntryBatch, check_entry_sizes
from bk_core.entries.digest import ENTRY_HEADER, Digester, crc32c
from bk_core.entries.frame import CHECKED_BYTES, CRCS_AND_TAG, FRAME_MAGIC, FRAME_VERSION, I64_MAX, FrameKind
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX

_LONE = np.dtype(
    [
        *(("magic", "<u2"), ("version", "u1"), ("kind", "u1"), ("flags", "<u2"), ("digest_type", "u1"), ("zero", "u1")),
        *(("ledger", "<i8"), ("first", "<i8"), ("lac", "<i8"), ("before", "<i8")),
        *(("count", "<u4"), ("columns_bytes", "<u4"), ("payload_bytes", "<u4")),
        *(("header_crc", "<u4"), ("payload_crc", "<u4"), ("tag", "<u4"), ("length", "<u4"), ("digest", ">u4")),
    ]
)
"""The bytes before the payload in a frame of one entry with a CRC32C: the header and both columns."""

LONE_FRAME_BYTES = _LONE.itemsize
"""The number of bytes of such a frame in addition to its payload."""

_TAGGED = CHECKED_BYTES + CRCS_AND_TAG.size
_CHECKED = struct.Struct("<8s4q3I")
"""The first of these bytes, up to the CRCs. The first field has everything before the ledger."""

_COLUMNS = struct.Struct("<I4s")
_HEAD = struct.Struct(_CHECKED.format + CRCS_AND_TAG.format[1:] + _COLUMNS.format[1:])
"""All of these bytes."""

_BEGIN = struct.pack("<HBBHBB", FRAME_MAGIC, FRAME_VERSION, FrameKind.ENTRIES, 0, DigestType.CRC32C, 0)


def encode_lone_entries(
    payloads: Sequence[bytes], ledgers: I64, ids: I64, lacs: I64, lengths_before: I64, sessions: I64
) -> list[bytes]:
    """Return the frame of one new entry of each of many ledgers, all with digests of type CRC32C. The frames are those
    of :func:`~bk_core.entries.frame.encode_one`. No Python code runs per entry. Raises EntryTooLargeError."""
    count = len(payloads)
    sizes = np.fromiter(map(len, payloads), np.int64, count)
    check_entry_sizes(sizes)
    entry_heads = np.empty((count, 4), ">i8")
    for k, column in enumerate((ledgers, ids, lacs, lengths_before + sizes)):
        entry_heads[:, k] = column
    of_entry_heads = map(crc32c, entry_heads.view("V32").ravel().tolist())
    heads = np.zeros(count, _LONE)
    heads["magic"], heads["version"], heads["kind"] = FRAME_MAGIC, FRAME_VERSION, FrameKind.ENTRIES
    heads["digest_type"], heads["count"], heads["columns_bytes"] = int(DigestType.CRC32C), 1, _COLUMNS.size
    heads["ledger"], heads["first"], heads["lac"], heads["before"] = ledgers, ids, lacs, lengths_before
    heads["payload_bytes"] = heads["length"] = sizes
    heads["digest"] = np.fromiter(map(crc32c, payloads, of_entry_heads), np.uint32, count)
    heads["payload_crc"], heads["tag"] = np.fromiter(map(crc32c, payloads), np.uint32, count), sessions
    rows = heads.view(np.uint8).reshape(count, -1)
    checked = np.concatenate((rows[:, :CHECKED_BYTES], rows[:, _TAGGED:]), axis=1)
    of_heads = map(crc32c, checked.view(f"V{checked.shape[1]}").ravel().tolist())
    heads["header_crc"] = np.fromiter(of_heads, np.uint32, count)
    return [*map(add, heads.view(f"V{LONE_FRAME_BYTES}").tolist(), payloads)]


def lone_frame(payload: Bytes, digest: bytes, *, ledger_id: int, entry_id: int, lac: int, length_before: int) -> bytes:
    """Return the frame of one entry, with tag 0. ``digest`` is the entry's CRC32C, which the caller has checked."""
    size = len(payload)
    checked = _CHECKED.pack(_BEGIN, ledger_id, entry_id, lac, length_before, 1, _COLUMNS.size, size)
    columns = _COLUMNS.pack(size, digest)
    crcs = CRCS_AND_TAG.pack(crc32c(columns, crc32c(checked)), crc32c(payload), 0)
    return b"".join((checked, crcs, columns, payload))


def lone_entry(frame: memoryview, digester: Digester) -> EntryBatch | None:
    """Return the entry in a whole frame of one entry with a CRC32C, which is the usual answer to a read of one entry.

    Return None for another frame, and if a check fails. :func:`~bk_core.entries.verified.verified_batches` then returns
    the entries, or raises the error. This function makes the same checks and returns the same batch at half the
    cost, because it needs no header object and no columns. The entry's digest is always checked.
    """
    if frame.nbytes < LONE_FRAME_BYTES or digester.digest_type is not DigestType.CRC32C:
        return None
    begin, ledger_id, entry_id, lac, before, count, columns, size, header_crc, payload_crc, _, length, digest = (
        _HEAD.unpack_from(frame)
    )
    payload = frame[LONE_FRAME_BYTES:].toreadonly()
    if (
        begin != _BEGIN
        or (ledger_id, count, columns, length) != (digester.ledger_id, 1, _COLUMNS.size, size)
        or not size == len(payload) <= FRAME_BYTES_MAX - LONE_FRAME_BYTES
        or not (0 <= entry_id < I64_MAX and lac >= -1 and 0 <= before <= I64_MAX - size)
        or crc32c(frame[_TAGGED:LONE_FRAME_BYTES], crc32c(frame[:CHECKED_BYTES])) != header_crc
        or crc32c(payload) != payload_crc
        or digester.digest(ENTRY_HEADER.pack(ledger_id, entry_id, lac, before + size), payload) != digest
    ):
        return None
    return EntryBatch(
        lengths=np.frombuffer(frame, "<u4", 1, _TAGGED),
        payload=payload,
        ledger_id=ledger_id,
        first_entry_id=entry_id,
        digests=np.frombuffer(frame, np.uint8, len(digest), _TAGGED + 4).reshape(1, -1),
        digest_type=DigestType.CRC32C,
        lac=lac,
        length_before=before,
    )
