# SPDX-License-Identifier: Apache-2.0
"""Plans which frames go into which group, and where, before anything is written. So a commit that finds the disk full
has changed nothing. Frames keep their order."""

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
Part: TypeAlias = tuple[int, Frame, FrameHeader]
"""A frame of a group: its offset in the group, its bytes and its header."""
GroupPlan: TypeAlias = tuple[Sequence[Part], int, bool]
"""The frames of one group, the group's size with header and padding, and whether a new segment begins with it."""


def plan_groups(
    frames: Sequence[Frame], headers: Sequence[FrameHeader] = (), *, position: int, segment_bytes: int
) -> list[GroupPlan]:
    """Plan the groups for whole frames from ``position`` on, in new segments once this one is full (at once if
    ``position`` is ``segment_bytes``). One block stays free for the segment's last idle group. ``headers`` are the
    frames' headers, if the caller has parsed them. Raises InvalidArgumentError for bytes that are not one whole frame,
    and for a frame that fits in no segment."""
    plan: list[GroupPlan] = []
    parts: list[Part] = []
    end, new_segment, last_block = GROUP_HEADER_BYTES, False, segment_bytes - BLOCK
    for k, frame in enumerate(frames):
        header = headers[k] if headers else parse_header(frame)
        size = len(frame)
        if size != FRAME_HEADER_BYTES + header.columns_bytes + header.payload_bytes:
            raise InvalidArgumentError("not one whole frame", value=f"{size} bytes, not {header.size}")
        step = BLOCK if size >= LARGE_FRAME_BYTES else FRAME_ALIGNMENT
        while (at := (end + step - 1) & -step) + size > GROUP_BYTES_MAX or position + at + size > last_block:
            if parts:
                group_bytes = (end + BLOCK - 1) & -BLOCK
                plan.append((parts, group_bytes, new_segment))
                position, new_segment = position + group_bytes, False
            elif not new_segment:
                position, new_segment = SEGMENT_HEADER_BYTES, True
            else:
                raise InvalidArgumentError(
                    "a frame does not fit in a segment", value=f"{size} bytes", remedy="use larger segments"
                )
            parts, end = [], GROUP_HEADER_BYTES
        parts.append((at, frame, header))
        end = at + size
    if parts:
        plan.append((parts, (end + BLOCK - 1) & -BLOCK, new_segment))
    return plan
