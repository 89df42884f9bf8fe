# SPDX-License-Identifier: Apache-2.0
"""Remembers the contents of frames. Every bookie of a write set gets the same bytes, so each frame is decoded once."""

from __future__ import annotations

import struct
from typing import NamedTuple

from bk_core.entries.frame import (
    FRAME_HEADER_BYTES,
    FrameExtent,
    FrameHeader,
    FrameKind,
    decode_frame,
    frame_extent,
    parse_header,
)
from bk_core.model import EntryId
from tests.kit.memory_holdings import StoredFrame

_TAG = struct.Struct("<I")
_TAG_AT = FRAME_HEADER_BYTES - _TAG.size
_KEPT_MAX = 20_000


class Contents(NamedTuple):
    """The contents of a frame without its tag. ``ids`` and ``payloads`` are empty for a record."""

    header: FrameHeader
    extent: FrameExtent
    ids: tuple[EntryId, ...]
    payloads: tuple[bytes, ...]
    members: frozenset[EntryId] | None  # None: every id of the range


_seen: dict[bytes, Contents] = {}


def tag_of(frame: bytes | bytearray | memoryview) -> int:
    """Return the session on which a frame was sent."""
    return int(_TAG.unpack_from(frame, _TAG_AT)[0])


def contents(frame: bytes | bytearray | memoryview) -> Contents:
    """Return the contents of a frame."""
    data = bytes(frame)
    key = data[:_TAG_AT] + data[FRAME_HEADER_BYTES:]
    found = _seen.get(key)
    if found is None:
        if len(_seen) > _KEPT_MAX:
            _seen.clear()
        found = _seen[key] = _taken_apart(data)
    return found


def _taken_apart(data: bytes) -> Contents:
    header = parse_header(data)
    extent = frame_extent(data, header)
    if header.kind != FrameKind.ENTRIES:
        return Contents(header, extent, (), (), None)
    batch = decode_frame(data)
    ids = tuple(batch.entry_ids().tolist())
    return Contents(header, extent, ids, tuple(batch.to_list()), None if extent.dense else frozenset(ids))


def stored(frame: bytes | bytearray | memoryview) -> StoredFrame:
    """Return the frame in the form of a memory back end."""
    found = contents(frame)
    return StoredFrame(bytes(frame), found.header, found.extent, found.members)
