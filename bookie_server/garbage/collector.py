# SPDX-License-Identifier: Apache-2.0
"""Decides which ledgers are deleted, and which copies of ledgers a bookie may drop. It is a pure machine that takes
events and returns effects, without clock, thread or I/O (RULES S9).

A ledger becomes a *candidate* when a client hints at it, or when a full comparison of the held ledgers with the
metadata store's list does not find it. Neither is proof: any client can send a hint, and a list may be incomplete. So a
*look* reads the candidate's record by its id. If the store answers that the ledger does not exist, a second look
follows after the grace period. Only if both looks find the ledger gone, in one session with the store and each after
``sync()``, is it forgotten. After an error or in another session the first look is repeated. A record that exists ends
the candidacy.

A candidate may also live elsewhere: its record is closed and does not name this bookie, because its copy was moved. If
both looks find that, this bookie gives up its copy, under the lock for repairs of the ledger. Such ledgers are found by
a hint from the client that moved them, and by a periodic comparison that also reads the records.

So absence of evidence never deletes a ledger: neither an error, nor a lost session, a partial or empty list, or a
missing root (the adapter reads INSTANCEID around each look: :mod:`bookie_server.garbage.garbage_thread`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from bk_core.model import LedgerId

COMPARE_TIMER, CANDIDATES_TIMER = -1, -2
"""The timers of the next comparison and of the next first look. Every other timer has the number of a look."""

# --- events ---


@dataclass(frozen=True, slots=True)
class Started:
    """The bookie serves. The first comparison follows after ``first_ms``, which differs from bookie to bookie."""

    first_ms: int


@dataclass(frozen=True, slots=True)
class Hinted:
    """A client reports that these ledgers were deleted."""

    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison with a complete list of the store's ledgers, which was read in one live session after
    sync and had ``listed`` ledgers. ``missing`` are the held ledgers that were not in it. ``strays`` are the held
    ledgers whose records say that only other bookies store them; empty unless the records were read."""

    missing: Sequence[LedgerId]
    listed: int
    strays: Sequence[LedgerId] = ()


@dataclass(frozen=True, slots=True)
class CompareFailed:
    """The comparison failed: there is no list, or an incomplete one."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer to a GarbageLook, read in the live session of this number after sync. ``gone`` has the ids that do not
    exist, and ``found`` the versions of those that do. Nothing is known about an id in neither. ``elsewhere`` has those
    of ``found`` that are closed and name this bookie nowhere."""

    look: int
    session: int
    gone: Collection[LedgerId]
    found: Mapping[LedgerId, int]
    elsewhere: Collection[LedgerId] = ()


@dataclass(frozen=True, slots=True)
class LookFailed:
    """The look failed, so nothing is known about any of its ledgers."""

    look: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session with the store ended, so looks in it do not count (RULES M2: a lost session ends everything that
    depends on it)."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    timer: int


Event: TypeAlias = Started | Hinted | Compared | CompareFailed | Looked | LookFailed | SessionLost | TimerFired

# --- effects ---


@dataclass(frozen=True, slots=True)
class Compare:
    """Take the list of held ledgers, then sync, then list the store's ledgers; with ``records``, also read the records
    of the held ledgers. Compared or CompareFailed follows."""

    records: bool = False


@dataclass(frozen=True, slots=True)
class GarbageLook:
    """Sync, then read each of these ledgers by its id. Looked or LookFailed follows."""

    look: int
    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class Forget:
    """These ledgers are deleted, so the bookie may forget them."""

    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """These ledgers live elsewhere. The bookie may drop its copy of each under the lock for its repairs, after another
    look."""

    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class SetTimer:
    timer: int
    delay_ms: int


Effect: TypeAlias = Compare | GarbageLook | Forget | GiveUp | SetTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorConfig:
    """The settings of a collector. Times are in milliseconds.

    ``candidates_max`` bounds the remembered candidates, even under a flood of hints; the next comparison finds those
    that did not fit. First looks are ``pause_ms`` apart and have at most ``look_ids_max`` ids each, so that neither
    hints nor a comparison overload the store. A failed look is repeated up to ``tries_max`` times, first after
    ``retry_ms`` and then after twice as long each time. One of ``records_every`` comparisons reads the records.
    """

    interval_ms: int = 3_600_000
    grace_ms: int = 600_000
    pause_ms: int = 500
    retry_ms: int = 5_000
    tries_max: int = 8
    look_ids_max: int = 500
    candidates_max: int = 100_000
    records_every: int = 24


@dataclass(slots=True, eq=False)
class _Looked:
    """Candidates that are looked up together. ``session`` is the session in which the first look found all of them gone
    or ``elsewhere``."""

    ledger_ids: tuple[LedgerId, ...]
    session: int | None = None
    elsewhere: frozenset[LedgerId] = frozenset()
    failures: int = 0
    under_way: bool = True


class Collector:
    def __init__(self, config: CollectorConfig | None = None) -> None:
        self._config = config or CollectorConfig()
        self._waiting: dict[LedgerId, None] = {}  # candidates for a first look, oldest first
        self._looks: dict[int, _Looked] = {}
        self._known: set[LedgerId] = set()  # all candidates: waiting or in a look
        self._looks_begun = 0
        self._comparisons = 0
        self._pausing = False  # CANDIDATES_TIMER is set
        self._first_look: int | None = None  # its number while its answer is awaited; there is one at a time
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
        """The number of candidates."""
        return len(self._known)

    def step(self, event: Event) -> list[Effect]:
        """Handle one event; return its effects, in order."""
        self._effects = []
        self._handlers[type(event)](event)
        return self._effects

    def _set_timer(self, timer: int, delay_ms: int) -> None:
        self._effects.append(SetTimer(timer, delay_ms))

    # --- candidates ---

    def _compared(self, event: Compared) -> None:
        self._set_timer(COMPARE_TIMER, self._config.interval_ms)
        if event.listed:  # a store that lists nothing at all names no candidate
            self._nominate((*event.missing, *event.strays))

    def _nominate(self, ledger_ids: Sequence[LedgerId]) -> None:
        for ledger_id in ledger_ids:
            if len(self._known) >= self._config.candidates_max:
                break
            if ledger_id not in self._known:
                self._known.add(ledger_id)
                self._waiting[ledger_id] = None
        self._pause()

    def _pause(self) -> None:
        """Schedule the next first look after a pause, if a candidate waits."""
        if self._waiting and not self._pausing and self._first_look is None:
            self._pausing = True
            self._set_timer(CANDIDATES_TIMER, self._config.pause_ms)

    # --- looks ---

    def _timer_fired(self, event: TimerFired) -> None:
        if event.timer == COMPARE_TIMER:
            self._comparisons += 1
            self._effects.append(Compare(self._comparisons % self._config.records_every == 0))
        elif event.timer == CANDIDATES_TIMER:
            self._pausing = False
            self._begin_look()
        else:
            batch = self._looks.get(event.timer)
            if batch and not batch.under_way:
                batch.under_way = True
                self._effects.append(GarbageLook(event.timer, batch.ledger_ids))

    def _begin_look(self) -> None:
        if not self._waiting or self._first_look is not None:
            return
        taken = tuple(islice(self._waiting, self._config.look_ids_max))
        for ledger_id in taken:
            del self._waiting[ledger_id]
        self._looks_begun += 1
        self._first_look = self._looks_begun
        self._looks[self._looks_begun] = _Looked(taken)
        self._effects.append(GarbageLook(self._looks_begun, taken))

    def _answered(self, look: int) -> _Looked | None:
        """Return the candidates of a look that was answered, or None if no answer was awaited."""
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
        gone = [each for each in batch.ledger_ids if each in event.gone and each not in event.found]
        moved = [each for each in batch.ledger_ids if each in event.elsewhere and each not in event.gone]
        self._known.difference_update(set(batch.ledger_ids).difference(gone, moved))  # the rest are not candidates
        if not gone and not moved:
            del self._looks[event.look]
        elif batch.session == event.session:
            del self._looks[event.look]
            self._known.difference_update(gone, moved)
            self._seen_twice(batch, gone, moved)
        else:  # the first look, or the first in this session
            batch.ledger_ids, batch.elsewhere = (*gone, *moved), frozenset(moved)
            batch.session, batch.failures = event.session, 0
            self._set_timer(event.look, self._config.grace_ms)
        self._pause()

    def _seen_twice(self, batch: _Looked, gone: Sequence[LedgerId], moved: Sequence[LedgerId]) -> None:
        """Emit the effects for the ledgers about which both looks found the same."""
        forgotten = tuple(each for each in gone if each not in batch.elsewhere)
        given_up = tuple(each for each in moved if each in batch.elsewhere)
        if forgotten:
            self._effects.append(Forget(forgotten))
        if given_up:
            self._effects.append(GiveUp(given_up))

    def _look_failed(self, event: LookFailed) -> None:
        batch = self._answered(event.look)
        if batch is None:
            return
        batch.session = None  # the next one is a first look again
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
