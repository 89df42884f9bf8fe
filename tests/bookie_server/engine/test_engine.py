# SPDX-License-Identifier: Apache-2.0
"""The engine over the real segment log: a disk that is full for a while, a sync that fails, a machine with a bug."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import BookKeeperError, LocalProtocolError, StorageFailedError
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.engine.holdings import IndexHoldings
from bookie_server.engine.log_driver import OpenLog
from bookie_server.engine.loop import BookieLoop
from bookie_server.engine.maintenance_thread import maintained
from bookie_server.engine.several_directories import SpreadHoldings
from bookie_server.identity.opening import OpenStorage
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.index_port import Stopping
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from bookie_server.storage.start.replay import open_segments
from tests.kit.bookie_effects import parted
from tests.kit.lanes import KEY, frame
from tests.kit.waiting import eventually

SEGMENT_BYTES = 12 << 20


class Disk(Files):
    """A disk that can be full, or fail."""

    full = failing = False
    small_files_fail = False
    in_memory = False
    """Whether the page cache has all that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing, self.go = threading.Event(), threading.Event()
        self.go.set()
        """A sync waits until this is set."""

    def create_preallocated(self, path: str, size: int) -> Handle:
        if self.full:
            raise OSError(errno.ENOSPC, "made to be full")
        return super().create_preallocated(path, size)

    def write_atomically(self, path: str, data: bytes) -> None:
        if self.small_files_fail:
            raise OSError(errno.EIO, "made to fail")
        super().write_atomically(path, data)

    def read_at_once(self, handle: Handle, size: int, offset: int) -> bytes | None:
        return self.read(handle, size, offset) if self.in_memory else None

    def sync_data(self, handle: Handle) -> None:
        if self.failing:
            raise OSError(errno.EIO, "made to fail")
        self.syncing.set()
        assert self.go.wait(5)
        super().sync_data(handle)


class Sink:
    """What a stream was told."""

    def __init__(self) -> None:
        self.effects: list[StreamEffect] = []
        self.left: list[int] = []  # how many effects waited when they might leave
        self._news = asyncio.Event()

    def deliver(self, effect: StreamEffect) -> None:
        self.effects.extend(parted([effect]))  # type: ignore[arg-type]  # all of them are of a stream
        self._news.set()

    def leave(self) -> None:
        self.left.append(len(self.effects))

    async def next(self) -> Any:
        async with asyncio.timeout(20):
            while not self.effects:
                self._news.clear()
                await self._news.wait()
        return self.effects.pop(0)


class Rig:
    def __init__(self, engine: BookieEngine, disks: list[Disk], failures: list[BookKeeperError]) -> None:
        self.engine, self.disks, self.disk, self.failures = engine, disks, disks[0], failures
        self.on_no_space: Callable[[], object] = lambda: None
        self.sink = Sink()
        self.stream = engine.open_stream(self.sink)
        self._session = 0

    def write(self, first: int, payload: bytes, ledger: int = 8) -> int:
        """Ledgers go to the data directories in turn."""
        self._session += 1
        self.engine.feed(ev.SessionAttached(self.stream, self._session, ledger, KEY, AttachMode.WRITE))
        one = frame(ledger, first, [payload], session=self._session)
        self.engine.feed(ev.FramesArrived(self.stream, memoryview(one)))
        return self._session

    async def answers(self, sessions: int) -> dict[int, tuple[int, Reason | None]]:
        """The last word on each of so many sessions: frames, and why it ended."""
        found: dict[int, tuple[int, Reason | None]] = {}
        while len(found) < sessions:
            told = await self.sink.next()
            if isinstance(told, ev.SendAcks):
                found |= {session: (frames, None) for session, frames in zip(told.sessions, told.frames, strict=True)}
                found |= {end.session: (end.frames, end.reason) for end in told.ended}
        return found


@contextlib.asynccontextmanager
async def rig(tmp_path: Path, directories: int = 1, limits: MachineLimits | None = None) -> AsyncIterator[Rig]:
    disks, failures = [Disk() for _ in range(directories)], list[BookKeeperError]()
    opened = [storage(str(tmp_path / f"data{number}"), disk) for number, disk in enumerate(disks)]
    holdings = SpreadHoldings(
        [IndexHoldings(each.index, each.reader) for each in opened], lambda ledger_id: ledger_id % directories
    )
    loop = asyncio.get_running_loop()
    engine = BookieEngine(
        BookieMachine(holdings, limits, logs=directories),
        [OpenLog(each.log, each.reader, maintained(each, MaintenanceLimits(), loop)) for each in opened],
        group_bytes_max=16 << 20,
        group_frames_max=1000,
        on_failed=failures.append,
        on_no_space=lambda number: bookie.on_no_space(),
    )
    bookie = Rig(engine, disks, failures)
    yield bookie
    await engine.stop()
    for each in opened:
        each.directory.close()


def storage(path: str, disk: Disk) -> OpenStorage:
    directory = DataDirectory.create(path, "b1", "cluster", files=disk)
    index, log, report = open_segments(directory, segment_size_bytes=SEGMENT_BYTES)
    return OpenStorage(
        directory, index, log, SegmentReader(directory.segments_path, directory.identity, files=disk), report
    )


async def test_full_disk_refuses_and_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as bookie:
        bookie.disk.full = True  # before anybody makes a spare segment
        for first in range(2):  # the first segment holds these, and no third
            session = bookie.write(first, bytes(5_000_000))
            assert await bookie.sink.next() == ev.SendAcks(bookie.stream, [session], [1], [])
        for _ in range(2):
            bookie.write(2, bytes(5_000_000))
            told = await bookie.sink.next()
            assert [(end.frames, end.reason) for end in told.ended] == [(0, Reason.NO_SPACE)]
        bookie.disk.full = False
        session = bookie.write(2, bytes(5_000_000))
        assert await bookie.sink.next() == ev.SendAcks(bookie.stream, [session], [1], [])
        assert bookie.failures == []


def test_a_burst_is_one_group_at_its_end_or_in_the_next_turn_if_more_came_in_this_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with rig(tmp_path) as bookie:
            bookie.engine._logs[0].committer.speed.fast_s = math.inf  # this disk is fast, however busy the machine is
            log = bookie.engine._logs[0]._log

            def take() -> int:
                sessions[:] = [bookie.write(next(ids), b"b"), bookie.write(next(ids), b"c")]
                return log.stats.groups

            ids, sessions = itertools.count(), list[int]()
            loop = asyncio.get_running_loop()
            loop.turn.found = 1
            written = bookie.engine.burst(take)
            assert log.stats.groups == written + 1
            assert bookie.sink.effects.pop() == ev.SendAcks(bookie.stream, sessions, [1, 1], [])
            loop.turn.found = 2
            bookie.engine.burst(take)
            assert (log.stats.groups, bookie.sink.effects) == (written + 1, [])
            assert len((await bookie.sink.next()).sessions) == 2
            assert log.stats.groups == written + 2

    with asyncio.Runner(loop_factory=BookieLoop) as runner:
        runner.run(story())


async def test_what_a_commit_answers_may_leave_once_all_of_it_was_delivered_and_each_stream_by_itself(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as bookie:

        class Broken(Sink):
            def leave(self) -> None:
                super().leave()
                raise ZeroDivisionError("a bug of this stream")

        other = Broken()
        stream = bookie.engine.open_stream(other)
        assert not bookie.engine.gathers_answers
        bookie.engine.feed(ev.SessionAttached(stream, 1, 9, KEY, AttachMode.WRITE))
        bookie.engine.feed(ev.FramesArrived(stream, memoryview(frame(9, 0, [b"other"], session=1))))
        bookie.write(0, b"a")
        await bookie.sink.next()
        await other.next()
        assert bookie.sink.left == other.left == [1]
        assert not bookie.engine.gathers_answers
        assert bookie.failures == []


async def test_what_a_burst_asks_at_its_end_is_answered_and_leaves_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as bookie:
        engine, sink = bookie.engine, bookie.sink

        def ask() -> None:
            engine.feed(ev.ReadRequested((bookie.stream, 1), 99, 0, 0, 1 << 20))  # of an unknown ledger
            assert engine.gathers_answers

        def take(call: Callable[[], None]) -> str:
            engine.at_burst_end(call)
            assert sink.effects == []
            return "taken"

        assert engine.burst(take, ask) == "taken"
        assert [type(effect) for effect in sink.effects] == [ev.SendTrailer]
        assert sink.left == [1]
        sink.effects.clear()
        assert engine.burst(take, lambda: None) == "taken"
        assert sink.left == [1], "nothing was answered"
        assert engine.burst(take, lambda: 1 // 0) == "taken"
        assert "the requests of a burst could not be handled" in caplog.text
        assert not engine.gathers_answers
        engine.at_burst_end(lambda: sink.left.append(77))
        assert sink.left == [1, 77], "there is no burst to wait for"


@pytest.mark.rule("P1")
async def test_what_is_given_to_the_log_while_others_hear_of_the_full_disk_fails_with_it(tmp_path: Path) -> None:
    """Else it is written although the machine has forgotten it, and the next frame is taken for it."""

    async with rig(tmp_path) as bookie:
        bookie.disk.full = True
        for first in range(2):
            bookie.write(first, bytes(5_000_000))
            await bookie.sink.next()
        bookie.on_no_space = lambda: bookie.write(0, b"small", ledger=9)
        bookie.write(2, bytes(5_000_000))
        assert [end.reason for end in (await bookie.sink.next()).ended] == [Reason.NO_SPACE] * 2
        bookie.disk.full = False
        session = bookie.write(2, bytes(5_000_000))
        assert await bookie.sink.next() == ev.SendAcks(bookie.stream, [session], [1], [])
        await asyncio.sleep(0.2)
        assert bookie.failures == []


@pytest.mark.rule("P1")
async def test_a_stream_that_waits_for_room_is_answered_when_the_commit_it_waits_for_fails(tmp_path: Path) -> None:
    """What the machine takes of it while it hears of the failure is written: it is queued behind what was dropped."""

    async with rig(tmp_path, limits=MachineLimits(in_flight_bytes_max=4_000_000)) as bookie:
        bookie.disk.full = True
        for first in range(2):
            bookie.write(first, bytes(5_000_000))
            await bookie.answers(1)
        full = bookie.write(2, bytes(5_000_000))  # finds no segment, and leaves no room for others meanwhile
        small = [bookie.write(k, b"small", ledger=9 + k) for k in range(3)]
        expected = {full: (0, Reason.NO_SPACE)} | dict.fromkeys(small, (1, None))
        assert await bookie.answers(4) == expected
        assert bookie.failures == []


@pytest.mark.rule("S6")
async def test_failed_sync_is_final_although_the_disk_recovers(tmp_path: Path) -> None:
    async with rig(tmp_path) as bookie:
        bookie.write(0, b"durable")
        await bookie.sink.next()
        bookie.disk.failing = True
        bookie.write(1, b"lost")
        told = await bookie.sink.next()
        assert {end.reason for end in told.ended} == {Reason.STORAGE_FAILED}
        bookie.disk.failing = False
        bookie.write(1, b"too late")
        told = await bookie.sink.next()
        assert [end.reason for end in told.ended] == [Reason.STORAGE_FAILED]
        assert [type(error) for error in bookie.failures] == [StorageFailedError]


@pytest.mark.rule("S6")
async def test_a_disk_that_fails_under_maintenance_ends_the_bookie(tmp_path: Path) -> None:
    async with rig(tmp_path) as bookie:
        bookie.disk.small_files_fail = True
        for first in range(3):  # the third begins a segment, so that the first one is sealed
            bookie.write(first, bytes(5_000_000))
        await eventually(lambda: bool(bookie.failures))
        assert [type(error) for error in bookie.failures] == [StorageFailedError]


async def test_a_full_disk_leaves_the_other_directory_alone(tmp_path: Path) -> None:
    async with rig(tmp_path, 2) as bookie:
        bookie.disk.full = True
        for first in range(2):  # the first segment of either directory holds these, and no third
            for ledger in (8, 9):
                bookie.write(first, bytes(5_000_000), ledger)
                await bookie.sink.next()
        bookie.write(2, bytes(5_000_000), 8)
        told = await bookie.sink.next()
        assert [(end.frames, end.reason) for end in told.ended] == [(0, Reason.NO_SPACE)]
        session = bookie.write(2, bytes(5_000_000), 9)
        assert await bookie.sink.next() == ev.SendAcks(bookie.stream, [session], [1], [])
        assert bookie.failures == []


@pytest.mark.rule("S6")
@pytest.mark.parametrize("failing", [0, 1])
async def test_a_failed_sync_of_one_directory_ends_the_bookie(tmp_path: Path, failing: int) -> None:
    """Once, though the other directory goes on to report what it had begun."""

    async with rig(tmp_path, 2) as bookie:
        for ledger in (8, 9):
            bookie.write(0, b"durable", ledger)
            await bookie.sink.next()
        bookie.disks[failing].failing = True
        for ledger in (8, 9):
            bookie.write(1, b"lost", ledger)
        told = [await bookie.sink.next()]
        while (
            len(reasons := [end.reason for each in told for end in each.ended])
            + sum(len(each.sessions) for each in told)
            < 2
        ):
            told.append(await bookie.sink.next())
        assert set(reasons) == {Reason.STORAGE_FAILED}
        for ledger in (8, 9):
            bookie.write(2, b"too late", ledger)
            told = [await bookie.sink.next()]
            assert [end.reason for end in told[0].ended] == [Reason.STORAGE_FAILED]
        await asyncio.sleep(0.05)
        assert [type(error) for error in bookie.failures] == [StorageFailedError]


@pytest.mark.rule("S6")
async def test_what_waits_for_the_other_directory_is_not_written_after_a_failed_sync(tmp_path: Path) -> None:
    async with rig(tmp_path, 2) as bookie:
        for ledger in (8, 9):
            bookie.write(0, b"durable", ledger)
            await bookie.answers(1)
        other, log = bookie.disks[1], bookie.engine._logs[1]._log
        other.syncing.clear()
        other.go.clear()
        bookie.write(1, b"on its way", 9)
        assert await asyncio.to_thread(other.syncing.wait, 5)
        before = log.stats.frames
        bookie.write(1, b"behind it", 11)
        bookie.disk.failing = True
        bookie.write(1, b"lost", 8)
        assert {reason for _, reason in (await bookie.answers(3)).values()} == {Reason.STORAGE_FAILED}
        other.go.set()
        await bookie.engine.stop()
        assert log.stats.frames == before + 1, "what was on its way, and nothing else"


async def test_a_stop_seals_the_segments_that_copies_filled(tmp_path: Path) -> None:
    """Else the next start scans them."""

    async with rig(tmp_path) as bookie:
        bookie.write(0, bytes(100))
        await bookie.answers(1)
        copied = [frame(8, 0, [bytes(5_000_000)])]
        for _ in range(3):
            done = bookie.engine._logs[0].committer.copy(copied)
            [place] = await asyncio.wrap_future(done)
        assert place.generation == 2
        await bookie.engine.stop()
        assert (tmp_path / "data0" / "segments" / f"{1:016x}.idx").exists()


async def test_bug_in_the_machine_ends_the_bookie(tmp_path: Path) -> None:
    async with rig(tmp_path) as bookie:
        bookie.engine.feed("no event")  # type: ignore[arg-type]  # a bug in the machine is what is tested
        assert [type(error) for error in bookie.failures] == [LocalProtocolError]
        bookie.write(0, b"nothing is answered any more")
        await asyncio.sleep(0.05)
        assert bookie.sink.effects == []


async def test_what_memory_has_is_read_without_the_thread_and_all_else_by_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as bookie:
        session = bookie.write(0, b"entry")
        await bookie.answers(1)
        assert session

        def ask(number: int) -> None:
            bookie.engine.feed(ev.ReadRequested((bookie.stream, number), 8, 0, 0, 1 << 20))

        async def answer() -> bytes:
            part, trailer = await bookie.sink.next(), await bookie.sink.next()
            assert isinstance(part, ev.SendPart)
            assert isinstance(trailer, ev.SendTrailer)
            bookie.engine.feed(ev.PartSent(part.request))
            return b"".join(map(bytes, part.frames))

        ask(1)
        assert not bookie.sink.effects, "its segment is not open yet"
        first = await answer()
        bookie.disk.in_memory = False
        ask(2)
        assert not bookie.sink.effects
        assert await answer() == first
        bookie.disk.in_memory = True
        ask(3)
        assert len(bookie.sink.effects) == 2, "in the same turn"
        assert await answer() == first


async def test_bug_in_the_reader_thread_ends_the_bookie_and_its_stop_waits_for_nobody(tmp_path: Path) -> None:
    """Else all reads wait for ever, and so does a segment that is to be given back."""

    async with rig(tmp_path) as bookie:
        driver = bookie.engine._logs[0]
        driver.read("no read")  # type: ignore[arg-type]  # a bug in the reader is what is tested
        await eventually(lambda: bool(bookie.failures))
        assert [type(error) for error in bookie.failures] == [StorageFailedError]
        assert "the reader thread failed" in str(bookie.failures[0])
        with pytest.raises(Stopping):
            await asyncio.to_thread(driver._give_up, 1)
