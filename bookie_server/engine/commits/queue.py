# SPDX-License-Identifier: Apache-2.0
"""The queue of work for the log of one data directory. It decides whether the loop or the commit thread uses the
log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from bk_core.entries.frame import FrameHeader, parse_header
from bookie_server.engine.commits.disk_speed import DiskSpeed
from bookie_server.machine.disk_places import Place

INLINE_BYTES = 64 << 10
INLINE_FRAMES = 8
"""The maximum numbers of bytes (``INLINE_BYTES``) and frames (``INLINE_FRAMES``) in a group that the loop itself
commits, because a commit blocks the loop."""

IDLE_S = 0.05
"""The seconds for which the log must be idle before its position is recorded. RULES S3 allows 100 ms."""


class Group(NamedTuple):
    """The frames of one group commit and their headers. A group without frames only records the log's position."""

    frames: Sequence[bytes | memoryview]
    headers: Sequence[FrameHeader]
    reserve: bool
    """Whether the group may use the last spare segment, because one of its frames may."""
    since: float
    """The clock's time when the first of the frames was queued, or when the group before was taken, if that was
    later."""


_NO_FRAMES = Group((), (), False, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Copies of frames that are in the log already, and the future that gets their new places."""

    frames: Sequence[bytes | bytearray | memoryview]
    done: Future[list[Place]]


class CommitQueue:
    """The frames and copies that wait for the log, and the right to use the log. One thread at a time holds the log:
    the commit thread takes work with :meth:`take`, the loop with :meth:`take_small`, and each lets the log go with
    :meth:`release`. Groups and copies take turns, so that neither starves.

    State, all of it under ``lock``:

    - ``frames``: the queued frames in their order, each with its header and whether it may use the reserve. Other
      objects only read it.
    - ``_bytes``: the size of these frames. ``_since``: when the first of them was queued, or when the last group
      left it behind.
    - ``copies``: the copies that wait. ``_copies_turn``: copies go before frames, because the last work was a group.
    - ``is_held``: the loop or the commit thread uses the log.
    - ``_is_halted``: a group failed. Nothing is taken until :meth:`drop` with ``resume``.
    - ``_is_stopping``: :meth:`stop` was called. No more copies are queued, and :meth:`take` returns None once the queue
      is empty.

    ``_wake`` is the condition on which the commit thread waits. ``_frames_max`` limits the frames of a group.
    ``_speed`` limits its bytes, and says whether the loop may commit.
    """

    def __init__(self, speed: DiskSpeed, clock: Callable[[], float], frames_max: int) -> None:
        self._speed, self._clock, self._frames_max = speed, clock, frames_max
        self.lock = threading.RLock()
        self._wake = threading.Condition(self.lock)
        self.frames: deque[tuple[bytes | memoryview, FrameHeader, bool]] = deque()
        self._bytes, self._since = 0, 0.0
        self.copies: deque[Copies] = deque()
        self._copies_turn = False
        self.is_held = self._is_halted = self._is_stopping = False

    # --- adding -----------------------------------------------------------------------------------------------------

    def put(self, frames: Sequence[bytes | memoryview], headers: Sequence[FrameHeader], reserve: bool) -> bool:
        """Queue frames behind those that wait. Return True if the loop may commit the queue at the end of its turn: the
        disk is fast, the log is free and the queue is small. Otherwise wake the commit thread."""
        queue, speed = self.frames, self._speed
        with self.lock:
            if not queue:
                self._since = self._clock()
            for frame, header in zip(frames, headers or map(parse_header, frames), strict=True):
                queue.append((frame, header, reserve))
                self._bytes += len(frame)
            is_large = self._bytes > INLINE_BYTES or len(queue) > INLINE_FRAMES
            if self.is_held or is_large or speed.took_s >= speed.fast_s:
                self._wake.notify()
                return False
        return True

    def put_copies(self, copies: Copies) -> None:
        """Queue copies. After :meth:`stop`, cancel them instead."""
        with self._wake:
            if self._is_stopping:
                copies.done.cancel()
                return
            self.copies.append(copies)
            self._wake.notify()

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self, may_record: Callable[[], bool]) -> Group | Copies | None:
        """Wait for work, hold the log for it and return it. Return None after :meth:`stop`, once all work is done.

        The work is a group without frames if the log has been free for IDLE_S and ``may_record`` returned True.
        """
        with self._wake:
            while True:
                work = None if self.is_held else self._next()
                if work is not None:
                    self.is_held = True
                    return work
                if self._is_stopping and not self.is_held:
                    return None
                unrecorded = not self.is_held and not self._is_halted and may_record()
                quiet = not self._wake.wait(IDLE_S if unrecorded else None)
                if quiet and not self.is_held:
                    self.is_held = True
                    return _NO_FRAMES

    def take_small(self, has_room: Callable[[int, int], bool]) -> Group | None:
        """Return the queued frames as one group, and hold the log for it. Wake the commit thread and return None if the
        disk is slow, the log is in use, copies wait, the frames are too many, or they do not fit into the open segment
        (``has_room``). Return None if nothing is queued. The caller has the ``lock``."""
        frames = len(self.frames)
        if not frames:
            return None
        busy = self.is_held or self.copies or self._is_halted or self._is_stopping
        is_large = self._bytes > INLINE_BYTES or frames > INLINE_FRAMES
        slow = self._speed.took_s >= self._speed.fast_s
        if busy or is_large or slow or not has_room(self._bytes, frames):
            self._wake.notify()
            return None
        self.is_held = True
        return self._group()

    def release(self, *, halted: bool = False, quietly: bool = False) -> None:
        """Let the log go. ``halted`` says that its group failed. With ``quietly``, wake the commit thread only if there
        is work."""
        with self.lock:
            self.is_held = False
            self._is_halted |= halted
            if not quietly or self.frames or self.copies or self._is_stopping:
                self._wake.notify()

    def wake(self) -> None:
        """Make the commit thread look for work again."""
        with self._wake:
            self._wake.notify()

    # --- ending -----------------------------------------------------------------------------------------------------

    def halt(self) -> None:
        """Give out no work until :meth:`drop` with ``resume``."""
        with self.lock:
            self._is_halted = True

    def drop(self, *, resume: bool) -> None:
        """Forget the queued frames. With ``resume``, frames that are queued later can be taken again. Otherwise nothing
        can be taken from now on, and the copies are cancelled."""
        with self._wake:
            self._bytes = 0
            self.frames.clear()
            self._is_halted = not resume
            if not resume:
                self._cancel_copies()
            self._wake.notify()

    def stop(self) -> None:
        """Make :meth:`take` return None once the queue is empty."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()

    def end(self) -> None:
        """Cancel the copies that wait and those that come later, because the commit thread has ended."""
        with self._wake:
            self._is_stopping = True
            self._cancel_copies()

    def _cancel_copies(self) -> None:
        while self.copies:
            done = self.copies.popleft().done
            done.cancel()
            done.set_running_or_notify_cancel()  # without this call the thread that waits is not woken

    # --- groups -----------------------------------------------------------------------------------------------------

    def _next(self) -> Group | Copies | None:
        if self._is_halted:
            return None
        if self.copies and (self._copies_turn or not self.frames):
            self._copies_turn = False
            return self.copies.popleft()
        if self.frames:
            self._copies_turn = True
            return self._group()
        return None

    def _group(self) -> Group:
        """Take the first frames off the queue as a group: at least one, and at most as many as a group may have."""
        queue, since = self.frames, self._since
        if len(queue) == 1:
            frame, header, reserve = queue.popleft()
            self._bytes = 0
            return Group((frame,), (header,), reserve, since)
        self._since = self._clock()  # for the frames that this group leaves behind
        taken: list[bytes | memoryview] = []
        headers: list[FrameHeader] = []
        size, bytes_max, any_reserve = 0, self._speed.group_bytes, False
        while queue and len(taken) < self._frames_max:
            frame, header, reserve = queue[0]
            size += len(frame)
            if taken and size > bytes_max:
                break
            queue.popleft()
            self._bytes -= len(frame)
            taken.append(frame)
            headers.append(header)
            any_reserve |= reserve
        return Group(taken, headers, any_reserve, since)
