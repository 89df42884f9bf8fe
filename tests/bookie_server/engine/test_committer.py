# SPDX-License-Identifier: Apache-2.0
"""The commit thread and the maintenance beside it: no group waits for sealing or space; reserve; copies (S6, S7)."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import wait
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bk_core.errors import BookKeeperError, DataDirectoryError, StorageFailedError
from bookie_server.engine.commits.committer import Committer
from bookie_server.engine.commits.queue import INLINE_BYTES
from bookie_server.engine.index_hop import LoopIndexPort, copier
from bookie_server.engine.maintenance_thread import MaintenanceThread
from bookie_server.machine.disk_places import Place
from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.maintenance.maintenance import Maintenance
from tests.kit.segment_world import Storage, assert_honest, entries, fence_record
from tests.kit.waiting import eventually

SEGMENT_BYTES = 64 << 10
PART_S = 10


class SlowFiles(Files):
    """Indexes are written only when ``go`` is set, groups synced when ``sync`` is; no segment can be made while
    ``full``; ``lost``: an index fails."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.waiting = threading.Event()
        self.full = self.lost = False
        self.sync = threading.Event()
        self.sync.set()
        self.syncing = threading.Event()
        self.makers: list[str] = []  # threads that made segments

    def write_atomically(self, path: str, data: bytes) -> None:
        if path.endswith(".idx"):
            self.waiting.set()
            assert self.go.wait(PART_S)
            if self.lost:
                raise OSError(errno.EIO, "the index is gone")
        super().write_atomically(path, data)

    def sync_data(self, handle: Handle) -> None:
        self.syncing.set()
        assert self.sync.wait(PART_S)
        super().sync_data(handle)

    def create_preallocated(self, path: str, size: int) -> Handle:
        if self.full:
            raise OSError(errno.ENOSPC, "no space")
        self.makers.append(threading.current_thread().name)
        return super().create_preallocated(path, size)


class Rig:
    """A committer and its maintenance over real files, whose answers are awaited on the loop."""

    def __init__(self, path: Path, frames_max: int = 1000, inline_s: float = 0.0) -> None:
        self.files = SlowFiles()
        segment_bytes = SEGMENT_BYTES if not inline_s else 4 << 20  # on the loop nothing begins a segment
        self.storage = Storage(path, files=self.files, segment_bytes=segment_bytes)
        self.answers: asyncio.Queue[Sequence[Place] | BookKeeperError] = asyncio.Queue()
        self.sealed: list[int] = []
        self.known: list[int] = []
        self.group_bytes = 0  # what was last said that a group may have
        loop = asyncio.get_running_loop()
        self.maintenance = MaintenanceThread(self._maintenance(loop), loop, self.answers.put_nowait)
        self.maintenance.start()
        self.committer = Committer(
            self.storage.log, loop, self._committed, self.answers.put_nowait, 1 << 20, frames_max,
            self.maintenance.look, inline_s,
        )  # fmt: skip

    def _maintenance(self, loop: asyncio.AbstractEventLoop) -> Maintenance:
        storage = self.storage
        # Tells what is sealed, instead of taking it into an index.
        storage.index.seal = lambda generation, summary: self._sealed(generation)
        return Maintenance(
            storage.directory, storage.log, LoopIndexPort(storage.index, loop), storage.reader,
            newest=storage.report.checkpoint, release=storage.reader.release, give_up=storage.reader.release,
            copy=copier(lambda frames: self.committer.copy(frames)),
        )  # fmt: skip

    def _committed(self, places: Sequence[Place], group_bytes: int) -> None:
        self.group_bytes = group_bytes
        self.known += [place.generation for place in places]
        self.answers.put_nowait(places)

    def _sealed(self, generation: int) -> None:
        assert generation in self.known, "the index hears of a frame before its segment is sealed"
        self.sealed.append(generation)

    async def commit(self, *frames: bytes, reserve: bool = False) -> Sequence[Place]:
        self.committer.put(frames, reserve=reserve)
        answer = await asyncio.wait_for(self.answers.get(), PART_S)
        if isinstance(answer, BookKeeperError):
            self.committer.drop(resume=isinstance(answer, DataDirectoryError))
            raise answer
        for frame, place in zip(frames, answer, strict=True):
            self.storage.index.add(frame, place)
        return answer

    async def fill(self, *, reserve: bool = False) -> None:
        for k in range(100, 300):
            await self.commit(part(k), reserve=reserve)

    async def stop(self) -> None:
        self.files.go.set()
        self.files.sync.set()
        await asyncio.to_thread(self.committer.stop)
        self.storage.log.release_full()
        await asyncio.to_thread(self.maintenance.stop)
        self.storage.close()


@asynccontextmanager
async def a_rig(path: Path, frames_max: int = 1000, inline_s: float = 0.0) -> AsyncIterator[Rig]:
    rig = Rig(path, frames_max, inline_s)
    try:
        yield rig
    finally:
        await rig.stop()


def part(k: int) -> bytes:
    """A frame of which three fill a segment."""
    return entries(1, range(10 * k, 10 * k + 10), size=1700)


@pytest.mark.rule("S7")
async def test_groups_are_acked_while_full_segments_wait_for_their_index(tmp_path: Path) -> None:
    async with a_rig(tmp_path / "d") as rig:
        rig.files.go.clear()
        for k in range(20):
            await rig.commit(part(k))
        assert await asyncio.to_thread(rig.files.waiting.wait, PART_S)
        assert rig.sealed == []
        assert len(rig.storage.log.seal_jobs) > 4
        rig.files.go.set()
        await eventually(lambda: not rig.storage.log.seal_jobs)
        await eventually(lambda: len(rig.sealed) > 4)
        assert rig.sealed == sorted(rig.sealed)
    again = Storage(tmp_path / "d", segment_bytes=SEGMENT_BYTES)
    assert again.report.segments_scanned == 1, "a clean stop leaves one segment without an index"
    assert_honest(again, [part(k) for k in range(20)], healthy=True)
    again.close()


async def test_spares_are_made_before_they_are_needed(tmp_path: Path) -> None:
    async with a_rig(tmp_path / "d") as rig:
        pool = rig.storage.log.pool
        await rig.commit(fence_record(9))
        await eventually(lambda: pool.spares == 1)
        rig.files.makers.clear()
        for k in range(30):
            await rig.commit(part(k))
            await eventually(lambda: pool.spares >= rig.storage.log.spares_wanted)
        assert rig.storage.log.stats.segments > 9
        assert set(rig.files.makers) == {"bookie-maintenance"}


@pytest.mark.rule("MUST3")
async def test_on_a_full_disk_fences_get_through_where_adds_do_not(tmp_path: Path) -> None:
    async with a_rig(tmp_path / "d") as rig:
        pool = rig.storage.log.pool
        await rig.commit(fence_record(9))
        await eventually(lambda: pool.spares == 1)
        rig.files.full = True
        refused = None
        for k in range(9):
            try:
                await rig.commit(part(k))
            except DataDirectoryError as error:
                refused = error
        assert refused is not None
        assert pool.spares == 1, "the reserve is untouched"
        places = await rig.commit(part(20), fence_record(1), reserve=True)
        assert places[-1].generation == rig.storage.log.position[0]
        with pytest.raises(DataDirectoryError):
            await rig.fill(reserve=True)
        assert pool.spares == 0
        rig.files.full = False
        await rig.commit(part(30))


@pytest.mark.rule("S6")
async def test_an_index_that_cannot_be_made_durable_ends_all_acks(tmp_path: Path) -> None:
    async with a_rig(tmp_path / "d") as rig:
        rig.files.lost = True
        with pytest.raises(StorageFailedError):
            await rig.fill()
        assert rig.storage.log.failed
        with pytest.raises(StorageFailedError):
            rig.storage.log.append_group([part(0)])


async def test_who_waits_for_copies_hears_at_once_that_nobody_writes_them_any_more(tmp_path: Path) -> None:
    """Else the maintenance thread looks up only every half second, and a bookie that failed takes so long to end."""

    async with a_rig(tmp_path / "d") as rig:
        rig.files.sync.clear()
        rig.files.syncing.clear()
        rig.committer.put([part(0)])
        assert await asyncio.to_thread(rig.files.syncing.wait, PART_S)
        copied = rig.committer.copy([entries(1, range(4))])
        waiting = asyncio.create_task(asyncio.to_thread(wait, [copied], 3 * PART_S))
        await asyncio.sleep(0.05)  # longer than it takes to wait
        rig.committer.drop(resume=False)
        done, _ = await asyncio.wait_for(waiting, PART_S)
        assert done == {copied}
        assert copied.cancelled()


# --- commits on the loop ---


async def warmed(rig: Rig) -> None:
    """Commit until the disk is taken for fast."""
    for k in range(40):
        await rig.commit(entries(1, [k]))


@pytest.mark.rule("S10")
async def test_a_small_group_on_an_idle_log_is_committed_in_the_turn_that_gave_it(tmp_path: Path) -> None:
    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        rig.committer.put([entries(1, [100])])
        rig.committer.put([entries(1, [101])])
        assert rig.answers.empty()
        await asyncio.sleep(0)
        places = rig.answers.get_nowait()
        assert len(places) == 2, "what came in one turn is one group"


async def test_large_groups_and_many_frames_go_to_the_thread(tmp_path: Path) -> None:
    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        for frames in ([entries(1, [k]) for k in range(200, 220)], [entries(1, range(300, 340), size=1700)]):
            rig.files.syncing.clear()
            rig.files.sync.clear()
            rig.committer.put(frames)
            await eventually(rig.files.syncing.is_set)  # the loop goes on while the thread waits for the disk
            rig.files.sync.set()
            assert not isinstance(await asyncio.wait_for(rig.answers.get(), PART_S), BookKeeperError)


async def test_a_slow_disk_stalls_the_loop_once_and_not_again_until_it_is_fast(tmp_path: Path) -> None:
    async with a_rig(tmp_path, inline_s=0.5) as rig:
        await warmed(rig)
        rig.committer.speed.took_s = 1.0  # what a slow sync leaves
        rig.files.syncing.clear()
        rig.files.sync.clear()
        rig.committer.put([entries(1, [100])])
        await eventually(rig.files.syncing.is_set)
        await asyncio.sleep(0.05)
        rig.files.sync.set()
        await asyncio.wait_for(rig.answers.get(), PART_S)
        assert rig.committer.speed.took_s >= 0.8


@pytest.mark.rule("S3")
async def test_the_position_is_recorded_after_the_last_commit_on_the_loop(tmp_path: Path) -> None:
    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        assert rig.storage.log.position_unrecorded
        await eventually(lambda: not rig.storage.log.position_unrecorded)


@pytest.mark.rule("S6")
async def test_a_failed_sync_on_the_loop_is_final(tmp_path: Path) -> None:
    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)

        def fail(handle: Handle) -> None:
            raise OSError(errno.EIO, "the disk is gone")

        rig.files.sync_data = fail
        with pytest.raises(StorageFailedError):
            await rig.commit(entries(1, [100]))
        rig.committer.put([entries(1, [101])])
        await asyncio.sleep(0.05)
        assert rig.answers.empty()


async def test_each_answer_says_how_large_a_group_may_be(tmp_path: Path) -> None:
    for inline_s in (0.0, 1.0):
        async with a_rig(tmp_path / str(inline_s), inline_s=inline_s) as rig:
            await rig.commit(part(0))
            assert rig.group_bytes == 1 << 20


async def test_groups_of_the_thread_and_of_the_loop_are_told_in_their_order(tmp_path: Path) -> None:
    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        rig.committer.put([entries(1, [500])])  # the loop will look at the end of this turn
        rig.committer.put([entries(1, [501 + n]) for n in range(12)])  # too many: the thread takes them all
        while rig.committer.queue.frames or rig.committer.queue.is_held:
            time.sleep(0.001)  # no turn of the loop, so it has not heard
        rig.committer.put([entries(1, [600])])
        first, second = [await asyncio.wait_for(rig.answers.get(), PART_S) for _ in range(2)]
        assert (len(first), len(second)) == (13, 1)
        positions: list[tuple[int, int]] = []
        for k in range(60):
            many = [entries(1, [1000 * k + n]) for n in range(12 if k % 3 == 0 else 1)]
            rig.committer.put(many)
            if k % 7 == 0:
                await asyncio.sleep(0)
            if k % 5 == 0:
                await asyncio.sleep(0.002)
        given = sum(12 if k % 3 == 0 else 1 for k in range(60))
        while len(positions) < given:
            places = await asyncio.wait_for(rig.answers.get(), PART_S)
            positions += [(place.generation, place.offset) for place in places]
        assert positions == sorted(positions)


# --- groups that were written ---


@pytest.mark.parametrize("frames", [1, 2], ids=["one frame a group", "two frames a group"])
async def test_groups_that_were_written_leave_room_for_the_next_on_the_loop(tmp_path: Path, frames: int) -> None:
    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        size = 8_000
        for number in range(100, 100 + 3 * (INLINE_BYTES // (frames * size))):
            await rig.commit(*[entries(1, [frames * number + each], size=size) for each in range(frames)])
        rig.committer.put([entries(1, [9_000])])
        await asyncio.sleep(0)
        places = rig.answers.get_nowait()
        assert not isinstance(places, BookKeeperError)


@pytest.mark.rule("S10")
async def test_the_loop_writes_nothing_while_the_thread_writes(tmp_path: Path) -> None:
    """Two groups at once would take the same place in the log."""

    async with a_rig(tmp_path, inline_s=PART_S) as rig:
        await warmed(rig)
        rig.files.syncing.clear()
        rig.files.sync.clear()
        rig.committer.put([entries(1, range(300, 340), size=1700)])
        await eventually(rig.files.syncing.is_set)
        end = rig.storage.log.position
        rig.committer.put([entries(1, [9_000])])
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert rig.answers.empty()
        assert rig.storage.log.position == end
        rig.files.sync.set()
        large, small = [await asyncio.wait_for(rig.answers.get(), PART_S) for _ in range(2)]
        assert (large[0].generation, large[0].offset) < (small[0].generation, small[0].offset)
