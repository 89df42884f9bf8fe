# SPDX-License-Identifier: Apache-2.0
"""The threads of one data directory: commits, reads and maintenance (RULES S10).

The commit thread owns the segment log, the maintenance thread its spares and full segments and all that is done in the
background; the reader thread owns the segment reader. What they have to say comes back to the engine on its loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from bk_core.errors import BookKeeperError, StorageFailedError
from bookie_server.engine.committer import Committer
from bookie_server.engine.holdings import answer_read
from bookie_server.engine.index_hop import DEADLINE_S, copier, wait_for
from bookie_server.engine.maintenance_thread import MaintenanceThread
from bookie_server.machine import events
from bookie_server.machine.places import Place
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.compaction import Copy
from bookie_server.storage.maintenance.directory_maintenance import DirectoryMaintenance
from bookie_server.storage.maintenance.storage_stats import StorageStats

logger = logging.getLogger(__name__)

Maintain = Callable[[Copy, Callable[[int], None], Callable[[int], None]], DirectoryMaintenance]
"""Makes the maintenance of a log, given what writes copies to it, and what has its reader release and give up a segment
and waits for that."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The log of one data directory, its reader, and what makes its maintenance."""

    log: SegmentLog
    reader: SegmentReader
    maintain: Maintain


class Engine(Protocol):
    """Who hears of what becomes of a log, on the loop; ``number`` is the log's."""

    def feed(self, event: events.Event) -> None: ...
    def committed(self, number: int, places: Sequence[Place]) -> None: ...
    def commit_failed(self, number: int, error: BookKeeperError) -> None: ...


class LogDriver:
    """Of one log, which the machine names ``number``. Made and used on the loop, stopped from another thread."""

    def __init__(
        self, number: int, open_log: OpenLog, engine: Engine, *, group_bytes_max: int, group_frames_max: int
    ) -> None:
        self.number = number
        self._log = open_log.log
        loop = asyncio.get_running_loop()
        self._reader = _Reader(open_log.reader, loop, engine.feed, self._failed)
        copy = copier(lambda frames: self._committer.copy(frames))
        self._maintenance = MaintenanceThread(open_log.maintain(copy, self._release, self._give_up), loop, self._failed)
        self._engine = engine
        self._committer = Committer(
            self._log, loop, self._committed, self._failed, group_bytes_max, group_frames_max, self._maintenance.look
        )
        self._maintenance.start()

    def commit(self, effect: events.Commit) -> None:
        """Queue frames behind all others."""
        self._committer.put(effect.frames, reserve=effect.reserve)

    def read(self, effect: events.ReadFrames | events.ReadMemberships) -> None:
        """Queue a read behind all others."""
        self._reader.put(effect)

    def drop(self, *, resume: bool) -> None:
        """Forget the frames that are queued; go on with what comes now, or never."""
        self._committer.drop(resume=resume)

    def hurry(self) -> None:
        """Space is short."""
        self._maintenance.hurry()

    def stats(self) -> StorageStats:
        """The numbers of the data directory."""
        return self._maintenance.stats()

    def stop(self) -> None:
        """Make durable what was taken, record the position, end the threads. From any thread but the loop's."""
        self._committer.stop()
        self._log.release_full()
        self._maintenance.stop()
        try:
            self._log.close()
        except BookKeeperError as error:
            logger.error("the log could not be closed: %s", error)
        self._reader.stop()

    def _committed(self, places: Sequence[Place]) -> None:
        self._engine.committed(self.number, places)

    def _failed(self, error: BookKeeperError) -> None:
        self._engine.commit_failed(self.number, error)

    def _release(self, generation: int) -> None:
        """On the maintenance thread."""
        wait_for(self._reader.release(generation, for_good=False), DEADLINE_S, "the reader thread")

    def _give_up(self, generation: int) -> None:
        """On the maintenance thread, when the index names the segment no more. Reads that were planned before are over,
        or find it given up and are planned again."""
        wait_for(self._reader.release(generation, for_good=True), DEADLINE_S, "the reader thread")


@dataclass(frozen=True, slots=True, eq=False)
class _Release:
    generation: int
    for_good: bool
    done: Future[None]


class _Reader:
    """The reader thread: answers ReadFrames and ReadMemberships in order. ``failed`` hears on the loop of what ends it,
    and so the bookie: else everybody's reads would wait for ever."""

    def __init__(
        self,
        reader: SegmentReader,
        loop: asyncio.AbstractEventLoop,
        feed: Callable[[events.Event], None],
        failed: Callable[[BookKeeperError], None],
    ) -> None:
        self._reader, self._loop, self._feed, self._failed = reader, loop, feed, failed
        self._work: SimpleQueue[events.ReadFrames | events.ReadMemberships | _Release | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bookie-read", daemon=True)
        self._thread.start()

    def put(self, effect: events.ReadFrames | events.ReadMemberships) -> None:
        self._work.put(effect)

    def release(self, generation: int, *, for_good: bool) -> Future[None]:
        """Close what is open of a segment, behind all reads that are queued. Any thread."""
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
            self._post(self._feed, answer_read(self._reader, work))
        elif work.done.set_running_or_notify_cancel():
            try:
                (self._reader.give_up if work.for_good else self._reader.release)(work.generation)
            except BaseException as error:
                work.done.set_exception(error)
                raise
            work.done.set_result(None)

    def _post(self, call: Callable[[Any], None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:  # the loop is closed: nobody waits any more
            logger.debug("an answer came after the loop closed")
