# SPDX-License-Identifier: Apache-2.0
"""The bytes of a segment: its header, group headers, placement stamps, file names, and the layout of a group. Pure
functions; docs/formats.md §3.2 to §3.4 is the specification, and tests/golden/ has samples of the bytes."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from bk_core.entries.digest import crc32c
from bk_core.errors import IntegrityError
from bookie_server.storage.disk.files import BLOCK

SEGMENT_MAGIC = b"BKSEGMNT"
GROUP_MAGIC = b"BKGROUP1"
FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = BLOCK
GROUP_HEADER_BYTES = 64
FRAME_ALIGNMENT = 64
LARGE_FRAME_BYTES = 64 << 10
"""The size in bytes from which on a frame starts at a multiple of 4096."""
GROUP_BYTES_MAX = 16 << 20
"""The maximum size of a group commit, including header and padding."""
STAMP_OFFSET = 60
"""The offset of the placement stamp in a frame's header."""

_SEGMENT = struct.Struct("<8sIIQ16sQQQQH")
_GROUP = struct.Struct("<8sQQIIQQIIII")
_GROUP_CHECKED = struct.Struct("<8sQQIIQQII")  # the fields that its CRC covers
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_PLACE = struct.Struct("<QQ")
_NAME = re.compile(r"([0-9a-f]{16})\.(segment|idx|free|unsealed)")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header in the first block of a segment. ``incarnation`` has 16 bytes. ``newest_sealed`` is 0 if no segment
    was sealed before."""

    generation: int
    incarnation: bytes
    segment_bytes: int
    created_ms: int
    boot_count: int
    newest_sealed: int
    bookie_id: str


class GroupHeader(NamedTuple):
    """The header in the first 64 bytes of a group. If ``frames`` is 0, the group is idle and only records the position
    (RULES S3)."""

    generation: int
    number: int
    group_bytes: int
    frames: int
    offset: int
    durable: int


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Encode the header's 4096 bytes. The bookie id has at most 255 bytes of UTF-8."""
    name = header.bookie_id.encode()
    assert len(name) <= 255
    assert len(header.incarnation) == 16
    fields = _SEGMENT.pack(
        SEGMENT_MAGIC, FORMAT_VERSION, SEGMENT_HEADER_BYTES, header.generation, header.incarnation,
        header.segment_bytes, header.created_ms, header.boot_count, header.newest_sealed, len(name),
    )  # fmt: skip
    body = (fields + name).ljust(SEGMENT_HEADER_BYTES - 4, b"\0")
    return body + _U32.pack(crc32c(body))


def decode_segment_header(block: bytes) -> SegmentHeader:
    """Decode a segment header. Raises IntegrityError for anything but an intact header of this version."""
    if len(block) < SEGMENT_HEADER_BYTES or crc32c(block[: BLOCK - 4]) != _U32.unpack_from(block, BLOCK - 4)[0]:
        raise IntegrityError("a segment header fails its check")
    magic, version, size, generation, incarnation, segment, created, boots, sealed, name = _SEGMENT.unpack_from(block)
    if magic != SEGMENT_MAGIC or version != FORMAT_VERSION or size != SEGMENT_HEADER_BYTES or name > 255:
        raise IntegrityError("a segment header is of another format", value=f"version {version}")
    if segment % BLOCK or segment <= SEGMENT_HEADER_BYTES:
        raise IntegrityError("a segment header names an impossible size", value=f"{segment} bytes")
    at = _SEGMENT.size
    try:
        bookie_id = block[at : at + name].decode()
    except UnicodeDecodeError as error:
        raise IntegrityError("a segment header names no bookie") from error
    return SegmentHeader(generation, incarnation, segment, created, boots, sealed, bookie_id)


def group_seed(incarnation: bytes) -> int:
    """Return the common start of the CRCs of all group headers of one incarnation."""
    return crc32c(incarnation)


def encode_group_header(header: tuple[int, int, int, int, int, int], seed: int) -> bytes:
    """Encode the 64 bytes of a :class:`GroupHeader`, given as such or as a plain tuple of its fields, which is faster
    to make. ``seed`` comes from :func:`group_seed`."""
    generation, number, group_bytes, frames, offset, durable = header
    checked = _GROUP_CHECKED.pack(GROUP_MAGIC, generation, number, group_bytes, frames, offset, durable, 0, 0)
    return checked + _U64.pack(crc32c(checked, seed))  # the upper four bytes are zero


def decode_group_header(block: bytes | memoryview, incarnation: bytes) -> GroupHeader | None:
    """Return the header at the start of ``block``, or None if it is not an intact one of this incarnation. The caller
    must check that it belongs to this segment and offset."""
    if len(block) < GROUP_HEADER_BYTES:
        return None
    magic, generation, number, size, frames, offset, durable, flags, zero, crc, last = _GROUP.unpack_from(block)
    if magic != GROUP_MAGIC or flags or zero or last or crc32c(block[:56], group_seed(incarnation)) != crc:
        return None
    if size % BLOCK or not size or offset % BLOCK or durable > offset:
        return None
    return GroupHeader(generation, number, size, frames, offset, durable)


def placement_stamp(incarnation: bytes, generation: int, offset: int, crcs: bytes | bytearray | memoryview) -> int:
    """Return the stamp of a frame whose bytes 52–59 are ``crcs``. It ties the frame to this place and this life of the
    segment (S3)."""
    return crc32c(crcs, crc32c(_PLACE.pack(generation, offset), crc32c(incarnation)))


def stamp_seed(incarnation: bytes, generation: int) -> int:
    """Return the common start of all stamps of one segment, for :func:`seeded_stamp`."""
    return crc32c(_U64.pack(generation), crc32c(incarnation))


def seeded_stamp(seed: int, offset: int, crcs: bytes | bytearray | memoryview) -> int:
    """Return what :func:`placement_stamp` returns, from the segment's seed."""
    return crc32c(_U64.pack(offset) + crcs, seed)


def segment_name(generation: int) -> str:
    return f"{generation:016x}.segment"


def index_name(generation: int) -> str:
    return f"{generation:016x}.idx"


def free_name(generation: int) -> str:
    """Return the name of a drained segment that is kept for reuse. ``generation`` is its generation before it was
    drained."""
    return f"{generation:016x}.free"


def unsealed_name(generation: int) -> str:
    """Return the name of an empty file that exists beside a segment until the segment has its ``.idx``. If the segment
    is lost, this file shows that it existed."""
    return f"{generation:016x}.unsealed"


def parse_name(name: str) -> tuple[int, str] | None:
    """Return ``(generation, "segment" | "idx" | "free" | "unsealed")`` for a file name, or None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1], 16), match[2]) if match else None
