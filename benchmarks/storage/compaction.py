# SPDX-License-Identifier: Apache-2.0
"""Compaction beside appends: how many of the dead bytes come back, and how much slower appends become meanwhile.

The product's threads do it: a commit thread, a maintenance thread with the rate budget of a bookie's default
configuration, and a loop that owns the index and keeps the commit thread busy with frames of 1 MiB. First there are
only appends. Then ledgers are deleted, so that most of some full segments is dead, and appends go on until these
segments are given back. Then there are only appends once more. Segments are smaller than a bookie's, so that it does
not take minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.storage.figures import StorageFigure
from benchmarks.storage.reads import fill
from benchmarks.storage.world import Ledger, Store, ledgers_of, scaled_segment
from bk_core.entries.frame import FrameKind, encode_record
from bk_core.errors import BookKeeperError
from bookie_server.engine.commits.committer import Committer
from bookie_server.engine.index_hop import LoopIndexPort, copier
from bookie_server.engine.maintenance_thread import MaintenanceThread
from bookie_server.machine.disk_places import Place
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.checkpointer import CheckpointSummary
from bookie_server.storage.maintenance.maintenance import Maintenance
from bookie_server.storage.maintenance.schedule import MaintenanceLimits

SEGMENT_BYTES = 64 << 20
SEGMENTS = 4
LEDGERS, LIVE_LEDGERS = 16, 4
FRAME_BYTES = 64 << 10
BACK_WANTED, RATE_WANTED = 0.9, 0.8
ALONE_S = 1.5
IN_FLIGHT = 16
COMPACTION_MAX_S = 120.0
_LOOK_S = 0.01
_APPENDER = 1 << 40  # ledger id
_GROUP_BYTES_MAX, _GROUP_FRAMES_MAX = 16 << 20, 1000  # a bookie's defaults
_LIMITS = MaintenanceLimits(checkpoint_interval_s=1.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run. It has the rates of appends in MB/s, the numbers of bytes that were dead and that came back,
    and the seconds of the compaction."""

    alone: float
    meanwhile: float
    dead_bytes: int
    back_bytes: int
    seconds: float
    copied_bytes: int


class Bookie:
    """A bookie's storage without a network: the threads that commit and maintain ``store``, and appends, as many as it
    can commit. Make it and use it on one loop."""

    def __init__(self, store: Store) -> None:
        self._store, loop = store, asyncio.get_running_loop()
        self._reader = SegmentReader(store.directory.segments_path, store.directory.identity, files=store.files)
        self._pending: deque[bytes | bytearray] = deque()
        self._in_flight = 0
        self._appender: Ledger | None = ledgers_of(1, 1 << 20, first_id=_APPENDER)[0]
        self.appended_bytes = 0
        self.failed: BookKeeperError | None = None
        maintenance = Maintenance(
            store.directory, store.log, LoopIndexPort(store.index, loop), self._reader, newest=CheckpointSummary(),
            copy=copier(lambda frames: self._committer.copy(frames)),
            release=self._reader.release, give_up=self._reader.release, limits=_LIMITS,
        )  # fmt: skip
        self._maintenance = MaintenanceThread(maintenance, loop, self._fail)
        self.compaction = maintenance.compaction.compactor.stats
        self.maintenance = maintenance
        self._committer = Committer(
            store.log, loop, self._committed, self._fail, _GROUP_BYTES_MAX, _GROUP_FRAMES_MAX, self._maintenance.look
        )
        self._maintenance.start()
        for _ in range(IN_FLIGHT):
            self._append()

    def delete(self, ledger_ids: Sequence[int]) -> None:
        """Write deletion records behind all frames that are under way."""
        self._put([bytes(encode_record(FrameKind.DELETED, ledger_id, b"")) for ledger_id in ledger_ids])

    def _append(self) -> None:
        if self._appender is not None:
            self._put([self._appender.frame()])

    def _put(self, frames: Sequence[bytes | bytearray]) -> None:
        self._pending.extend(frames)
        self._committer.put([memoryview(frame) for frame in frames])

    def _committed(self, places: Sequence[Place], _: int) -> None:
        for place in places:
            frame = self._pending.popleft()
            self._store.index.add(frame, place)
            if len(frame) >= 1 << 19:
                self.appended_bytes += len(frame)
                self._append()

    def _fail(self, error: BookKeeperError) -> None:
        self.failed = self.failed or error

    async def until(self, is_over: Callable[[], bool], limit_s: float) -> float:
        """Wait until ``is_over()``. Return the MB of frames per second that were appended. Raises BookKeeperError if it
        takes longer than ``limit_s``, or if the storage failed."""
        began, before = time.perf_counter(), self.appended_bytes
        while not is_over():
            if self.failed is not None:
                raise self.failed
            if time.perf_counter() - began > limit_s:
                raise BookKeeperError("compaction does not come to its end", value=f"{limit_s:.0f} s")
            await asyncio.sleep(_LOOK_S)
        return (self.appended_bytes - before) / (time.perf_counter() - began) / 1e6

    async def alone(self, seconds: float) -> float:
        """Return the rate of appends during ``seconds``."""
        end = time.perf_counter() + seconds
        return await self.until(lambda: time.perf_counter() >= end, 10 * seconds)

    async def stop(self) -> None:
        self._appender = None
        await asyncio.get_running_loop().run_in_executor(None, self._stop_threads)

    def _stop_threads(self) -> None:
        self._committer.stop()
        self._store.log.release_full()
        self._maintenance.stop()
        self._reader.close()


async def compact(store: Store, alone_s: float) -> Outcome:
    """Fill segments, append, delete, append until all of the segments are given back, and append."""
    ledgers = ledgers_of(LEDGERS, FRAME_BYTES)
    fill(store, ledgers, SEGMENTS)
    old = set(store.sealed[-SEGMENTS:])
    dying = [ledger.ledger_id for ledger in ledgers[LIVE_LEDGERS:]]
    bookie = Bookie(store)
    try:
        await bookie.alone(alone_s)  # warms up
        before = await bookie.alone(alone_s)
        bookie.delete(dying)
        await bookie.until(lambda: all(store.index.is_deleted(ledger_id) for ledger_id in dying), alone_s * 20)
        live = sum(size for generation, size in store.index.live_bytes().items() if generation in old)
        dead = SEGMENTS * store.segment_bytes - live
        compactor = bookie.maintenance.compaction.compactor  # maintenance looks for work only now and then
        await bookie.until(lambda: compactor.generation is not None or compactor.stats.segments > 0, COMPACTION_MAX_S)
        began = time.perf_counter()
        meanwhile = await bookie.until(lambda: not old & set(store.index.sealed_generations()), COMPACTION_MAX_S)
        seconds = time.perf_counter() - began
        await bookie.until(lambda: bookie.maintenance.space.recycled >= SEGMENTS, COMPACTION_MAX_S)
        after = await bookie.alone(alone_s)
        copied = bookie.compaction.copied_bytes
    finally:
        await bookie.stop()
    return Outcome((before + after) / 2, meanwhile, dead, SEGMENTS * store.segment_bytes - copied, seconds, copied)


def compaction_figures(folder: Path, runs: int, scale: float) -> list[StorageFigure]:
    """Measure each run in a directory of its own. The first run warms up."""
    outcomes = []
    for run in range(runs + 1):
        part = folder / f"compaction-{run}"
        part.mkdir()
        store = Store(part, scaled_segment(SEGMENT_BYTES, scale), recycling=False)
        outcomes.append(asyncio.run(compact(store, ALONE_S * min(1.0, max(0.1, scale)))))
        store.close()
        store.remove()
    return figures_of(outcomes[1:])


def figures_of(outcomes: Sequence[Outcome]) -> list[StorageFigure]:
    """Return the figures. ``compaction_gives_back`` is the bytes of the segments that were given back, less the copied
    bytes, as a share of the dead bytes."""
    last = outcomes[-1]
    note = (
        f"{SEGMENTS} segments of which {1 - LIVE_LEDGERS / LEDGERS:.0%} die, compacted within "
        f"{_LIMITS.compaction_bytes_per_s >> 20} MiB/s (default) while frames of 1 MiB are appended"
    )
    return [
        StorageFigure(
            "compaction_gives_back", "of dead", [o.back_bytes / o.dead_bytes for o in outcomes], wanted=BACK_WANTED,
            note=note, extra={"MB dead": last.dead_bytes / 1e6, "MB copied": last.copied_bytes / 1e6,
                              "seconds": last.seconds},
        ),
        StorageFigure(
            "compaction_append_rate", "MB/s", [o.meanwhile for o in outcomes], wanted=RATE_WANTED, of_raw=True,
            peer="the same appends before and after, without compaction", peer_values=[o.alone for o in outcomes],
            note=note,
        ),
    ]  # fmt: skip
