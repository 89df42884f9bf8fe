# SPDX-License-Identifier: Apache-2.0
"""Many restarts with little data: the unused ends of sealed segments take no room, and nothing else changes."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from bookie_server.storage.bytes.scan import ScannedSegment, SegmentScanner
from bookie_server.storage.disk.files import BLOCK, Files
from bookie_server.storage.log.segment_pool import SEGMENTS_KEPT_FREE
from tests.kit.maintained import Kept, limits
from tests.kit.segment_world import Storage, assert_honest, entries, fence_record, key_record
from tests.sim.disk import SimDisk

MIB = 1 << 20
SEGMENT_BYTES = 16 * MIB
RESTARTS = 20


def allocated(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def frames_of(start: int) -> list[bytes]:
    return [key_record(1), fence_record(100 + start), entries(1, range(10 * start, 10 * start + 10), size=1000)]


@pytest.mark.long
@pytest.mark.parametrize("crash", [False, True])
def test_twenty_restarts_with_little_data_take_the_room_of_a_few_segments(tmp_path: Path, *, crash: bool) -> None:
    path = tmp_path / "d"
    written: list[bytes] = []
    for start in range(RESTARTS):
        storage = Storage(path, segment_bytes=SEGMENT_BYTES)
        assert storage.report.damage == []
        assert_honest(storage, written, healthy=True)
        storage.append(*frames_of(start))
        written += frames_of(start)
        storage.close(crash=crash)
    segments = 1 + 2 + SEGMENTS_KEPT_FREE  # the one being written, spares, and what the pool keeps
    assert allocated(path) <= segments * SEGMENT_BYTES + RESTARTS * 64 * 1024
    assert len(list((path / "segments").glob("*.segment"))) >= RESTARTS
    for file in (path / "segments").glob("*.segment"):
        assert file.stat().st_size == SEGMENT_BYTES, "a segment that is shorter would be damage"


def test_restarts_of_a_maintained_directory_leave_few_files(tmp_path: Path) -> None:
    path = tmp_path / "d"
    written: list[bytes] = []
    for start in range(RESTARTS):
        kept = Kept(path, files=Files(), segment_bytes=SEGMENT_BYTES)
        kept.append(*frames_of(start))
        written += frames_of(start)
        kept.close()
    kept = Kept(path, files=Files(), segment_bytes=SEGMENT_BYTES, limits=limits(compaction_threshold=0.5))
    kept.settle(60)
    assert kept.maintenance.space.recycled >= RESTARTS - 2
    assert len(list((path / "segments").glob("*.segment"))) <= 3
    assert_honest(kept, written, healthy=True)
    assert allocated(path) <= (1 + 2 + SEGMENTS_KEPT_FREE) * SEGMENT_BYTES + MIB
    kept.close()


def test_a_segment_with_holes_is_whole_again_when_it_is_recycled(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    files = Files()
    files.close(files.create_preallocated(path, 4 * MIB))
    assert files.deallocate(path, 8 * BLOCK) == 4 * MIB - 8 * BLOCK
    assert os.stat(path).st_blocks * 512 <= 16 * BLOCK
    assert os.stat(path).st_size == 4 * MIB
    handle = files.open_preallocated(path, 4 * MIB)
    files.close(handle)
    assert os.stat(path).st_blocks * 512 >= 4 * MIB


def test_the_end_of_a_file_reads_as_zeros_and_its_beginning_as_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10 * BLOCK)
    assert Files().deallocate(str(path), 3 * BLOCK) == 7 * BLOCK
    assert path.read_bytes() == b"x" * 3 * BLOCK + bytes(7 * BLOCK)
    assert Files().deallocate(str(path), 10 * BLOCK) == 0


@pytest.mark.rule("S11")
def test_a_platform_without_holes_keeps_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    path = tmp_path / "file"
    path.write_bytes(b"x" * 2 * BLOCK)
    assert Files().deallocate(str(path), BLOCK) == 0
    assert path.read_bytes() == b"x" * 2 * BLOCK


@pytest.mark.parametrize("idle", [False, True])
def test_a_scan_finds_the_same_as_before(*, idle: bool) -> None:
    """Should its index be lost; and a directory whose newest segment is lost is not taken for an older one."""
    disk = SimDisk()
    storage = Storage(Path("/data"), files=disk, segment_bytes=64 << 10)
    places = [storage.append(entries(1, range(k, k + 10)))[0] for k in range(0, 50, 10)]
    if idle:
        storage.log.record_position()
    end = storage.log.position[1]

    def scanned() -> ScannedSegment:
        handle = disk.open_read(f"/data/segments/{places[0].generation:016x}.segment")
        incarnation = storage.directory.identity.incarnation_bytes
        assert not any(disk.read(handle, 64 << 10, end))
        return SegmentScanner(partial(disk.read, handle), places[0].generation, incarnation, disk.size(handle)).scan()

    before = scanned()
    disk.kill()
    Storage(Path("/data"), files=disk, segment_bytes=64 << 10)
    assert disk.kinds["deallocate"] == 1
    after = scanned()
    assert (after.durable, after.groups, after.groups_below_durable, len(after.above)) == (
        before.durable, before.groups, before.groups_below_durable, len(before.above),
    )  # fmt: skip
    assert before.groups == 5 + idle


def test_nothing_is_given_back_of_a_segment_in_which_something_is_damaged() -> None:
    disk = SimDisk()
    storage = Storage(Path("/data"), files=disk, segment_bytes=64 << 10)
    place = storage.append(entries(1, range(10)))[0]
    storage.append(entries(1, range(10, 20)))
    storage.append(entries(1, range(20, 30)))
    disk.kill()
    disk.flip_bit(f"/data/segments/{place.generation:016x}.segment", place.offset + 200)
    before = disk.kinds["deallocate"]
    again = Storage(Path("/data"), files=disk, segment_bytes=64 << 10)
    assert again.report.damage
    assert disk.kinds["deallocate"] == before
