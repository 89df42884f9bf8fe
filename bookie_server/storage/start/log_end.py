# SPDX-License-Identifier: Apache-2.0
"""How far a data directory's log goes, found quickly: to tell a restored snapshot from the directory itself (RULES S8),
and to give the unused end of a segment back to the file system.

What was durable once is still there after every crash, so a log that ends before a position that was durable is an
older one, unless something in it is damaged; then the start-up finds that out.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial

from bookie_server.storage.bytes.scan import ScannedSegment, SegmentScanner
from bookie_server.storage.bytes.segment import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_group_header,
    parse_name,
    segment_name,
)
from bookie_server.storage.disk.files import BLOCK, Files, Handle, round_up


def is_older(files: Files, path: str, incarnation: bytes, generation: int, offset: int) -> bool:
    """Whether the log in the folder ``path`` lacks what was durable in segment ``generation`` below ``offset``. OSError
    if it cannot be read."""
    names = [parsed for parsed in map(parse_name, files.names(path)) if parsed is not None]
    newest = max((number for number, kind in names if kind == "segment"), default=0)
    if newest != generation:
        return newest < generation
    handle = files.open_read(os.path.join(path, segment_name(generation)))
    try:
        with contextlib.suppress(OSError):  # the scan goes on where a block cannot be read
            if end_of_groups(files, handle, generation, incarnation) >= offset:
                return False
        files.drop_cache(handle)
        scanned = SegmentScanner(partial(files.read, handle), generation, incarnation, files.size(handle)).scan()
        return not scanned.damage and not scanned.bad_frames and scanned.durable < offset
    finally:
        files.close(handle)


def end_of_groups(
    files: Files, handle: Handle, generation: int, incarnation: bytes, position: int = SEGMENT_HEADER_BYTES
) -> int:
    """Where the chain of group headers that begins at ``position`` ends."""
    while True:
        group = decode_group_header(files.read(handle, GROUP_HEADER_BYTES, position), incarnation)
        if group is None or (group.generation, group.offset) != (generation, position):
            return position
        position += group.group_bytes


def give_back_unused(files: Files, path: str, segment: ScannedSegment, incarnation: bytes) -> int:
    """Deallocate what lies behind all groups of a scanned segment of the folder ``path``; how many bytes.

    Every start seals the segment that was being written, however little is in it: without this a bookie that is
    restarted again and again would take a whole segment each time until compaction comes to it. The blocks are punched
    out, not cut off: a segment that is shorter than its header says is damage (RULES S3), and stays so. What recycles
    the segment later allocates them anew.

    Nothing in the segment is damaged. It is done once it has its ``.idx``, or before, where the start has no room. A
    later scan finds the same: what stands above its durable position stays, the group that records that position too.
    Where the system refuses, the blocks stay: that is only space.
    """
    name = os.path.join(path, segment_name(segment.generation))
    frames = max((frame.place.offset + frame.place.size for frame in segment.above), default=0)
    torn = max((offset + size for offset, size, _ in segment.tail), default=0)
    with contextlib.suppress(OSError):
        handle = files.open_read(name)
        try:
            groups = end_of_groups(files, handle, segment.generation, incarnation, segment.durable)
        finally:
            files.close(handle)
        return files.deallocate(name, round_up(max(groups, frames, torn), BLOCK))
    return 0
