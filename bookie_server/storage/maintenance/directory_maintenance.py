# SPDX-License-Identifier: Apache-2.0
"""The whole maintenance of a data directory: the same in the server, in simulators and in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.checkpointer import CheckpointSummary
from bookie_server.storage.maintenance.compaction import Compactor, Copy
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.maintenance import Maintenance
from bookie_server.storage.maintenance.reindex import Reindexer
from bookie_server.storage.maintenance.schedule import MaintenanceLimits, MajorRuns
from bookie_server.storage.maintenance.scrub import Scrubber
from bookie_server.storage.maintenance.storage_stats import StorageStats

SCRUB_PAUSE_S = 600.0
"""The pause between two passes of the scrubber, so that little data is not read again every few seconds."""


class DirectoryMaintenance(Maintenance):
    """Maintenance with all its parts, and the numbers of all of them.

    ``copy`` writes copies to the log. Only the counters of ``reader`` are used. ``release(generation)`` has the readers
    close a segment whose ``.idx`` was made anew, and ``give_up``, by default the same function, one whose file will be
    used again. All else as in :class:`Maintenance`.
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
        give_up: Callable[[int], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        limits: MaintenanceLimits | None = None,
    ) -> None:
        limits = limits or MaintenanceLimits()
        super().__init__(directory, log, port, newest=newest, give_up=self._give_up, now_s=now_s, limits=limits)
        self._reader, self._release_reader, self._give_up_reader = reader, release, give_up or release
        where = directory.files, directory.segments_path, directory.identity.incarnation_bytes
        self.compactor = Compactor(
            port, *where, copy, segment_bytes=log.segment_bytes, threshold=limits.compaction_threshold,
            major_threshold=limits.major_compaction_threshold,
        )  # fmt: skip
        self._major = MajorRuns(limits.major_compaction_interval_s, now_s())
        self.scrubber, self._scrub_from_s = Scrubber(*where, port), now_s()
        self.reindexer = Reindexer(
            *where, port, log.health, is_covered=lambda g: g <= self.checkpointer.newest.through, release=self._release
        )
        self.reindex, self.wants_checkpoint = self.reindexer.step, lambda: self.reindexer.wants_checkpoint
        self.add_paced("compaction", self._compact, limits.compaction_bytes_per_s)
        self.add_paced("scrubbing", self._scrub, limits.scrub_bytes_per_s)

    def _release(self, generation: int) -> None:
        self._let_compaction_go(generation)  # it would read blocks of both editions, and miss records
        self._release_reader(generation)

    def _give_up(self, generation: int) -> None:
        self._let_compaction_go(generation)
        self._give_up_reader(generation)

    def _let_compaction_go(self, generation: int) -> None:
        if self.compactor.generation == generation:
            self.compactor.close()

    def _compact(self, budget_bytes: int) -> int:
        major = self._major.is_on(self._now_s())
        done = self.compactor.step(budget_bytes, major=major)
        self.note_drained(self.compactor.take_drained())
        if major and not done and not self.compactor.starved:
            self._major.end(self._now_s())
        return done

    def _scrub(self, budget_bytes: int) -> int:
        if self._now_s() < self._scrub_from_s:
            return 0
        passes = self.scrubber.stats.passes
        done = self.scrubber.step(budget_bytes)
        if self.scrubber.stats.passes != passes:
            self._scrub_from_s = self._now_s() + SCRUB_PAUSE_S
        return done

    def finish(self) -> None:
        self.compactor.close()
        super().finish()

    def stats(self) -> StorageStats:
        """The numbers as they are now. Any thread that may ask the index. Raises as :meth:`IndexPort.ask`."""
        sealed, unsealed, live, memory, cache = self._port.ask(
            lambda index: (
                len(index.sealed_generations()), len(index.unsealed_generations()), sum(index.live_bytes().values()),
                index.memory_bytes(), (index.cache.hits, index.cache.misses),
            )
        )  # fmt: skip
        pool, newest, compaction, reader = self._log.pool, self.checkpointer.newest, self.compactor.stats, self._reader
        return StorageStats(
            segments_sealed=sealed,
            segments_unsealed=unsealed,
            segments_drained=self.drained,
            segments_kept_free=pool.free_segments,
            segments_spare=pool.spares,
            live_bytes=live,
            dead_bytes=(sealed + self.drained) * self._log.segment_bytes - live,
            checkpoint_number=newest.number,
            checkpoint_bytes=newest.file_bytes,
            checkpoint_age_s=self.checkpoint_age_s,
            checkpoints=self.checkpoints,
            seals=self.seals,
            segments_recycled=self.recycled,
            indexes_rebuilt=self.reindexer.stats.rebuilt,
            segments_compacted=compaction.segments,
            compaction_read_bytes=compaction.read_bytes,
            compaction_written_bytes=compaction.copied_bytes,
            scrubbed_bytes=self.scrubber.stats.bytes,
            detected_scrub_errors=self.scrubber.stats.damaged_frames + self.scrubber.stats.damaged_index_blocks,
            frames_damaged=reader.damaged,
            read_io_errors=reader.io_errors,
            index_memory_bytes=memory,
            index_cache_hits=cache[0],
            index_cache_misses=cache[1],
            maintenance_errors=self.errors,
        )
