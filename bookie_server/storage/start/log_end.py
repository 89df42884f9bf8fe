# SPDX-License-Identifier: Apache-2.0
"""How far a data directory's log goes, found quickly: to tell a restored snapshot from the directory itself (RULES S8).

What was durable once is still there after every crash, so a log that ends before a position that was durable is an
older one, unless something in it is damaged; then the start-up finds that out.
"""

from __future__ import annotations

import contextlib
import os

from bookie_server.storage.bytes.scan import SegmentScanner
from bookie_server.storage.bytes.segment import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_group_header,
    parse_name,
    segment_name,
)
from bookie_server.storage.disk.files import Files, Handle


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
        scanned = SegmentScanner(files, handle, generation, incarnation, files.size(handle)).scan()
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
