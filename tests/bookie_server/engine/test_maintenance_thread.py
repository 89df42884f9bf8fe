# SPDX-License-Identifier: Apache-2.0
"""The maintenance thread and its hops to the loop: deadlines, a prompt stop, what ends the bookie and what does not."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import BookKeeperError, IntegrityError, StorageFailedError
from bookie_server.engine.index_hop import LoopIndexPort, copier, wait_for
from bookie_server.engine.maintenance_thread import MaintenanceThread
from bookie_server.machine.disk_places import Place
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.maintenance.index_port import Stopping
from tests.kit.maintained import Kept
from tests.kit.segment_world import entries
from tests.kit.waiting import eventually

SOON_S = 30
SEGMENT_BYTES = 1 << 20


# --- hops -------------------------------------------------------------------------------------------------------------


async def test_questions_are_asked_on_the_loop_and_their_errors_come_back() -> None:
    index = LedgerIndex()
    port = LoopIndexPort(index, asyncio.get_running_loop())
    threads: list[int] = []

    def question(asked: LedgerIndex) -> int:
        assert asked is index
        threads.append(threading.get_ident())
        return 7

    def wrong(asked: LedgerIndex) -> None:
        raise IntegrityError("wrong")

    assert await asyncio.to_thread(port.ask, question) == 7
    assert port.ask(question) == 7, "on the loop itself nobody waits for it"
    assert set(threads) == {threading.get_ident()}
    with pytest.raises(IntegrityError, match="wrong"):
        await asyncio.to_thread(port.ask, wrong)


async def test_a_question_that_was_not_asked_in_time_is_never_asked() -> None:
    asked: list[str] = []
    port = LoopIndexPort(LedgerIndex(), asyncio.get_running_loop(), deadline_s=0.05)
    late = asyncio.get_running_loop().run_in_executor(None, port.ask, lambda _: asked.append("late"))
    time.sleep(0.3)  # the loop is busy
    with pytest.raises(BookKeeperError, match="does not answer"):
        await late
    assert asked == []
    assert not isinstance(late.exception(), OSError), "that would be taken for a disk that failed"


def test_a_loop_that_has_ended_stops_who_asks() -> None:
    loop = asyncio.new_event_loop()
    port = LoopIndexPort(LedgerIndex(), loop)
    threading.Timer(0.1, loop.close).start()
    with pytest.raises(Stopping):
        port.ask(len)  # it never runs
    with pytest.raises(Stopping):
        port.ask(len)


def test_copies_that_were_cancelled_stop_who_waits_for_them() -> None:
    done: Future[list[Place]] = Future()
    done.cancel()
    with pytest.raises(Stopping):
        copier(lambda frames: done)([])


def test_what_was_begun_in_time_is_waited_for() -> None:
    done: Future[int] = Future()
    done.set_running_or_notify_cancel()
    threading.Timer(0.1, done.set_result, [7]).start()
    assert wait_for(done, 0.08, "somebody") == 7


# --- the thread -------------------------------------------------------------------------------------------------------


class Disk(Files):
    """A disk on which small files can fail for good."""

    failing = False

    def write_atomically(self, path: str, data: bytes) -> None:
        if self.failing:
            raise OSError(errno.EIO, "made to fail")
        super().write_atomically(path, data)

    def create(self, path: str) -> int:
        if self.failing:
            raise OSError(errno.EIO, "made to fail")
        return super().create(path)


def thread_of(kept: Kept, failures: list[BookKeeperError], **options: Any) -> MaintenanceThread:
    return MaintenanceThread(kept.maintenance, asyncio.get_running_loop(), failures.append, **options)


async def test_it_stops_at_once_though_nothing_is_due_for_long(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "d", files=Files())
    thread = thread_of(kept, [])
    thread.start()
    await asyncio.sleep(0.2)
    begun = time.monotonic()
    await asyncio.to_thread(thread.stop)
    assert time.monotonic() - begun < 1
    thread.stop()
    kept.close()


async def test_one_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "d", files=Files())
    thread_of(kept, []).stop()
    kept.close()


async def test_a_stop_seals_what_is_full_although_it_was_in_the_middle_of_compaction(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "d", files=Files())
    stopped = threading.Event()

    def work(budget_bytes: int) -> int:
        stopped.set()
        raise Stopping  # the commit thread has ended

    kept.maintenance.tasks.add_paced("compaction", work, 1 << 20)
    failures: list[BookKeeperError] = []
    thread = thread_of(kept, failures)
    thread.start()
    assert await asyncio.to_thread(stopped.wait, SOON_S)
    while not kept.log.seal_jobs:
        kept.log.append_group([entries(3, range(10), size=1700)])
        kept.log.release_full()
    await asyncio.to_thread(thread.stop)
    assert not kept.log.seal_jobs
    assert failures == []
    kept.close()


@pytest.mark.rule("S6")
async def test_a_disk_that_fails_under_the_thread_is_told_once_though_nobody_appends(tmp_path: Path) -> None:
    disk = Disk()
    kept = Kept(tmp_path / "d", files=disk)
    while not kept.log.seal_jobs:
        kept.log.append_group([entries(3, range(10), size=1700)])
        kept.log.release_full()
    disk.failing = True
    failures: list[BookKeeperError] = []
    thread = thread_of(kept, failures)
    thread.start()
    await eventually(lambda: bool(failures))
    await asyncio.to_thread(thread.stop)
    await asyncio.sleep(0)
    (failure,) = failures
    assert isinstance(failure, StorageFailedError)
    assert "index" in str(failure)
    kept.directory.close()


async def test_a_line_of_statistics_is_logged_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bookie_server.engine.maintenance_thread"):
        kept = Kept(tmp_path / "d", files=Files())
        thread = thread_of(kept, [], stats_interval_s=0.05)
        thread.start()
        await eventually(lambda: len(caplog.records) >= 2)
        await asyncio.to_thread(thread.stop)
        kept.close()
    assert "segments_sealed=0 " in caplog.messages[0]
