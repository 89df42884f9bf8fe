# SPDX-License-Identifier: Apache-2.0
"""Real threads that take turns. One thread holds the baton, and at each point an engine decides which thread gets it
next.

Time is virtual and in seconds. This module does not know what the threads do. Locks, queues and the loop are built on
three calls: :meth:`Turns.point`, :meth:`Turns.block` and :meth:`Turns.wake`.
"""

from __future__ import annotations

import _thread
import sys
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, Protocol

REAL_DEADLINE_S = 20.0
TRACE_LINES = 80
POINTS_MAX = 400_000
HORIZON_S = 4 * 3600.0
PATIENCE_S = 1.0


class Abandoned(BaseException):
    """Raised in a thread when the run is over, wherever the thread is. It is not an Exception, because no code under
    test may handle it."""


class Engine(Protocol):
    """Decides which thread runs. ``goes_on`` is called first, at each point of a thread that can go on, and must be
    quick."""

    def goes_on(self, is_line: bool) -> bool: ...
    def choose(self, me: Turn | None, ready: Sequence[Turn]) -> Turn: ...
    def woken(self, thread: Turn) -> None: ...
    def expires(self) -> bool:
        """Return whether time passes now although some thread could run."""
        ...


class Turn:
    """A thread of the run. ``rank`` belongs to the engine, and ``owner`` to the code that made the thread."""

    __slots__ = (
        "baton", "deadline", "done", "ident", "joiners", "name", "owner", "rank", "ready", "timed_out", "waits_for",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ready, self.done, self.timed_out = True, False, False
        self.deadline: float | None = None
        self.waits_for = ""
        self.ident = 0
        self.rank = 0.0
        self.joiners: list[Turn] = []
        self.owner: object = None


class Turns:
    """One run. Every line of the modules ``lines_of`` is a point. Waits of up to ``PATIENCE_S`` may time out although
    some thread could run."""

    def __init__(self, engine: Engine, *, lines_of: Sequence[ModuleType] = ()) -> None:
        self._engine = engine
        self._files = {str(module.__file__) for module in lines_of}
        self.threads: list[Turn] = []
        self.now = 0.0
        self.points = self.digest = 0
        self.ending = False
        self.lines_count = True
        """Whether lines are points now. A world that has to be built first sets this later."""
        self.failures: list[str] = []
        self.at_point: Callable[[int], None] | None = None
        """Called with the number of each point; may call :meth:`end`."""
        self._trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._by_ident: dict[int, Turn] = {}
        self._wanted: dict[CodeType, bool] = {}
        self._finished = threading.Event()

    # --- for whoever starts a run -----------------------------------------------------------------------------------

    def run(self, main: Callable[[], Any]) -> None:
        """Run ``main`` as the first thread, until every thread has ended. :attr:`failures` then has what went wrong."""
        first = self.spawn("loop", main)
        first.baton.release()
        if not self._finished.wait(REAL_DEADLINE_S):
            self.failures.append(f"a thread waits outside the simulation:\n{self.stacks()}")

    def spawn(self, name: str, target: Callable[[], Any]) -> Turn:
        """Make a thread that may run from the next point on."""
        thread = Turn(name)
        self.threads.append(thread)
        self._engine.woken(thread)
        _thread.start_new_thread(self._body, (thread, target))
        return thread

    def _body(self, thread: Turn, target: Callable[[], Any]) -> None:
        thread.baton.acquire()
        thread.ident = _thread.get_ident()
        self._by_ident[thread.ident] = thread
        try:
            if not self.ending:
                if self._files:
                    sys.settrace(self._enter)
                target()
        except BaseException as error:
            if not self.ending:
                self.fail(f"thread {thread.name} died of {error!r}\n{traceback.format_exc(limit=-6)}")
        finally:
            sys.settrace(None)
            self._leave(thread)

    def _leave(self, thread: Turn) -> None:
        thread.done, thread.ready = True, False
        del self._by_ident[thread.ident]
        for joiner in thread.joiners:
            self.wake(joiner)
        if all(each.done for each in self.threads):
            self._finished.set()
        else:
            self._pick(None).baton.release()

    # --- for stand-ins ----------------------------------------------------------------------------------------------

    def me(self) -> Turn | None:
        """Return the calling thread, or None for one that is no part of the run."""
        return self._by_ident.get(_thread.get_ident())

    def point(self, label: str, *, is_line: bool = False) -> None:
        """Let another thread go on here, if the engine chooses one."""
        me = self._by_ident.get(_thread.get_ident())
        if me is None:
            return
        if self.ending:
            raise Abandoned
        self.points += 1
        if self.at_point is not None:
            self.at_point(self.points)
        if self.points > POINTS_MAX:
            self.fail(f"no end after {self.points} points\n{self.stacks()}")
        if self.ending:
            raise Abandoned
        if self._engine.goes_on(is_line):
            return
        self._note(me, label)
        if self._engine.expires():
            self._expire(self.now + PATIENCE_S)
        self._switch(me, self._pick(me))

    def block(self, what: str, timeout_s: float | None = None) -> bool:
        """Wait for :meth:`wake`. Return False if the time ran out before."""
        me = self._by_ident[_thread.get_ident()]
        if self.ending:
            raise Abandoned
        me.ready, me.timed_out, me.waits_for = False, False, what
        me.deadline = None if timeout_s is None else self.now + max(timeout_s, 0.0)
        self._note(me, what)
        self._switch(me, self._pick(None))
        return not me.timed_out

    def wake(self, thread: Turn) -> None:
        """Let a blocked thread go on when its turn comes."""
        if not thread.ready and not thread.done:
            thread.ready, thread.deadline = True, None
            self._engine.woken(thread)

    def join(self, thread: Turn, timeout_s: float | None) -> None:
        me = self.me()
        assert me is not None
        self.point("join")
        if not thread.done:
            thread.joiners.append(me)
            self.block(f"the end of {thread.name}", timeout_s)

    def fail(self, what: str) -> None:
        """End the run with a failure. Later failures of threads that are being ended prove nothing."""
        if not self.ending:
            lines = "\n".join(self._trace)
            self.failures.append(f"{what}\nlast switches:\n{lines}")
            self.ending = True

    def end(self) -> None:
        """End the run without a failure: the machine stops here."""
        self.ending = True

    # --- inside -----------------------------------------------------------------------------------------------------

    def _switch(self, me: Turn, to: Turn) -> None:
        if to is not me:
            self.digest = zlib.crc32(to.name.encode(), self.digest)
            to.baton.release()
            me.baton.acquire()
        if self.ending:
            raise Abandoned

    def _pick(self, me: Turn | None) -> Turn:
        """Return the thread that goes on. If none is ready, let time pass."""
        while not self.ending:
            ready = [each for each in self.threads if each.ready]
            if ready:
                return self._engine.choose(me, ready)
            if not self._expire(None):
                self.fail(f"nobody can go on, and no time-out is left\n{self.stacks()}")
            elif self.now > HORIZON_S:
                self.fail(f"no end after {self.now:.0f} s\n{self.stacks()}")
        return next(each for each in self.threads if not each.done)

    def _expire(self, until: float | None) -> bool:
        """Let the next time-out happen, if there is one at or before ``until``. Return whether there was one."""
        waiting = [each for each in self.threads if each.deadline is not None]
        if not waiting:
            return False
        first = min(waiting, key=lambda each: each.deadline or 0.0)
        assert first.deadline is not None
        if until is not None and first.deadline > until:
            return False
        self.now = max(self.now, first.deadline)
        first.timed_out = True
        self.wake(first)
        return True

    def _note(self, me: Turn, label: str) -> None:
        self.digest = zlib.crc32(label.encode(), self.digest)
        self._trace.append(f"{self.now:10.3f}  {me.name}: {label}")

    def stacks(self) -> str:
        """Return where every thread is."""
        frames, text = sys._current_frames(), []
        for each in self.threads:
            if not each.done:
                state = "can run" if each.ready else f"waits for {each.waits_for}"
                frame = frames.get(each.ident)
                calls = "".join(traceback.format_stack(frame, limit=14)) if frame else "  (not begun)\n"
                text.append(f"{each.name} {state}\n{calls}")
        return "".join(text)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        wanted = self._wanted.get(code)
        if wanted is None:
            wanted = self._wanted[code] = code.co_filename in self._files
        if not wanted:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.lines_count and event == "line":
            self.point(f"{frame.f_code.co_name}:{frame.f_lineno}", is_line=True)
        return self._line
