# SPDX-License-Identifier: Apache-2.0
"""Does all work for one data directory beside its commits, one step at a time, the most urgent first.

First it seals full segments and makes spares, then it goes on with the checkpoint, returns drained segments to the
pool, and makes damaged indexes anew. After that compaction and scrubbing take turns, each within its own budget of
bytes. One of their steps handles about STEP_BYTES, so sealing and spares never wait long. The code is synchronous
(RULES S10: storage starts no threads). A thread of the server runs it beside the commit thread
(``bookie_server/engine/maintenance_thread.py``); simulators and tests run it between commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.background import PacedCompaction, PacedScrub
from bookie_server.storage.maintenance.checkpointer import Checkpointer, CheckpointSummary
from bookie_server.storage.maintenance.compaction import Copy, SegmentCompactor
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.log_upkeep import LogUpkeep
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from bookie_server.storage.maintenance.sealed.reindex import Reindexer
from bookie_server.storage.maintenance.sealed.scrub import Scrubber
from bookie_server.storage.maintenance.space_return import SpaceReturn
from bookie_server.storage.maintenance.storage_stats import StatsReader, StorageParts
from bookie_server.storage.maintenance.tasks import LOOK_S, TaskSchedule


class Maintenance:
    """The maintenance of one directory, used by one thread. It is the same in the server, in simulators and in tests.

    It makes its parts and connects them; they have all state: ``tasks`` (which work is due), ``log_upkeep`` (sealing
    and spares), ``space`` (drained segments and checkpoints), ``reindexer``, ``compaction``, ``scrub`` and ``stats``.
    """

    def __init__(
        self,
        directory: DataDirectory,
        log: SegmentLog,
        port: IndexPort,
        reader: SegmentReader,
        *,
        newest: CheckpointSummary,
        copy: Copy,
        release: Callable[[int], None],
        give_up: Callable[[int], None],
        now_s: Callable[[], float] = time.monotonic,
        limits: MaintenanceLimits | None = None,
        scrub_from: float = 0.0,
    ) -> None:
        """``newest`` is the checkpoint that the start used. ``copy`` writes copies to the log. Only the counters of
        ``reader`` are used. ``release(generation)`` makes the readers close a segment whose ``.idx`` was made anew.
        ``give_up(generation)`` returns once no reader has the segment open or will open it. ``now_s`` is a clock that
        never goes back. The scrubber's first pass begins at ``scrub_from``, a share of the segments."""
        self._log, self._release_reader, self._give_up_reader = log, release, give_up
        limits = limits or MaintenanceLimits()
        where = directory.files, directory.segments_path, directory.identity.incarnation_bytes
        tasks = self.tasks = TaskSchedule(now_s)
        self.log_upkeep = LogUpkeep(log, port, lambda: tasks.soon("space"))
        checkpointer = Checkpointer(directory, port, log.health, newest)
        self.reindexer = Reindexer(
            *where, port, log.health, is_covered=lambda g: g <= checkpointer.newest.through, release=self._release
        )
        self.space = SpaceReturn(
            directory, log.pool, port, checkpointer, limits, now_s,
            give_up=self._give_up, soon=tasks.soon,
            lacks_room=lambda: self.log_upkeep.lacks_room, is_wanted=lambda: self.reindexer.wants_checkpoint,
        )  # fmt: skip
        compactor = SegmentCompactor(port, *where, copy, segment_bytes=log.segment_bytes, limits=limits)
        self.compaction = PacedCompaction(compactor, limits.major_compaction_interval_s, now_s, self.space.note_drained)
        self.scrub = PacedScrub(Scrubber(*where, port, first_at=scrub_from), limits, now_s)
        tasks.add_urgent("log", self.log_upkeep.step)
        tasks.add_urgent("checkpoint", self.space.go_on_with_checkpoint)
        tasks.add_urgent("recycling", self.space.recycle_one)
        tasks.add_urgent("space", self.space.look)
        tasks.add_urgent("re-indexing", self._reindex_one)
        tasks.add_paced("compaction", self.compaction.step, limits.compaction_bytes_per_s)
        tasks.add_paced("scrubbing", self.scrub.step, limits.scrub_bytes_per_s)
        self.stats = StatsReader(
            StorageParts(
                log=log, port=port, reader=reader, tasks=tasks, log_upkeep=self.log_upkeep, space=self.space,
                reindexer=self.reindexer, compactor=compactor, scrubber=self.scrub.scrubber,
            ),
            now_s,
        )  # fmt: skip

    def step(self) -> bool:
        """Do the most urgent piece of work that is due. Return False if no work was done, because none is due or it
        must wait. Raises StorageFailedError if a write or sync failed, now or earlier (RULES S6), and Stopping. After
        any other error, which is logged and counted, the work is tried again later."""
        self._log.health.check()
        return self.tasks.step()

    def run(self) -> None:
        """Call :meth:`step` until nothing is due at this moment. Raises as :meth:`step`."""
        while self.step():
            pass

    def wake(self) -> None:
        """Seal and make spares at the next step, because a segment is full or half full."""
        self.tasks.soon("log")

    def look_soon(self) -> None:
        """Look for segments to give back at the next step, because space is short."""
        self.tasks.soon("space")

    def finish(self) -> None:
        """Seal full segments and give up the checkpoint under way, without a change to the index. Raises
        StorageFailedError."""
        self.compaction.compactor.close()
        self.space.checkpointer.close()
        while self.log_upkeep.work.seal_one():
            pass

    def _reindex_one(self) -> float:
        if self.reindexer.step():
            return 0.0
        if self.reindexer.wants_checkpoint:
            self.tasks.soon("checkpoint")
        return LOOK_S

    def _give_up(self, generation: int) -> None:
        """Return once no reader has this segment open or will open it."""
        self.compaction.let_go(generation)
        self._give_up_reader(generation)

    def _release(self, generation: int) -> None:
        """Make every reader of this segment open it anew, because its ``.idx`` was made anew."""
        self.compaction.let_go(generation)  # or it would read blocks of both editions of the ``.idx``, and miss records
        self._release_reader(generation)
