# SPDX-License-Identifier: Apache-2.0
"""The writing side of the segment log: it takes whole frames and returns durable places (RULES S3, S4, S6).

One group commit is one write and one sync into a preallocated segment; there is no second copy. All of it is
synchronous and belongs to one thread (S10). It does not deal with sessions, fences or rights: frames come in checked,
and their order is the order in the log. A :class:`LogMaintenance` does the work that would delay a group: it makes
spare segments (``segment_pool.py``), and seals full segments, which leave here as a :class:`SealJob`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

from bk_core.entries.frame import FRAME_HEADER_BYTES, FrameHeader, FrameKind
from bk_core.errors import DataDirectoryError, InvalidArgumentError, LocalProtocolError
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_file import StateCollector
from bookie_server.storage.bytes.index_rows import index_row
from bookie_server.storage.bytes.segment import (
    FRAME_ALIGNMENT,
    GROUP_BYTES_MAX,
    GROUP_HEADER_BYTES,
    LARGE_FRAME_BYTES,
    SEGMENT_HEADER_BYTES,
    STAMP_OFFSET,
    encode_group_header,
    group_seed,
    seeded_stamp,
    stamp_seed,
)
from bookie_server.storage.disk.cookie import Identity
from bookie_server.storage.disk.files import BLOCK, Files, aligned_buffer, is_aligned
from bookie_server.storage.disk.health import NO_SPACE, DiskHealth
from bookie_server.storage.log.layout import Frame, Part, plan_groups
from bookie_server.storage.log.sealing import SealedSegment, SealJob, seal
from bookie_server.storage.log.segment_pool import SEGMENTS_KEPT_FREE, NewSegment, SegmentPool

__all__ = ["NO_SPACE", "SEGMENT_SIZE_BYTES", "CommitStats", "SegmentLog"]

SEGMENT_SIZE_BYTES = 256 << 20
"""The default size of a segment file in bytes."""
AHEAD_BYTES = 64 << 10
"""The size of the write for a small group in blocks that were never written: the group, and zeros behind it. The file
system must record for each such block that it is now written, which takes longer than the sync of the block. So one
group pays that cost for sixteen blocks. The bytes behind the group were zeros already."""
_ZEROS = memoryview(bytes(AHEAD_BYTES))
_TAG = struct.Struct("<I")
_ENTRIES = int(FrameKind.ENTRIES)
_new = tuple.__new__  # a named tuple's constructor takes twice as long
SPARES_RESERVED = 1
"""The number of spare segments that only fences, records, recovery adds and compaction may use (``reserve=True``)."""

BACKLOG_BYTES_MAX = 256 << 20
"""The maximum memory for the indexes of full segments that wait to be sealed. Beyond it no segment is begun for new
entries.

The memory of an unsealed segment follows from its size and the smallest frames in it: about 80 bytes a frame here and
56 in the index (500 more for each ledger in it), and up to 270 more while it is sealed. One-entry frames of 100 bytes
take 192 in a segment: 256 MiB of them are 1,400,000 frames, 200 MB, and 370 MB more while they are sealed.
"""


@dataclass(slots=True)
class CommitStats:
    """Totals since the log was opened. ``frame_bytes`` counts the frames given to the log, including copies of
    compaction, ``written_bytes`` groups and segment headers, and ``index_bytes`` ``.idx`` files. ``write_s`` and
    ``sync_s`` are the time of all writes and of all syncs of groups."""

    groups: int = 0
    frames: int = 0
    frame_bytes: int = 0
    written_bytes: int = 0
    index_bytes: int = 0
    segments: int = 0
    write_s: float = 0.0
    sync_s: float = 0.0

    @property
    def write_amplification(self) -> float:
        """The number of bytes written to disk for each byte of frames given to the log. It is 0 before the first
        frame."""
        return (self.written_bytes + self.index_bytes) / self.frame_bytes if self.frame_bytes else 0.0


class _Segment:
    """A segment being written, and the contents of its ``.idx``."""

    __slots__ = (
        "data_end", "data_groups", "generation", "group_number", "handle", "position", "recorded", "rows",
        "stamp_seed", "states", "written",
    )  # fmt: skip

    def __init__(self, spare: NewSegment, written: int, seed: int = 0) -> None:
        self.generation, self.handle, self.stamp_seed = spare.generation, spare.handle, seed
        self.written = written  # its blocks up to here were written, in this life or an earlier one
        self.position = SEGMENT_HEADER_BYTES  # offset of the next group; everything below it is durable
        self.recorded = SEGMENT_HEADER_BYTES  # the position on record; below ``position`` an idle group can raise it
        self.group_number = 0
        self.rows = bytearray()
        self.states = StateCollector()
        self.data_end = SEGMENT_HEADER_BYTES  # highest position on record, as a scan would find it
        self.data_groups = 0


class SegmentLog:
    """The open end of a bookie's segment log.

    ``newest_generation`` and ``newest_sealed`` are those found on disk (0: none), and ``free`` has the generations of
    the ``.free`` files. Opening writes nothing; the first segment is made when it is needed or by
    :meth:`prepare_segment`. After a failed write or sync every call raises StorageFailedError (S6).
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
        free: Iterable[int] = (),
        segments_kept_free: int = SEGMENTS_KEPT_FREE,
        now_ms: Callable[[], int] | None = None,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
    ) -> None:
        if segment_size_bytes % BLOCK or segment_size_bytes < 4 * BLOCK:
            raise InvalidArgumentError(
                "a segment's size must be a multiple of 4096, at least 16384", value=f"{segment_size_bytes} bytes"
            )
        self._path, self._files, self._incarnation = path, files or Files(), identity.incarnation_bytes
        self._group_seed = group_seed(self._incarnation)
        self._segment_bytes, self._backlog_bytes_max = segment_size_bytes, backlog_bytes_max
        self._health = DiskHealth()
        self._active: _Segment | None = None
        self._closed = False
        self.pool = SegmentPool(
            path, identity, self._health, files=self._files, segment_size_bytes=segment_size_bytes,
            newest_generation=newest_generation, newest_sealed=newest_sealed, free=free,
            segments_kept_free=segments_kept_free, now_ms=now_ms,
        )  # fmt: skip
        """The spares and the drained segments; :meth:`SegmentPool.recycle` adds a drained one."""
        self.seal_jobs: deque[SealJob] = deque()
        """Full segments that wait for :meth:`seal_next`, oldest first; bounded by ``backlog_bytes_max``."""
        self._full: list[SealJob] = []  # full segments that are not released yet
        self.group_bytes_max = min(GROUP_BYTES_MAX, segment_size_bytes - SEGMENT_HEADER_BYTES - BLOCK)
        self._arena = memoryview(aligned_buffer(max(self.group_bytes_max, BLOCK)))
        self.stats = CommitStats()

    # --- state that the server reads --------------------------------------------------------------------------------

    @property
    def newest_sealed(self) -> int:
        """The generation of the newest segment with an ``.idx``, or 0 if there is none."""
        return self.pool.newest_sealed

    def note_sealed(self, generation: int) -> None:
        """Note that replay has sealed this segment. The headers of later segments name it."""
        self.pool.note_sealed(generation)

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def spares_wanted(self) -> int:
        """The number of spares that should be ready now. It is the reserve, and one more once the segment is half
        full."""
        half_full = self._active is not None and self._active.position >= self._segment_bytes // 2
        return SPARES_RESERVED + half_full

    @property
    def lacks_spares(self) -> bool:
        """Whether fewer spares are ready than there should be."""
        return self.pool.spares < self.spares_wanted

    @property
    def position(self) -> tuple[int, int]:
        """The end of the log as (generation, offset); everything below it is durable. (0, 0) before the first
        segment."""
        return (self._active.generation, self._active.position) if self._active else (0, 0)

    @property
    def position_unrecorded(self) -> bool:
        """Whether :meth:`record_position` would write a group."""
        return self._active is not None and self._active.recorded != self._active.position

    @property
    def failed(self) -> bool:
        """Whether a write or sync has failed for good (RULES S6)."""
        return self._health.failed is not None

    @property
    def health(self) -> DiskHealth:
        """The health of the disk, shared with the other writers of the directory."""
        return self._health

    # --- writing ----------------------------------------------------------------------------------------------------

    def append_group(
        self, frames: Sequence[Frame], *, reserve: bool = False, headers: Sequence[FrameHeader] = ()
    ) -> list[Place]:
        """Write whole, checked frames and make them durable; return their places, in order. ``headers`` are the frames'
        headers, if the caller has parsed them.

        The frames are one group if they fit (``group_bytes_max`` and the room in the segment), otherwise several. The
        caller must not change the buffers before this returns. This does not change them either: the placement stamp
        replaces bytes 60–63 in a copy. With ``reserve`` the last spare segment may be used, which is kept for fences,
        records, recovery adds and compaction.

        Raises InvalidArgumentError for a frame that fits in no segment, and DataDirectoryError if there is no space for
        a segment or the backlog of full ones is at its bound. Then nothing was written, and later calls may succeed.
        Raises StorageFailedError if a write or sync failed, now or earlier. Then the outcome of this call's frames is
        unknown, and no later call writes anything.
        """
        self._check()
        if self._full:
            self.release_full()
        position = self._active.position if self._active else self._segment_bytes
        plan = plan_groups(frames, headers, position=position, segment_bytes=self._segment_bytes)
        if len(plan) != 1 or plan[0][2]:
            self._ensure_segments(sum([new_segment for _, _, new_segment in plan]), reserve)
        places: list[Place] = []
        for parts, group_bytes, new_segment in plan:
            if new_segment:
                self._roll()
            self._commit(parts, group_bytes, places)
        self._health.check()  # no ack after another writer of this directory has failed
        return places

    def _ensure_segments(self, rolls: int, reserve: bool) -> None:
        if not rolls:
            return
        if self._active is not None and not reserve:
            self._check_backlog()
            rolls += SPARES_RESERVED
        self.pool.ensure(rolls)

    def has_room(self, size: int, frames: int) -> bool:
        """Return whether ``frames`` frames of ``size`` bytes together fit into the open segment."""
        if self._active is None:
            return False
        return self._active.position + size + frames * FRAME_ALIGNMENT + 3 * BLOCK <= self._segment_bytes

    def record_position(self) -> None:
        """Write an empty group that records how far the log is durable, unless that is on record (RULES S3). The server
        calls this within 100 ms of going idle and at a clean stop. Raises StorageFailedError."""
        self._check()
        if self.position_unrecorded:
            self._commit((), BLOCK, [])

    def prepare_segment(self) -> None:
        """Begin the first segment now, or make the next one, so that a later group does not wait for it. Raises as
        :meth:`append_group`."""
        self._check()
        self.pool.ensure(1)
        if self._active is None:
            self._roll()

    def release_full(self) -> None:
        """Allow full segments to be sealed. By now the places of all earlier groups are on their way to the index, so
        it gets a frame before it learns that the frame's segment is sealed. Each group calls this for the groups before
        it. Nothing is released before a new segment is begun, because a start that finds every segment sealed assumes
        that the newest one is lost."""
        if self._full and self._active is not None:
            self.seal_jobs.extend(self._full)
            self._full.clear()

    def seal_later(self, job: SealJob) -> None:
        """Add a segment to be sealed later. The start found no room for its ``.idx``, and the index has it as
        unsealed."""
        self._full.append(job)
        self.release_full()

    def seal_next(self) -> SealedSegment | None:
        """Write the ``.idx`` of the oldest full segment. Return None if there is no such segment, or no room for the
        ``.idx``; then the segment stays in :attr:`seal_jobs`. This is the only method that another thread may call (one
        at a time). Raises StorageFailedError."""
        self._health.check()
        if not self.seal_jobs:
            return None
        job = self.seal_jobs[0]
        try:
            sealed = seal(job, self._files, self._path, self._incarnation)
        except OSError as error:
            if error.errno in NO_SPACE:  # nothing is lost: a scan finds the same rows
                return None
            self._health.fail("the index of a full segment could not be made durable", self._path, error)
        self.seal_jobs.popleft()
        self.pool.note_sealed(job.generation)
        self.stats.index_bytes += sealed.index_bytes
        return sealed

    def close(self, *, record: bool = True) -> None:
        """Record the position and close the files. With ``record`` False the position is not recorded, as in a crash.
        This seals nothing; the next start seals what :meth:`seal_next` did not. Further calls do nothing. Raises
        StorageFailedError."""
        if self._closed:
            return
        try:
            if record and not self.failed:
                self.record_position()
        finally:
            self._closed = True
            self.pool.close()
            if self._active is not None:
                self._files.close(self._active.handle)

    # --- groups -----------------------------------------------------------------------------------------------

    def _commit(self, parts: Sequence[Part], total: int, places: list[Place]) -> None:
        """Write a group of ``total`` bytes and sync it; append the places of its frames to ``places``."""
        segment = self._active
        assert segment is not None
        position, size = segment.position, total
        if position + total > segment.written:
            size = self._ahead(total, position)
            segment.written = position + size
        buffers = self._fill_arena(parts, total, size, segment)
        try:
            began = perf_counter()
            self._files.write(segment.handle, buffers, position)
            written = perf_counter()
            self._files.sync_data(segment.handle)
            synced = perf_counter()
        except OSError as error:
            self._health.fail("a group commit failed", self._path, error)
        self._note(parts, segment, places)
        segment.data_end, segment.data_groups = position, segment.group_number
        segment.position = position + total
        segment.group_number += 1
        if not parts:
            segment.recorded = segment.position
        stats = self.stats
        stats.groups += 1
        stats.frames += len(parts)
        stats.written_bytes += size
        stats.write_s += written - began
        stats.sync_s += synced - written

    def _ahead(self, total: int, position: int) -> int:
        """Return how many bytes to write for a group of ``total`` bytes in blocks that were never written. Puts zeros
        behind the group in the arena."""
        size = min(AHEAD_BYTES, self._segment_bytes - position, len(self._arena))
        if total >= size:
            return total
        self._arena[total:size] = _ZEROS[: size - total]
        return size

    def _fill_arena(self, parts: Sequence[Part], total: int, size: int, segment: _Segment) -> list[memoryview]:
        """Lay out the group in the arena; return the ``size`` bytes to write. A large frame whose buffer is aligned is
        written from that buffer, except its first block, which gets the stamp, and the rest behind its last whole
        block. All other frames are copied."""
        arena, base, seed = self._arena, segment.position, segment.stamp_seed
        buffers: list[memoryview] = []
        begin, end = 0, GROUP_HEADER_BYTES
        for at, frame, _ in parts:
            if at > end:
                arena[end:at] = _ZEROS[: at - end]
            end = at + len(frame)
            if len(frame) >= LARGE_FRAME_BYTES and isinstance(frame, memoryview) and is_aligned(frame):
                whole = len(frame) & -BLOCK
                arena[at : at + BLOCK] = frame[:BLOCK]
                arena[at + whole : end] = frame[whole:]
                buffers += arena[begin : at + BLOCK], frame[BLOCK:whole]
                begin = at + whole
            else:
                arena[at:end] = frame
            _TAG.pack_into(arena, at + STAMP_OFFSET, seeded_stamp(seed, base + at, frame[52:60]))
        arena[end:total] = _ZEROS[: total - end]
        header = (segment.generation, segment.group_number, total, len(parts), base, base)
        arena[:GROUP_HEADER_BYTES] = encode_group_header(header, self._group_seed)
        if begin < size:
            buffers.append(arena[begin:size])
        return buffers

    def _note(self, parts: Sequence[Part], segment: _Segment, places: list[Place]) -> None:
        """Collect the frames' rows for the segment's ``.idx``, and append their places to ``places``."""
        generation, position, stats = segment.generation, segment.position, self.stats
        for at, frame, header in parts:
            at += position
            if header.kind == _ENTRIES:
                segment.rows += index_row(frame, header, at)
            else:
                segment.states.add(header.ledger_id, header.kind, bytes(frame[FRAME_HEADER_BYTES:]))
            size = len(frame)
            stats.frame_bytes += size
            places.append(_new(Place, (generation, at, size, -1)))

    # --- segments ---------------------------------------------------------------------------------------------------

    def _roll(self) -> None:
        """Continue in the next spare. The old segment gets its last idle group and waits for its ``.idx``."""
        old = self._active
        if old is not None:
            self.record_position()
        spare = self.pool.begin()
        seed = stamp_seed(self._incarnation, spare.generation)
        self._active = _Segment(spare, self._segment_bytes if spare.recycled else SEGMENT_HEADER_BYTES, seed)
        self.stats.segments += 1
        self.stats.written_bytes += BLOCK
        if old is not None:
            self._files.close(old.handle)
            self._full.append(SealJob(old.generation, old.rows, old.states, old.data_end, old.data_groups))

    def _check_backlog(self) -> None:
        """Check the memory of indexes that wait because the disk has no room or is too slow. Raises DataDirectoryError
        if they take too much."""
        waiting = sum(job.memory_bytes for job in (*self.seal_jobs, *self._full))
        if waiting > self._backlog_bytes_max:
            raise DataDirectoryError(
                "too many full segments wait for their index",
                value=f"{len(self.seal_jobs) + len(self._full)} in {self._path}",
                remedy="free some space on the disk; sealing goes on by itself",
            )

    def _check(self) -> None:
        if self._health.failed is not None or self._closed:
            self._health.check()
            raise LocalProtocolError("the segment log is closed")


class LogMaintenance:
    """The upkeep of one log beside its commits, one step at a time: sealing, making spares, giving space back. A thread
    of the server runs it beside the commit thread; the simulator and tests run it between commits. Sealing comes first,
    because a start scans unsealed segments. ``on_sealed`` is called for each segment that got its ``.idx``, for the
    index."""

    def __init__(self, log: SegmentLog, on_sealed: Callable[[SealedSegment], None] = lambda _: None) -> None:
        self._log, self._on_sealed = log, on_sealed

    @property
    def due(self) -> bool:
        """Whether there is something to do, even if the disk has no room for it. Any thread may read it."""
        return bool(self._log.seal_jobs) or self._log.lacks_spares

    def step(self) -> bool:
        """Do one piece of work. Return False if there is nothing to do, or the disk has no room for it now.

        If there is no room for an index, the segments kept free are given back to make room. Otherwise the disk would
        stay full, because no segment above the first unsealed one is ever given back. Raises StorageFailedError if a
        write or sync failed, now or earlier (RULES S6).
        """
        is_full = bool(self._log.seal_jobs)
        return self.seal_one() or self._make_spare() or self._log.pool.trim(0 if is_full else None)

    def run(self) -> None:
        """Call :meth:`step` until nothing can be done. Raises as :meth:`step`."""
        while self.step():
            pass

    def seal_one(self) -> bool:
        """Seal the oldest full segment. Return False if there is none, or no room. Raises the errors of
        :meth:`step`."""
        sealed = self._log.seal_next()
        if sealed is not None:
            self._on_sealed(sealed)
        return sealed is not None

    def _make_spare(self) -> bool:
        pool = self._log.pool
        if pool.spares >= self._log.spares_wanted:
            return False
        try:
            pool.ensure(pool.spares + 1)
        except DataDirectoryError:  # no room: new entries are refused when the segment is full
            return False
        return True
