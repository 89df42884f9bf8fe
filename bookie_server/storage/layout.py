# SPDX-License-Identifier: Apache-2.0
"""Which frames go into which group, and where: planned before anything is written, so that a full disk changes nothing.

Frames keep their order. Where a frame would inherit another counter than it must carry (RULES S4), a COUNTER record is
put before it; that happens at most once for each ledger and segment while nothing is dropped or restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bk_core.entries.frame import FRAME_HEADER_BYTES, FrameHeader, FrameKind, encode_counter_record, parse_header
from bk_core.errors import InvalidArgumentError
from bookie_server.storage.files import BLOCK, round_up
from bookie_server.storage.index_file import counter_of
from bookie_server.storage.segment import (
    FRAME_ALIGNMENT,
    GROUP_BYTES_MAX,
    GROUP_HEADER_BYTES,
    LARGE_FRAME_BYTES,
    SEGMENT_HEADER_BYTES,
)

Frame: TypeAlias = bytes | bytearray | memoryview
_COUNTER_RECORD_BYTES = FRAME_HEADER_BYTES + 4


def start_of(size: int, end: int) -> int:
    """Where in a group a frame of ``size`` bytes begins when the one before ends at ``end``."""
    step = BLOCK if size >= LARGE_FRAME_BYTES else FRAME_ALIGNMENT
    return (end + step - 1) & -step


def group_limit(segment_bytes: int, position: int) -> int:
    """Largest group that may begin at ``position``: one block stays free for the segment's last idle group."""
    return max(0, min(GROUP_BYTES_MAX, segment_bytes - position - BLOCK))


class GroupPlan:
    """Frames laid out for one group of one segment: bytes, header, size and offset of each; ``wanted``: whether it is
    the caller's and not our own; ``inherited``: the counter that it inherits."""

    __slots__ = ("end", "frames", "headers", "inherited", "limit", "new_segment", "offsets", "sizes", "wanted")

    def __init__(self, limit: int, new_segment: bool = False) -> None:
        self.limit, self.new_segment = limit // BLOCK * BLOCK, new_segment
        self.end = GROUP_HEADER_BYTES
        self.frames: list[Frame] = []
        self.headers: list[FrameHeader] = []
        self.sizes: list[int] = []
        self.offsets: list[int] = []
        self.inherited: list[int] = []
        self.wanted: list[bool] = []

    @property
    def group_bytes(self) -> int:
        """Bytes of the group, header and padding included."""
        return round_up(self.end, BLOCK)

    def add(self, frame: Frame, header: FrameHeader, inherited: int, wanted: bool) -> None:
        size = len(frame)
        start = start_of(size, self.end)
        self.frames.append(frame)
        self.headers.append(header)
        self.sizes.append(size)
        self.offsets.append(start)
        self.inherited.append(inherited)
        self.wanted.append(wanted)
        self.end = start + size


class PlannedCounters:
    """What each ledger's next frame would inherit, as planned; the log's own state moves only when the plan is carried
    out. ``known``: highest counters, ``segment``: those in force in the segment that is written last."""

    def __init__(self, known: Mapping[int, int], segment: Mapping[int, int]) -> None:
        self._known, self._segment = known, segment
        self.known: dict[int, int] = {}
        self.segment: dict[int, int] = {}

    def highest(self, ledger_id: int) -> int:
        return self.known.get(ledger_id, self._known.get(ledger_id, 0))

    def in_segment(self, ledger_id: int) -> int:
        return self.segment.get(ledger_id, self._segment.get(ledger_id, 0))

    def new_segment(self) -> None:
        self._segment, self.segment = {}, {}


def plan_groups(
    frames: Sequence[Frame],
    counters: Sequence[int] | None,
    planned: PlannedCounters,
    *,
    position: int,
    segment_bytes: int,
) -> list[GroupPlan]:
    """Groups for whole frames from ``position`` on, in new segments where this one ends (at once, if that is at
    ``segment_bytes``). ``counters``: what each frame must inherit; by default the highest of its ledger.

    Raises InvalidArgumentError for what is not one whole frame and for a frame that fits in no segment.
    """
    plan: list[GroupPlan] = []
    group = GroupPlan(group_limit(segment_bytes, position))
    for number, frame in enumerate(frames):
        header = parse_header(frame)
        if len(frame) != header.size:
            raise InvalidArgumentError("not one whole frame", value=f"{len(frame)} bytes, not {header.size}")
        counter = planned.highest(header.ledger_id) if counters is None else counters[number]
        while not _place(group, frame, header, counter, planned):
            if group.frames:
                plan.append(group)
                position += group.group_bytes
                group = GroupPlan(group_limit(segment_bytes, position))
            elif not group.new_segment:
                position = SEGMENT_HEADER_BYTES
                planned.new_segment()
                group = GroupPlan(group_limit(segment_bytes, position), new_segment=True)
            else:
                raise InvalidArgumentError(
                    "a frame does not fit in a segment", value=f"{header.size} bytes", remedy="use larger segments"
                )
    if group.frames:
        plan.append(group)
    return plan


def _place(group: GroupPlan, frame: Frame, header: FrameHeader, counter: int, planned: PlannedCounters) -> bool:
    """Add the frame, behind a COUNTER record where it needs one. False, and nothing changed, if it does not fit."""
    ledger_id, carries = header.ledger_id, header.kind >= FrameKind.LIMBO_SET
    needs_record = not carries and counter != planned.in_segment(ledger_id)
    end = group.end
    if needs_record:
        end = start_of(_COUNTER_RECORD_BYTES, end) + _COUNTER_RECORD_BYTES
    size = len(frame)
    if start_of(size, end) + size > group.limit:
        return False
    if needs_record:
        record = encode_counter_record(FrameKind.COUNTER, ledger_id, counter)
        group.add(record, parse_header(record), counter, False)
        planned.segment[ledger_id] = counter
    if carries:
        counter = counter_of(header.kind, bytes(frame[FRAME_HEADER_BYTES:]))
        planned.known[ledger_id] = max(counter, planned.highest(ledger_id))
        planned.segment[ledger_id] = counter
    group.add(frame, header, counter, True)
    return True
