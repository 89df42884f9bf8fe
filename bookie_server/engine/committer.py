# SPDX-License-Identifier: Apache-2.0
"""The commit thread: writes the queued frames to the log, one group commit at a time.

It waits for nothing but the disk's sync of a group. Spare segments, sealing and all other upkeep have a thread of their
own (``maintenance_thread.py``). Copies made by compaction take turns with groups, so that neither starves.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from bk_core.errors import BookKeeperError, DataDirectoryError, StorageFailedError
from bookie_server.engine.index_hop import poster
from bookie_server.machine.places import Place
from bookie_server.storage.log.segment_log import SegmentLog

logger = logging.getLogger(__name__)

IDLE_S = 0.05
"""After so long without a commit the log's position is recorded. RULES S3 allows 100 ms."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The frames of one group commit. ``reserve``: one of them may use the last spare segment. Without frames the
    thread only records the log's position."""

    frames: Sequence[bytes | memoryview]
    reserve: bool = False


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
        committed: Callable[[Sequence[Place]], None],
        failed: Callable[[BookKeeperError], None],
        group_bytes_max: int,
        group_frames_max: int,
        looked_after: Callable[[], None] = lambda: None,
    ) -> None:
        self._log, self._post = log, poster(loop)
        self._committed, self._failed, self._looked_after = committed, failed, looked_after
        self._bytes_max, self._frames_max = group_bytes_max, group_frames_max
        self._frames: deque[tuple[bytes | memoryview, bool]] = deque()
        self._copies: deque[_Copies] = deque()
        self._copies_turn = False
        self._wake = threading.Condition()
        self._halted = False  # after a failure, until the loop has heard of it
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="bookie-commit", daemon=True)
        self._thread.start()

    def put(self, frames: Sequence[bytes | memoryview], *, reserve: bool = False) -> None:
        """Queue frames behind all others; ``reserve`` as in :meth:`SegmentLog.append_group`."""
        with self._wake:
            self._frames.extend((frame, reserve) for frame in frames)
            self._wake.notify()

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

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (work := self._take()) is not None:
                if isinstance(work, _Copies):
                    self._write_copies(work)
                else:
                    self._write(work)
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
                self._post(self._committed, self._append(group))
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
        try:
            return self._log.append_group(group.frames)
        except DataDirectoryError:
            if not group.reserve:
                raise
        return self._log.append_group(group.frames, reserve=True)

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
                if self._copies and not self._halted and (self._copies_turn or not self._frames):
                    self._copies_turn = False
                    return self._copies.popleft()
                if self._frames and not self._halted:
                    self._copies_turn = True
                    return self._group()
                if self._stopping:
                    return None
                unrecorded = self._log.position_unrecorded and not self._halted
                if not self._wake.wait(IDLE_S if unrecorded else None) and unrecorded:
                    return _Group(())

    def _group(self) -> _Group:
        taken: list[bytes | memoryview] = []
        size, any_reserve = 0, False
        while self._frames and len(taken) < self._frames_max:
            frame, reserve = self._frames[0]
            size += len(frame)
            if taken and size > self._bytes_max:
                break
            self._frames.popleft()
            taken.append(frame)
            any_reserve |= reserve
        return _Group(taken, any_reserve)
