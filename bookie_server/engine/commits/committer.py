# SPDX-License-Identifier: Apache-2.0
"""Commits: writes the queued frames to the log, one group commit at a time.

The commit thread waits only for work and for the disk. Another thread makes spare segments, seals full ones and does
all other upkeep (``maintenance_thread.py``). Copies made by compaction take turns with groups.

A hop to the thread and back costs more than the sync of a fast disk. So the loop itself commits a small group if the
log is idle at the end of the turn that queued the frames, and answers at once. This blocks the loop, so the loop
commits only while all recent commits were fast, and never a group that begins a new segment. The loop must get the
results of groups in the order of the log. Therefore it commits a group only after it has the result of every group that
the thread committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from bk_core.entries.frame import FrameHeader
from bk_core.errors import BookKeeperError, StorageFailedError
from bk_core.observe.metrics import Histogram
from bookie_server.engine.commits.disk_speed import FAST_S, DiskSpeed
from bookie_server.engine.commits.group_writer import GroupWriter
from bookie_server.engine.commits.observer import CommitObserver
from bookie_server.engine.commits.queue import CommitQueue, Copies, Group
from bookie_server.engine.index_hop import poster
from bookie_server.machine.disk_places import Place
from bookie_server.storage.log.segment_log import SegmentLog

logger = logging.getLogger(__name__)

_LOOK_S = 0.02
"""The period, in seconds, in which ``looked_after`` is called while the loop commits groups itself."""


class Committer:
    """The owner of one directory's log until :meth:`stop`. After each group it calls ``committed`` or ``failed`` on the
    loop. It calls ``looked_after``, which wakes the log's maintenance if that is needed, on the commit thread after
    each group of the thread, and on the loop every ``_LOOK_S`` while the loop commits. The ``queue`` has all work that
    waits for the log.

    State beside the queue:

    - ``_writer``: writes and measures groups, on the thread that holds the log. ``speed`` has what it measured.
    - ``_is_scheduled`` (the loop's): :meth:`_commit_on_loop` is called at the end of this turn.
    - ``_is_watched`` (set by the loop): the loop calls ``_look_idle`` soon, and wakes the thread when it has committed
      nothing for a while. The thread does not record the log's position meanwhile.
    - ``_posted`` (the thread's) and ``_told`` (the loop's): the number of groups of the thread that were posted to the
      loop, and the number of groups whose result the loop has. The thread counts a group while it holds the log.
    """

    def __init__(
        self,
        log: SegmentLog,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[Sequence[Place], int], None],
        failed: Callable[[BookKeeperError], None],
        group_bytes_max: int,
        group_frames_max: int,
        looked_after: Callable[[], None] = lambda: None,
        fast_s: float = FAST_S,
        at_turn_end: Callable[[Callable[[], None]], object] | None = None,
        observer: CommitObserver | None = None,
    ) -> None:
        """``at_turn_end(call)`` makes the call at the end of the loop's turn. Without it the call is made in the next
        turn."""
        self._log, self._loop, self._post = log, loop, poster(loop)
        self._at_turn_end = at_turn_end or loop.call_soon
        self._committed, self._failed, self._looked_after = committed, failed, looked_after
        self.speed = DiskSpeed(group_bytes_max, fast_s)
        self.queue = CommitQueue(self.speed, loop.time, group_frames_max)
        self._writer = GroupWriter(log, self.speed, observer or CommitObserver(), loop.time)
        self._is_scheduled = self._is_watched = False
        self._posted = self._told = 0
        self._thread = threading.Thread(target=self._run, name="bookie-commit", daemon=True)
        self._thread.start()

    @property
    def times(self) -> Histogram:
        """The histogram of the times that commits took, in seconds."""
        return self._writer.observer.times

    def put(
        self, frames: Sequence[bytes | memoryview], headers: Sequence[FrameHeader] = (), *, reserve: bool = False
    ) -> None:
        """Queue frames behind those that wait. ``headers`` and ``reserve`` are as in :meth:`SegmentLog.append_group`.
        Call it on the loop."""
        spans = self._writer.observer.spans
        if spans is not None and spans.arriving is not None:
            self._writer.observer.trace(frames, headers, spans.arriving)
        if self.queue.put(frames, headers, reserve) and not self._is_scheduled:
            self._is_scheduled = True
            self._at_turn_end(self._commit_on_loop)

    def copy(self, frames: Sequence[bytes | bytearray | memoryview]) -> Future[list[Place]]:
        """Write copies of frames that are in the log already. The future gets their new places once they are durable.
        It raises as :meth:`SegmentLog.append_group`, or is cancelled by :meth:`stop`. Call it on any thread but the
        commit thread."""
        copies = Copies(frames, Future())
        self.queue.put_copies(copies)
        return copies.done

    def drop(self, *, resume: bool) -> None:
        """Forget the queued frames, which the machine has forgotten too. With ``resume``, frames that are queued from
        now on are written. Otherwise nothing is ever written again."""
        self._writer.observer.traced.clear()
        self.queue.drop(resume=resume)

    def stop(self) -> None:
        """Commit what is queued, record the position and end the thread. Do not call this on the loop's thread."""
        self.queue.stop()
        self._thread.join()

    # --- on the loop ------------------------------------------------------------------------------------------------

    def _commit_on_loop(self) -> None:
        self._is_scheduled = False
        with self.queue.lock:  # the counters must not change before the log is held
            if self._posted != self._told:
                self.queue.wake()
                return
            group = self.queue.take_small(self._log.has_room)
        if group is None:  # there are no frames, or the thread commits them
            return
        try:
            places = self._writer.write(group)
        except BookKeeperError as error:
            self.queue.release(halted=True)
            self._failed(error)
            return
        except BaseException as error:
            self.queue.release(halted=True)
            logger.exception("a commit on the loop failed", exc_info=error)
            self._failed(StorageFailedError("a commit on the loop failed", value=repr(error)))
            return
        try:
            self._committed(places, self.speed.group_bytes)  # it began no segment, so no full one has to be released
        finally:
            if not self._is_watched:
                self._is_watched = True
                self._loop.call_later(_LOOK_S, self._look_idle)
            self.queue.release(quietly=True)

    def _look_idle(self) -> None:
        """Call ``looked_after``. Once the loop has committed nothing for ``_LOOK_S``, wake the thread, which records
        the position if the log stays idle. Both are too slow to be done for each group."""
        self._looked_after()
        left_s = self._writer.ended_s + _LOOK_S - self._loop.time()
        if left_s > 0:
            self._loop.call_later(left_s, self._look_idle)
            return
        self._is_watched = False
        self.queue.wake()

    def _tell(self, places: Sequence[Place]) -> None:
        """Give the engine the places of a group that the thread committed."""
        self._told += 1
        self._committed(places, max(self.speed.group_bytes, sum([place.size for place in places])))

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (work := self.queue.take(self._may_record)) is not None:
                if isinstance(work, Copies):
                    self._writer.write_copies(work)
                else:
                    self._commit(work)
                self.queue.release()
            self._writer.record_last_position()
        except BaseException as error:
            self._end(error)
        self.queue.end()

    def _may_record(self) -> bool:
        """Return whether to record the position if the log stays idle. Called only while no thread holds the log."""
        return self._log.position_unrecorded and not self._is_watched

    def _commit(self, group: Group) -> None:
        try:
            if group.frames:
                places = self._writer.write(group)
                self._posted += 1
                self._post(self._tell, places)
            else:
                self._log.record_position()
            self._log.release_full()  # only after the places were posted
            self._looked_after()
        except BookKeeperError as error:
            self.queue.halt()
            self._post(self._failed, error)
        except BaseException as error:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """Acknowledge nothing from here on: this is a bug, or a disk error that storage does not foresee."""
        logger.exception("the commit thread failed", exc_info=error)
        self.queue.halt()
        self._post(self._failed, StorageFailedError("the commit thread failed", value=repr(error)))
