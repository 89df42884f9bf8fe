# SPDX-License-Identifier: Apache-2.0
"""Known defects of compaction and of giving segments back."""

from __future__ import annotations

from typing import Any

from bookie_server.storage.bytes import joined_frames
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.compaction import SegmentCompactor
from bookie_server.storage.maintenance.space_return import SpaceReturn
from tests.sim.mutants.mutant import Mutants
from tests.sim.mutants.storage import FilesInstead, nothing

MUTANTS = Mutants()


@MUTANTS.instead(SegmentCompactor, "_write", "copies of compaction are not synced", "S4")
def copies_unsynced(write: Any, self: Any, work: Any, copies: Any) -> Any:
    """The log's files do not sync while compaction writes."""
    copy = self._copy

    def unsynced(frames: Any) -> Any:
        log = _log_of(copy)
        files = log._files
        log._files = FilesInstead(files, sync_data=nothing)
        try:
            return copy(frames)
        finally:
            log._files = files

    self._copy = unsynced
    try:
        return write(self, work, copies)
    finally:
        self._copy = copy


def _log_of(copy: Any) -> SegmentLog:
    """The log that the simulator's copy writes to."""
    return next(cell.cell_contents.log for cell in copy.__closure__ if hasattr(cell.cell_contents, "log"))


@MUTANTS.instead(SegmentCompactor, "_write", "compaction leaves a frame behind", "S4")
def without_the_last(write: Any, self: Any, work: Any, copies: Any) -> Any:
    """The last frame of a part is not copied."""
    if len(copies.frames) > 1 and not work.copied:
        work.copies = copies = joined_frames.Copies(copies.frames[:-1], copies.rows[:-1], copies.joined)
    return write(self, work, copies)


@MUTANTS.instead(SegmentCompactor, "_keep", "a damaged segment is given up by compaction (D9)", "S4")
def given_up_anyway(_: Any, self: Any, work: Any, why: str = "") -> None:
    self._give_up_segment(work)


def _recycled_soon(self: Any, generations: Any) -> None:
    self._drained.update(generations)
    self._soon("recycling")


@MUTANTS.instead(
    Checkpointer, "may_recycle", "a segment is recycled that the checkpoint counts on", "S4",
    (SpaceReturn, "note_drained", _recycled_soon),
)  # fmt: skip
def covered_is_enough(_: Any, self: Any, generation: int) -> bool:
    """Though the checkpoint was made when the segment was still counted on."""
    return generation <= self.newest.through


@MUTANTS.instead(LedgerIndex, "drop_dead", "a nearly dead segment is dropped", "S4")
def half_dead_is_dead(_: Any, self: Any) -> list[int]:
    """A segment that is nearly dead is dropped as if it were dead."""
    dead = sorted(generation for generation, size in self.live_bytes().items() if size < 20_000)
    for generation in dead:
        self.drop_segment(generation)
    return dead


MUTANTS.add("the index does not learn where copies are", "S4", (LedgerIndex, "place_copies", nothing))
MUTANTS.add(
    "joined frames have one LAC", "S7", (joined_frames, "LACS", 0), (joined_frames, "_is_proven", lambda frame: True)
)
