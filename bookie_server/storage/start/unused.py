# SPDX-License-Identifier: Apache-2.0
"""The unused end of a segment that a start has sealed goes back to the file system, and the segment keeps its size.

Every start seals the segment that was being written, however little is in it: without this a bookie that is restarted
again and again would take a whole segment each time until compaction comes to it. The blocks are punched out, not cut
off: a segment that is shorter than its header says is damage (RULES S3), and stays so. What recycles the segment later
allocates them anew.
"""

from __future__ import annotations

import contextlib
import os

from bookie_server.storage.bytes.scan import ScannedSegment
from bookie_server.storage.bytes.segment import segment_name
from bookie_server.storage.disk.files import BLOCK, Files, round_up
from bookie_server.storage.start.log_end import end_of_groups


def give_back_unused(files: Files, path: str, segment: ScannedSegment, incarnation: bytes) -> int:
    """Deallocate what lies behind all groups of a scanned segment of the folder ``path``; how many bytes.

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
