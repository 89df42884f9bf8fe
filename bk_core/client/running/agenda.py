# SPDX-License-Identifier: Apache-2.0
"""Runs the callbacks and timers of all drivers of one loop.

asyncio makes several objects for each callback and timer, and compares timers in Python. With ten thousand writers that
each had an entry in flight, this took more time than their protocol. Here one callback of the loop makes all calls that
are due in the loop's next turn, and one timer of the loop fires all timers that are due.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary, ref


class Timer:
    """A timer that can be set again and again. To set it to a later time costs the loop nothing: its place on the
    agenda remains at the earlier time, and when that time comes, the timer takes a new place for the rest of the
    delay."""

    __slots__ = ("_agenda", "_due", "_fire", "_place")

    def __init__(self, agenda: Agenda, fire: Callable[[], None]) -> None:
        self._agenda = agenda
        self._fire: Callable[[], None] | None = fire
        self._due: float | None = None  # the time at which it shall fire; None if it is not set
        self._place: float | None = None  # the time at which the agenda checks it

    def set(self, delay_s: float) -> None:
        """Set the timer to fire once after ``delay_s``. This replaces an earlier setting."""
        due = self._due = self._agenda.time() + delay_s
        if self._place is None or self._place > due:
            self._place = due
            self._agenda.add(due, self)

    def cancel(self) -> None:
        self._due = None

    def drop(self) -> None:
        """Cancel the timer for good, and release its callback."""
        self._due = self._fire = None

    def look(self, place: float) -> None:
        """Act when the time of one of the timer's places has come. Fire, or take a new place if the timer was set to a
        later time."""
        if place != self._place:
            return  # the timer was set to an earlier time, and this is its old place
        self._place = None
        due = self._due
        if due is None or self._fire is None:
            return
        if due > place:
            self._place = due
            self._agenda.add(due, self)
        else:
            self._due = None
            self._fire()


class Agenda:
    """The callbacks and timers of ``loop``. An exception of one callback goes to the loop's exception handler, and the
    next callbacks still run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.time = loop, loop.time
        self._acts: deque[Callable[[], None]] = deque()
        self._places: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._handle: asyncio.TimerHandle | None = None  # the loop's timer for the first place

    def soon(self, act: Callable[[], None]) -> None:
        """Call ``act`` in the loop's next turn."""
        if not self._acts:
            self._loop.call_soon(self._run, self._acts)
        self._acts.append(act)

    def _run(self, acts: deque[Callable[[], None]]) -> None:
        self._acts = deque()  # callbacks that are added from here on run in the turn after this one
        try:
            while acts:
                try:
                    acts.popleft()()
                except Exception as error:
                    self._report(error)
        finally:
            if acts:  # after an interrupt
                self._loop.call_soon(self._run, acts)

    def add(self, due: float, timer: Timer) -> None:
        """Add a place for ``timer`` at the time ``due``."""
        heapq.heappush(self._places, (due, next(self._numbers), timer))
        if self._handle is None or due < self._handle.when():
            self._arm(due)

    def _arm(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        """Let due timers fire at the end of the turn, after the tasks that this turn has woken. So a writer whose entry
        was confirmed in this turn is not idle if its caller immediately appends the next entry."""
        self._handle = None
        self._loop.call_soon(self._fire, max(due, self.time()))

    def _fire(self, now: float) -> None:
        places, come = self._places, deque[tuple[float, int, Timer]]()
        while places and places[0][0] <= now:
            come.append(heapq.heappop(places))
        try:
            while come:
                place, _, timer = come.popleft()
                try:
                    timer.look(place)
                except Exception as error:
                    self._report(error)
        finally:
            for left in come:  # after an interrupt
                heapq.heappush(places, left)
            if places and (self._handle is None or places[0][0] < self._handle.when()):
                self._arm(places[0][0])

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a callback of a ledger failed", "exception": error})


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Agenda]] = WeakKeyDictionary()


def agenda_of(loop: asyncio.AbstractEventLoop) -> Agenda:
    """Return the agenda of the loop. Each loop has one, which exists while an object refers to it. The caller must be
    on the loop's thread."""
    known = _of_loops.get(loop)
    agenda = None if known is None else known()
    if agenda is None:
        agenda = Agenda(loop)
        _of_loops[loop] = ref(agenda)
    return agenda
