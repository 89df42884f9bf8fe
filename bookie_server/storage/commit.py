# SPDX-License-Identifier: Apache-2.0
"""The writing side of the segment log: whole frames in, durable places out (RULES S3, S4, S6; DESIGN §7).

One group commit is one write and one sync into a preallocated segment; there is no second copy anywhere. Everything
here is synchronous and belongs to one thread (S10). It knows nothing of sessions, fences or who may write: frames come
in already checked, and their order is the order in the log.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from bk_core.entries.frame import (
    FRAME_HEADER_BYTES,
    FrameKind,
    frame_extent,
    set_tag_inplace,
)
from bk_core.errors import DataDirectoryError, InvalidArgumentError, LocalProtocolError, StorageFailedError
from bookie_server.storage.cookie import Identity
from bookie_server.storage.files import BLOCK, Files, Handle, aligned_buffer
from bookie_server.storage.index_file import (
    IndexHeader,
    StateCollector,
    encode_index_file,
    pack_row,
    sorted_rows,
)
from bookie_server.storage.layout import GroupPlan, PlannedCounters, group_limit, plan_groups
from bookie_server.storage.segment import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    GroupHeader,
    Place,
    SegmentHeader,
    encode_group_header,
    encode_segment_header,
    index_name,
    placement_stamp,
    segment_name,
)

SEGMENT_SIZE_BYTES = 256 << 20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class CommitStats:
    """Totals since the log was opened. Write amplification is written over frame bytes."""

    groups: int = 0
    frames: int = 0
    frame_bytes: int = 0
    written_bytes: int = 0
    segments: int = 0

    @property
    def write_amplification(self) -> float:
        """Bytes written to disk for each byte of frames given; 0 before the first."""
        return self.written_bytes / self.frame_bytes if self.frame_bytes else 0.0


class _Segment:
    """A segment being written, and what its ``.idx`` will hold."""

    __slots__ = (
        "counters", "data_end", "data_groups", "generation", "group_number", "handle", "position", "recorded", "rows",
        "states",
    )  # fmt: skip

    def __init__(self, generation: int, handle: Handle) -> None:
        self.generation, self.handle = generation, handle
        self.position = SEGMENT_HEADER_BYTES  # of the next group; everything below it is durable
        self.recorded = SEGMENT_HEADER_BYTES  # position on record: an idle group now would say nothing new
        self.group_number = 0
        self.rows = bytearray()
        self.states = StateCollector()
        self.counters: dict[int, int] = {}  # ledger: counter that its next frame in this segment inherits
        self.data_end = SEGMENT_HEADER_BYTES  # highest position on record, as a scan would find it
        self.data_groups = 0


class SegmentLog:
    """The open end of a bookie's segment log.

    ``newest_generation`` and ``newest_sealed`` are those found on disk (0: none), ``counters`` the highest counter of
    each ledger that has one. Opening writes nothing; the first segment is made when it is needed or by
    :meth:`prepare_segment`. Any failed write or sync is final: everything raises StorageFailedError from then on (S6).
    """

    def __init__(
        self,
        path: str,
        identity: Identity,
        *,
        files: Files | None = None,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        newest_generation: int = 0,
        newest_sealed: int = 0,
        counters: Mapping[int, int] | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        if segment_size_bytes % BLOCK or segment_size_bytes < 4 * BLOCK:
            raise InvalidArgumentError(
                "a segment's size must be a multiple of 4096, at least 16384", value=f"{segment_size_bytes} bytes"
            )
        self._path, self._identity, self._files = path, identity, files or Files()
        self._incarnation = identity.incarnation_bytes
        self._segment_bytes = segment_size_bytes
        self._generation, self._newest_sealed = newest_generation, newest_sealed
        self._counters: dict[int, int] = dict(counters or {})
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._active: _Segment | None = None
        self._spares: list[_Segment] = []
        self._unsealed: list[_Segment] = []  # full, but the disk had no room for their .idx
        self._failed: str | None = None
        self._closed = False
        self.group_bytes_max = group_limit(segment_size_bytes, SEGMENT_HEADER_BYTES)
        self._arena = memoryview(aligned_buffer(max(self.group_bytes_max, BLOCK)))
        self.stats = CommitStats()

    # --- what the server may look at --------------------------------------------------------------------------------

    @property
    def newest_sealed(self) -> int:
        """Generation of the newest segment with an ``.idx``; 0 if none."""
        return self._newest_sealed

    def note_sealed(self, generation: int) -> None:
        """Replay has sealed this segment; segments begun from here on name it."""
        self._newest_sealed = max(self._newest_sealed, generation)

    @property
    def position(self) -> tuple[int, int]:
        """(generation, offset) of the end of the log; everything below is durable. (0, 0) before the first segment."""
        return (self._active.generation, self._active.position) if self._active else (0, 0)

    @property
    def position_unrecorded(self) -> bool:
        """Whether :meth:`record_position` has something to say."""
        return self._active is not None and self._active.recorded != self._active.position

    @property
    def failed(self) -> bool:
        """Whether a write or sync has failed for good (RULES S6)."""
        return self._failed is not None

    # --- writing ----------------------------------------------------------------------------------------------------

    def append_group(
        self, frames: Sequence[bytes | bytearray | memoryview], *, counters: Sequence[int] | None = None
    ) -> list[Place]:
        """Write whole, checked frames and make them durable; returns their places, in order.

        One group where they fit in one (``group_bytes_max`` and the room in the segment), else several. The frames are
        copied; their bytes 60–63 are replaced by the placement stamp in the copy. ``counters``, for replay, names the
        counter that each frame must inherit; otherwise it is the highest of its ledger.

        Raises InvalidArgumentError for a frame that fits in no segment and DataDirectoryError when there is no space
        for a segment: nothing was written, later calls may succeed. StorageFailedError when a write or sync failed, now
        or earlier: the outcome of this call's frames is unknown and nothing is written any more.
        """
        self._check()
        active = self._active
        planned = PlannedCounters(self._counters, active.counters if active else {})
        position = active.position if active else self._segment_bytes
        plan = plan_groups(frames, counters, planned, position=position, segment_bytes=self._segment_bytes)
        self._ensure_spares(sum(group.new_segment for group in plan))
        self._counters.update(planned.known)
        places: list[Place] = []
        for group in plan:
            if group.new_segment:
                self._roll()
            places += self._commit(group)
        if self._active is not None:
            self._active.counters.update(planned.segment)
        return places

    def record_position(self) -> None:
        """Write an empty group that says how far the log is durable, unless that is on record (RULES S3).

        The server calls it within 100 ms of going idle and at a clean stop. Raises StorageFailedError.
        """
        self._check()
        if self.position_unrecorded:
            self._commit(GroupPlan(BLOCK))

    def prepare_segment(self) -> None:
        """Make the first or the next segment now, so that a later group does not wait for it. Raises as
        :meth:`append_group` does."""
        self._check()
        self._ensure_spares(1)
        if self._active is None:
            self._roll()

    def close(self, *, record: bool = True) -> None:
        """Record the position (unless ``record`` is False: as a crash would) and close the files. Nothing is sealed:
        the next start does that. Idempotent. Raises StorageFailedError."""
        if self._closed:
            return
        try:
            if record and self._failed is None:
                self.record_position()
        finally:
            self._closed = True
            for segment in (*self._spares, *self._unsealed, *((self._active,) if self._active else ())):
                self._files.close(segment.handle)

    # --- carrying out -----------------------------------------------------------------------------------------------

    def _commit(self, group: GroupPlan) -> list[Place]:
        segment = self._active
        assert segment is not None
        total = group.group_bytes
        self._fill_arena(group, segment, total)
        try:
            self._files.write(segment.handle, self._arena[:total], segment.position)
            self._files.sync_data(segment.handle)
        except OSError as error:
            self._fail("a group commit failed", error)
        places = self._note(group, segment)
        segment.data_end, segment.data_groups = segment.position, segment.group_number
        segment.position += total
        segment.group_number += 1
        if not group.frames:
            segment.recorded = segment.position
        self.stats.groups += 1
        self.stats.written_bytes += total
        return places

    def _fill_arena(self, group: GroupPlan, segment: _Segment, total: int) -> None:
        arena, base, generation, incarnation = self._arena, segment.position, segment.generation, self._incarnation
        end = GROUP_HEADER_BYTES
        for frame, at, header in zip(group.frames, group.offsets, group.headers, strict=True):
            if at > end:
                arena[end:at] = bytes(at - end)
            end = at + header.size
            arena[at:end] = frame
            stamp = placement_stamp(incarnation, generation, base + at, arena[at + 52 : at + 60])
            set_tag_inplace(arena[at:end], stamp)
        arena[end:total] = bytes(total - end)
        arena[:GROUP_HEADER_BYTES] = encode_group_header(
            GroupHeader(generation, segment.group_number, total, len(group.frames), base, base), incarnation
        )

    def _note(self, group: GroupPlan, segment: _Segment) -> list[Place]:
        """Remember what the segment's ``.idx`` needs; the places of the caller's frames."""
        places: list[Place] = []
        items = zip(group.frames, group.headers, group.offsets, group.inherited, group.wanted, strict=True)
        for frame, header, at, counter, wanted in items:
            offset = segment.position + at
            if header.kind == FrameKind.ENTRIES:
                segment.rows += pack_row(header, frame_extent(frame, header), offset, counter)
            else:
                segment.states.add(header.ledger_id, header.kind, bytes(frame[FRAME_HEADER_BYTES : header.size]))
            if wanted:
                places.append(Place(segment.generation, offset, header.size))
                self.stats.frames += 1
                self.stats.frame_bytes += header.size
        return places

    # --- segments ---------------------------------------------------------------------------------------------------

    def _ensure_spares(self, count: int) -> None:
        while len(self._spares) < count:
            self._spares.append(self._create_segment())

    def _create_segment(self) -> _Segment:
        generation = self._generation + 1
        path = os.path.join(self._path, segment_name(generation))
        temporary = path + ".tmp"
        try:
            if self._files.exists(temporary):  # of a creation that a full disk ended
                self._files.remove(temporary)
            handle = self._files.create_preallocated(temporary, self._segment_bytes)
        except OSError as error:
            raise DataDirectoryError(
                "no new segment can be made",
                value=f"{self._segment_bytes} bytes in {self._path}: {error.strerror or error}",
                remedy="free some space on the disk" if error.errno in NO_SPACE else "check the disk",
            ) from error
        header = SegmentHeader(
            generation, self._incarnation, self._segment_bytes, self._now_ms(), self._identity.boot_count,
            self._newest_sealed, self._identity.bookie_id,
        )  # fmt: skip
        try:
            # A name without ".tmp" promises an intact header, so that a bad one is always damage and never a crash.
            self._arena[:BLOCK] = encode_segment_header(header)
            self._files.write(handle, self._arena[:BLOCK], 0)
            self._files.sync_data(handle)
            self._files.rename(temporary, path)
        except OSError as error:
            self._files.close(handle)
            self._fail("a new segment could not be made durable", error)
        self._generation = generation
        self.stats.segments += 1
        self.stats.written_bytes += BLOCK
        return _Segment(generation, handle)

    def _roll(self) -> None:
        """Go on in the next spare; the segment before gets its last idle group and its ``.idx``."""
        old = self._active
        if old is not None:
            self.record_position()
            self._unsealed.append(old)
        self._active = self._spares.pop(0)
        self._seal_waiting()

    def _seal_waiting(self) -> None:
        while self._unsealed:
            segment = self._unsealed[0]
            header = IndexHeader(segment.generation, self._incarnation, segment.data_end, segment.data_groups)
            data = encode_index_file(header, sorted_rows(segment.rows), segment.states.rows())
            try:
                self._files.write_atomically(os.path.join(self._path, index_name(segment.generation)), data)
            except OSError as error:
                if error.errno in NO_SPACE:  # nothing is lost: a scan finds the same; tried again at the next roll
                    return
                self._fail("the index of a full segment could not be made durable", error)
            self._files.close(segment.handle)
            self._newest_sealed = max(self._newest_sealed, segment.generation)
            self.stats.written_bytes += len(data)
            self._unsealed.pop(0)

    # --- failing ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failed is not None:
            raise StorageFailedError("the disk failed earlier", value=self._failed, remedy=_REMEDY)
        if self._closed:
            raise LocalProtocolError("the segment log is closed")

    def _fail(self, what: str, error: OSError) -> NoReturn:
        self._failed = f"{what} in {self._path}: {error}"
        raise StorageFailedError(what, value=f"{self._path}: {error}", remedy=_REMEDY) from error


_REMEDY = "the bookie must stop; check the disk, then start it again"
