# SPDX-License-Identifier: Apache-2.0
"""Finds out which entries of a fragment one of its bookies lacks. Pure.

The check reads and verifies the bookie's entries; the bookie's own report of missing entries does not count. An entry
that the bookie answers as ABSENT or UNKNOWN, or whose digest fails, counts as missing. The check asks again for ids
that the bookie did not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.digest import Digester
from bk_core.errors import IntegrityError
from bk_core.model import BookieId, EntryId
from bk_core.protocol import events as ev
from bk_core.protocol.answers import Window
from bk_core.protocol.replication.events import BudgetGranted, SpendBudget
from bk_core.protocol.replication.requests import Purse, ReplicationConfig
from bk_core.wire.lane.reasons import EntryRange

CheckEvent: TypeAlias = ev.SessionEvent | ev.ReadEvent | ev.TimerFired | BudgetGranted
CheckEffect: TypeAlias = ev.SendRead | ev.CancelRead | ev.SetTimer | ev.CancelTimer | SpendBudget

TRIES = 3
"""The number of requests in a row without an answer after which the check ends with a ``problem``."""

GAP_MAX = 64
"""Missing ids at most this far apart are in one range: it costs less to copy the ids between them again."""
RANGES_MAX = 1_000
"""The maximum number of ranges of missing ids. If there are more, all are joined into one range, so that the list stays
short."""


class CopyCheck:
    """Reads the entries ``first`` to ``last`` from the bookie at ``index``. Once the check is ``done``, ``lacking``
    holds the ranges of missing ids, and ``unsure`` says whether the bookie answered UNKNOWN for some ids. If the bookie
    cannot be read, ``problem`` says why."""

    def __init__(
        self,
        digester: Digester,
        bookie: BookieId,
        index: int,
        first: EntryId,
        last: EntryId,
        *,
        ensemble_size: int,
        write_quorum: int,
        config: ReplicationConfig,
        base: int,
    ) -> None:
        self.bookie, self.index = bookie, index
        self.lacking: list[EntryRange] = []
        self.unsure, self.problem = False, ""
        self.size = 0
        self._digester, self._config = digester, config
        self._sizes = ensemble_size, write_quorum
        self._next, self._last = first, last
        self._request, self._tries = base, 0
        self._window: Window | None = None
        self._purse = Purse()

    @property
    def done(self) -> bool:
        return self._next > self._last or bool(self.problem)

    def start(self) -> list[CheckEffect]:
        return self._go_on()

    def step(self, event: CheckEvent) -> list[CheckEffect]:
        if isinstance(event, BudgetGranted):
            self._purse.granted()
            return self._go_on()
        if isinstance(event, ev.TimerFired):
            return self._go_on() if event.name == "check" else []
        window = self._window
        if isinstance(event, ev.FramesAcked | ev.SessionEnded | ev.SessionBroken):
            return []
        if window is None or event.request != self._request:
            return []
        if isinstance(event, ev.FramesRead):
            return self._frames(window, event)
        if isinstance(event, ev.ReadFailed):
            return self._nothing_answered(event.message)
        window.finish(event)
        answer = window.answers[event.request]
        if answer.failed:
            return self._nothing_answered(answer.problem)
        assert answer.through is not None
        if answer.through < self._next:
            return self._nothing_answered("answers nothing")
        self.unsure = self.unsure or bool(answer.unknown)
        return self._judge(window, answer.through)

    def stop(self) -> list[CheckEffect]:
        pending = self._window is not None
        self._window = None
        return [*([ev.CancelRead(self._request)] if pending else []), ev.CancelTimer("check"), *self._purse.settle()]

    def _go_on(self) -> list[CheckEffect]:
        if self._window is not None or self.done:
            return []
        if not self._purse.may_read:
            return [*self._purse.pay()]
        last = min(self._last, self._next + self._config.check_window_entries - 1)
        self._window = Window(self._next, last)
        self._request += 1
        self._window.asked(self._request, self.index, self._next)
        return [ev.SendRead(self._request, self.bookie, self._next, last, self._config.read_bytes_max)]

    def _frames(self, window: Window, event: ev.FramesRead) -> list[CheckEffect]:
        self._purse.owe(len(event.frames))
        self.size += len(event.frames)
        try:
            for batch in window.verified(event.request, event.frames, self._digester, always=True):
                window.add(batch)
        except IntegrityError:  # the rest of the window counts as damaged: copying a good entry again does no harm
            return [ev.CancelRead(event.request), *self._judge(window, window.last)]
        return []

    def _nothing_answered(self, why: str) -> list[CheckEffect]:
        self._window = None
        self._tries += 1
        if self._tries < TRIES:
            return [ev.SetTimer("check", self._config.retry_delay_ms * 2**self._tries)]
        self.problem = why
        return []

    def _judge(self, window: Window, through: EntryId) -> list[CheckEffect]:
        """Note the missing entries up to ``through``, and begin the next request. All other entries came with a valid
        digest."""
        size, write_quorum = self._sizes
        ids = window.missing(through)
        self._note(ids[(self.index - ids) % size < write_quorum])
        self._window, self._next, self._tries = None, through + 1, 0
        return self._go_on()

    def _note(self, ids: npt.NDArray[np.int64]) -> None:
        for run in _runs(ids):
            if self.lacking and run.first - self.lacking[-1].last <= GAP_MAX:
                run = EntryRange(self.lacking.pop().first, run.last)
            self.lacking.append(run)
        if len(self.lacking) > RANGES_MAX:
            self.lacking = [EntryRange(self.lacking[0].first, self.lacking[-1].last)]


def _runs(ids: npt.NDArray[np.int64]) -> Iterator[EntryRange]:
    """Yield ascending ids as ranges. Ids that are at most GAP_MAX apart are in one range."""
    breaks = np.flatnonzero(np.diff(ids) > GAP_MAX)
    for run in np.split(ids, breaks + 1):
        if run.size:
            yield EntryRange(int(run[0]), int(run[-1]))
