# SPDX-License-Identifier: Apache-2.0
"""What waits for its index is held in memory, within a bound (RULES S7)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bk_core.errors import DataDirectoryError
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import LogMaintenance, SegmentLog
from tests.kit.segment_world import Storage, assert_honest, entries, fence_record
from tests.sim.disk import SimDisk

SEGMENT = 32 << 10


class NoRoomForIndexes(SimDisk):
    """Segments can be made, small files cannot."""

    full = False

    def write_atomically(self, path: str, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "the simulated disk is full")
        super().write_atomically(path, data)


class Rig:
    def __init__(self, backlog_bytes_max: int) -> None:
        self.disk = NoRoomForIndexes()
        self.disk.make_directory("/data")
        storage = Storage(Path("/data"), files=self.disk)
        self.index = LedgerIndex()
        self.log = SegmentLog(
            storage.directory.segments_path,
            storage.directory.identity,
            files=self.disk,
            segment_size_bytes=SEGMENT,
            newest_generation=10,
            backlog_bytes_max=backlog_bytes_max,
        )
        self.log_maintenance = LogMaintenance(
            self.log, lambda sealed: self.index.seal(sealed.generation, sealed.summary)
        )
        self.next_id = 0
        self.acked: list[bytes] = []

    def append(self, *, reserve: bool = False) -> None:
        frames = [entries(1, [self.next_id + k]) for k in range(16)]
        places = self.log.append_group(frames, reserve=reserve)
        for frame, place in zip(frames, places, strict=True):
            self.index.add(frame, place)
        self.next_id += 16
        self.acked += frames
        self.log.release_full()
        self.log_maintenance.run()

    def append_for_ever(self) -> None:
        while True:
            self.append()


@pytest.mark.rule("S7")
def test_memory_of_one_entry_frames_falls_when_their_segment_is_sealed() -> None:
    rig, most = Rig(1 << 30), 0
    for _ in range(150):
        rig.append()
        most = max(most, rig.index.memory_bytes())
    assert len(rig.index.sealed_generations()) > 5
    assert most < 80 * SEGMENT // 128 * 2, "of two segments of the smallest frames"
    kept = rig.index.memory_bytes() - 64 * (rig.log.position[1] // 128)
    assert kept < 2000 + 200 * len(rig.index.sealed_generations())


@pytest.mark.rule("S7")
def test_segments_that_cannot_be_sealed_do_not_pile_up_in_memory() -> None:
    rig = Rig(40_000)
    rig.disk.full = True
    with pytest.raises(DataDirectoryError, match="wait for their index"):
        rig.append_for_ever()
    waiting = sum(job.memory_bytes for job in rig.log.seal_jobs)
    assert 40_000 < waiting < 40_000 + 64 * SEGMENT // 128
    count = len(rig.acked)
    with pytest.raises(DataDirectoryError):
        rig.append()
    assert len(rig.acked) == count
    rig.log.append_group([fence_record(1)], reserve=True)
    rig.append(reserve=True)
    rig.disk.full = False
    rig.log_maintenance.run()
    assert not rig.log.seal_jobs
    for _ in range(100):
        rig.append()


def test_large_frames_never_wait_for_indexes_of_small_bytes() -> None:
    """A backlog is counted in memory and not in segments: a burst may be ahead of sealing by many of these."""
    rig = Rig(40_000)
    rig.disk.full = True
    for k in range(60):
        rig.log.append_group([entries(2, [k], size=20_000)])
        rig.log.release_full()
    assert len(rig.log.seal_jobs) > 50


def test_what_was_refused_for_the_backlog_was_not_written(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "data", segment_bytes=SEGMENT)
    storage.log._backlog_bytes_max = -1
    acked: list[bytes] = []

    def append_for_ever() -> None:
        while True:
            frame = entries(1, [len(acked)], size=1000)
            storage.append(frame)
            acked.append(frame)

    with pytest.raises(DataDirectoryError):
        append_for_ever()
    storage.close()
    storage = Storage(tmp_path / "data", segment_bytes=SEGMENT)
    assert_honest(storage, acked, healthy=True)
    assert len(acked) in storage.read(1, 0, 1000).absent
    storage.close()
