# SPDX-License-Identifier: Apache-2.0
"""Finds frames in a run: the bytes from the first to the last of several small frames of a ledger (RULES S7).

Frames of other ledgers, group headers and padding may lie between them and are skipped. Pure functions over bytes.
Every frame that is returned was checked as if it had been read alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from bk_core.entries.batch import Bytes
from bk_core.entries.frame import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    FrameKind,
    check_frame,
    frame_extent,
    slice_frame,
)
from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.membership import RunMembers
from bookie_server.storage.bytes.segment import FRAME_ALIGNMENT, GROUP_HEADER_BYTES, GROUP_MAGIC, placement_stamp
from bookie_server.storage.disk.files import BLOCK, round_up

_HEAD = struct.Struct("<HBBHBBqqqqIII")  # a frame's header up to its sizes
_GROUP_MAGIC_U16 = int.from_bytes(GROUP_MAGIC[:2], "little")
assert _GROUP_MAGIC_U16 == FRAME_MAGIC, "both begin with BK; the next byte differs"


def check_stored_frame(data: Bytes, place: Place, incarnation: bytes, ledger_id: int | None = None) -> FrameHeader:
    """Check a frame read from ``place``, and return its header. Raises IntegrityError if a CRC, the stamp or the ledger
    is wrong."""
    if len(data) != place.size:
        raise IntegrityError("a segment ends before a frame in it", value=str(place), remedy="read another copy")
    header = check_frame(data)
    if header.tag != placement_stamp(incarnation, place.generation, place.offset, data[52:60]):
        raise IntegrityError("a frame was not written to this place", value=str(place), remedy="read another copy")
    if ledger_id is not None and header.ledger_id != ledger_id:
        raise IntegrityError("a frame is another ledger's", value=f"{place}, ledger {header.ledger_id}")
    return header


def entries_of_run(data: bytes | memoryview, run: Place, incarnation: bytes, first: int, last: int) -> bytes:
    """Return the entries first to last, all of which are in the run, as whole frames one behind the other. Raises
    IntegrityError if any of them is not intact."""
    view = memoryview(data)
    parts: list[bytes | bytearray | memoryview] = []
    cursor = first
    for low, high, at, size in _walk(view, run):
        if high < first:
            continue
        if low > cursor or cursor > last:
            break
        frame = view[at : at + size]
        check_stored_frame(frame, Place(run.generation, run.offset + at, size), incarnation, run.run_of)
        part = slice_frame(frame, first, last)
        assert part is not None
        parts.append(part)
        cursor = high + 1
    if cursor <= last:
        raise IntegrityError(
            "a frame of a run is missing or damaged", value=f"{run}, entry {cursor}", remedy="read another copy"
        )
    return b"".join(parts)


def _walk(view: memoryview, run: Place) -> Iterator[tuple[int, int, int, int]]:
    """Yield first and last id, offset and size of each frame of the ledger, from the unchecked headers. Ends at the
    first bytes that are no header."""
    at = 0
    while at + FRAME_HEADER_BYTES <= len(view):
        magic, version, kind, _, _, _, ledger_id, first, _, _, count, columns, payload = _HEAD.unpack_from(view, at)
        aligned = (run.offset + at) % BLOCK == 0
        if magic == FRAME_MAGIC and version == 1:
            size = FRAME_HEADER_BYTES + columns + payload
            if ledger_id == run.run_of and kind == FrameKind.ENTRIES:
                yield first, first + count - 1, at, size
            at = round_up(at + size, FRAME_ALIGNMENT)
        elif aligned and view[at : at + len(GROUP_MAGIC)] == GROUP_MAGIC:
            at += GROUP_HEADER_BYTES
        elif magic == 0 and not aligned:
            at = round_up(run.offset + at, BLOCK) - run.offset
        else:
            return


def members_of_run(data: bytes | memoryview, run: Place, incarnation: bytes) -> RunMembers:
    """Return the intact frames of a damaged run. Every place where a frame may begin is tried, because the sizes that
    lead from one frame to the next may be damaged."""
    view = memoryview(data)
    whole = data[: len(data) // FRAME_ALIGNMENT * FRAME_ALIGNMENT]
    magics = np.frombuffer(whole, dtype="<u2")[:: FRAME_ALIGNMENT // 2]
    found: list[tuple[int, int, int, int]] = []
    end = 0
    for at in (np.flatnonzero(magics == FRAME_MAGIC) * FRAME_ALIGNMENT).tolist():
        if at < end or at + FRAME_HEADER_BYTES > len(view):
            continue
        fields = _HEAD.unpack_from(view, at)
        size = FRAME_HEADER_BYTES + fields[-2] + fields[-1]
        frame = view[at : at + size]
        try:
            header = check_stored_frame(frame, Place(run.generation, run.offset + at, size), incarnation)
        except IntegrityError:
            continue
        end = at + size
        if header.ledger_id == run.run_of and header.kind == FrameKind.ENTRIES:
            extent = frame_extent(frame, header)
            found.append((extent.first, extent.last, run.offset + at, size))
    found.sort()
    firsts, lasts, offsets, sizes = zip(*found, strict=True) if found else ((), (), (), ())
    return RunMembers(firsts, lasts, offsets, sizes)
