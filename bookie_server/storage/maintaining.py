# SPDX-License-Identifier: Apache-2.0
"""The whole maintenance of a data directory, put together: the same in the server, in simulators and in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

from bookie_server.storage.checkpointer import CheckpointSummary
from bookie_server.storage.commit import SegmentLog
from bookie_server.storage.compaction import Compactor, Copy
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.index_port import IndexPort
from bookie_server.storage.maintenance import Maintenance
from bookie_server.storage.reader import SegmentReader
from bookie_server.storage.schedule import MaintenanceLimits, MajorRuns
from bookie_server.storage.storage_stats import StorageStats


class DirectoryMaintenance(Maintenance):
    """Maintenance with all its parts, and the numbers of all of them.

    ``copy`` writes copies to the log; ``reader`` is asked for its counters only. Otherwise as :class:`Maintenance`.
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
        now_s: Callable[[], float] = time.monotonic,
        limits: MaintenanceLimits | None = None,
    ) -> None:
        limits = limits or MaintenanceLimits()
        super().__init__(directory, log, port, newest=newest, release=release, now_s=now_s, limits=limits)
        self._reader = reader
        files, path = directory.files, directory.segments_path
        self.compactor = Compactor(
            port, files, path, directory.identity.incarnation_bytes, copy,
            segment_bytes=log.segment_bytes, threshold=limits.compaction_threshold,
            major_threshold=limits.major_compaction_threshold,
        )  # fmt: skip
        self._major = MajorRuns(limits.major_compaction_interval_s, now_s())
        self.add_paced("compaction", self._compact, limits.compaction_bytes_per_s)

    def _compact(self, budget_bytes: int) -> int:
        major = self._major.is_on(self._now_s())
        done = self.compactor.step(budget_bytes, major=major)
        self.note_drained(self.compactor.take_drained())
        if major and not done and not self.compactor.starved:
            self._major.end(self._now_s())
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
            indexes_rebuilt=self.reindexed,
            segments_compacted=compaction.segments,
            compaction_read_bytes=compaction.read_bytes,
            compaction_written_bytes=compaction.copied_bytes,
            scrubbed_bytes=0,
            detected_scrub_errors=0,
            frames_damaged=reader.damaged,
            read_io_errors=reader.io_errors,
            index_memory_bytes=memory,
            index_cache_hits=cache[0],
            index_cache_misses=cache[1],
            maintenance_errors=self.errors,
        )
