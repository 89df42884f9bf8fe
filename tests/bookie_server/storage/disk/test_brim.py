# SPDX-License-Identifier: Apache-2.0
"""A disk that is full to the brim: what waits for room gets it, and space comes back, whatever is restarted."""

from __future__ import annotations

import errno
import random

import pytest

from bookie_server.storage.disk.files import Handle
from tests.kit.maintained import SEGMENT_BYTES, Kept
from tests.kit.segment_world import assert_honest, entries, fence_record
from tests.sim.disk import SimDisk


class SmallDisk(SimDisk):
    """A file system with so many bytes for ``segments``; ``is_full``: it has none for small files, whatever is used."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_max, self.is_full = 1 << 40, False

    def used_bytes(self) -> int:
        return sum(len(inode.cache) for inode in self._names.values())

    def _need(self, size: int) -> None:
        if self.is_full or self.used_bytes() + size > self.bytes_max:
            raise OSError(errno.ENOSPC, "the simulated disk is full")

    def write_atomically(self, path: str, data: bytes) -> None:
        if path.endswith(".idx"):
            self._need(len(data))
        super().write_atomically(path, data)

    def create_preallocated(self, path: str, size: int) -> Handle:
        self._need(size)
        return super().create_preallocated(path, size)


@pytest.mark.rule("S4")
def test_what_a_start_on_a_full_disk_could_not_seal_is_sealed_later_and_space_comes_back() -> None:
    disk = SmallDisk()
    kept = Kept(files=disk)
    written = [*kept.fill(1, 1), entries(9, [0]), fence_record(9)]
    kept.append(*written[-2:])
    kept.close()
    disk.is_full = True
    kept = Kept(files=disk)
    [left] = kept.index.unsealed_generations()
    assert left not in kept.index.sealed_generations()
    disk.is_full = False
    kept.fill(2, 3)
    written += kept.fill(3, 2)
    kept.delete(2)
    kept.settle()
    assert left in kept.index.sealed_generations()
    assert kept.maintenance.space.recycled >= 2
    kept.close(crash=True)
    disk.crash(random.Random(1), "nothing")
    again = Kept(files=disk)
    assert again.report.damage == []
    assert_honest(again, written, healthy=True)


@pytest.mark.rule("S8")
def test_the_newest_segment_is_not_sealed_before_the_next_one_is_begun() -> None:
    disk = SmallDisk()
    kept = Kept(files=disk)
    written = [*kept.fill(1, 1), entries(9, [0])]
    kept.append(written[-1])
    kept.close()
    for name in [path for path in disk.paths() if path.endswith((".tmp", ".free"))]:
        disk.remove(name)
    disk.bytes_max, disk.is_full = 0, True
    kept = Kept(files=disk)
    assert kept.log.position == (0, 0), "the disk has no room for the next segment"
    disk.is_full, disk.bytes_max = False, disk.used_bytes() + SEGMENT_BYTES // 2
    kept.log.release_full()
    kept.settle()
    kept.close()
    kept = Kept(files=disk)
    assert kept.report.damage == []
    assert_honest(kept, written, healthy=True)


@pytest.mark.rule("S7")
def test_segments_kept_free_make_room_for_an_index() -> None:
    disk = SmallDisk()
    kept = Kept(files=disk)
    kept.fill(1, 3)
    kept.fill(2, 1)
    kept.delete(1)
    kept.settle()
    assert kept.log.pool.free_segments >= 2
    disk.bytes_max = disk.used_bytes()  # by others, or by what is kept free
    assert_honest(kept, kept.fill(5, 1), healthy=True)
    assert not kept.log.seal_jobs


@pytest.mark.rule("S4")
def test_drained_segments_are_put_aside_by_a_start_without_a_free_byte() -> None:
    disk = SimDisk()
    kept = Kept(files=disk)
    kept.fill(1, 2)
    alive = kept.fill(2, 1)
    kept.delete(1)
    kept.maintenance.space.checkpointer.may_recycle = lambda generation: False
    kept.settle()
    assert kept.maintenance.space.checkpoints == 1
    kept.close(crash=True)
    disk.kill()
    disk.faults.no_byte = True
    again = Kept(files=disk)
    assert len(again.report.drained) == 2
    assert_honest(again, alive, healthy=True)
    assert again.log.pool.free_segments + again.log.pool.spares >= 2


class SparseDisk(SmallDisk):
    """It knows of holes."""

    def __init__(self) -> None:
        super().__init__()
        self.holes: dict[int, int] = {}

    def used_bytes(self) -> int:
        return sum(len(inode.cache) - self.holes.get(id(inode), 0) for inode in self._names.values())

    def deallocate(self, path: str, offset: int) -> int:
        self.holes[id(self._names[path])] = size = super().deallocate(path, offset)
        return size

    def open_preallocated(self, path: str, size: int) -> Handle | None:
        hole = self.holes.get(id(self._names[path]), 0)
        self._need(hole)
        self.holes.pop(id(self._names[path]), None)
        return super().open_preallocated(path, size)


@pytest.mark.rule("S4")
@pytest.mark.parametrize("tail", [False, True])
def test_a_bookie_that_is_restarted_on_a_full_disk_still_takes_fences_and_deletions(tail: bool) -> None:
    """Each start needs a segment to write to, and leaves one nearly empty: what is unused of that makes room for it."""
    disk = SparseDisk()
    kept = Kept(files=disk)
    written = kept.fill(1, 1)
    kept.append(entries(2, range(10)))
    disk.bytes_max = disk.used_bytes() + SEGMENT_BYTES - 1
    for ledger_id in range(10, 14):
        kept.close(crash=tail)
        disk.kill()
        kept = Kept(files=disk)
        written.append(fence_record(ledger_id))
        [place] = kept.log.append_group(written[-1:], reserve=True)
        kept.index.add(written[-1], place)
        assert kept.report.damage == []
        assert_honest(kept, written, healthy=True)


class NoRoomForCheckpoints(SmallDisk):
    """``at_once``: not even for the beginning of one."""

    at_once = True

    def create(self, path: str) -> Handle:
        if self.at_once:
            self._need(4096)
        return super().create(path)

    def sync_data(self, handle: Handle) -> None:
        if self._handles[handle][0].endswith(".checkpoint.tmp"):
            self._need(4096)
        super().sync_data(handle)


@pytest.mark.rule("S4")
@pytest.mark.parametrize("at_once", [True, False])
def test_segments_kept_free_make_room_for_a_checkpoint(at_once: bool) -> None:
    disk = NoRoomForCheckpoints()
    disk.at_once = at_once
    kept = Kept(files=disk)
    kept.fill(1, 2)
    kept.fill(2, 2)
    kept.fill(3, 1)
    kept.delete(1)
    kept.settle()
    assert kept.maintenance.space.recycled
    assert kept.log.pool.free_segments
    kept.maintenance.space.checkpointer._room.give_up()  # an earlier version kept none
    disk.bytes_max = disk.used_bytes()
    kept.delete(2)
    kept.settle(200)
    assert kept.maintenance.space.checkpoints == 2
    assert not kept.maintenance.space.drained
