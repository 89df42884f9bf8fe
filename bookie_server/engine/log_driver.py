# SPDX-License-Identifier: Apache-2.0
"""The threads of one data directory: commits, reads and maintenance. Storage itself starts no threads (RULES S10).

The committer owns the segment log. The maintenance thread owns the log's spares and full segments and does all
background work. The reader thread owns the segment reader. Their results are events for the engine, on its loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from bk_core.errors import BookKeeperError, StorageFailedError
from bk_core.observe.slow_log import SlowLog
from bookie_server.engine.commits.committer import Committer
from bookie_server.engine.commits.observer import CommitObserver
from bookie_server.engine.holdings import answer_read, read_at_once
from bookie_server.engine.index_hop import DEADLINE_S, copier, poster, wait_for
from bookie_server.engine.maintenance_thread import MaintenanceThread
from bookie_server.engine.slow import slow_read
from bookie_server.machine import events
from bookie_server.machine.disk_places import Place
from bookie_server.storage.log.segment_log import CommitStats, SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.compaction import Copy
from bookie_server.storage.maintenance.maintenance import Maintenance
from bookie_server.storage.maintenance.storage_stats import StorageStats

logger = logging.getLogger(__name__)

MEMORY_AGE_S = 60.0
"""The maximum age, in seconds, of the figure for the index's memory in metrics. Measuring takes the loop 12 ms at
100,000 ledgers."""

Maintain = Callable[[Copy, Callable[[int], None], Callable[[int], None]], Maintenance]
"""A function that makes the maintenance of a log. Its arguments are a function that writes copies to the log, and two
that make the log's reader release or give up a segment and wait for that."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The log of one data directory, its reader, and the function that makes its maintenance. ``path`` names the
    directory in log lines."""

    log: SegmentLog
    reader: SegmentReader
    maintain: Maintain
    path: str = ""


class Engine(Protocol):
    """The part of the engine that a log driver calls, on the loop. ``number`` is the log's number."""

    def feed(self, event: events.Event) -> None: ...
    def committed(self, number: int, places: Sequence[Place], group_bytes: int) -> None: ...
    def commit_failed(self, number: int, error: BookKeeperError) -> None: ...
    def at_turn_end(self, call: Callable[[], None]) -> None: ...


class LogDriver:
    """Runs the threads of one log; ``number`` is its number in the machine. It is made and used on the loop, and
    stopped on another thread."""

    def __init__(
        self,
        number: int,
        open_log: OpenLog,
        engine: Engine,
        *,
        group_bytes_max: int,
        group_frames_max: int,
        slow: SlowLog | None = None,
    ) -> None:
        slow = slow or SlowLog(logger, 0)
        self.number = number
        self._log = open_log.log
        loop = asyncio.get_running_loop()
        self._reader = _Reader(open_log, loop, engine.feed, self._failed, slow)
        copy = copier(lambda frames: self.committer.copy(frames))
        self._maintenance = MaintenanceThread(open_log.maintain(copy, self._release, self._give_up), loop, self._failed)
        self._engine = engine
        self.committer = Committer(
            self._log, loop, partial(engine.committed, number), self._failed, group_bytes_max, group_frames_max,
            self._maintenance.look, at_turn_end=engine.at_turn_end, observer=CommitObserver(slow, open_log.path),
        )  # fmt: skip
        self._maintenance.maintenance.scrub.busy_s = lambda: self.committer.times.total
        self._maintenance.start()

    def read(self, effect: events.ReadFrames | events.ReadMemberships) -> None:
        self._reader.put(effect)

    @property
    def commit_stats(self) -> CommitStats:
        return self._log.stats

    def storage(self) -> StorageStats:
        """Return the statistics of the storage. Do not call this on the loop's thread. Raises as
        :meth:`StatsReader.read`."""
        return self._maintenance.maintenance.stats.read(memory_age_s=MEMORY_AGE_S)

    def hurry(self) -> None:
        """Make maintenance free what space it can now, because space is short."""
        self._maintenance.hurry()

    def stop(self) -> None:
        """Make accepted frames durable, record the position and end the threads. Do not call this on the loop's
        thread."""
        self.committer.stop()
        self._log.release_full()
        self._maintenance.stop()
        try:
            self._log.close()
        except BookKeeperError as error:
            logger.error("the log could not be closed: %s", error)
        self._reader.stop()

    def _failed(self, error: BookKeeperError) -> None:
        self._engine.commit_failed(self.number, error)

    def _release(self, generation: int) -> None:
        """Close the reader's files of a segment. Called on the maintenance thread."""
        wait_for(self._reader.release(generation, for_good=False), DEADLINE_S, "the reader thread")

    def _give_up(self, generation: int) -> None:
        """Make the reader give up a segment. Called on the maintenance thread once the index no longer names the
        segment. Earlier reads are over, or they find the segment given up and are planned again."""
        wait_for(self._reader.release(generation, for_good=True), DEADLINE_S, "the reader thread")


@dataclass(frozen=True, slots=True, eq=False)
class _Release:
    generation: int
    for_good: bool
    done: Future[None]


class _Reader:
    """The reader thread, which answers ReadFrames and ReadMemberships in order. An error that ends the thread is passed
    to ``failed`` on the loop. It ends the bookie, too, because otherwise every read would wait for ever."""

    def __init__(
        self,
        open_log: OpenLog,
        loop: asyncio.AbstractEventLoop,
        feed: Callable[[events.Event], None],
        failed: Callable[[BookKeeperError], None],
        slow: SlowLog,
    ) -> None:
        self._reader, self._post, self._feed, self._failed = open_log.reader, poster(loop), feed, failed
        self._slow, self._path = slow, open_log.path
        self._work: SimpleQueue[events.ReadFrames | events.ReadMemberships | _Release | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bookie-read", daemon=True)
        self._thread.start()

    def put(self, effect: events.ReadFrames | events.ReadMemberships) -> None:
        """Carry out a read. Called on the loop. A read of entries that are in memory is done here, because handing it
        to the thread would cost more than the read."""
        if isinstance(effect, events.ReadFrames) and (answer := read_at_once(self._reader, effect)):
            self._feed(answer)
        else:
            self._work.put(effect)

    def release(self, generation: int, *, for_good: bool) -> Future[None]:
        """Close the open files of a segment after all queued reads. Any thread may call."""
        release = _Release(generation, for_good, Future())
        self._work.put(release)
        return release.done

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while work := self._work.get():
                self._do(work)
            self._reader.close()
        except BaseException as error:
            logger.exception("the reader thread failed")
            self._post(self._failed, StorageFailedError("the reader thread failed", value=repr(error)))
            while work := self._work.get():  # until the stop
                if isinstance(work, _Release):
                    work.done.cancel()

    def _do(self, work: events.ReadFrames | events.ReadMemberships | _Release) -> None:
        if not isinstance(work, _Release):
            began = time.monotonic()
            self._post(self._feed, answer_read(self._reader, work))
            if (took_s := time.monotonic() - began) >= self._slow.threshold_s:
                self._slow.say(lambda: slow_read(self._path, work, took_s))
        elif work.done.set_running_or_notify_cancel():
            try:
                (self._reader.give_up if work.for_good else self._reader.release)(work.generation)
            except BaseException as error:
                work.done.set_exception(error)
                raise
            work.done.set_result(None)
