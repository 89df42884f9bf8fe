# SPDX-License-Identifier: Apache-2.0
"""Known defects of the search for an end above the LAC, for the profile *quorum* to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bk_core.errors import IntegrityError
from bk_core.protocol import events as ev
from bk_core.protocol.answers import Window
from bk_core.protocol.ends.quorum_end import EndPhase, QuorumEnd
from tests.sim import quorum_end as profile
from tests.sim.mutants.mutant import Change, Mutants, changed

MUTANTS = Mutants()


@MUTANTS.instead(QuorumEnd, "_record_read", "the record's version is not checked after the wait", "P15")
def no_metadata_check(read: Any, self: QuorumEnd, found: Any) -> list[Any]:
    """The record after the wait may have another version."""
    value = found.value
    if self.phase is EndPhase.CHECK and not value.is_closed:
        return self._finish(found, self._held)
    return read(self, found)


@MUTANTS.instead(QuorumEnd, "step", "the record after the wait may be an old one", "P15 M5")
def the_record_may_be_old(step: Any, self: QuorumEnd, event: Any) -> list[Any]:
    """M5: a metadata server that lags answers with the version before."""
    return [replace(e, fresh=False) if isinstance(e, ev.ReadMetadata) else e for e in step(self, event)]


def _holders(count: Callable[[Any], Any]) -> Change:
    """Return the change that lets ``count`` say how many bookies hold each entry."""

    def all_answered(original: Any, self: QuorumEnd) -> list[Any]:
        size, holds = self._holds.shape, self._holds
        self._holds = np.arange(size[0])[:, None] < count(holds)[None, :]
        try:
            return original(self)
        finally:
            self._holds = holds

    return changed(QuorumEnd, "_all_answered", all_answered)


def _says_yes(when: Callable[[Any], bool]) -> Change:
    """Return the change that counts a bookie for all that an answer says UNKNOWN of, if ``when``."""

    def answered(original: Any, self: QuorumEnd, event: Any) -> list[Any]:
        answer = self._window.answers.get(event.request) if self._window is not None else None
        if answer is not None and not answer.finished and when(event):
            parts = event.unknown if isinstance(event, ev.ReadAnswered) else [answer]
            for part in parts:
                first, last = max(part.first, answer.first), min(part.last, answer.last)
                self._holds[answer.index, first - self._window.first : last + 1 - self._window.first] = True
        return original(self, event)

    return changed(QuorumEnd, "_answered", answered)


@MUTANTS.instead(QuorumEnd, "_count", "an entry with a bad digest counts", "P15 P5")
def digests_are_not_checked(count: Any, self: QuorumEnd, index: int, window: Window, event: ev.FramesRead) -> None:
    """P5: entries of which a bit flipped are believed to be those that were asked for."""
    try:
        count(self, index, window, event)
    except IntegrityError:
        self._holds[index, window.answers[event.request].first - window.first :] = True


@MUTANTS.instead(QuorumEnd, "_count", "another entry's copy counts", "P15")
def another_entry_counts(_: Any, self: QuorumEnd, index: int, window: Window, event: ev.FramesRead) -> None:
    """The n-th entry of an answer counts as the n-th asked for, whatever its id and digest are of."""
    batches = window.verified(event.request, event.frames, self.digester, always=True)
    count, first = sum(map(len, batches)), window.answers[event.request].first - window.first
    self._holds[index, first : first + count] = True


@MUTANTS.instead(QuorumEnd, "_ask_all", "entries that came during the wait count", "P15")
def entries_of_the_wait_count(ask_all: Any, self: QuorumEnd, phase: Any, last: int) -> list[Any]:
    """The second look goes on behind the first one: entries that came meanwhile did not settle."""
    return ask_all(self, phase, self.lac + self.entries_max if phase is EndPhase.ASK_AGAIN else last)


@MUTANTS.instead(QuorumEnd, "_ask_all", "answers of replaced bookies count", "P15")
def replaced_bookies_count(ask_all: Any, self: QuorumEnd, phase: Any, last: int) -> list[Any]:
    """What bookies of the record before said counts for those in their places."""
    before, held = getattr(self, "_window_before", None), self._holds
    effects = ask_all(self, phase, last)
    if self.rounds > 1 and phase is EndPhase.ASK and before is not None and self._window is not None:
        shift, width = self._window.first - before, self._holds.shape[1]
        kept = held[:, shift : shift + width]
        self._holds[:, : kept.shape[1]] |= kept
    if self._window is not None:
        self._window_before = self._window.first
    return effects


@MUTANTS.instead(QuorumEnd, "_ask", "looking for an end fences", "P15")
def looking_fences(ask: Any, self: Any, index: Any, first: Any) -> Any:
    """A reader that does not recover disturbs the writer."""
    return replace(ask(self, index, first), fence=True)


# The counter-example of decision 76: the writer drops the entry after the reader has looked.
MUTANTS.add("the settle time is left out", "P15", (profile, "SETTLE_MS", 0.0))
# The phantom that the documentation names: the assumption does not hold.
MUTANTS.add(
    "a writer is paused for longer than the settle time", "P15", (profile, "PAUSE_MS_MAX", 3 * profile.SETTLE_MS)
)
MUTANTS.add(
    "Qa - 1 copies are enough to be shown", "P15", _holders(lambda holds: holds.sum(axis=0) + holds.any(axis=0))
)
MUTANTS.add(
    "a hole below a shown entry is skipped", "P15",
    _holders(lambda holds: np.maximum.accumulate(holds.sum(axis=0)[::-1])[::-1]),
)  # fmt: skip
MUTANTS.add(
    "a bookie in limbo counts as a holder", "P15 S8",
    _says_yes(lambda event: isinstance(event, ev.ReadAnswered) and "LIMBO" in event.detail),
)  # fmt: skip
MUTANTS.add(
    "UNKNOWN counts as a holder", "P15 MUST4",
    _says_yes(lambda event: isinstance(event, ev.ReadAnswered) and "LIMBO" not in event.detail),
)  # fmt: skip
MUTANTS.add(
    "a bookie that does not answer counts as a holder", "P15 MUST4",
    _says_yes(lambda event: isinstance(event, ev.ReadFailed)),
)  # fmt: skip
