# SPDX-License-Identifier: Apache-2.0
"""Known defects of compaction and of giving segments back, put back while a context lasts."""

from __future__ import annotations

from typing import Any

from bookie_server.storage.bytes import joined_frames
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.compaction import SegmentCompactor
from bookie_server.storage.maintenance.space_return import SpaceReturn
from tests.sim.mutants.storage import Planted, _Instead, _nothing, _planted

_write = SegmentCompactor._write


def _copies_unsynced(self: Any, work: Any, copies: Any) -> Any:
    """The log's files do not sync while compaction writes."""
    copy = self._copy

    def unsynced(frames: Any) -> Any:
        log = _log_of(copy)
        files = log._files
        log._files = _Instead(files, sync_data=_nothing)
        try:
            return copy(frames)
        finally:
            log._files = files

    self._copy = unsynced
    try:
        return _write(self, work, copies)
    finally:
        self._copy = copy


def _log_of(copy: Any) -> SegmentLog:
    """The log that the simulator's copy writes to."""
    opened = next(cell.cell_contents for cell in copy.__closure__ if hasattr(cell.cell_contents, "log"))
    found = opened.log
    assert isinstance(found, SegmentLog)
    return found


def _without_the_last(self: Any, work: Any, copies: Any) -> Any:
    """The last frame of a part is not copied."""
    if len(copies.frames) > 1 and not work.copied:
        work.copies = copies = joined_frames.Copies(copies.frames[:-1], copies.rows[:-1], copies.joined)
    return _write(self, work, copies)


def _given_up_anyway(self: Any, work: Any, why: str = "") -> None:
    self._give_up_segment(work)


def _recycled_soon(self: Any, generations: Any) -> None:
    self._drained.update(generations)
    self._soon("recycling")


def _covered_is_enough(self: Any, generation: int) -> bool:
    """Though the checkpoint was made when the segment was still counted on."""
    covered: bool = generation <= self.newest.through
    return covered


def _half_dead_is_dead(self: Any) -> list[int]:
    """A segment that is nearly dead is dropped as if it were dead."""
    dead = sorted(generation for generation, size in self.live_bytes().items() if size < 20_000)
    for generation in dead:
        self.drop_segment(generation)
    return dead


MAINTENANCE_MUTANTS: list[tuple[str, str, Planted]] = [
    ("copies of compaction are not synced", "S4", _planted((SegmentCompactor, "_write", _copies_unsynced))),
    ("compaction leaves a frame behind", "S4", _planted((SegmentCompactor, "_write", _without_the_last))),
    ("the index does not learn where copies are", "S4", _planted((LedgerIndex, "place_copies", _nothing))),
    ("a damaged segment is given up by compaction (D9)", "S4", _planted((SegmentCompactor, "_keep", _given_up_anyway))),
    (
        "joined frames have one LAC", "S7",
        _planted((joined_frames, "LACS", 0), (joined_frames, "_is_proven", lambda frame: True)),
    ),
    (
        "a segment is recycled that the checkpoint counts on", "S4",
        _planted((SpaceReturn, "note_drained", _recycled_soon), (Checkpointer, "may_recycle", _covered_is_enough)),
    ),
    ("a nearly dead segment is dropped", "S4", _planted((LedgerIndex, "drop_dead", _half_dead_is_dead))),
]  # fmt: skip
"""Name, rule, context."""
