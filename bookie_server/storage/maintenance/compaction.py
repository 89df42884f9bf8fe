# SPDX-License-Identifier: Apache-2.0
"""Compaction: copies the live frames of a mostly dead segment to the end of the log, and gives the segment up (S4).

It works on one segment at a time, in steps. The segment's ``.idx`` lists its frames, and the index says which of them
are live. Live frames are read in the order of their places, checked, and copied; consecutive small frames of a ledger
are joined. The last steps have this order, so that no entry is ever without a place:

1. the copies are durable (``copy`` returns), 2. the index has them (``place_copies``), 3. the old segment leaves the
index (``drop_segment``).

Maintenance gives the old file back after a durable checkpoint, when no reader has it open (I11).

Events between reading what is live and step 2 do no harm:

- A ledger is deleted: ``place_copies`` leaves its copies out, and its deletion record stays in force at a start.
- A ledger's copy is dropped: it comes back with the copied frames, which are valid, and is dropped again.
- An entry is added again: the bytes are the same (RULES P6), and either copy serves.
- The copies' segment is sealed: its summary has them, and ``place_copies`` leaves them out.
- A frame is found to be damaged: no more of the segment is copied, and the segment is kept.
- The process ends, or power is lost: after step 1 entries have two places, both right. Before it the log has a torn
  tail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bk_core.errors import DataDirectoryError, IntegrityError, InvalidArgumentError
from bookie_server.machine.disk_places import IndexBlock, Place, Unresolved
from bookie_server.storage.bytes.index_rows import I64, sorted_rows
from bookie_server.storage.bytes.joined_frames import Copies, FrameTable, join_frames
from bookie_server.storage.bytes.segment import segment_name
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from bookie_server.storage.maintenance.sealed.live_frames import LiveFrames, together

logger = logging.getLogger(__name__)

PART_BYTES = 4 << 20
"""The number of live bytes that are read before they are joined and copied. Compaction takes three times as much
memory."""
COPY_BYTES_MAX = 2 << 20
"""The maximum size of one call of ``copy``, in bytes, because other groups wait for it."""
COPY_FRAMES_MAX = 1024
"""The maximum number of frames in one call of ``copy``. Small frames cost time for each frame."""

Copy: TypeAlias = Callable[[Sequence[bytes | bytearray | memoryview]], Sequence[Place]]
"""A function that writes copies of frames durably, by :meth:`SegmentLog.append_group` with ``reserve=True``, and
returns their places. It raises the errors of that method."""


@dataclass(slots=True)
class CompactionStats:
    """Totals since the start. ``read_bytes`` counts segments and their indexes, ``copied_bytes`` and ``copied_frames``
    the frames written, and ``joined_frames`` the frames that became parts of larger ones. ``segments`` counts those
    given up after their live frames were copied, and ``damaged_segments`` those kept because of damage."""

    read_bytes: int = 0
    copied_bytes: int = 0
    joined_frames: int = 0
    segments: int = 0
    damaged_segments: int = 0


def choose(
    live_bytes: Mapping[int, int], segment_bytes: int, threshold: float, left_out: Collection[int] = ()
) -> int | None:
    """Return the sealed segment with the least live share, if the share is below ``threshold``, or None. If several
    segments have the same share, return the oldest. Segments in ``left_out`` are not considered.

    The share is relative to the size of a whole segment, so that segments that a restart left nearly empty are chosen,
    too. Segments without any live frame need no reading, because ``LedgerIndex.drop_dead`` is called first and gives
    them up.
    """
    candidates = [(live, generation) for generation, live in live_bytes.items() if generation not in left_out]
    live, generation = min(candidates, default=(segment_bytes, 0))
    return generation if candidates and live < threshold * segment_bytes else None


@dataclass(slots=True, eq=False)
class _Work:
    """The work on one segment. ``tables`` has frames that are read and not joined yet. ``copies`` has the frames to be
    written; those before ``copied`` are written."""

    generation: int
    frames: LiveFrames
    live_bytes: int
    bytes_max: int  # if the copies would have this size or more, they do not pay
    live: I64 | None = None  # the ledgers with live frames; the frames of all others are dead
    is_open: bool = False
    tables: list[FrameTable] = field(default_factory=list)
    table_bytes: int = 0
    copies: Copies | None = None
    copied: int = 0


class SegmentCompactor:
    """Compacts the segments in the directory ``path``, one at a time, on the thread that seals.

    ``files`` and ``incarnation`` are the directory's, ``copy`` writes to its log, and ``segment_bytes`` is the size of
    a segment. Its state does not survive a restart, and need not.
    """

    def __init__(
        self,
        port: IndexPort,
        files: Files,
        path: str,
        incarnation: bytes,
        copy: Copy,
        *,
        segment_bytes: int,
        limits: MaintenanceLimits,
    ) -> None:
        self._port, self._files, self._path, self._incarnation = port, files, path, incarnation
        self._copy, self._segment_bytes, self._limits = copy, segment_bytes, limits
        self._work: _Work | None = None
        self._drained: list[int] = []
        # by generation, the live bytes when the segment was last read, and the size that their copies would have
        self._packed: dict[int, tuple[int, int]] = {}
        self._kept: set[int] = set()  # segments kept until the next start because of damage
        self._receivers: dict[int, int] = {}  # by segment with our copies, its live bytes when sealed; −1: unsealed
        self.stats = CompactionStats()
        self.starved = False
        """Whether the disk had no room for the last copies. The next step tries again; giving space back first
        helps."""

    @property
    def generation(self) -> int | None:
        """The segment under way, or None."""
        return self._work.generation if self._work is not None else None

    def step(self, budget_bytes: int, *, major: bool = False) -> int:
        """Read and copy about ``budget_bytes`` of the segment under way; choose one first if there is none (with
        ``major`` by ``major_compaction_threshold``). Return the bytes read and written; 0 if there is nothing to do
        now, or no room (``starved``).

        Fully dead segments are given up first, without reading. On a full disk the next step tries the same copies
        again. Raises StorageFailedError if a write or sync failed (RULES S6), and the errors of the port and of
        ``copy`` (deadlines). Then the segment under way is abandoned; nothing is lost, and a later step begins it
        again.
        """
        self.starved, done, limits = False, 0, self._limits
        threshold = limits.major_compaction_threshold if major else limits.compaction_threshold
        work = self._work
        if work is not None and not self._port.ask(lambda index: index.is_sealed(work.generation)):
            self.close()  # all its frames have died, and its file may be in use again
        try:
            while done < budget_bytes:
                if self._work is None and not self._begin(threshold):
                    break
                done += self._advance()
        except DataDirectoryError:  # none of these copies was written
            self.starved = True
            self._drained += self._port.ask(LedgerIndex.drop_dead)
        except BaseException:
            self.close()
            raise
        return done

    def take_drained(self) -> list[int]:
        """Return the segments that left the index since the last call. They may be recycled once a checkpoint covers
        them (I11)."""
        drained, self._drained = self._drained, []
        return drained

    def close(self) -> None:
        """Abandon the segment under way. Nothing is lost, because it stays in the index."""
        if self._work is not None:
            self._work.frames.close()
            self._work = None

    # --- one segment ------------------------------------------------------------------------------------------------

    def _begin(self, threshold: float) -> bool:
        """Choose a segment. Return False if there is none."""
        self._drained += self._port.ask(LedgerIndex.drop_dead)
        live, damaged = self._port.ask(lambda index: (index.live_bytes(), index.damaged_segments()))
        enough = int(threshold * self._segment_bytes)
        generation = choose(live, self._segment_bytes, threshold, damaged | self._kept | self._useless(live, enough))
        if generation is None:
            return False
        frames = LiveFrames(self._files, self._path, generation, self._incarnation)
        self._work = _Work(generation, frames, live[generation], enough)
        return True

    def _useless(self, live: Mapping[int, int], enough: int) -> set[int]:
        """Return segments that would be rewritten for ever. These are segments of small frames whose copies would take
        at least ``enough``, and segments with our copies of which hardly anything has died since they were sealed, even
        if they are not full (as with large frames)."""
        self._packed = {g: known for g, known in self._packed.items() if live.get(g) == known[0]}
        for generation, sealed_with in list(self._receivers.items()):
            if sealed_with < 0:
                self._receivers[generation] = live.get(generation, -1)
            elif generation not in live:
                del self._receivers[generation]
        little = self._segment_bytes // 10
        filled = {g for g, sealed_with in self._receivers.items() if sealed_with - live.get(g, 0) < little}
        return filled | {g for g, (_, packed) in self._packed.items() if packed >= enough}

    def _advance(self) -> int:
        """Do the next piece of work on the segment under way; return the bytes read and written, at least 1."""
        work = self._work
        assert work is not None
        before = work.frames.read_bytes
        if work.copies is not None:
            return self._write(work, work.copies)
        if not work.is_open:
            self._open(work)
        elif work.frames.at_end:
            self._give_up_segment(work)
        else:
            self._read(work)
        read = work.frames.read_bytes - before
        self.stats.read_bytes += read
        return read or 1

    def _open(self, work: _Work) -> None:
        """Read a part of the segment's index."""
        if work.live is None:
            work.live = self._port.ask(lambda index: index.ledgers_in(work.generation))
        if not work.frames.read_index(work.live):
            return
        if work.frames.damage:
            self._keep(work)
            return
        work.is_open = True
        packed = work.live_bytes + work.frames.padding_bytes
        if packed >= work.bytes_max:  # small frames, whose copies would not be smaller
            self._packed[work.generation] = work.live_bytes, packed
            self.close()

    def _read(self, work: _Work) -> None:
        """Read another window; join the frames read so far if there are enough, or no more to read."""
        table = work.frames.next()
        if table is None:
            self._keep(work)
            return
        work.tables.append(table)
        work.table_bytes += int(table.rows["size"].sum())
        if work.table_bytes < PART_BYTES and not work.frames.at_end:
            return
        try:
            work.copies = join_frames(together(work.tables))
        except IntegrityError as error:  # the checksums are right and the columns are not: it was written this way
            self._keep(work, str(error))
            return
        work.tables, work.table_bytes = [], 0
        self.stats.joined_frames += work.copies.joined

    def _write(self, work: _Work, copies: Copies) -> int:
        """Write the next few copies, and add their places to the index; return their size."""
        begin, end = work.copied, work.copied + 1
        size = len(copies.frames[begin])
        while end < min(len(copies.frames), begin + COPY_FRAMES_MAX):
            if size + len(copies.frames[end]) > COPY_BYTES_MAX:
                break
            size += len(copies.frames[end])
            end += 1
        rows = copies.rows[begin:end].copy()
        try:
            places = self._copy(copies.frames[begin:end])
        except (InvalidArgumentError, IntegrityError) as error:  # a frame may be larger than a segment is now
            self._keep(work, str(error))
            return size
        rows["offset"] = [place.offset for place in places]
        generations = np.array([place.generation for place in places], dtype=np.int64)
        learnt = {g: sorted_rows(rows[generations == g]) for g in np.unique(generations).tolist()}
        self._port.ask(lambda index: index.place_copies(learnt))
        self._receivers.update(dict.fromkeys(learnt, -1))
        work.copied = end
        if end == len(copies.frames):
            work.copies, work.copied = None, 0
        self.stats.copied_bytes += size
        return size

    def _give_up_segment(self, work: _Work) -> None:
        """Drop the segment from the index, which has other places for all its live frames."""
        self._port.ask(lambda index: index.drop_segment(work.generation))
        self._drained.append(work.generation)
        self.stats.segments += 1
        self.close()

    def _keep(self, work: _Work, why: str = "") -> None:
        """Keep the segment, because its damage must not be forgotten, and frames that cannot be copied must stay. A
        segment that has only damaged index blocks may be chosen again once ``reindex.py`` has rebuilt its index."""
        damage = work.frames.damage
        if not damage or not all(isinstance(place, IndexBlock) for _, place in damage):
            self._kept.add(work.generation)
        self.stats.damaged_segments += 1
        self._port.ask(lambda index: _mark(index, damage))
        name, what = segment_name(work.generation), why or f"{len(damage)} places, the first: {damage[0]}"
        logger.error("damage: %s is kept and not compacted; %s", name, what)
        self.close()


def _mark(index: LedgerIndex, damage: Sequence[tuple[int, Unresolved]]) -> None:
    for ledger_id, place in damage:
        index.mark_damaged(ledger_id, place)
