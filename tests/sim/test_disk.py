# SPDX-License-Identifier: Apache-2.0
"""The simulated disk loses what a real one may lose, keeps what it must keep, and shows the cache until then."""

from __future__ import annotations

import errno
import random

import pytest

from tests.sim.disk import KEEPS, SECTOR, SimDisk, SimulatedCrash

SIZE = 16 << 10


def disk_with_file(synced: bytes = b"") -> tuple[SimDisk, int]:
    """A disk with a preallocated file, durable by name and content; and its handle."""
    disk = SimDisk()
    handle = disk.create_preallocated("/f", SIZE)
    if synced:
        disk.write(handle, [memoryview(synced)], 0)
    disk.sync_data(handle)
    disk.sync_directory("/")
    return disk, handle


@pytest.mark.parametrize("keep", KEEPS)
def test_what_was_synced_survives_every_crash(keep: str) -> None:
    for seed in range(20):
        disk, handle = disk_with_file(b"\1" * 4096)
        disk.write(handle, [memoryview(b"\2" * 4096)], 8192)
        assert disk.read(handle, 4096, 8192) == b"\2" * 4096, "reads show the cache"
        disk.crash(random.Random(seed), keep)
        data = disk.read_file("/f")
        assert data[:4096] == b"\1" * 4096
        assert len(data) == SIZE
        assert set(data[8192:12_288]) <= {0, 2}
        assert not any(data[12_288:])
        with pytest.raises(OSError, match="not open"):
            disk.read(handle, 1, 0)


def test_a_crash_keeps_every_kind_of_subset_of_unsynced_sectors() -> None:
    shapes: set[tuple[int, ...]] = set()
    chance = random.Random(7)
    for _ in range(500):
        disk, handle = disk_with_file()
        disk.write(handle, [memoryview(b"\7" * 2048)], 0)
        disk.crash(chance)
        data = disk.read_file("/f")
        shapes.add(tuple(data[at] // 7 for at in range(0, 2048, SECTOR)))
    assert len(shapes) == 16, "all subsets of four sectors"


def test_names_survive_only_with_a_directory_sync_and_a_rename_is_whole() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in range(100):
        disk = SimDisk()
        disk.write_atomically("/a", b"old")
        handle = disk._create("/b")
        disk._append(handle, memoryview(b"new"))
        disk._sync_file(handle)
        disk._replace("/b", "/a")
        disk.crash(random.Random(seed))
        outcomes.add((disk.read_file("/a").decode(), *disk.names("/")))
    assert outcomes == {("old", "a"), ("old", "a", "b"), ("new", "a")}


def test_a_file_replaced_atomically_is_never_a_mixture() -> None:
    for n in range(1, 20):
        for seed in range(10):
            disk = SimDisk()
            disk.write_atomically("/a", b"old" * 1000)
            disk.crash_at(n)
            try:
                disk.write_atomically("/a", b"new" * 1000)
            except SimulatedCrash:
                disk.crash(random.Random(seed))
                assert disk.read_file("/a") in (b"old" * 1000, b"new" * 1000)
            else:
                assert n > 4
                return
    pytest.fail("it never came to its end")


def test_a_lost_directory_takes_its_files_along() -> None:
    disk = SimDisk()
    disk._make_directory("/d")
    disk.write_atomically("/d/f", b"x")
    disk.crash(random.Random(1), "nothing")
    assert not disk.exists("/d")
    assert not disk.exists("/d/f")
    disk.make_directory("/d")
    disk.write_atomically("/d/f", b"x")
    disk.crash(random.Random(1), "nothing")
    assert disk.read_file("/d/f") == b"x"


def test_after_a_crash_point_nothing_works_until_the_machine_is_back() -> None:
    disk, handle = disk_with_file()
    disk.crash_at(1)
    for _ in range(2):
        with pytest.raises(SimulatedCrash):
            disk.sync_data(handle)
    with pytest.raises(SimulatedCrash):
        disk.exists("/f")
    disk.close(handle)
    disk.crash(random.Random(1))
    assert disk.exists("/f")


def test_a_process_that_ends_leaves_the_cache_and_no_locks() -> None:
    disk, handle = disk_with_file()
    disk.lock("/LOCK")
    with pytest.raises(BlockingIOError):
        disk.lock("/LOCK")
    disk.write(handle, [memoryview(b"\3" * 512)], 0)
    disk.kill()
    disk.lock("/LOCK")
    assert disk.read_file("/f")[:512] == b"\3" * 512
    disk.crash(random.Random(1), "nothing")
    assert not any(disk.read_file("/f"))


def test_a_failed_sync_lies_afterwards() -> None:
    disk, handle = disk_with_file()
    disk.write(handle, [memoryview(b"\3" * 512)], 0)
    disk.faults.syncs = 1
    with pytest.raises(OSError, match="failed"):
        disk.sync_data(handle)
    disk.sync_data(handle)
    assert disk.read(handle, 512, 0) == b"\3" * 512
    assert not any(disk.read_past_cache("/f", 512, 0))
    disk.crash(random.Random(1), "everything")
    assert not any(disk.read_file("/f"))


def test_damage_at_rest() -> None:
    disk, handle = disk_with_file(b"\1" * 4096)
    disk.flip_bit("/f", 5, 1)
    assert disk.read(handle, 1, 5) == b"\3"
    disk.flip_bit("/f", 6, 1, cached=False)
    assert disk.read(handle, 1, 6) == b"\1"
    assert disk.read_past_cache("/f", 1, 6) == b"\3"
    disk.break_sector("/f", 600)
    for read in (lambda: disk.read(handle, 10, 512), lambda: disk.read_past_cache("/f", 4096, 0)):
        with pytest.raises(OSError, match="cannot be read") as caught:
            read()
        assert caught.value.errno == errno.EIO
    assert len(disk.read(handle, 512, 0)) == 512
    disk.truncate("/f", 100)
    assert disk.size(handle) == 100
    disk.lose_file("/f")
    assert not disk.exists("/f")


def test_faults_of_the_next_operations() -> None:
    disk, handle = disk_with_file()
    disk.faults.misdirected = 4096
    disk.write(handle, [memoryview(b"\3" * 512)], 0)
    assert not any(disk.read(handle, 512, 0))
    assert disk.read(handle, 512, 4096) == b"\3" * 512
    disk.faults.stale_writes = 1
    disk.write(handle, [memoryview(b"\4" * 512)], 0)
    assert not any(disk.read(handle, 512, 0)), "the cache holds what was read ahead"
    assert disk.read_past_cache("/f", 512, 0) == b"\4" * 512
    disk.drop_cache(handle)
    assert disk.read(handle, 512, 0) == b"\4" * 512
    disk.faults.short_reads = 3
    assert len(disk.read(handle, 4096, 0)) == 4096
    disk.faults.short_reads = 3
    assert disk.read_into(handle, memoryview(bytearray(4096)), 0) == 4096
    disk.faults.no_space = True
    with pytest.raises(OSError, match="full"):
        disk.create_preallocated("/g", SIZE)
    disk.faults.no_byte = True
    with pytest.raises(OSError, match="full"):
        disk.write_atomically("/h", b"12")
    assert disk.names("/") == ["f"]


def test_an_older_copy_and_a_wipe() -> None:
    disk, handle = disk_with_file(b"\1" * 512)
    copy = disk.snapshot()
    disk.write(handle, [memoryview(b"\2" * 512)], 0)
    disk.sync_data(handle)
    disk.restore(copy)
    assert disk.read_file("/f")[:512] == b"\1" * 512
    disk.wipe()
    assert disk.names("/") == []
