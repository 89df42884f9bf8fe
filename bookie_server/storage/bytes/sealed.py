# SPDX-License-Identifier: Apache-2.0
"""What a start reads of a segment without scanning it: the segment's header; of its ``.idx`` the header, the summary,
and the state records unless a checkpoint has them. Index records stay on disk (RULES S7)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bk_core.errors import IntegrityError
from bookie_server.storage.bytes.index_file import IndexSections, decode_index_header, decode_states, decode_summary
from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.bytes.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    index_name,
    segment_name,
)
from bookie_server.storage.disk.files import BLOCK, Files, Handle


@dataclass(frozen=True, slots=True, eq=False)
class SealedSummary:
    """``states`` is None if they were not asked for."""

    sections: IndexSections
    summary: Rows
    states: Rows | None


def read_header(
    files: Files, path: str, handle: Handle, generation: int, incarnation: bytes
) -> tuple[SegmentHeader | None, str | None]:
    """The header of an open segment of the directory ``path``, or None if it cannot be read; and what is wrong with it,
    or with the segment's size, in words. A header that fails its check is read once more past the page cache (RULES
    S5)."""
    name, size = segment_name(generation), files.size(handle)
    try:
        try:
            header = decode_segment_header(files.read(handle, SEGMENT_HEADER_BYTES, 0))
        except (IntegrityError, OSError):
            block = files.read_past_cache(os.path.join(path, name), SEGMENT_HEADER_BYTES, 0)
            header = decode_segment_header(block)
    except (IntegrityError, OSError) as error:
        return None, f"{name}: {error}"
    if header.generation != generation or header.incarnation != incarnation:
        return header, f"{name} is of generation {header.generation} or of another directory"
    if header.segment_bytes != size:
        return header, f"{name} has {size} bytes instead of {header.segment_bytes}"
    return header, None


def read_sealed(files: Files, path: str, generation: int, incarnation: bytes, *, states: bool) -> SealedSummary:
    """Read the ``.idx`` of a segment of the directory ``path``.

    Raises IntegrityError if its parts are not intact, its size is not what it says, or it is of another segment or
    directory; OSError if it cannot be read. Then the segment must be scanned.
    """
    handle = files.open_read(os.path.join(path, index_name(generation)))
    try:
        sections = decode_index_header(files.read(handle, BLOCK, 0))
        header = sections.header
        if header.generation != generation or header.incarnation != incarnation:
            raise IntegrityError("an index file is of another segment", value=f"generation {header.generation}")
        if files.size(handle) != sections.file_bytes:
            raise IntegrityError("an index file has another size than its header says")
        summary = decode_summary(sections, _read(files, handle, sections.summary_range))
        rows = decode_states(sections, _read(files, handle, sections.state_range)) if states else None
        return SealedSummary(sections, summary, rows)
    finally:
        files.close(handle)


def _read(files: Files, handle: Handle, where: tuple[int, int]) -> bytes:
    offset, size = where
    return files.read(handle, size, offset)
