# SPDX-License-Identifier: Apache-2.0
"""Compaction: what is live in a mostly dead segment is copied to the end of the log, and the segment is given up (S4).

One segment at a time, in steps. Its ``.idx`` says what is in it, the index which of that is live. Live frames are read
in the order in which they lie, checked, joined where small ones of a ledger follow each other, and copied with the
counters that they carry. Only then, in this order, so that no entry is ever without a place:

1. the copies are durable (``copy`` returns),
2. the index learns them (``place_copies``),
3. the old segment leaves the index (``drop_segment``).

Giving its file back is maintenance's: under a durable checkpoint, when no reader has it open (I11).

What happens between the look at what is live and step 2 changes nothing, because what is dead stays dead:

========================================  =============================================================================
meanwhile                                 then
========================================  =============================================================================
a ledger is deleted                       ``place_copies`` leaves its copies out; its tombstone is sticky at a start
a ledger's copy is dropped                its copies carry the counter from before the drop, which serves nowhere
... and entries of it are added again     those carry a greater counter, the copies do not cover them
limbo is set or cleared                   copies carry their old counter, which is above every drop's
an entry is added again                   the bytes are the same (RULES P6): either copy serves
the copies' segment is sealed             its summary has them; ``place_copies`` leaves them out
a frame turns out to be damaged           nothing of the segment is copied any more, and it is kept
the process ends, or power is lost        after 1: entries have two places, both right; before: the log has a torn tail
========================================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bookie_server.storage.files import Files
from bookie_server.storage.index_port import IndexPort
from bookie_server.storage.segment import Place

COMPACTION_THRESHOLD = 0.5
"""A segment with less than this share of its size live is compacted."""
MAJOR_COMPACTION_THRESHOLD = 0.8
"""The same in the run once a day."""

Copy: TypeAlias = Callable[[Sequence[bytes | bytearray | memoryview], Sequence[int]], Sequence[Place]]
"""Writes copies of frames with these counters; their places, durable. With ``reserve=True`` of
:meth:`SegmentLog.append_group`, whose errors it raises."""


@dataclass(slots=True)
class CompactionStats:
    """Totals since the start. ``read_bytes`` of segments and their indexes, ``copied_bytes`` of frames written,
    ``segments`` given up, ``dead_bytes`` of their size that nothing live stood in, ``joined_frames`` that became parts
    of larger ones, ``damaged_segments`` met that are kept because of it."""

    read_bytes: int = 0
    copied_bytes: int = 0
    copied_frames: int = 0
    joined_frames: int = 0
    segments: int = 0
    dead_bytes: int = 0
    damaged_segments: int = 0


def choose(
    live_bytes: Mapping[int, int], segment_bytes: int, threshold: float, left_out: Collection[int] = ()
) -> int | None:
    """The sealed segment with the least live share, if that is below ``threshold``; the oldest of several. Those in
    ``left_out`` are not considered. None: nothing is worth it.

    The share is of the whole segment, so that segments which a restart left nearly empty are taken as well. Segments
    without any live frame need no reading: ``IndexPort.drop_dead`` gives them up at once, and goes first.
    """
    candidates = [(live, generation) for generation, live in live_bytes.items() if generation not in left_out]
    live, generation = min(candidates, default=(segment_bytes, 0))
    return generation if candidates and live < threshold * segment_bytes else None


class Compactor:
    """Compacts the segments in the directory ``path``, one at a time; one thread, the one that seals.

    ``files`` and ``incarnation`` are the directory's, ``copy`` writes to its log, ``segment_bytes`` is the size of a
    segment. Nothing of it survives a restart or needs to.
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
        threshold: float = COMPACTION_THRESHOLD,
        major_threshold: float = MAJOR_COMPACTION_THRESHOLD,
    ) -> None:
        self._port, self._files, self._path, self._incarnation = port, files, path, incarnation
        self._copy, self._segment_bytes = copy, segment_bytes
        self._threshold, self._major_threshold = threshold, major_threshold
        self._drained: list[int] = []
        self.stats = CompactionStats()
        self.starved = False
        """The disk had no room for the last copies. The next step tries again; space given back first helps."""

    @property
    def generation(self) -> int | None:
        """The segment under way; None between two."""
        return None

    def step(self, budget_bytes: int, *, major: bool = False) -> int:
        """Choose a segment if none is under way (``major``: by the threshold of the run once a day), and read and copy
        about ``budget_bytes`` of it. Bytes read and written; 0: there is nothing to do now, or no room (``starved``).

        Fully dead segments are given up here too, before anything is read. What is under way is tried again by the next
        step when the disk is full. Raises StorageFailedError when a write or sync failed (RULES S6), and what the port
        and ``copy`` raise (deadlines): then the segment under way is let go, nothing is lost, and a later step begins
        it anew.
        """
        return 0

    def take_drained(self) -> list[int]:
        """Segments that left the index since the last call: to be recycled once a checkpoint covers them (I11)."""
        drained, self._drained = self._drained, []
        return drained

    def close(self) -> None:
        """Let go what is under way. Nothing is lost: the segment stays in the index."""
