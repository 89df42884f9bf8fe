# SPDX-License-Identifier: Apache-2.0
"""The upkeep of the segment log beside its commits, one step at a time: sealing, spares, giving space back.

Synchronous (RULES S10: storage starts no threads). A thread of the server runs it beside the commit thread; the
simulator and tests run it between commits. Sealing comes first, because a start scans unsealed segments.
"""

from __future__ import annotations

from collections.abc import Callable

from bk_core.errors import DataDirectoryError
from bookie_server.storage.log.sealing import SealedSegment
from bookie_server.storage.log.segment_log import SegmentLog


class LogMaintenance:
    """Looks after one log; one thread. ``on_sealed`` hears of each segment that got its ``.idx``, for the index."""

    def __init__(self, log: SegmentLog, on_sealed: Callable[[SealedSegment], None] = lambda _: None) -> None:
        self._log, self._on_sealed = log, on_sealed

    @property
    def due(self) -> bool:
        """Whether there is something to do, even if the disk has no room for it. Any thread."""
        return bool(self._log.seal_jobs) or self._log.pool.spares < self._log.spares_wanted

    def step(self) -> bool:
        """Do one piece of work. False: there is nothing to do, or the disk has no room for it now.

        An index without room gets that of the segments kept free, because no segment above the first unsealed one is
        ever given back: the disk would stay full. Raises StorageFailedError when a write or sync failed, now or earlier
        (RULES S6).
        """
        is_full = bool(self._log.seal_jobs)
        return self.seal_one() or self._make_spare() or self._log.pool.trim(0 if is_full else None)

    def run(self) -> None:
        """Step until nothing can be done. Raises as :meth:`step`."""
        while self.step():
            pass

    def seal_one(self) -> bool:
        """Seal the oldest full segment; False if there is none or no room. Raises as :meth:`step`."""
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
