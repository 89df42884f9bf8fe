# SPDX-License-Identifier: Apache-2.0
"""The writing side: groups, rolling, the position on record (S3), dropped copies (S4), failures that are final (S6)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from bk_core.errors import DataDirectoryError, InvalidArgumentError, LocalProtocolError, StorageFailedError
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.segment import decode_group_header, segment_name
from bookie_server.storage.disk.files import BLOCK, Files, Handle, aligned_buffer
from bookie_server.storage.log.segment_log import AHEAD_BYTES
from tests.kit.index_state import state_of
from tests.kit.segment_world import (
    Storage,
    assert_honest,
    entries,
    fence_record,
    key_record,
    limbo_record,
)


class FaultyFiles(Files):
    """The real file system, whose syncs or space give out when told."""

    def __init__(self) -> None:
        self.sync_fails = self.directory_fails = self.no_space = self.write_fails = self.index_no_space = False

    def sync_data(self, handle: Handle) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "the disk is gone")
        super().sync_data(handle)

    def sync_directory(self, path: str) -> None:
        if self.directory_fails:
            raise OSError(errno.EIO, "the directory is gone")
        super().sync_directory(path)

    def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        if self.write_fails:
            raise OSError(errno.EIO, "the write is gone")
        super().write(handle, buffers, offset)

    def create_preallocated(self, path: str, size: int) -> Handle:
        if self.no_space:
            raise OSError(errno.ENOSPC, "no space left")
        return super().create_preallocated(path, size)

    def write_atomically(self, path: str, data: bytes) -> None:
        if self.index_no_space and path.endswith(".idx"):
            raise OSError(errno.ENOSPC, "no space left")
        super().write_atomically(path, data)


def test_a_group_is_one_write_and_one_sync(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    class Counting(Files):
        def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
            calls.append(("write", sum(map(len, buffers))))
            super().write(handle, buffers, offset)

        def sync_data(self, handle: Handle) -> None:
            calls.append(("sync", 0))
            super().sync_data(handle)

    storage = Storage(tmp_path / "d", files=Counting())
    calls.clear()
    places = storage.log.append_group([entries(k, range(5)) for k in range(20)])
    assert calls == [("write", calls[0][1]), ("sync", 0)]
    assert [place.offset % 64 for place in places] == [0] * 20
    assert storage.log.stats.write_amplification > 1
    storage.close()


def address(of: memoryview) -> int:
    return np.frombuffer(of, np.uint8).ctypes.data


def received(frame: bytes, skip: int = 0) -> memoryview:
    """The frame in memory of its own, at a page, or ``skip`` bytes behind it; something else follows."""
    memory = memoryview(aligned_buffer(len(frame) + skip + BLOCK))
    memory[:] = b"\xee" * len(memory)
    memory[skip : skip + len(frame)] = frame
    return memory[skip : skip + len(frame)]


def test_large_frames_at_a_page_are_written_from_where_they_are(tmp_path: Path) -> None:
    """And their bytes stay what they were; whatever else is in the group, and whatever they leave of a block."""
    writes: list[list[tuple[int, int]]] = []
    direct: list[bool] = []

    class Noting(Files):
        def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
            writes.append([(address(each), len(each)) for each in buffers])
            super().write(handle, buffers, offset)
            direct.append(bool(fcntl.fcntl(handle, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0)))

    storage = Storage(tmp_path / "d", files=Noting(), segment_bytes=4 << 20)
    path = str(tmp_path / "d" / "segments" / segment_name(1))
    header = len(entries(1, [0], size=60_000)) - 60_000
    sizes = [65_536 - header, 70_000, 81_920 - header, 50_000, 100_000]
    sent = [entries(k, [0], size=size) for k, size in enumerate(sizes)]
    assert [len(sent[k]) for k in (0, 2)] == [65_536, 81_920], "of whole blocks"
    frames = [received(sent[0]), received(sent[1]), received(sent[2]), received(sent[3]), received(sent[4], 64)]
    for group in ([0], [1, 2, 3, 4], [3, 0], [4]):
        writes.clear()
        places = storage.append(*(frames[k] for k in group))
        where = [(address(frames[k]) + BLOCK, len(frames[k]) // BLOCK * BLOCK - BLOCK) for k in group if k < 3]
        (written,) = writes
        assert [each for each in written if each in where] == where
        assert all(begin % BLOCK == 0 and size % BLOCK == 0 for begin, size in written)
        for k, place in zip(group, places, strict=True):
            stored = storage.files.read_past_cache(path, place.size, place.offset)
            assert stored[:60] + sent[k][60:64] + stored[64:] == sent[k]
        assert [bytes(each) for each in frames] == sent
    assert len(set(direct)) == 1, "the disk took none of them amiss"
    storage.close(crash=True)
    again = Storage(tmp_path / "d")  # reads the segment, and looks at every stamp
    assert_honest(again, sent, healthy=True)
    again.close()


@pytest.mark.rule("S3")
def test_a_small_group_in_blocks_never_written_writes_zeros_for_those_behind_it(tmp_path: Path) -> None:
    written: list[tuple[int, int]] = []

    class Noting(Files):
        def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
            written.append((offset, sum(map(len, buffers))))
            super().write(handle, buffers, offset)

    storage = Storage(tmp_path / "d", files=Noting(), segment_bytes=256 << 10)
    storage.append(entries(1, [0], size=100_000))  # what it leaves in memory is not what is written behind others
    written.clear()
    for k in range(1, 34):
        storage.append(entries(1, [k]))
    begin = written[0][0]
    sizes = [AHEAD_BYTES, *[4096] * 15, AHEAD_BYTES, *[4096] * 15, (256 << 10) - begin - 2 * AHEAD_BYTES]
    assert written == [(begin + 4096 * k, size) for k, size in enumerate(sizes)]
    data = (tmp_path / "d" / "segments" / segment_name(1)).read_bytes()
    assert not any(data[begin + 4096 * 33 :])
    storage.close()


def test_a_group_in_a_recycled_segment_writes_no_zeros(tmp_path: Path) -> None:
    sizes: dict[int, list[int]] = {}

    class Noting(Files):
        def write(self, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
            if offset:
                sizes.setdefault(storage.log.position[0], []).append(sum(map(len, buffers)))
            super().write(handle, buffers, offset)

    storage = Storage(tmp_path / "d", files=Noting(), segment_bytes=64 << 10)
    for k in range(60):
        if storage.log.position[0] == 2 and not storage.log.pool.recycled and 1 in sizes:
            storage.log.pool.recycle(1)
            del sizes[1]
        storage.append(entries(1, [k]))
    fresh = {generation: max(each) > 4096 for generation, each in sizes.items()}
    assert storage.log.pool.recycled == 1
    assert [*fresh.values()].count(False) == 1
    storage.close()


def test_large_frames_begin_at_a_block_and_small_ones_pack(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    small, large, after = storage.append(entries(1, [0]), entries(1, [1], size=65_536), entries(1, [2]))
    assert (small.offset, large.offset % 4096) == (8192 - 4096 + 64, 0)
    assert large.offset - small.offset < 4096
    assert after.offset - large.offset - large.size < 64
    storage.close()


@pytest.mark.rule("S3")
def test_going_idle_puts_the_position_on_record_once(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    assert not storage.log.position_unrecorded
    storage.append(entries(1, [0]))
    assert storage.log.position_unrecorded
    generation, position = storage.log.position
    storage.log.record_position()
    assert not storage.log.position_unrecorded
    storage.log.record_position()
    assert storage.log.position == (generation, position + 4096)
    content = Path(storage.directory.segments_path, segment_name(generation)).read_bytes()
    group = decode_group_header(content[position : position + 64], storage.directory.identity.incarnation_bytes)
    assert (group.frames, group.durable, group.number) == (0, position, 1)
    storage.close()
    assert Storage(tmp_path / "d").report.frames_copied == 0


def test_a_full_segment_is_sealed_and_the_log_goes_on_in_the_next(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d", segment_bytes=64 << 10)
    frames = [entries(1, range(10 * k, 10 * k + 10), size=400) for k in range(60)]
    for start in range(0, 60, 6):
        storage.append(*frames[start : start + 6])
    names = storage.files.names(storage.directory.segments_path)
    assert sum(name.endswith(".segment") for name in names) > 4
    assert sum(name.endswith(".idx") for name in names) == sum(name.endswith(".segment") for name in names) - 1
    assert_honest(storage, frames, healthy=True)
    storage.close()
    again = Storage(tmp_path / "d", segment_bytes=64 << 10)
    assert again.report.segments_scanned == 1
    assert_honest(again, frames, healthy=True)
    again.close()


def test_one_call_may_need_several_groups_and_segments(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d", segment_bytes=64 << 10)
    frames = [entries(1, range(10 * k, 10 * k + 10), size=400) for k in range(60)]
    places = storage.append(*frames)
    assert len(places) == 60
    assert len({place.generation for place in places}) > 3
    assert_honest(storage, frames, healthy=True)
    storage.close()


def test_a_frame_that_fits_in_no_segment_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d", segment_bytes=64 << 10)
    position = storage.log.position
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        storage.log.append_group([entries(1, [0]), entries(1, [1], size=64 << 10)])
    with pytest.raises(InvalidArgumentError, match="not one whole frame"):
        storage.log.append_group([entries(1, [0]) + b"more"])
    assert storage.log.position == position
    storage.close()
    with pytest.raises(LocalProtocolError):
        storage.log.append_group([entries(1, [0])])


@pytest.mark.rule("S6")
@pytest.mark.parametrize("fault", ["sync_fails", "write_fails"])
def test_a_failed_group_is_final(fault: str, tmp_path: Path) -> None:
    files = FaultyFiles()
    storage = Storage(tmp_path / "d", files=files)
    acked = [key_record(1), entries(1, range(5))]
    storage.append(*acked)
    setattr(files, fault, True)
    lost = [entries(1, range(5, 9))]
    with pytest.raises(StorageFailedError, match="outcome unknown"):
        storage.log.append_group(lost)
    setattr(files, fault, False)
    for call in (lambda: storage.log.append_group(acked), storage.log.record_position, storage.log.prepare_segment):
        with pytest.raises(StorageFailedError):
            call()
    assert storage.log.failed
    storage.close()
    again = Storage(tmp_path / "d")
    assert_honest(again, acked, lost, healthy=True)
    again.close()


@pytest.mark.rule("S6")
def test_a_group_is_not_acked_when_another_writer_of_the_directory_fails_during_its_sync(tmp_path: Path) -> None:
    """A checkpoint or an index whose sync failed is the same disk: what it says of this group's is worth nothing."""

    class OtherFails(Files):
        other: Callable[[], None] = staticmethod(lambda: None)

        def sync_data(self, handle: Handle) -> None:
            super().sync_data(handle)
            self.other()

    def fail() -> None:
        with contextlib.suppress(StorageFailedError):
            storage.log.health.fail("a checkpoint could not be made durable", "d", OSError(errno.EIO, "gone"))

    files = OtherFails()
    storage = Storage(tmp_path / "d", files=files)
    storage.append(key_record(1), entries(1, range(5)))
    files.other = fail
    with pytest.raises(StorageFailedError, match="outcome unknown"):
        storage.log.append_group([entries(1, range(5, 9))])
    storage.close()


@pytest.mark.rule("S6")
def test_a_failed_directory_sync_is_final(tmp_path: Path) -> None:
    files = FaultyFiles()
    storage = Storage(tmp_path / "d", files=files, segment_bytes=64 << 10)
    acked = [entries(1, range(50), size=500)]
    storage.append(*acked)
    files.directory_fails = True
    with pytest.raises(StorageFailedError):
        storage.log.append_group([entries(1, range(50, 120), size=500)])
    files.directory_fails = False
    with pytest.raises(StorageFailedError):
        storage.log.append_group([entries(2, [0])])
    storage.close()
    again = Storage(tmp_path / "d")
    assert_honest(again, acked, healthy=True)
    again.close()


@pytest.mark.rule("S6")
def test_the_tail_is_durable_in_a_new_segment_before_anything_is_answered(tmp_path: Path) -> None:
    """A sync that fails while the tail is copied stops the start; the tail is still there for the next one."""
    storage = Storage(tmp_path / "d")
    frames = [key_record(1), fence_record(1), entries(1, range(7))]
    storage.append(*frames)
    storage.close(crash=True)
    files = FaultyFiles()
    files.sync_fails = True
    with pytest.raises(StorageFailedError):
        Storage(tmp_path / "d", files=files)
    again = Storage(tmp_path / "d")
    assert again.report.frames_copied == 3
    place = again.lookup(1, 0, 0).pieces[0].place
    assert place.generation == again.log.position[0]
    assert_honest(again, frames, healthy=True)
    again.close(crash=True)
    third = Storage(tmp_path / "d")
    assert_honest(third, frames, healthy=True)
    third.close()


def test_no_space_for_a_segment_is_not_final_and_applies_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    storage = Storage(tmp_path / "d", files=files, segment_bytes=64 << 10)
    files.no_space = True
    frames = [entries(1, range(10 * k, 10 * k + 10), size=400) for k in range(30)]
    position = storage.log.position
    with pytest.raises(DataDirectoryError, match="not applied"):
        storage.log.append_group([limbo_record(1), *frames])
    assert storage.log.position == position
    small = storage.append(fence_record(1))
    assert small[0].generation == position[0], "there is room for a fence where there is none for a segment"
    files.no_space = False
    storage.append(*frames)
    assert_honest(storage, frames, healthy=True)
    storage.close()
    again = Storage(tmp_path / "d", segment_bytes=64 << 10)
    assert state_of(again.index, 1).trouble is Reason.REASON_NONE, "the refused record left no trace"
    again.close()


def test_a_full_disk_at_start_still_serves_reads(tmp_path: Path) -> None:
    files = FaultyFiles()
    storage = Storage(tmp_path / "d", files=files)
    frames = [key_record(1), entries(1, range(5))]
    storage.append(*frames)
    storage.close()
    files.no_space = files.index_no_space = True
    again = Storage(tmp_path / "d", files=files)
    assert_honest(again, frames, healthy=True)
    again.append(fence_record(1))  # the spare of the last life was kept
    again.close()
    for path in (tmp_path / "d" / "segments").glob("*.tmp"):
        path.unlink()
    third = Storage(tmp_path / "d", files=files)
    assert_honest(third, [*frames, fence_record(1)], healthy=True)
    with pytest.raises(DataDirectoryError):
        third.append(fence_record(2))
    third.close()


def test_a_full_disk_at_start_does_not_make_the_directory_look_emptied(tmp_path: Path) -> None:
    Storage(tmp_path / "d").close()
    files = FaultyFiles()
    files.no_space = True
    Storage(tmp_path / "d", files=files).close()
    storage = Storage(tmp_path / "d")
    assert not storage.report.limbo
    storage.append(entries(1, [0]))
    assert storage.read(1, 0, 1).absent == {1}
    storage.close()


def test_a_prepared_segment_is_used_or_kept_for_later(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "d")
    storage.append(entries(1, [0]))
    storage.log.prepare_segment()
    names = storage.files.names(storage.directory.segments_path)
    assert [name.partition(".")[2] for name in names] == ["segment", "unsealed", "segment.tmp"]
    storage.close()
    again = Storage(tmp_path / "d")
    assert_honest(again, [entries(1, [0])], healthy=True)
    assert not again.report.damage
    again.close()


def test_idle_restarts_do_not_pile_up_segments(tmp_path: Path) -> None:
    for _ in range(5):
        storage = Storage(tmp_path / "d")
        storage.log_maintenance.run()
        names = storage.files.names(storage.directory.segments_path)
        assert [name[16:] for name in names].count(".segment") == 1
        assert len(names) <= 4
        storage.close()
    assert storage.directory.identity.boot_count == 5
