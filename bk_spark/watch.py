# SPDX-License-Identifier: Apache-2.0
"""What a stream knows of its source, kept fresh by one daemon thread (RULES K1).

Spark calls ``latestOffset`` up to 26 times a second and the JVM waits in a blocking read meanwhile, so the answer comes
from memory; only the first one waits for I/O. The thread holds the watches and ends after a minute without a call, or
with the process. A source that cannot be reached keeps its last answer and is reported after a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
from bk_core.logs.head import LogHead
from bk_spark.plan import Span

TRANSIENT = (MetadataUnavailableError, TransportError, QuorumError, EntryUnreadableError, ClientClosedError)


@dataclass(frozen=True, slots=True)
class Seen:
    """A source at one moment: positions ``start`` to ``next`` − 1 can be read; ``spans`` say how large they are.

    ``head`` is the log's record, None for a bare ledger. ``cluster`` is the INSTANCEID.
    """

    cluster: str
    start: int
    next: int
    spans: tuple[Span, ...] = ()
    head: LogHead | None = None


class Follower(Protocol):
    """One ledger or log being watched. Used by one thread; may raise any BookKeeperError."""

    def look(self) -> Seen:
        """What there is now; asks the cluster."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when there may be something new, or after the time."""
        ...

    def close(self) -> None:
        """End the watches. Never raises."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """Seconds. Tests make them short."""

    first_look_s: float = 10.0
    idle_s: float = 60.0
    wait_s: float = 1.0
    retry_s: float = 0.5
    give_up_s: float = 60.0


class Watch:
    """The latest :class:`Seen` of a source. Starts no thread before the first call."""

    def __init__(self, make: Callable[[], Follower], times: WatchTimes | None = None) -> None:
        self._make, self._times = make, times or WatchTimes()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._seen: Seen | None = None
        self._error: BookKeeperError | None = None
        self._failing_since: float | None = None
        self._called = 0.0
        self._waiting = 0  # callers in the first look: the thread does not end before it has answered them
        self._stopped = False

    def seen(self) -> Seen:
        """The source as last seen, from memory. The first call, and the first after the thread ended, look anew.

        Raises what following raised: at once when it is final, after ``give_up_s`` when it may pass;
        MetadataUnavailableError when the first look takes longer than ``first_look_s``.
        """
        with self._news:
            self._called = time.monotonic()
            if self._thread is None:
                self._start()
            if self._seen is None:
                self._waiting += 1
                try:
                    self._news.wait_for(self._has_answer, self._times.first_look_s)
                finally:
                    self._waiting -= 1
            if self._error is not None and self._must_tell():
                raise self._error
            if self._seen is None:
                raise MetadataUnavailableError(
                    "the source did not answer in time",
                    value=f"waited {self._times.first_look_s:g} s",
                    remedy="check that metadataServiceUri and the bookies can be reached from the driver",
                )
            return self._seen

    @property
    def is_running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None

    def stop(self) -> None:
        """End the thread at its next turn. A later call starts it again."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def _start(self) -> None:
        self._seen = self._error = self._failing_since = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="bookkeeper-watch", daemon=True)
        self._thread.start()

    def _has_answer(self) -> bool:
        return self._seen is not None or (self._error is not None and not isinstance(self._error, TRANSIENT))

    def _must_tell(self) -> bool:
        assert self._error is not None
        if self._seen is None or not isinstance(self._error, TRANSIENT):
            return True
        return self._failing_since is not None and time.monotonic() - self._failing_since > self._times.give_up_s

    def _run(self) -> None:
        follower: Follower | None = None
        while self._goes_on():
            try:
                follower = follower or self._make()
                self._note(follower.look(), None)
                follower.wait(self._times.wait_s)
            except BookKeeperError as error:
                if follower is not None:
                    follower.close()
                    follower = None
                self._note(None, error)
                self._pause()
        if follower is not None:
            follower.close()

    def _goes_on(self) -> bool:
        """Whether somebody still asks; if not, this thread is over and the next call starts another."""
        with self._news:
            idle = not self._waiting and time.monotonic() - self._called > self._times.idle_s
            if self._stopped or idle:
                self._thread = None
                return False
            return True

    def _note(self, seen: Seen | None, error: BookKeeperError | None) -> None:
        with self._news:
            self._error = error
            if error is not None:
                self._failing_since = self._failing_since or time.monotonic()
            else:
                self._seen, self._failing_since = seen, None
            self._news.notify_all()

    def _pause(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._stopped, self._times.retry_s)
