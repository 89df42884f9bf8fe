# SPDX-License-Identifier: Apache-2.0
"""Plans which frames go into which group, and where, before anything is written, so that a full disk changes nothing.
Frames keep their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

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
_new = tuple.__new__  # a named tuple's own constructor takes twice as long


def group_limit(segment_bytes: int, position: int) -> int:
    """The largest group that may begin at ``position``. One block stays free for the segment's last idle group."""
    left = segment_bytes - position - BLOCK
    return GROUP_BYTES_MAX if left > GROUP_BYTES_MAX else left if left > 0 else 0


class GroupPlan(NamedTuple):
    """The layout of one group of one segment: its frames, each with its offset in the group and its header; and the
    bytes of the group, header and padding included."""

    parts: Sequence[tuple[int, Frame, FrameHeader]]
    group_bytes: int
    new_segment: bool = False


def plan_groups(
    frames: Sequence[Frame], headers: Sequence[FrameHeader] = (), *, position: int, segment_bytes: int
) -> list[GroupPlan]:
    """Groups for whole frames from ``position`` on, in new segments once this one is full (at once if ``position`` is
    ``segment_bytes``). ``headers`` are theirs, where the caller has parsed them. Raises InvalidArgumentError for bytes
    that are not one whole frame, and for a frame that fits in no segment."""
    plan: list[GroupPlan] = []
    parts: list[tuple[int, Frame, FrameHeader]] = []
    end, limit, new_segment = GROUP_HEADER_BYTES, group_limit(segment_bytes, position), False
    for k, frame in enumerate(frames):
        header = headers[k] if headers else parse_header(frame)
        size = len(frame)
        if size != FRAME_HEADER_BYTES + header.columns_bytes + header.payload_bytes:
            raise InvalidArgumentError("not one whole frame", value=f"{size} bytes, not {header.size}")
        step = BLOCK if size >= LARGE_FRAME_BYTES else FRAME_ALIGNMENT
        while (at := (end + step - 1) & -step) + size > limit:
            if parts:
                plan.append(_new(GroupPlan, (parts, (end + BLOCK - 1) & -BLOCK, new_segment)))
                position, new_segment = position + plan[-1].group_bytes, False
            elif not new_segment:
                position, new_segment = SEGMENT_HEADER_BYTES, True
            else:
                raise InvalidArgumentError(
                    "a frame does not fit in a segment", value=f"{size} bytes", remedy="use larger segments"
                )
            parts, end, limit = [], GROUP_HEADER_BYTES, group_limit(segment_bytes, position)
        parts.append((at, frame, header))
        end = at + size
    if parts:
        plan.append(_new(GroupPlan, (parts, (end + BLOCK - 1) & -BLOCK, new_segment)))
    return plan
