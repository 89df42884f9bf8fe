# SPDX-License-Identifier: Apache-2.0
"""Reads a segment without a usable ``.idx`` group by group, and finds the intact frames, the damage, and the torn tail.

The rule (S3; docs/formats.md §3.3) is this. Bad bytes below the highest durable position in any valid group header of
this generation are damage. Bad bytes above it are a tail: of a group whose sync never returned. A gap in the group
numbers below that position is damage. Intact frames above it may have been acknowledged just before the end, so replay
copies them (S6).

Blocks that the disk refuses to read are unknown, not torn. If such a block is in the last group (whether or not a later
group records its position), or where the next group would begin, the segment counts as durable up to the end of that
group or block, so that it is damage. Further behind the end of the log a refused block means nothing, because groups
follow each other without gaps.

A segment may be recycled. Then whole groups and frames of its earlier lives, which mean nothing, may follow those of
this life. Only stamps distinguish them from a torn group of this life. So bad bytes count as a tail only up to the last
frame with a right stamp.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bk_core.entries.frame import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    FrameKind,
    check_frame,
    check_header,
    frame_tag,
)
from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_file import StateCollector
from bookie_server.storage.bytes.index_rows import index_row
from bookie_server.storage.bytes.segment import (
    FRAME_ALIGNMENT,
    GROUP_BYTES_MAX,
    GROUP_HEADER_BYTES,
    GROUP_MAGIC,
    SEGMENT_HEADER_BYTES,
    GroupHeader,
    decode_group_header,
    placement_stamp,
)
from bookie_server.storage.disk.files import BLOCK, round_up

_CHUNK = 4 << 20
FRAME_WORK_BYTES = 1024
"""The minimum work in bytes that a scan reports for a frame, because a small frame costs more than its bytes."""
_SIZES = struct.Struct("<II")  # columns bytes and payload bytes in a frame's header
_SIZES_OFFSET = 44
_MAGIC_U64 = int.from_bytes(GROUP_MAGIC, "little")


@dataclass(frozen=True, slots=True)
class ScannedFrame:
    """A frame with a valid header and stamp. ``intact`` says whether its payload is valid, too."""

    header: FrameHeader
    place: Place
    intact: bool


@dataclass(slots=True)
class ScannedSegment:
    """The result of a scan.

    ``durable`` is the highest durable position on record, or the end of refused blocks if that is higher. ``rows`` and
    ``states`` are the contents of an ``.idx`` up to there. ``bad_frames`` are frames below it with a right header and a
    bad payload (those of entries are in ``rows``, too). ``above`` are intact frames above the position on record.
    ``damage`` has (offset, bytes, what) for bad bytes below ``durable`` whose ledger is unknown, and ``tail`` the same
    for those above it.
    """

    generation: int
    durable: int = SEGMENT_HEADER_BYTES
    groups: int = 0
    groups_below_durable: int = 0
    rows: bytearray = field(default_factory=bytearray)
    states: StateCollector = field(default_factory=StateCollector)
    bad_frames: list[ScannedFrame] = field(default_factory=list)
    above: list[ScannedFrame] = field(default_factory=list)
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    tail: list[tuple[int, int, str]] = field(default_factory=list)
    refused: int = 0
    """The number of refused reads of at most a block."""

    @property
    def is_empty(self) -> bool:
        """Whether the segment shows no sign of a commit in this life."""
        return not (self.groups or self.damage or self.tail)


@dataclass(slots=True)
class _Found:
    """The findings of the walk over the groups, before the highest durable position is known."""

    groups: list[tuple[int, int]] = field(default_factory=list)  # offset and number
    bad: list[tuple[int, int, str]] = field(default_factory=list)


_Region: TypeAlias = tuple[int, int, int]
"""The offset, the size and the number of frames of a group. The number is −1 for bytes without a group header."""


class SegmentScanner:
    """Scans one segment up to ``size``. ``fetch`` reads bytes of it, by size and offset. For a sealed segment
    ``durable`` is the end of its data by its index, even if its group headers are damaged. With None the group headers
    determine the end."""

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        generation: int,
        incarnation: bytes,
        size: int,
        *,
        durable: int | None = None,
    ) -> None:
        self._fetch = fetch
        self._generation, self._incarnation, self._size = generation, incarnation, size // BLOCK * BLOCK
        self._end_is_known = durable is not None
        self._durable = SEGMENT_HEADER_BYTES if durable is None else durable
        self._refused: set[int] = set()  # blocks
        self._recorded = self._durable  # highest position on record
        self.result = ScannedSegment(generation, self._durable)
        """The findings of :meth:`steps` so far; complete when they have ended."""

    def scan(self) -> ScannedSegment:
        for _ in self.steps():
            pass
        return self.result

    def steps(self) -> Iterator[int]:
        """Scan in pieces of at most a group. Yield the size of each piece of work, in bytes."""
        result = self.result = ScannedSegment(self._generation, self._durable)
        found = _Found()
        self._recorded = self._durable
        self._refused.clear()
        waiting: deque[_Region] = deque()  # regions that may lie above the highest durable position
        for region in self._walk(found):
            if isinstance(region, GroupHeader):
                result.durable = self._recorded = max(result.durable, region.durable)
                region = region.offset, region.group_bytes, region.frames
            waiting.append(region)
            yield GROUP_HEADER_BYTES
            while waiting and waiting[0][0] + waiting[0][1] <= result.durable:
                region = waiting.popleft()
                yield self._look_into(region, self._read(region[1], region[0]), found, result)
        rest = [(region, self._read(region[1], region[0])) for region in waiting]
        if not self._end_is_known:
            result.durable = max(result.durable, self._refused_end(waiting))
        for region, data in rest:
            if region[2] >= 0 or region[0] < result.durable:
                yield self._look_into(region, data, found, result)
        result.groups = len(found.groups)
        below = [number + 1 for offset, number in found.groups if offset < result.durable]
        result.groups_below_durable = max(below, default=0)
        for offset, size, what in sorted(found.bad):
            (result.damage if offset < result.durable else result.tail).append((offset, size, what))

    def _refused_end(self, regions: Iterable[_Region]) -> int:
        """Return the end of the last of these regions in which the disk refuses a block, or 0 if there is none."""
        ends = (offset + size for offset, size, _ in regions if self._is_refused(offset, size))
        return max(ends, default=0)

    def _is_refused(self, offset: int, size: int) -> bool:
        return not self._refused.isdisjoint(range(offset // BLOCK, (offset + size - 1) // BLOCK + 1))

    def _look_into(self, region: _Region, read: bytes, found: _Found, result: ScannedSegment) -> int:
        """Add the frames of a group, or those among bad bytes, to the result; return the work in bytes."""
        offset, size, count = region
        data = memoryview(read)
        seen = self._collect(data, offset, count)
        if 0 <= count != len(seen):
            found.bad.append((offset, size, f"{count - len(seen)} of {count} frames of a group are unreadable"))
        for at, header, intact in seen:
            self._take(data, at, header, Place(self._generation, offset + at, header.size), intact, result)
        return max(size, len(seen) * FRAME_WORK_BYTES)

    def _read(self, size: int, offset: int) -> bytes:
        """Read bytes of the segment. Refused blocks read as zeros, and so fail their checks."""
        try:
            return self._fetch(size, offset)
        except OSError:
            if size <= BLOCK:
                self.result.refused += 1
                self._refused.add(offset // BLOCK)
                return bytes(size)
            return b"".join(self._read(min(BLOCK, size - at), offset + at) for at in range(0, size, BLOCK))

    # --- groups -----------------------------------------------------------------------------------------------------

    def _walk(self, found: _Found) -> Iterator[GroupHeader | _Region]:
        """Yield group after group, and the bad bytes between them. Behind bad bytes this searches block by block for
        the next valid group header."""
        position, number = SEGMENT_HEADER_BYTES, 0
        while position < self._size:
            group = self._group_at(position)
            if group is None:
                group = self._next_group(position + BLOCK)
                end = group.offset if group is not None else max(self._end_of_bad(position), self._durable)
                if end > position:
                    found.bad.append((position, end - position, "bytes that are no group"))
                    yield position, end - position, -1
                if group is None:
                    return
            elif group.number != number:
                self._note_gap(found, group, number)
            found.groups.append((group.offset, group.number))
            yield group
            position, number = group.offset + group.group_bytes, group.number + 1
        if position < self._durable:
            found.bad.append((position, self._durable - position, "the segment ends before its last group"))

    def _note_gap(self, found: _Found, group: GroupHeader, number: int) -> None:
        found.bad.append((group.offset - BLOCK, 0, f"group {group.number} where {number} should be"))

    def _group_at(self, position: int) -> GroupHeader | None:
        block = self._read(GROUP_HEADER_BYTES, position)
        return self._checked_group(block, position)

    def _checked_group(self, block: bytes | memoryview, position: int) -> GroupHeader | None:
        group = decode_group_header(block, self._incarnation)
        if group is None or group.generation != self._generation or group.offset != position:
            return None
        return group

    def _next_group(self, position: int) -> GroupHeader | None:
        for start, chunk in self._chunks(position):
            magics = np.frombuffer(chunk, dtype="<u8")[:: BLOCK // 8]
            for k in np.flatnonzero(magics == _MAGIC_U64).tolist():
                group = self._checked_group(chunk[k * BLOCK : k * BLOCK + GROUP_HEADER_BYTES], start + k * BLOCK)
                if group is not None:
                    return group
        return None

    def _torn_end(self, position: int) -> int:
        """Return the end of the blocks that a torn last group of this life left from ``position`` on. Return
        ``position`` if there is no sign of such a group."""
        data = memoryview(self._read(min(GROUP_BYTES_MAX, self._size - position), position))
        frames = self._hunt_frames(data, position)
        ends = [min(len(data), round_up(at + header.size, BLOCK)) for at, header, _ in frames]
        return position + max(ends, default=0)

    def _end_of_bad(self, position: int) -> int:
        """Return the end of what this life may have left from ``position`` on: a torn group, or a block that the disk
        refuses to read. Return ``position`` if there is no sign of either."""
        refused = position + BLOCK if self._is_refused(position, GROUP_HEADER_BYTES) else position
        return max(self._torn_end(position), refused)

    def _chunks(self, position: int) -> Iterator[tuple[int, bytes]]:
        while position < self._size:
            chunk = self._read(min(_CHUNK, self._size - position), position)
            if len(chunk) < BLOCK:
                return
            yield position, chunk[: len(chunk) // BLOCK * BLOCK]
            position += len(chunk) // BLOCK * BLOCK

    # --- frames -----------------------------------------------------------------------------------------------------

    def _collect(self, data: memoryview, offset: int, count: int) -> list[tuple[int, FrameHeader, bool]]:
        """Return (offset in ``data``, header, intact) for the frames of a group of ``count`` frames; a ``count`` of −1
        means a region whose group header is bad. If the simple walk finds too few frames, every place is tried where a
        frame may begin."""
        if count >= 0:
            seen = self._walk_frames(data, offset)
            if len(seen) == count:
                return seen
        return self._hunt_frames(data, offset)

    def _walk_frames(self, data: memoryview, offset: int) -> list[tuple[int, FrameHeader, bool]]:
        at, seen = GROUP_HEADER_BYTES, []
        while at + FRAME_HEADER_BYTES <= len(data):
            if data[at] == 0 and data[at + 1] == 0 and at % BLOCK:  # padding before a large frame, or at the end
                at = round_up(at, BLOCK)
                continue
            frame = self._frame_at(data, at, offset)
            if frame is None:
                break
            seen.append((at, *frame))
            at = round_up(at + frame[0].size, FRAME_ALIGNMENT)
        return seen

    def _hunt_frames(self, data: memoryview, offset: int) -> list[tuple[int, FrameHeader, bool]]:
        """Try every place where a frame may begin, and return the frames whose stamp is right, because the bytes before
        them may be bad."""
        whole = data[: len(data) // FRAME_ALIGNMENT * FRAME_ALIGNMENT]
        magics = np.frombuffer(whole, dtype="<u2")[:: FRAME_ALIGNMENT // 2]
        end, seen = 0, []
        for at in (np.flatnonzero(magics == FRAME_MAGIC) * FRAME_ALIGNMENT).tolist():
            frame = self._frame_at(data, at, offset) if at >= end else None
            if frame is not None:
                seen.append((at, *frame))
                end = at + frame[0].size
        return seen

    def _frame_at(self, data: memoryview, at: int, offset: int) -> tuple[FrameHeader, bool] | None:
        """Return the header of the frame at ``at``, and whether its payload is right. Return None if its stamp or
        header is wrong."""
        columns_bytes, payload_bytes = _SIZES.unpack_from(data, at + _SIZES_OFFSET)
        frame = data[at : at + FRAME_HEADER_BYTES + columns_bytes + payload_bytes]
        if frame_tag(frame) != placement_stamp(self._incarnation, self._generation, offset + at, frame[52:60]):
            return None
        try:
            return check_frame(frame), True
        except IntegrityError:
            pass
        try:
            return check_header(frame), False
        except IntegrityError:
            return None

    def _take(
        self, data: memoryview, at: int, header: FrameHeader, place: Place, intact: bool, result: ScannedSegment
    ) -> None:
        bytes_of = data[at : at + header.size]
        frame = ScannedFrame(header, place, intact)
        if frame.intact and place.offset >= self._recorded:
            result.above.append(frame)
        if place.offset >= result.durable:
            if not frame.intact:
                result.tail.append((place.offset, header.size, "a frame whose payload did not arrive"))
            return
        if not frame.intact:
            result.bad_frames.append(frame)
        if header.kind == FrameKind.ENTRIES:
            result.rows += index_row(bytes_of, header, place.offset)
        elif frame.intact:
            result.states.add(header.ledger_id, header.kind, bytes(bytes_of[FRAME_HEADER_BYTES:]))
