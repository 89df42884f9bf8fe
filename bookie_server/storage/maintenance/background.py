# SPDX-License-Identifier: Apache-2.0
"""The paced work of maintenance, done when nothing urgent is due: compaction and scrubbing, with their pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bookie_server.storage.maintenance.compaction import SegmentCompactor
from bookie_server.storage.maintenance.schedule import UNDER_LOAD, Load, MaintenanceLimits, MajorRuns
from bookie_server.storage.maintenance.sealed.scrub import Scrubber


class PacedCompaction:
    """The compactor and its times. ``_major`` says when segments are compacted by the higher threshold.
    ``note_drained`` gets the segments that were rewritten in full."""

    def __init__(
        self,
        compactor: SegmentCompactor,
        interval_s: float,
        now_s: Callable[[], float],
        note_drained: Callable[[Iterable[int]], None],
    ) -> None:
        """``interval_s`` is the time between two major compactions."""
        self.compactor, self._now_s, self._note_drained = compactor, now_s, note_drained
        self._major = MajorRuns(interval_s, now_s())

    def step(self, budget_bytes: int) -> int:
        """Read and write about ``budget_bytes`` bytes. Return the number of bytes."""
        major = self._major.is_on(self._now_s())
        done = self.compactor.step(budget_bytes, major=major)
        self._note_drained(self.compactor.take_drained())
        if major and not done and not self.compactor.starved:
            self._major.end(self._now_s())
        return done

    def let_go(self, generation: int) -> None:
        """Make the compactor close this segment, if it is the one that it reads."""
        if self.compactor.generation == generation:
            self.compactor.close()


class PacedScrub:
    """The scrubber and its pauses.

    - ``_pauses_until_s``: the clock's time when the next pass may begin.
    - ``busy_s``: returns how long commits took so far; the owner of the committer sets it. ``_load`` says whether that
      is much: then each byte that the scrubber reads counts as UNDER_LOAD bytes.
    """

    def __init__(self, scrubber: Scrubber, limits: MaintenanceLimits, now_s: Callable[[], float]) -> None:
        self.scrubber, self._interval_s, self._now_s = scrubber, limits.scrub_interval_s, now_s
        self._pauses_until_s = now_s()
        self.busy_s: Callable[[], float] = lambda: 0.0
        self._load = Load(now_s())

    def step(self, budget_bytes: int) -> int:
        """Check about ``budget_bytes`` bytes. Return the number of bytes that count against the budget."""
        if self._now_s() < self._pauses_until_s:
            return 0
        passes = self.scrubber.stats.passes
        done = self.scrubber.step(budget_bytes)
        if self.scrubber.stats.passes != passes:
            self._pauses_until_s = self._now_s() + self._interval_s
        return done * (UNDER_LOAD if self._load.look(self.busy_s(), self._now_s()) else 1)
