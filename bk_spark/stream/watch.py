# SPDX-License-Identifier: Apache-2.0
"""Keeps the state of all sources of a stream fresh, on the client's own loop (RULES K1).

Spark calls ``latestOffset`` up to 26 times a second, and the JVM waits in a blocking read meanwhile. So the answer
comes from memory, and only the first call waits for I/O. The followers (:mod:`bk_spark.stream.follow`) write what they
find on a :class:`Board`. They end a minute after the last call, or with the process. If a source cannot be reached, its
last state stays valid for a minute; then the error is raised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    EntryUnreadableError,
    MetadataUnavailableError,
    QuorumError,
    TransportError,
)
from bk_spark.options.selection import Source
from bk_spark.stream.positions import Seen, SourceSeen

TRANSIENT = (MetadataUnavailableError, TransportError, QuorumError, EntryUnreadableError, ClientClosedError)
"""Errors after which the watch tries again, because their cause may go away by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """The times of a watch, in seconds. Tests shorten them."""

    first_look_s: float = 10.0
    idle_s: float = 60.0
    retry_s: float = 0.5
    give_up_s: float = 60.0
    list_s: float = 2.0  # how often new sources are looked for
    head_age_s: float = 5.0  # bounds the delay if a watch was lost with its session


class Board:
    """The state of all sources, as the followers of one run have found it. Any thread may call it."""

    def __init__(self, cluster: str, times: WatchTimes) -> None:
        self._times = times
        self._news = threading.Condition()
        self._cluster = cluster
        self._sources: dict[Source, SourceSeen] = {}
        self._gone: dict[Source, BookKeeperError] = {}
        self._version = 0
        self._snapshot: Seen | None = None
        self._expected: set[Source] | None = None  # callers wait for the first answer of these
        self._troubles: dict[Source | None, tuple[float, BookKeeperError]] = {}
        self._failure: BaseException | None = None
        self._called = time.monotonic()
        self._waiting = 0  # callers in the first look: the followers must answer them before they end
        self._over = False

    # --- by the followers --------------------------------------------------------------------------------------------

    def expect(self, sources: Iterable[Source]) -> None:
        """Set the sources of the first look, and clear the trouble with their list. Callers wait until each of these
        sources has answered. A later call does not change them: a new source appears when it answers."""
        with self._news:
            self._troubles.pop(None, None)
            if self._expected is None:
                self._expected = set(sources)
                self._news.notify_all()

    def note(self, source: Source, found: SourceSeen) -> None:
        """Record ``found`` as the state of ``source``."""
        with self._news:
            self._troubles.pop(source, None)
            if self._sources.get(source) == found:
                return
            if source not in self._sources:
                self._gone.pop(source, None)
                self._sources = dict(sorted([*self._sources.items(), (source, found)]))
            self._sources[source] = found
            self._changed()

    def gone(self, source: Source, error: BookKeeperError) -> None:
        """Record that ``source`` does not exist."""
        with self._news:
            self._troubles.pop(source, None)
            self._sources.pop(source, None)
            self._gone[source] = error
            self._changed()

    def trouble(self, source: Source | None, error: BookKeeperError) -> None:
        """Record an error that may pass. ``source`` is the source that cannot be reached, or None for the list of
        sources."""
        with self._news:
            since, _ = self._troubles.get(source, (time.monotonic(), error))
            self._troubles[source] = since, error
            self._news.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the run with ``error``, which the next caller gets at once."""
        with self._news:
            self._failure, self._over = self._failure or error, True
            self._news.notify_all()

    def end(self) -> None:
        """End the run: the followers have stopped."""
        with self._news:
            self._over = True
            self._news.notify_all()

    def goes_on(self) -> bool:
        """Return whether the followers must go on. If no caller has asked for ``idle_s``, this ends the run, and the
        next call begins another."""
        with self._news:
            if not self._waiting and time.monotonic() - self._called > self._times.idle_s:
                self._over = True
            return not self._over

    def _changed(self) -> None:
        self._version, self._snapshot = self._version + 1, None
        self._news.notify_all()

    # --- by the callers ----------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and no error of it is left to raise."""
        return self._over and self._failure is None

    @property
    def has_answer(self) -> bool:
        """Whether the followers of this run have read the state of their sources once."""
        with self._news:
            return self._has_answer()

    def seen(self, timeout_s: float) -> Seen | None:
        """Return the state of all sources; wait up to ``timeout_s`` for the first look. Return None if the run has
        ended and the caller must begin another. Raises what :meth:`Watch.seen` raises."""
        with self._news:
            self._called = time.monotonic()
            if not self._has_answer():
                self._waiting += 1
                try:
                    self._news.wait_for(lambda: self._has_answer() or self._over, timeout_s)
                finally:
                    self._waiting -= 1
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            lasting = self._lasting_trouble()
            if lasting is not None:
                raise lasting
            if self._has_answer():
                return self._as_seen()
            if self._over:
                return None
            raise self._no_answer(timeout_s)

    def _as_seen(self) -> Seen:
        if self._snapshot is None:
            self._snapshot = Seen(self._cluster, dict(self._sources), dict(self._gone), self._version)
        return self._snapshot

    def _has_answer(self) -> bool:
        if self._failure is not None:
            return True
        return self._expected is not None and self._expected <= self._sources.keys() | self._gone.keys()

    def _lasting_trouble(self) -> BookKeeperError | None:
        """Return the trouble to raise: any trouble while there is no answer, otherwise only trouble that lasts."""
        since = time.monotonic() if not self._has_answer() else time.monotonic() - self._times.give_up_s
        told = [(began, error) for began, error in self._troubles.values() if began <= since]
        return min(told, key=lambda each: each[0])[1] if told else None

    def _no_answer(self, timeout_s: float) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            "the sources did not answer in time",
            value=f"waited {timeout_s:g} s for {len(self._expected or ())} of them, of which "
            f"{len(self._sources) + len(self._gone)} answered",
            remedy="check that metadataServiceUri and the bookies can be reached from the driver",
        )


class Run(Protocol):
    """A run of followers."""

    def cancel(self) -> object:
        """End the followers soon. Never raises."""
        ...


Begin = Callable[[WatchTimes], tuple[Board, Run]]
"""A function that connects, starts followers, and returns their board and their run."""


class Watch:
    """The latest :class:`Seen` of all sources. It connects at the first call."""

    def __init__(self, begin: Begin, times: WatchTimes | None = None) -> None:
        self._begin, self._times = begin, times or WatchTimes()
        self._lock = threading.Lock()  # guards the two below; the followers never take it
        self._board: Board | None = None
        self._run: Run | None = None
        self._was_answered = False

    def seen(self) -> Seen:
        """Return the sources as last seen, from memory. The first call, and the first call after a run ended, wait for
        a new look.

        Raises the error that ended following: at once if it is final, after ``give_up_s`` if it may pass. Raises
        MetadataUnavailableError if the first look takes longer than ``first_look_s``. Once a call was answered, a new
        run gets ``give_up_s`` for its first look, because the query is running already.
        """
        times = self._times
        deadline = time.monotonic() + (times.give_up_s if self._was_answered else times.first_look_s)
        while True:
            board = None
            try:
                board = self._current()
                found = board.seen(max(0.0, deadline - time.monotonic()))
            except TRANSIENT:
                knows = board is not None and board.has_answer  # then the trouble has lasted
                if knows or not self._was_answered or time.monotonic() + times.retry_s > deadline:
                    raise
                time.sleep(times.retry_s)
                continue
            if found is not None:
                self._was_answered = True
                return found
            if time.monotonic() > deadline:
                raise ClientClosedError(
                    "the connection was closed while its sources were looked at", remedy="start the query again"
                )

    @property
    def is_running(self) -> bool:
        return self._board is not None and not self._board.is_over

    def stop(self) -> None:
        """End the followers. A later call begins anew."""
        with self._lock:
            run, self._run, self._board = self._run, None, None
        if run is not None:
            run.cancel()

    def _current(self) -> Board:
        with self._lock:
            if self._board is None or self._board.is_over:
                self._board, self._run = self._begin(self._times)
            return self._board
