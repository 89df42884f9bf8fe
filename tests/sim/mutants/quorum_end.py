# SPDX-License-Identifier: Apache-2.0
"""Known defects of the search for an end above the LAC, put back into the production machine, for the profile *quorum*
to find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from bk_core.errors import IntegrityError
from bk_core.protocol import events as ev
from bk_core.protocol.answers import Window
from bk_core.protocol.ends.quorum_end import EndPhase, QuorumEnd
from tests.sim import quorum_end as profile
from tests.sim.mutants.exhaustive import patched

Planted = Callable[[], AbstractContextManager[None]]


def no_settle_time() -> AbstractContextManager[None]:
    """The counter-example of decision 76: the writer drops the entry after the reader has looked."""
    return patched((profile, "SETTLE_MS", 0.0))


def a_writer_pauses_longer() -> AbstractContextManager[None]:
    """The phantom that the documentation names: the assumption does not hold."""
    return patched((profile, "PAUSE_MS_MAX", 3 * profile.SETTLE_MS))


def no_metadata_check() -> AbstractContextManager[None]:
    """The record after the wait may have another version."""
    read = QuorumEnd._record_read

    def mutant(self: QuorumEnd, found: Any) -> list[Any]:
        value = found.value
        if self.phase is EndPhase.CHECK and not value.is_closed:
            return self._finish(found, self._held)
        return read(self, found)

    return patched((QuorumEnd, "_record_read", mutant))


def the_record_may_be_old() -> AbstractContextManager[None]:
    """M5: a metadata server that lags answers with the version before."""
    step = QuorumEnd.step

    def mutant(self: QuorumEnd, event: Any) -> list[Any]:
        return [replace(e, fresh=False) if isinstance(e, ev.ReadMetadata) else e for e in step(self, event)]

    return patched((QuorumEnd, "step", mutant))


def _counts(counts: Callable[[QuorumEnd], Any]) -> AbstractContextManager[None]:
    """``counts`` gives how many bookies hold each entry."""
    answered = QuorumEnd._all_answered

    def mutant(self: QuorumEnd) -> list[Any]:
        size, holds = self._holds.shape, self._holds
        self._holds = np.arange(size[0])[:, None] < counts(self)[None, :]
        try:
            return answered(self)
        finally:
            self._holds = holds

    return patched((QuorumEnd, "_all_answered", mutant))


def fewer_than_an_ack_quorum() -> AbstractContextManager[None]:
    """Qa − 1 bookies are enough."""
    return _counts(lambda machine: machine._holds.sum(axis=0) + machine._holds.any(axis=0))


def holes_are_skipped() -> AbstractContextManager[None]:
    """An entry below which one is missing counts."""
    return _counts(lambda machine: np.maximum.accumulate(machine._holds.sum(axis=0)[::-1])[::-1])


def _says_yes(when: Callable[[Any], bool]) -> AbstractContextManager[None]:
    """A bookie counts for all that an answer says UNKNOWN of, if ``when``."""
    answered = QuorumEnd._answered

    def mutant(self: QuorumEnd, event: Any) -> list[Any]:
        answer = self._window.answers.get(event.request) if self._window is not None else None
        if answer is not None and not answer.finished and when(event):
            parts = event.unknown if isinstance(event, ev.ReadAnswered) else [answer]
            for part in parts:
                first, last = max(part.first, answer.first), min(part.last, answer.last)
                self._holds[answer.index, first - self._window.first : last + 1 - self._window.first] = True
        return answered(self, event)

    return patched((QuorumEnd, "_answered", mutant))


def limbo_is_a_yes() -> AbstractContextManager[None]:
    """A bookie that lost its disk counts."""
    return _says_yes(lambda event: isinstance(event, ev.ReadAnswered) and "LIMBO" in event.detail)


def unknown_is_a_yes() -> AbstractContextManager[None]:
    """A bookie that says UNKNOWN for another reason than limbo counts."""
    return _says_yes(lambda event: isinstance(event, ev.ReadAnswered) and "LIMBO" not in event.detail)


def silence_is_a_yes() -> AbstractContextManager[None]:
    """A bookie that does not answer counts."""
    return _says_yes(lambda event: isinstance(event, ev.ReadFailed))


def digests_are_not_checked() -> AbstractContextManager[None]:
    """P5: entries of which a bit flipped are believed to be those that were asked for."""
    count = QuorumEnd._count

    def mutant(self: QuorumEnd, index: int, window: Window, event: ev.FramesRead) -> None:
        try:
            count(self, index, window, event)
        except IntegrityError:
            self._holds[index, window.answers[event.request].first - window.first :] = True

    return patched((QuorumEnd, "_count", mutant))


def another_entry_counts() -> AbstractContextManager[None]:
    """The n-th entry of an answer counts as the n-th asked for, whatever its id and digest are of."""

    def mutant(self: QuorumEnd, index: int, window: Window, event: ev.FramesRead) -> None:
        batches = window.verified(event.request, event.frames, self.digester, always=True)
        count, first = sum(map(len, batches)), window.answers[event.request].first - window.first
        self._holds[index, first : first + count] = True

    return patched((QuorumEnd, "_count", mutant))


def entries_of_the_wait_count() -> AbstractContextManager[None]:
    """The second look goes on behind the first one: entries that came meanwhile did not settle."""
    ask_all = QuorumEnd._ask_all

    def mutant(self: QuorumEnd, phase: Any, last: int) -> list[Any]:
        return ask_all(self, phase, self.lac + self.entries_max if phase is EndPhase.ASK_AGAIN else last)

    return patched((QuorumEnd, "_ask_all", mutant))


def replaced_bookies_count() -> AbstractContextManager[None]:
    """What bookies of the record before said counts for those in their places."""
    ask_all = QuorumEnd._ask_all

    def mutant(self: QuorumEnd, phase: Any, last: int) -> list[Any]:
        before, held = getattr(self, "_window_before", None), self._holds
        effects = ask_all(self, phase, last)
        if self.rounds > 1 and phase is EndPhase.ASK and before is not None and self._window is not None:
            shift, width = self._window.first - before, self._holds.shape[1]
            kept = held[:, shift : shift + width]
            self._holds[:, : kept.shape[1]] |= kept
        if self._window is not None:
            self._window_before = self._window.first
        return effects

    return patched((QuorumEnd, "_ask_all", mutant))


def looking_fences() -> AbstractContextManager[None]:
    """A reader that does not recover disturbs the writer."""
    ask = QuorumEnd._ask
    return patched((QuorumEnd, "_ask", lambda self, index, first: replace(ask(self, index, first), fence=True)))


MUTANTS: tuple[tuple[str, str, Planted], ...] = (
    ("the settle time is left out", "P15", no_settle_time),
    ("a writer is paused for longer than the settle time", "P15", a_writer_pauses_longer),
    ("the record's version is not checked after the wait", "P15", no_metadata_check),
    ("the record after the wait may be an old one", "P15 M5", the_record_may_be_old),
    ("Qa - 1 copies are enough to be shown", "P15", fewer_than_an_ack_quorum),
    ("a hole below a shown entry is skipped", "P15", holes_are_skipped),
    ("a bookie in limbo counts as a holder", "P15 S8", limbo_is_a_yes),
    ("UNKNOWN counts as a holder", "P15 MUST4", unknown_is_a_yes),
    ("a bookie that does not answer counts as a holder", "P15 MUST4", silence_is_a_yes),
    ("an entry with a bad digest counts", "P15 P5", digests_are_not_checked),
    ("another entry's copy counts", "P15", another_entry_counts),
    ("entries that came during the wait count", "P15", entries_of_the_wait_count),
    ("answers of replaced bookies count", "P15", replaced_bookies_count),
    ("looking for an end fences", "P15", looking_fences),
)
