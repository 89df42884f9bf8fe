# SPDX-License-Identifier: Apache-2.0
"""Commits: writes the queued frames to the log, one group commit at a time.

The commit thread waits for nothing but the disk's sync of a group. Spare segments, sealing and all other upkeep have a
thread of their own (``maintenance_thread.py``). Copies made by compaction take turns with groups, so that neither
starves.

Going to the thread and back costs more than the sync of a fast disk. So a small group that finds the log idle is
committed on the loop, at the end of the turn that gave its frames, and answered at once. The loop stands still
meanwhile: that is done only while all recent syncs were fast, and never where a segment must be begun. The thread that
uses the log holds it (``_held``); a group is committed on the loop only when the loop has heard of all groups before
it, so that they are told in their order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from bk_core.entries.frame import FrameHeader, parse_header
from bk_core.errors import BookKeeperError, DataDirectoryError, StorageFailedError
from bk_core.observe.metrics import Histogram
from bk_core.observe.slow_log import SlowLog
from bk_core.observe.traces import spans
from bookie_server.engine.group_size import GroupSize
from bookie_server.engine.index_hop import poster
from bookie_server.engine.slow import slow_commit
from bookie_server.machine.disk_places import Place
from bookie_server.storage.log.segment_log import SegmentLog

logger = logging.getLogger(__name__)

INLINE_S = 0.002
"""Groups are committed on the loop while each recent one took less than this."""

INLINE_BYTES = 64 << 10
INLINE_FRAMES = 8
_FORGET = 0.8  # of the time of a slow group, what each one behind it leaves
_UNTRIED_S = 0.1  # how slow the disk is taken to be at first

TIMES_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds of the histogram of commits."""

_LOOK_S = 0.02

IDLE_S = 0.05
"""After so long without a commit the log's position is recorded. RULES S3 allows 100 ms."""


class _Group(NamedTuple):
    """The frames of one group commit and their headers. ``reserve``: one of them may use the last spare segment.
    Without frames the thread only records the log's position."""

    frames: Sequence[bytes | memoryview]
    headers: Sequence[FrameHeader]
    reserve: bool
    since: float  # when the first of them came, or a little earlier


_NO_FRAMES = _Group((), (), False, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """Copies of frames that are in the log already, and the future that gets their new places."""

    frames: Sequence[bytes | bytearray | memoryview]
    done: Future[list[Place]]


class Committer:
    """Owns the log until :meth:`stop`. After each group it calls ``committed`` or ``failed`` on the loop, and
    ``looked_after`` on the commit thread."""

    def __init__(
        self,
        log: SegmentLog,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[Sequence[Place], int], None],
        failed: Callable[[BookKeeperError], None],
        group_bytes_max: int,
        group_frames_max: int,
        looked_after: Callable[[], None] = lambda: None,
        inline_s: float = INLINE_S,
        at_turn_end: Callable[[Callable[[], None]], object] | None = None,
        slow: SlowLog | None = None,
        path: str = "",
    ) -> None:
        """``at_turn_end`` has a call made at the end of the loop's turn; without it that is the next turn."""
        self._log, self._loop, self._post, self._clock = log, loop, poster(loop), loop.time
        self._at_turn_end = at_turn_end or loop.call_soon
        self._inline_s, self._took_s = inline_s, _UNTRIED_S
        self._slow, self._path = slow or SlowLog(logger, 0), path
        self._slow_s, self._since = self._slow.threshold_s, 0.0
        self.times = Histogram(TIMES_S)  # the holder of the log observes
        self._spans = spans()
        self._traced: dict[FrameHeader, Any] = {}  # the first frame of each message that is traced → its context
        self._held = False  # somebody uses the log
        self._scheduled = False  # the loop will look at the end of this turn
        self._untold = 0  # groups of the thread of which the loop has not heard
        self._ended = 0.0  # when the last group did
        self._watched = False  # the loop will wake the thread when it has committed nothing for a while
        self._committed, self._failed, self._looked_after = committed, failed, looked_after
        self._size, self._frames_max = GroupSize(group_bytes_max), group_frames_max
        self._frames: deque[tuple[bytes | memoryview, FrameHeader, bool]] = deque()
        self._queued = 0  # bytes of these
        self._copies: deque[_Copies] = deque()
        self._copies_turn = False
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._halted = False  # after a failure, until the loop has heard of it
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="bookie-commit", daemon=True)
        self._thread.start()

    def put(
        self, frames: Sequence[bytes | memoryview], headers: Sequence[FrameHeader] = (), *, reserve: bool = False
    ) -> None:
        """Queue frames behind all others; ``headers`` and ``reserve`` as in :meth:`SegmentLog.append_group`."""
        with self._lock:
            if not self._frames:
                self._since = self._clock()
            for frame, header in zip(frames, headers or map(parse_header, frames), strict=True):
                self._frames.append((frame, header, reserve))
                self._queued += len(frame)
            if self._spans is not None and self._spans.arriving is not None:
                self._traced[self._frames[-1][1]] = self._spans.arriving
            is_large = self._queued > INLINE_BYTES or len(self._frames) > INLINE_FRAMES
            if self._held or is_large or self._took_s >= self._inline_s:
                self._wake.notify()
            elif not self._scheduled:
                self._scheduled = True
                self._at_turn_end(self._commit_inline)

    def copy(self, frames: Sequence[bytes | bytearray | memoryview]) -> Future[list[Place]]:
        """Write copies of frames that are in the log already. The future gets their new places once they are durable.
        It raises as :meth:`SegmentLog.append_group`, or is cancelled by :meth:`stop`. Call it on any thread but the
        commit thread."""
        copies = _Copies(frames, Future())
        with self._wake:
            if self._stopping:
                copies.done.cancel()
                return copies.done
            self._copies.append(copies)
            self._wake.notify()
        return copies.done

    def drop(self, *, resume: bool) -> None:
        """Forget the queued frames, as the machine has done. If ``resume``, frames that come from now on are written;
        otherwise nothing is ever written again."""
        with self._wake:
            self._queued = 0
            self._traced.clear()
            self._frames.clear()
            self._halted = not resume
            if not resume:
                self._cancel_copies()
            self._wake.notify()

    def stop(self) -> None:
        """Commit what is queued, record the position and end the thread. Not on the loop's thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    # --- on the loop ------------------------------------------------------------------------------------------------

    def _may_be_inline(self) -> bool:
        """Whether what is queued may be committed on the loop."""
        if self._held or self._untold or self._copies or self._halted or self._stopping:
            return False
        frames = len(self._frames)
        if self._took_s >= self._inline_s or self._queued > INLINE_BYTES or frames > INLINE_FRAMES:
            return False
        return self._log.has_room(self._queued, frames)

    def _commit_inline(self) -> None:
        with self._lock:
            self._scheduled = False
            if not self._frames:
                return
            if not self._may_be_inline():
                self._wake.notify()
                return
            group = self._group()
            self._held = True
        try:
            places = self._append(group)
        except BookKeeperError as error:
            self._let_go(halted=True)
            self._failed(error)
            return
        except BaseException as error:
            self._let_go(halted=True)
            logger.exception("a commit on the loop failed", exc_info=error)
            self._failed(StorageFailedError("a commit on the loop failed", value=repr(error)))
            return
        try:
            self._committed(places, self._size.bytes)  # no segment was begun: there is no full one to be released
        finally:
            if not self._watched:
                self._watched = True
                self._loop.call_later(_LOOK_S, self._look_idle)
            self._let_go(quietly=True)

    def _look_idle(self) -> None:
        """Have the log looked after. Wake the thread once the loop has committed nothing for a while: it records the
        position if that stays so. Neither is done for each group."""
        self._looked_after()
        left_s = self._ended + _LOOK_S - self._loop.time()
        if left_s > 0:
            self._loop.call_later(left_s, self._look_idle)
            return
        with self._wake:
            self._watched = False
            self._wake.notify()

    def _let_go(self, *, halted: bool = False, quietly: bool = False) -> None:
        """The log is free. ``quietly``: the thread is woken only if there is work."""
        with self._lock:
            self._held = False
            self._halted |= halted
            if not quietly or self._frames or self._copies or self._stopping:
                self._wake.notify()

    def _told(self, places: Sequence[Place]) -> None:
        """The loop hears of a group of the thread."""
        with self._wake:
            self._untold -= 1
        self._committed(places, max(self._size.bytes, sum([place.size for place in places])))

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (work := self._take()) is not None:
                if isinstance(work, _Copies):
                    self._write_copies(work)
                else:
                    self._write(work)
                self._let_go()
            self._record_position()
        except BaseException as error:
            self._end(error)
        with self._wake:
            self._stopping = True
            self._cancel_copies()

    def _cancel_copies(self) -> None:
        while self._copies:
            done = self._copies.popleft().done
            done.cancel()
            done.set_running_or_notify_cancel()  # without it the waiting thread is not woken

    def _record_position(self) -> None:
        try:
            if not self._log.failed:
                self._log.record_position()
        except BookKeeperError as error:
            logger.error("the log's last position could not be recorded: %s", error)

    def _write(self, group: _Group) -> None:
        try:
            if group.frames:
                places = self._append(group)
                with self._wake:
                    self._untold += 1
                self._post(self._told, places)
            else:
                self._log.record_position()
            self._log.release_full()  # only after the places were posted
            self._looked_after()
        except BookKeeperError as error:
            self._halted = True
            self._post(self._failed, error)
        except BaseException as error:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """A bug, or a disk error that storage does not know: ack nothing from here on."""
        logger.exception("the commit thread failed", exc_info=error)
        self._halted = True
        self._post(self._failed, StorageFailedError("the commit thread failed", value=repr(error)))

    def _append(self, group: _Group) -> list[Place]:
        """Commit a group; the caller holds the log."""
        began, stats = self._clock(), self._log.stats
        before = stats.written_bytes, stats.write_s, stats.sync_s
        try:
            return self._log.append_group(group.frames, headers=group.headers)
        except DataDirectoryError:
            if not group.reserve:
                raise
            return self._log.append_group(group.frames, headers=group.headers, reserve=True)
        finally:
            self._ended = self._clock()
            took_s = self._ended - began
            self.times.observe(took_s)
            less_s = self._took_s * _FORGET
            self._took_s = took_s if took_s > less_s else less_s
            self._size.heard(stats.written_bytes - before[0], stats.write_s - before[1], stats.sync_s - before[2])
            if self._traced:
                self._tell_spans(group, began - group.since, took_s)
            if self._ended - group.since >= self._slow_s:
                self._slow.say(lambda: slow_commit(self._path, group.frames, began - group.since, took_s))

    def _tell_spans(self, group: _Group, waited_s: float, took_s: float) -> None:
        """The commit, as a span of each message in the group that is traced. Sessions are those that clients name."""
        for header in group.headers:
            parent = self._traced.pop(header, None)
            if parent is not None and self._spans is not None:
                about = {
                    "ledger": header.ledger_id,
                    "session": header.tag,
                    "first_entry": header.first_entry_id,
                    "entries": header.count,
                }
                group_of = {"frames": len(group.frames), "bytes": sum(map(len, group.frames)), "waited_s": waited_s}
                self._spans.begin("bookie.commit", parent, since_s=took_s, **about, **group_of).end()

    def _write_copies(self, copies: _Copies) -> None:
        if not copies.done.set_running_or_notify_cancel():
            return
        try:
            places = self._log.append_group(copies.frames, reserve=True)
        except BaseException as error:  # the caller of ``copy`` gets it; after a failed sync the next group fails too
            copies.done.set_exception(error)
            return
        copies.done.set_result(places)

    def _take(self) -> _Group | _Copies | None:
        """The next work; None at the end."""
        with self._wake:
            while True:
                work = None if self._held else self._next()
                if work is not None:
                    self._held = True
                    return work
                if self._stopping and not self._held:
                    return None
                unrecorded = not self._held and self._log.position_unrecorded and not self._halted
                quiet = not self._wake.wait(IDLE_S if unrecorded and not self._watched else None)
                if quiet and not self._held:
                    self._held = True
                    return _NO_FRAMES

    def _next(self) -> _Group | _Copies | None:
        if self._halted:
            return None
        if self._copies and (self._copies_turn or not self._frames):
            self._copies_turn = False
            return self._copies.popleft()
        if self._frames:
            self._copies_turn = True
            return self._group()
        return None

    def _group(self) -> _Group:
        queue, since = self._frames, self._since
        if len(queue) == 1:
            frame, header, reserve = queue.popleft()
            self._queued = 0
            return _Group((frame,), (header,), reserve, since)
        self._since = self._clock()  # of those that this group leaves behind
        taken: list[bytes | memoryview] = []
        headers: list[FrameHeader] = []
        size, bytes_max, any_reserve = 0, self._size.bytes, False
        while queue and len(taken) < self._frames_max:
            frame, header, reserve = queue[0]
            size += len(frame)
            if taken and size > bytes_max:
                break
            queue.popleft()
            self._queued -= len(frame)
            taken.append(frame)
            headers.append(header)
            any_reserve |= reserve
        return _Group(taken, headers, any_reserve, since)
