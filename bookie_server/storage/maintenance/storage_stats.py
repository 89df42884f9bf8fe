# SPDX-License-Identifier: Apache-2.0
"""Reads the numbers of one data directory's storage, for logs and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.compaction import SegmentCompactor
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.log_upkeep import LogUpkeep
from bookie_server.storage.maintenance.sealed.reindex import Reindexer
from bookie_server.storage.maintenance.sealed.scrub import Scrubber
from bookie_server.storage.maintenance.space_return import SpaceReturn
from bookie_server.storage.maintenance.tasks import TaskSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStats:
    """Counters since the start, and current values. A field's docstring names Apache's metric if Apache has the same
    number; an entry log of Apache is a segment here."""

    segments_sealed: int
    """The number of segments with an ``.idx`` and live frames (ACTIVE_ENTRY_LOG_TOTAL)."""
    segments_unsealed: int
    """The number of segments that are being written, or are full and not sealed yet."""
    segments_drained: int
    """The number of segments without live frames, which wait for a checkpoint."""
    segments_kept_free: int
    """The number of files of drained segments that are kept to be used again."""
    segments_spare: int
    """The number of segments that were made before the log needs them."""
    live_bytes: int
    """The number of bytes of frames in sealed segments that may still be served."""
    dead_bytes: int
    """The number of all other bytes of the sealed and the drained segments, unused room included."""
    checkpoint_number: int
    checkpoint_bytes: int
    checkpoint_age_s: float | None
    """The seconds since the last checkpoint was begun, or None if this process has begun none."""
    checkpoints: int
    seals: int
    """The number of segments that were sealed."""
    segments_recycled: int
    """The number of drained segments given back to the pool."""
    indexes_rebuilt: int
    segments_compacted: int
    compaction_read_bytes: int
    compaction_written_bytes: int
    scrubbed_bytes: int
    detected_scrub_errors: int
    """The number of frames and index blocks that the scrubber found damaged (DETECTED_SCRUB_ERRORS)."""
    frames_damaged: int
    """The number of frames that a client requested and that failed their check when they were read."""
    read_io_errors: int
    """The number of reads that failed with an error of the operating system."""
    index_memory_bytes: int
    index_cache_hits: int
    index_cache_misses: int
    maintenance_errors: int
    """The number of steps that failed and are tried again."""

    def as_line(self) -> str:
        """Return ``name=value`` for each number, in the order above, as one line for a log."""
        shown = {name: "-" if value is None else value for name, value in asdict(self).items()}
        return " ".join(
            f"{name}={value:.0f}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageParts:
    """The objects of one data directory whose numbers are read."""

    log: SegmentLog
    port: IndexPort
    reader: SegmentReader
    tasks: TaskSchedule
    log_upkeep: LogUpkeep
    space: SpaceReturn
    reindexer: Reindexer
    compactor: SegmentCompactor
    scrubber: Scrubber


class StatsReader:
    """A reader of the numbers of a data directory. ``_memory_bytes`` is the memory of the index at ``_measured_s``, a
    time of the clock."""

    def __init__(self, parts: StorageParts, now_s: Callable[[], float]) -> None:
        self._parts, self._now_s = parts, now_s
        self._measured_s, self._memory_bytes = -math.inf, 0

    def read(self, *, memory_age_s: float = 0.0) -> StorageStats:
        """Return the numbers as they are now. The index's memory may have been measured up to
        ``memory_age_s`` ago, because measuring it visits every ledger with unsealed frames. Any thread that may ask the
        index may call.
        Raises as :meth:`IndexPort.ask`."""
        parts, now_s = self._parts, self._now_s()
        if now_s >= self._measured_s + memory_age_s:
            self._measured_s, self._memory_bytes = now_s, parts.port.ask(lambda index: index.memory_bytes())
        sealed, unsealed, live, cache = parts.port.ask(
            lambda index: (
                len(index.sealed_generations()), len(index.unsealed_generations()), sum(index.live_bytes().values()),
                (index.cache.hits, index.cache.misses),
            )
        )  # fmt: skip
        pool, space, newest = parts.log.pool, parts.space, parts.space.checkpointer.newest
        compaction, scrub = parts.compactor.stats, parts.scrubber.stats
        return StorageStats(
            segments_sealed=sealed,
            segments_unsealed=unsealed,
            segments_drained=space.drained,
            segments_kept_free=pool.free_segments,
            segments_spare=pool.spares,
            live_bytes=live,
            dead_bytes=(sealed + space.drained) * parts.log.segment_bytes - live,
            checkpoint_number=newest.number,
            checkpoint_bytes=newest.file_bytes,
            checkpoint_age_s=space.checkpoint_age_s(),
            checkpoints=space.checkpoints,
            seals=parts.log_upkeep.seals,
            segments_recycled=space.recycled,
            indexes_rebuilt=parts.reindexer.stats.rebuilt,
            segments_compacted=compaction.segments,
            compaction_read_bytes=compaction.read_bytes,
            compaction_written_bytes=compaction.copied_bytes,
            scrubbed_bytes=scrub.bytes,
            detected_scrub_errors=scrub.damaged_frames + scrub.damaged_index_blocks,
            frames_damaged=parts.reader.damaged,
            read_io_errors=parts.reader.io_errors,
            index_memory_bytes=self._memory_bytes,
            index_cache_hits=cache[0],
            index_cache_misses=cache[1],
            maintenance_errors=parts.tasks.errors,
        )
