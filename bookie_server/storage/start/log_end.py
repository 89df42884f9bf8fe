# SPDX-License-Identifier: Apache-2.0
"""Finds the end of a data directory's log quickly, to recognise a restored snapshot (RULES S8), and to give the unused
end of a segment back to the file system.

Data that was durable once is still there after every crash. So a log that ends before a position that was durable is
from an older copy, unless something in it is damaged; the start finds that damage later.
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
    """Return whether the log in the folder ``path`` lacks data that was durable in segment ``generation`` below
    ``offset``. Raises OSError if the log cannot be read."""
    names = [parsed for parsed in map(parse_name, files.names(path)) if parsed is not None]
    newest = max((number for number, kind in names if kind == "segment"), default=0)
    if newest != generation:
        return newest < generation
    handle = files.open_read(os.path.join(path, segment_name(generation)))
    try:
        with contextlib.suppress(OSError):  # the scan below handles blocks that cannot be read
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
    """Return the end of the chain of groups that begins at ``position``."""
    while True:
        group = decode_group_header(files.read(handle, GROUP_HEADER_BYTES, position), incarnation)
        if group is None or (group.generation, group.offset) != (generation, position):
            return position
        position += group.group_bytes


def give_back_unused(files: Files, path: str, segment: ScannedSegment, incarnation: bytes) -> int:
    """Deallocate the blocks behind all groups of a scanned segment in the folder ``path``; return their size.

    Every start seals the segment that was being written, however little is in it. Without this, each restart would take
    a whole segment until compaction comes to it. The blocks are punched out, and the file keeps its size, because a
    segment that is shorter than its header says counts as damage (RULES S3). When the segment is recycled, they are
    allocated again.

    The segment must not be damaged. This is done once the segment has its ``.idx``, or earlier if the start lacks room.
    A later scan finds the same frames, because the data above the durable position stays, and so does the group that
    records that position. If the system refuses, the blocks stay, which costs only space.
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
