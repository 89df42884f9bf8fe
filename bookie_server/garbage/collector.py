# SPDX-License-Identifier: Apache-2.0
"""Which ledgers a bookie may forget: a pure machine, events in, effects out. No clock, thread or I/O (RULES S9).

A ledger becomes a *candidate* by a client's hint, or because a full comparison of what is held with what the metadata
store lists did not meet it. Neither is believed: anybody can send a hint, and a list may be short. A candidate is
looked up by its id, and when the store says that it does not exist, once more after the grace period. Only a ledger
that both looks found gone, in one session with the store, each after ``sync()``, is given up. Whatever else comes
begins with the first look again or ends the matter: an error, another session, a record that is there after all.

So absence of evidence never deletes: not an error, not a lost session, not a partial or empty list, not a root that is
gone (the adapter reads INSTANCEID around each look: :mod:`bookie_server.garbage.garbage_thread`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from bk_core.model import LedgerId

COMPARE_TIMER, CANDIDATES_TIMER = -1, -2
"""Timers of the machine itself; the others bear the number of a look."""

# --- events ---


@dataclass(frozen=True, slots=True)
class Started:
    """The bookie serves. The first comparison comes after ``first_ms``: differently long for each bookie."""

    first_ms: int


@dataclass(frozen=True, slots=True)
class Hinted:
    """Somebody says that these ledgers were deleted."""

    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class Compared:
    """The store listed ``listed`` ledgers, all of it in one live session after sync; of those held these were not among
    them."""

    missing: Sequence[LedgerId]
    listed: int


@dataclass(frozen=True, slots=True)
class CompareFailed:
    """There is no list, or not all of it."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer to a Look, all of it in the live session of this number after sync: ids that do not exist, and the
    versions of those that do. Of an id in neither nothing is known."""

    look: int
    session: int
    gone: Collection[LedgerId]
    found: Mapping[LedgerId, int]


@dataclass(frozen=True, slots=True)
class LookFailed:
    """Nothing is known of any ledger of this look."""

    look: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session with the store ended, and what was seen in it counts no more (RULES M2)."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer of this number ran out."""

    timer: int


Event: TypeAlias = Started | Hinted | Compared | CompareFailed | Looked | LookFailed | SessionLost | TimerFired

# --- effects ---


@dataclass(frozen=True, slots=True)
class Compare:
    """Note what is held, then sync, then list the store's ledgers; Compared or CompareFailed follows."""


@dataclass(frozen=True, slots=True)
class Look:
    """Sync, then read each of these by its id; Looked or LookFailed follows."""

    look: int
    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class Forget:
    """These ledgers are deleted: the bookie may forget them."""

    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire once after ``delay_ms``."""

    timer: int
    delay_ms: int


Effect: TypeAlias = Compare | Look | Forget | SetTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorConfig:
    """Times in milliseconds. ``candidates_max`` bounds what is remembered, so that a flood of hints does not; what does
    not fit is met by the next comparison. First looks are ``pause_ms`` apart, each of at most ``look_ids_max`` ids, so
    that neither hints nor a comparison can press the store. A look that failed is tried again ``tries_max`` times,
    after ``retry_ms`` and then twice as long each time."""

    interval_ms: int = 3_600_000
    grace_ms: int = 600_000
    pause_ms: int = 500
    retry_ms: int = 5_000
    tries_max: int = 8
    look_ids_max: int = 500
    candidates_max: int = 100_000


class _Looked:
    """Candidates that are looked at together. ``session``: the one in which the first look found all of them gone."""

    __slots__ = ("failures", "ledger_ids", "session", "under_way")

    def __init__(self, ledger_ids: tuple[LedgerId, ...]) -> None:
        self.ledger_ids = ledger_ids
        self.session: int | None = None
        self.failures = 0
        self.under_way = True


class Collector:
    """The collector of one bookie."""

    def __init__(self, config: CollectorConfig | None = None) -> None:
        self._config = config or CollectorConfig()
        self._waiting: dict[LedgerId, None] = {}  # candidates for a first look, oldest first
        self._looks: dict[int, _Looked] = {}
        self._known: set[LedgerId] = set()  # all candidates: waiting or in a look
        self._looks_begun = 0
        self._pausing = False  # CANDIDATES_TIMER runs
        self._first_look: int | None = None  # of which the answer is awaited: one at a time
        self._effects: list[Effect] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Started: lambda event: self._set_timer(COMPARE_TIMER, event.first_ms),
            Hinted: lambda event: self._nominate(event.ledger_ids),
            Compared: self._compared,
            CompareFailed: lambda _: self._set_timer(COMPARE_TIMER, max(1, self._config.interval_ms // 10)),
            Looked: self._looked,
            LookFailed: self._look_failed,
            SessionLost: self._session_lost,
            TimerFired: self._timer_fired,
        }

    @property
    def candidates(self) -> int:
        """Ledgers that may turn out to be deleted."""
        return len(self._known)

    def step(self, event: Event) -> list[Effect]:
        """Take one event; returns what is to be done, in this order."""
        self._effects = []
        self._handlers[type(event)](event)
        return self._effects

    def _set_timer(self, timer: int, delay_ms: int) -> None:
        self._effects.append(SetTimer(timer, delay_ms))

    # --- candidates ---

    def _compared(self, event: Compared) -> None:
        self._set_timer(COMPARE_TIMER, self._config.interval_ms)
        if event.listed:  # a store that lists nothing at all names no candidate
            self._nominate(event.missing)

    def _nominate(self, ledger_ids: Sequence[LedgerId]) -> None:
        for ledger_id in ledger_ids:
            if len(self._known) >= self._config.candidates_max:
                break
            if ledger_id not in self._known:
                self._known.add(ledger_id)
                self._waiting[ledger_id] = None
        self._pause()

    def _pause(self) -> None:
        """Have the next first look after a pause, if there is something to look at."""
        if self._waiting and not self._pausing and self._first_look is None:
            self._pausing = True
            self._set_timer(CANDIDATES_TIMER, self._config.pause_ms)

    # --- looks ---

    def _timer_fired(self, event: TimerFired) -> None:
        if event.timer == COMPARE_TIMER:
            self._effects.append(Compare())
        elif event.timer == CANDIDATES_TIMER:
            self._pausing = False
            self._begin_look()
        else:
            batch = self._looks.get(event.timer)
            if batch and not batch.under_way:
                batch.under_way = True
                self._effects.append(Look(event.timer, batch.ledger_ids))

    def _begin_look(self) -> None:
        if not self._waiting or self._first_look is not None:
            return
        taken = tuple(islice(self._waiting, self._config.look_ids_max))
        for ledger_id in taken:
            del self._waiting[ledger_id]
        self._looks_begun += 1
        self._first_look = self._looks_begun
        self._looks[self._looks_begun] = _Looked(taken)
        self._effects.append(Look(self._looks_begun, taken))

    def _answered(self, look: int) -> _Looked | None:
        """The candidates of a look whose answer came; None if nobody asked."""
        batch = self._looks.get(look)
        if batch is None or not batch.under_way:
            return None
        batch.under_way = False
        if self._first_look == look:
            self._first_look = None
        return batch

    def _looked(self, event: Looked) -> None:
        batch = self._answered(event.look)
        if batch is None:
            return
        gone = tuple(each for each in batch.ledger_ids if each in event.gone and each not in event.found)
        self._known.difference_update(set(batch.ledger_ids).difference(gone))  # there, or nothing was said: kept
        if not gone:
            del self._looks[event.look]
        elif batch.session == event.session:
            del self._looks[event.look]
            self._known.difference_update(gone)
            self._effects.append(Forget(gone))
        else:  # the first look, or the first in this session
            batch.ledger_ids, batch.session, batch.failures = gone, event.session, 0
            self._set_timer(event.look, self._config.grace_ms)
        self._pause()

    def _look_failed(self, event: LookFailed) -> None:
        batch = self._answered(event.look)
        if batch is None:
            return
        batch.session = None  # what comes next is a first look
        batch.failures += 1
        if batch.failures > self._config.tries_max:
            del self._looks[event.look]
            self._known.difference_update(batch.ledger_ids)
        else:
            self._set_timer(event.look, self._config.retry_ms << (batch.failures - 1))
        self._pause()

    def _session_lost(self, _: SessionLost) -> None:
        for batch in self._looks.values():
            batch.session = None
