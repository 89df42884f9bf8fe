# SPDX-License-Identifier: Apache-2.0
"""All work for one data directory beside its commits, one step at a time, the most urgent first.

Sealing and spares come first, then the checkpoint, then drained segments go back to the pool, then damaged indexes are
made anew. Compaction and scrubbing take turns after that, each within its own budget of bytes. A step of paced work
does about STEP_BYTES, so sealing and spares never wait long. Synchronous (RULES S10: storage starts no threads). A
thread of the server runs it beside the commit thread (``bookie_server/engine/maintenance_thread.py``); simulators and
tests run it between commits.

How space comes back (RULES S4, I11): the index drops a segment that can serve nothing any more, so no plan names it
from then on. A later checkpoint is made durable, and IDENTITY names it. ``give_up`` has the readers close the segment
and never open it again. Only then the pool gets the file. A read that was planned before and comes later finds nothing
and is planned again: other copies serve, or the ledger is deleted. Should a read still hit the file in its next life,
no stamp there fits its place (S3). A crash in between leaves a segment that the next start puts aside, or that has only
dead frames.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from bk_core.errors import BookKeeperError, StorageFailedError
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.sealing import SealedSegment
from bookie_server.storage.log.segment_log import LogMaintenance, SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.checkpointer import Checkpointer, CheckpointSummary
from bookie_server.storage.maintenance.compaction import Copy, SegmentCompactor
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.reindex import Reindexer
from bookie_server.storage.maintenance.schedule import (
    STEP_BYTES,
    UNDER_LOAD,
    ByteBudget,
    Load,
    MaintenanceLimits,
    MajorRuns,
    checkpoint_wait_s,
)
from bookie_server.storage.maintenance.scrub import Scrubber

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often the index is asked for segments without live frames."""
RETRY_S = 1.0
"""The wait before the next try after a failure or a full disk; it doubles after each failure."""
RETRY_MAX_S = 60.0
WAIT_MIN_S = 0.001
"""A shorter wait may be lost in rounding: the clock would not move and the thread would never sleep."""

Paced = Callable[[int], int]
"""Reads and writes about so many bytes; returns how many. 0: there is nothing to do now."""


@dataclass(slots=True, eq=False)
class _Task:
    """One kind of work: ``run`` does a piece of it and returns 0, or for how many seconds there is nothing to do."""

    name: str
    run: Callable[[], float]
    not_before: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStats:
    """Counters since the start, and current states. Apache's name is given where it has the same number; Apache's entry
    log is our segment."""

    segments_sealed: int
    """With an ``.idx`` and live frames (ACTIVE_ENTRY_LOG_TOTAL)."""
    segments_unsealed: int
    """Being written, full, or not sealed because the disk is full."""
    segments_drained: int
    """Without live frames; they wait for a checkpoint."""
    segments_kept_free: int
    """Drained, kept to be used again."""
    segments_spare: int
    """Made ahead."""
    live_bytes: int
    """Frames in sealed segments that may still be served."""
    dead_bytes: int
    """All other bytes of the sealed and the drained segments, unused room included."""
    checkpoint_number: int
    checkpoint_bytes: int
    checkpoint_age_s: float | None
    """Since it was begun; None if this process has made none."""
    checkpoints: int
    seals: int
    """Segments sealed."""
    segments_recycled: int
    """Drained segments given back to the pool."""
    indexes_rebuilt: int
    segments_compacted: int
    compaction_read_bytes: int
    compaction_written_bytes: int
    scrubbed_bytes: int
    detected_scrub_errors: int
    """Frames and index blocks that the scrubber found damaged (DETECTED_SCRUB_ERRORS)."""
    frames_damaged: int
    """Reads of clients whose bytes failed their check on the disk."""
    read_io_errors: int
    """Reads that the system refused."""
    index_memory_bytes: int
    index_cache_hits: int
    index_cache_misses: int
    maintenance_errors: int
    """Steps that failed and are tried again."""

    def as_line(self) -> str:
        """A line for a log: ``name=value``, in the order above."""
        shown = {name: "-" if value is None else value for name, value in asdict(self).items()}
        return " ".join(
            f"{name}={value:.0f}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()
        )


class Maintenance:
    """Looks after one directory; one thread. The same in the server, in simulators and in tests.

    ``newest`` is the checkpoint that the start used. ``copy`` writes copies to the log. Only the counters of ``reader``
    are used. ``release(generation)`` has the readers close a segment whose ``.idx`` was made anew.
    ``give_up(generation)`` returns once no reader has the segment open or will open it. ``now_s`` is a clock that never
    goes back. The scrubber's first pass begins at ``scrub_from``, a share of the segments. The committer sets
    ``busy_s``, which says how long that took so far.
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
        self._directory, self._log, self._port, self._reader = directory, log, port, reader
        self._limits, self._now_s = limits or MaintenanceLimits(), now_s
        self._release_reader, self._give_up_reader = release, give_up
        limits, where = self._limits, (directory.files, directory.segments_path, directory.identity.incarnation_bytes)
        self.log_maintenance = LogMaintenance(log, self._note_sealed)
        self.checkpointer = Checkpointer(directory, port, log.health, newest)
        self.compactor = SegmentCompactor(port, *where, copy, segment_bytes=log.segment_bytes, limits=limits)
        self._major = MajorRuns(limits.major_compaction_interval_s, now_s())
        self.scrubber, self._scrub_from_s = Scrubber(*where, port, first_at=scrub_from), now_s()
        self.busy_s: Callable[[], float] = lambda: 0.0
        self._load = Load(now_s())
        self.reindexer = Reindexer(
            *where, port, log.health, is_covered=lambda g: g <= self.checkpointer.newest.through, release=self._release
        )
        self._no_room = False  # for a spare, or an .idx
        self._unheard: deque[SealedSegment] = deque()  # sealed; the index has not been told yet
        self._held: set[int] = set()  # generations in the index at the last look
        self._sealed: Sequence[int] = ()  # those of them that have an .idx
        self._drained: set[int] = set()  # dropped from the index, not recycled yet
        self._checkpoint_begun_s: float | None = None
        self._memory = (-math.inf, 0)  # of the index: when it was looked at, and the bytes
        self._urgent = [
            _Task("log", self._look_after_log),
            _Task("checkpoint", self._go_on_with_checkpoint),
            _Task("recycling", self._recycle_one),
            _Task("space", self._look_for_drained),
            _Task("re-indexing", self._reindex_one),
        ]
        self._paced: deque[_Task] = deque()
        self.add_paced("compaction", self._compact, limits.compaction_bytes_per_s)
        self.add_paced("scrubbing", self._scrub, limits.scrub_bytes_per_s)
        self.seals = self.recycled = self.checkpoints = 0
        self.errors = 0
        """Steps that failed and are tried again later."""

    def add_paced(self, name: str, work: Paced, bytes_per_s: int) -> None:
        """Do this work, at this rate, when nothing more urgent is due."""
        budget = ByteBudget(bytes_per_s, self._now_s())

        def run() -> float:
            wait_s = budget.wait_s(self._now_s())
            if wait_s:
                return wait_s
            done = work(STEP_BYTES)
            budget.use(done, self._now_s())
            return 0.0 if done else LOOK_S

        self._paced.append(_Task(name, run))

    # --- steps ------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do the most urgent piece of work that is due. False: nothing is due, or it must wait. Raises
        StorageFailedError when a write or sync failed, now or earlier (RULES S6), and Stopping. Any other error is
        logged, counted, and the work tried again later."""
        self._log.health.check()
        for task in self._urgent:
            if self._try(task):
                return True
        for _ in range(len(self._paced)):
            task = self._paced[0]
            self._paced.rotate(-1)
            if self._try(task):
                return True
        return False

    def run(self) -> None:
        """Step until nothing is due at this moment. Raises as :meth:`step`."""
        while self.step():
            pass

    def wait_s(self) -> float:
        """After :meth:`step` returned False: how long until it may return True, unless :meth:`wake` is called."""
        soonest = min(task.not_before for task in (*self._urgent, *self._paced))
        return max(0.0, soonest - self._now_s())

    def wake(self) -> None:
        """A segment is full or half full: look after the log now."""
        self._soon("log")

    def note_drained(self, generations: Iterable[int]) -> None:
        """The index has dropped these segments."""
        self._drained.update(generations)
        self._soon("checkpoint")

    def look_soon(self) -> None:
        """Space is short: look now for segments to give back."""
        self._soon("space")

    def finish(self) -> None:
        """Seal full segments and give up the checkpoint under way. The index is not told. Raises StorageFailedError."""
        self.compactor.close()
        self.checkpointer.close()
        while self.log_maintenance.seal_one():
            pass

    def _try(self, task: _Task) -> bool:
        now = self._now_s()
        if now < task.not_before:
            return False
        try:
            wait_s = task.run()
            task.failures = 0
        except StorageFailedError:
            raise
        except Exception as error:
            self.errors += 1
            wait_s = min(RETRY_S * 2**task.failures, RETRY_MAX_S)
            task.failures += 1
            known = isinstance(error, BookKeeperError | OSError)
            logger.error("%s failed, again in %.0f s: %s", task.name, wait_s, error, exc_info=not known)
        task.not_before = now + (wait_s and max(wait_s, WAIT_MIN_S))
        return wait_s == 0.0

    # --- the log ----------------------------------------------------------------------------------------------------

    def _note_sealed(self, sealed: SealedSegment) -> None:
        self._unheard.append(sealed)
        self.seals += 1

    def _look_after_log(self) -> float:
        if self._unheard:
            sealed = self._unheard[0]
            self._port.ask(lambda index: index.seal(sealed.generation, sealed.summary))
            self._unheard.popleft()
            self._soon("space")
            return 0.0
        if self.log_maintenance.step():
            return 0.0
        self._no_room = self.log_maintenance.due
        return RETRY_S if self._no_room else math.inf

    # --- checkpoints and drained segments ---------------------------------------------------------------------------

    def _look_for_drained(self) -> float:
        """Have the index drop dead segments, and note all that it dropped since the last look, for whatever reason."""
        self._drained.update(self._port.ask(LedgerIndex.drop_dead))
        sealed, unsealed, _ = self._port.ask(LedgerIndex.generations)
        held = {*sealed, *unsealed}
        self._drained |= self._held - held
        self._held, self._sealed = held, sealed
        self.checkpointer.keep_room()
        self._soon("checkpoint")
        return LOOK_S

    def _go_on_with_checkpoint(self) -> float:
        checkpointer, now = self.checkpointer, self._now_s()
        if checkpointer.busy:
            number = checkpointer.newest.number
            checkpointer.step(STEP_BYTES)
            if checkpointer.newest.number != number:
                self.checkpoints += 1
                self._soon("recycling")
            elif not checkpointer.busy:
                self._log.pool.trim(0)  # given up for lack of room: see below
            return 0.0
        wait_s = checkpoint_wait_s(
            since_last_s=None if self._checkpoint_begun_s is None else now - self._checkpoint_begun_s,
            interval_s=self._limits.checkpoint_interval_s,
            waiting=sum(not checkpointer.may_recycle(generation) for generation in self._drained)
            + self.reindexer.wants_checkpoint,
            sealed_since=sum(generation > checkpointer.newest.through for generation in self._sealed),
            space_is_low=bool(self._drained) and self.space_is_low(),
        )
        if wait_s is None:
            return math.inf
        if wait_s:
            return min(wait_s, LOOK_S)  # space may get short meanwhile
        self._checkpoint_begun_s = now
        if checkpointer.start():
            return 0.0
        self._log.pool.trim(0)  # without a checkpoint no segment is ever given back
        return RETRY_S

    def _recycle_one(self) -> float:
        """Give one drained segment back, in the order that the file's docstring gives."""
        for generation in sorted(self._drained):
            if self.checkpointer.may_recycle(generation):
                self._let_compaction_go(generation)
                self._give_up_reader(generation)
                self._log.pool.recycle(generation)
                self._drained.discard(generation)
                self._held.discard(generation)
                self.recycled += 1
                self._soon("log")
                return 0.0
        return math.inf

    def _reindex_one(self) -> float:
        if self.reindexer.step():
            return 0.0
        if self.reindexer.wants_checkpoint:
            self._soon("checkpoint")
        return LOOK_S

    # --- what is paced ----------------------------------------------------------------------------------------------

    def _release(self, generation: int) -> None:
        self._let_compaction_go(generation)  # it would read blocks of both editions, and miss records
        self._release_reader(generation)

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
            self._scrub_from_s = self._now_s() + self._limits.scrub_interval_s
        return done * (UNDER_LOAD if self._load.look(self.busy_s(), self._now_s()) else 1)

    def _soon(self, name: str) -> None:
        for task in self._urgent:
            if task.name == name and not task.failures:
                task.not_before = 0.0

    # --- what is asked about it -------------------------------------------------------------------------------------

    @property
    def drained(self) -> int:
        """Segments that wait for a checkpoint, or to be recycled."""
        return len(self._drained)

    def space_is_low(self) -> bool:
        """Whether the disk is so full that space given back is wanted soon."""
        if self._no_room:
            return True
        try:
            usage = self._directory.usage(self._log.pool.kept_bytes)
        except OSError:
            return False
        return usage.used_share >= self._limits.space_low_share

    def stats(self, *, memory_age_s: float = 0.0) -> StorageStats:
        """The numbers as they are now; that of the index's memory, which takes a look at every ledger with unsealed
        frames, may be so old. Any thread that may ask the index. Raises as :meth:`IndexPort.ask`."""
        now_s = self._now_s()
        if now_s >= self._memory[0] + memory_age_s:
            self._memory = now_s, self._port.ask(lambda index: index.memory_bytes())
        sealed, unsealed, live, cache = self._port.ask(
            lambda index: (
                len(index.sealed_generations()), len(index.unsealed_generations()), sum(index.live_bytes().values()),
                (index.cache.hits, index.cache.misses),
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
            checkpoint_age_s=None if self._checkpoint_begun_s is None else now_s - self._checkpoint_begun_s,
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
            index_memory_bytes=self._memory[1],
            index_cache_hits=cache[0],
            index_cache_misses=cache[1],
            maintenance_errors=self.errors,
        )
