# SPDX-License-Identifier: Apache-2.0
"""A simulated disk with half-dead segments, and the product's compactor, which a test drives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from bk_core.entries.frame import FrameKind, encode_record
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.disk.files import Files
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.compaction import SegmentCompactor
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from tests.kit.segment_world import Storage, drop_record, entries, fence_record, key_record, lac_record, striped
from tests.kit.whole_files import decode_index_file
from tests.sim.disk import SimDisk

PATH = "/data/segments"
SEGMENT = 64 << 10
FILLER = 900
"""The ledger whose frames only fill segments."""


def deleted(*ledger_ids: int) -> list[bytes]:
    return [encode_record(FrameKind.DELETED, ledger_id) for ledger_id in ledger_ids]


class CompactionWorld:
    """The disk and the compactor. ``before_write`` is called before copies are written. ``before_learn`` is called when
    they are durable, before the index knows them. If ``refuse`` is set, it is raised instead of writing."""

    def __init__(self, files: Files | None = None, *, path: str = "/data", segment_bytes: int = SEGMENT) -> None:
        self.disk = files if files is not None else SimDisk()
        self._path, self._segment_bytes = path, segment_bytes
        self.before_write: Callable[[], None] = lambda: None
        self.before_learn: Callable[[], None] = lambda: None
        self.refuse: Exception | None = None
        self.copied: list[int] = []
        """The number of frames that each call copied."""
        self.open()

    def open(self) -> None:
        self.drained: list[int] = []
        self.storage = Storage(Path(self._path), files=self.disk, segment_bytes=self._segment_bytes)
        self.compactor = self.make()

    def make(self, limits: MaintenanceLimits | None = None) -> SegmentCompactor:
        directory = self.storage.directory
        return SegmentCompactor(
            DirectIndexPort(self.storage.index), self.disk, directory.segments_path,
            directory.identity.incarnation_bytes, self.copy, segment_bytes=self._segment_bytes,
            limits=limits or MaintenanceLimits(),
        )  # fmt: skip

    def copy(self, frames: Sequence[bytes | bytearray | memoryview]) -> list[Place]:
        self.before_write()
        if self.refuse is not None:
            raise self.refuse
        places = self.storage.log.append_group(frames, reserve=True)
        self.copied.append(len(frames))
        self.before_learn()
        return places

    def restart(self, *, crash: bool = True) -> None:
        """Restart the storage. Segments that compaction gave up are recycled first, so that only the copies are
        left."""
        self.give_back()
        self.compactor.close()
        self.storage.close(crash=crash)
        self.open()

    def give_back(self) -> list[int]:
        """Write a checkpoint, and give back to the pool the segments that were given up and that it covers (I11).
        Return their generations."""
        storage = self.storage
        self.drained += self.compactor.take_drained()
        checkpointer = Checkpointer(
            storage.directory, DirectIndexPort(storage.index), storage.log.health, storage.report.checkpoint
        )
        if self.drained and checkpointer.start():
            while checkpointer.busy:
                checkpointer.step(1 << 20)
        storage.report.checkpoint = checkpointer.newest
        given = [generation for generation in self.drained if checkpointer.may_recycle(generation)]
        for generation in given:
            storage.reader.release(generation)
            storage.log.pool.recycle(generation)
        self.drained = [generation for generation in self.drained if generation not in given]
        return given

    # --- filling and compacting -------------------------------------------------------------------------------------

    def append(self, *frames: bytes) -> list[Place]:
        return self.storage.append(*frames)

    def drop(self, *ledger_ids: int) -> None:
        """Give up the copies of these ledgers. Their frames in sealed segments are then dead."""
        self.append(*(drop_record(ledger_id, self.storage.index.newest_sealed) for ledger_id in ledger_ids))

    def roll(self) -> None:
        """Write dead frames until everything written before lies in sealed segments."""
        number = 0
        while any(generation for generation in self.storage.index.unsealed_generations() if self._holds(generation)):
            self.append(entries(FILLER, range(20 * number, 20 * number + 20), size=500))
            number += 1
        self.append(*deleted(FILLER))

    def _holds(self, generation: int) -> bool:
        frames = self.storage.index._unsealed[generation]
        return any(ledger_id != FILLER for ledger_id in frames)

    def compact(self, *, major: bool = False) -> int:
        """Compact to the end, and return the number of segments that were given up."""
        before = self.compactor.stats.segments
        while self.compactor.step(1 << 20, major=major):
            self.look_after()
        self.look_after()
        return self.compactor.stats.segments - before

    def look_after(self) -> None:
        self.storage.log.release_full()
        self.storage.log_maintenance.run()

    def steps(self) -> Iterable[int]:
        """Compact piece by piece, and yield the number of each step."""
        number = 0
        while self.compactor.step(1):
            number += 1
            yield number

    # --- looking ----------------------------------------------------------------------------------------------------

    def found(self, ledger_id: int, last: int) -> set[int]:
        return set(self.storage.read(ledger_id, 0, last).found)

    def segment(self, generation: int) -> str:
        return f"{self.storage.directory.segments_path}/{segment_name(generation)}"

    def index_file(self, generation: int) -> str:
        return f"{self.storage.directory.segments_path}/{index_name(generation)}"

    def places_of(self, ledger_id: int) -> list[Place]:
        """Return the places of a ledger that the index files on the disk name."""
        found: list[Place] = []
        for generation in self.storage.index.sealed_generations():
            data = self.disk.read_file(self.index_file(generation))
            for row in decode_index_file(data)[1]:
                if int(row["ledger"]) == ledger_id:
                    run = ledger_id if int(row["bits"]) & 2 else -1
                    found.append(Place(generation, int(row["offset"]), int(row["size"]), run))
        return found


DEAD = (101, 102, 103)
"""The ledgers whose frames fill the segments and later die."""


def half_dead(world: CompactionWorld) -> list[bytes]:
    """Write segments in which small, joinable, striped, unordered and larger frames of live ledgers lie between dead
    ones. Return the live frames."""
    live: list[bytes] = [key_record(1), fence_record(8), lac_record(9, 17)]
    world.append(*live)
    for k in range(16):
        some = [entries(ledger_id, [k], lac=k - 1, size=100) for ledger_id in (1, 2, 3)]
        some += [striped(4, 9 * k, 9), entries(5, range(3 * k, 3 * k + 3), lac=3 * k - 1)]
        if k % 8 == 0:
            some += [entries(6, [k + 2, k, k + 1]), entries(7, range(k, k + 8), size=2000)]
        world.append(*some, *(entries(ledger_id, [k], size=1500) for ledger_id in DEAD))
        live += some
    world.roll()
    world.append(*deleted(*DEAD))
    return live


@cache
def _prepared() -> tuple[dict[str, bytes | None], list[bytes]]:
    world = CompactionWorld()
    live = half_dead(world)
    world.storage.close()
    assert isinstance(world.disk, SimDisk)
    return world.disk.snapshot(), live


def prepared() -> tuple[CompactionWorld, list[bytes]]:
    """Return a world as :func:`half_dead` leaves it, after a restart. This takes a fraction of the time."""
    snapshot, live = _prepared()
    disk = SimDisk()
    disk.restore(snapshot)
    return CompactionWorld(disk), live
