# SPDX-License-Identifier: Apache-2.0
"""Plans which frames go into which group, and where, before anything is written, so that a full disk changes nothing.
Frames keep their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from bk_core.entries.frame import FRAME_HEADER_BYTES, FrameHeader, parse_header
from bk_core.errors import InvalidArgumentError
from bookie_server.storage.bytes.segment import (
    FRAME_ALIGNMENT,
    GROUP_BYTES_MAX,
    GROUP_HEADER_BYTES,
    LARGE_FRAME_BYTES,
    SEGMENT_HEADER_BYTES,
)
from bookie_server.storage.disk.files import BLOCK

Frame: TypeAlias = bytes | bytearray | memoryview


def group_limit(segment_bytes: int, position: int) -> int:
    """The largest group that may begin at ``position``. One block stays free for the segment's last idle group."""
    left = segment_bytes - position - BLOCK
    return GROUP_BYTES_MAX if left > GROUP_BYTES_MAX else left if left > 0 else 0


class GroupPlan:
    """The layout of one group of one segment: each frame with its header and offset."""

    __slots__ = ("end", "frames", "headers", "limit", "new_segment", "offsets")

    def __init__(self, limit: int, new_segment: bool = False) -> None:
        self.limit, self.new_segment = limit // BLOCK * BLOCK, new_segment
        self.end = GROUP_HEADER_BYTES
        self.frames: list[Frame] = []
        self.headers: list[FrameHeader] = []
        self.offsets: list[int] = []

    @property
    def group_bytes(self) -> int:
        """The bytes of the group, header and padding included."""
        return (self.end + BLOCK - 1) & -BLOCK

    def add(self, frame: Frame, header: FrameHeader) -> bool:
        """False, and nothing changed, if the frame does not fit."""
        size = len(frame)
        step = BLOCK if size >= LARGE_FRAME_BYTES else FRAME_ALIGNMENT
        start = (self.end + step - 1) & -step
        if start + size > self.limit:
            return False
        self.frames.append(frame)
        self.headers.append(header)
        self.offsets.append(start)
        self.end = start + size
        return True


def plan_groups(
    frames: Sequence[Frame], headers: Sequence[FrameHeader] = (), *, position: int, segment_bytes: int
) -> list[GroupPlan]:
    """Groups for whole frames from ``position`` on, in new segments once this one is full (at once if ``position`` is
    ``segment_bytes``). ``headers`` are theirs, where the caller has parsed them. Raises InvalidArgumentError for bytes
    that are not one whole frame, and for a frame that fits in no segment."""
    plan: list[GroupPlan] = []
    group = GroupPlan(group_limit(segment_bytes, position))
    for frame, header in zip(frames, headers or map(parse_header, frames), strict=True):
        if len(frame) != FRAME_HEADER_BYTES + header.columns_bytes + header.payload_bytes:
            raise InvalidArgumentError("not one whole frame", value=f"{len(frame)} bytes, not {header.size}")
        while not group.add(frame, header):
            if group.frames:
                plan.append(group)
                position += group.group_bytes
                group = GroupPlan(group_limit(segment_bytes, position))
            elif not group.new_segment:
                position = SEGMENT_HEADER_BYTES
                group = GroupPlan(group_limit(segment_bytes, position), new_segment=True)
            else:
                raise InvalidArgumentError(
                    "a frame does not fit in a segment", value=f"{header.size} bytes", remedy="use larger segments"
                )
    if group.frames:
        plan.append(group)
    return plan
