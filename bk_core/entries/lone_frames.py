# SPDX-License-Identifier: Apache-2.0
"""Encodes the frames of single entries of many ledgers together; docs/formats.md §1 defines frames."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import numpy as np

from bk_core.entries.batch import I64, check_entry_sizes
from bk_core.entries.digest import crc32c
from bk_core.entries.frame import CHECKED_BYTES, CRCS_AND_TAG, FRAME_MAGIC, FRAME_VERSION, FrameKind
from bk_core.model import DigestType

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
    heads["digest_type"], heads["count"], heads["columns_bytes"] = int(DigestType.CRC32C), 1, LONE_FRAME_BYTES - _TAGGED
    heads["ledger"], heads["first"], heads["lac"], heads["before"] = ledgers, ids, lacs, lengths_before
    heads["payload_bytes"] = heads["length"] = sizes
    heads["digest"] = np.fromiter(map(crc32c, payloads, of_entry_heads), np.uint32, count)
    heads["payload_crc"], heads["tag"] = np.fromiter(map(crc32c, payloads), np.uint32, count), sessions
    rows = heads.view(np.uint8).reshape(count, -1)
    checked = np.concatenate((rows[:, :CHECKED_BYTES], rows[:, _TAGGED:]), axis=1)
    of_heads = map(crc32c, checked.view(f"V{checked.shape[1]}").ravel().tolist())
    heads["header_crc"] = np.fromiter(of_heads, np.uint32, count)
    return [*map(add, heads.view(f"V{LONE_FRAME_BYTES}").tolist(), payloads)]
