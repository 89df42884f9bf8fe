# SPDX-License-Identifier: Apache-2.0
"""Collects the answers of several bookies about one window of entry ids. Pure, vectorised.

A read needs one copy of each entry. A recovery also counts the bookies that deny an entry. FOUND, ABSENT and UNKNOWN
are three different answers (MUST 4). An id above the end of a bookie's answer has none of the three.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.parts import Parts
from bk_core.entries.verified import verified_batches
from bk_core.errors import IntegrityError
from bk_core.model import EntryId
from bk_core.protocol import events as ev
from bk_core.wire.lane.reasons import EntryRange


@dataclass(slots=True)
class Answer:
    """One bookie's answer so far about the ids ``first`` to ``last``.

    ``heard`` says that a part of the answer came since the last check for late bookies. ``late`` says that the bookie
    sent nothing for ``speculative_ms``, so that the reader asked other bookies too.
    """

    index: int
    first: EntryId
    last: EntryId
    through: EntryId | None = None  # the last id that the bookie answered; None until the answer ends
    absent: tuple[EntryRange, ...] = ()
    unknown: tuple[EntryRange, ...] = ()
    problem: str = ""
    failed: bool = False
    heard: bool = False
    late: bool = False
    size: int = 0

    @property
    def finished(self) -> bool:
        return self.through is not None

    def denies(self, entry_id: EntryId) -> bool:
        """Return whether the bookie said ABSENT of the entry and did not also say UNKNOWN."""
        absent, unknown = (any(r.first <= entry_id <= r.last for r in said) for said in (self.absent, self.unknown))
        return self.answers(entry_id) and absent and not unknown

    def answers(self, entry_id: EntryId) -> bool:
        return self.through is not None and self.first <= entry_id <= self.through


@dataclass(slots=True)
class Window:
    """The ids ``first`` to ``last`` and all answers about them. ``cursor`` is the next id to take. ``held`` are the
    verified batches with entries at or above the cursor."""

    first: EntryId
    last: EntryId
    answers: dict[int, Answer] = field(default_factory=dict)  # request → answer
    held: list[EntryBatch] = field(default_factory=list)
    cursor: EntryId = 0
    _found: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.cursor = self.first
        self._found = np.zeros(self.last - self.first + 1, dtype=np.bool_)

    def asked(self, request: int, index: int, first: EntryId, last: EntryId | None = None) -> None:
        self.answers[request] = Answer(index, first, self.last if last is None else last)

    def verified(
        self,
        request: int,
        frames: memoryview,
        digester: Digester,
        always: bool,
        parts: Parts | None = None,
        *,
        keep_heads: bool = False,
    ) -> list[EntryBatch]:
        """Verify a part of an answer. Raises IntegrityError for a bad digest or an id not asked for."""
        answer = self.answers[request]
        answer.heard, answer.size = True, answer.size + len(frames)
        if parts:
            batches = parts.verified(frames, digester)
        else:
            batches = verified_batches(frames, digester, always=always, keep_heads=keep_heads)
        for batch in batches:
            if batch.first_entry_id < answer.first or batch.last_entry_id > answer.last:
                raise IntegrityError(
                    "a bookie answered with entries that were not asked for",
                    value=f"{batch.first_entry_id} to {batch.last_entry_id} instead of {answer.first} to {answer.last}",
                )
        return batches

    def add(self, batch: EntryBatch) -> None:
        """Keep the entries of a verified batch that lie at or above the cursor and that no earlier batch had."""
        ids = batch.entry_ids()
        wanted = (ids >= self.cursor) & (ids <= self.last)
        wanted[wanted] = ~self._found[ids[wanted] - self.first]  # earlier batches had the other entries
        if not wanted.all():
            batch, ids = batch.select(wanted), ids[wanted]
        if len(batch):
            self.held.append(batch)
            self._found[ids - self.first] = True

    def finish(self, event: ev.ReadAnswered) -> None:
        if event.answered_through > (answer := self.answers[event.request]).last:
            return self.fail(event.request, f"answered through {event.answered_through}, not {answer.last}")
        answer.through = event.answered_through
        answer.absent, answer.unknown, answer.problem = event.absent, event.unknown, event.detail

    def fail(self, request: int, problem: str) -> None:
        """End an answer that failed or broke off. The bookie then counts as having answered UNKNOWN for every id of the
        request."""
        answer = self.answers[request]
        answer.through = answer.last
        answer.unknown, answer.problem, answer.failed = (EntryRange(answer.first, answer.last),), problem, True

    def pending(self) -> list[tuple[int, Answer]]:
        """Return the requests that have not ended."""
        return [(request, answer) for request, answer in self.answers.items() if not answer.finished]

    def cancel_pending(self, but: int = 0) -> list[ev.CancelRead]:
        """Forget and cancel all requests that have not ended, except ``but``."""
        cancelled = [request for request, _ in self.pending() if request != but]
        for request in cancelled:
            del self.answers[request]
        return [ev.CancelRead(request) for request in cancelled]

    @property
    def all_finished(self) -> bool:
        return all(answer.finished for answer in self.answers.values())

    def run_end(self) -> EntryId:
        """Return the first id at or above the cursor that was not found yet."""
        if not self.held:
            return self.cursor
        gaps = np.flatnonzero(~self._found[self.cursor - self.first :])
        return self.cursor + int(gaps[0]) if gaps.size else self.last + 1

    def missing(self, through: EntryId) -> npt.NDArray[np.int64]:
        """Return the ids up to ``through`` that were not found."""
        return self.first + np.flatnonzero(~self._found[: through + 1 - self.first])

    def next_found_after(self, entry_id: EntryId) -> EntryId:
        """Return the first id above ``entry_id`` that was found, or last + 1."""
        hits = np.flatnonzero(self._found[entry_id + 1 - self.first :])
        return entry_id + 1 + int(hits[0]) if hits.size else self.last + 1

    def take(self) -> EntryBatch | None:
        """Take the entries from the cursor to the first gap, each once and in order, and move the cursor to the gap."""
        end = self.run_end()
        if end == self.cursor:
            return None
        taken: list[EntryBatch] = []
        kept: list[EntryBatch] = []
        for batch in self.held:
            before = batch.entry_ids() < end
            if before.all():
                taken.append(batch)
            elif not before.any():
                kept.append(batch)
            else:
                taken.append(batch.select(before))
                kept.append(batch.select(~before))
        self.held, self.cursor = kept, end
        return EntryBatch.merge_by_id(taken)  # even a single batch: a cut of a striped frame still lists its ids

    def deniers(self, entry_id: EntryId, indices: tuple[int, ...]) -> set[int]:
        """Return those of ``indices`` whose bookies answered ABSENT for the entry. Two answers of one bookie count once
        (MUST 5)."""
        return {a.index for a in self.answers.values() if a.index in indices and a.denies(entry_id)}

    def waiting(self, entry_id: EntryId, indices: tuple[int, ...]) -> bool:
        """Return whether the answer of a bookie of ``indices`` has not ended."""
        return any(a.index in indices and not a.finished for a in self.answers.values())

    def unanswered(self, entry_id: EntryId, indices: tuple[int, ...]) -> bool:
        """Return whether a bookie of ``indices`` ended its answer below the entry. It must then be asked again."""
        return any(a.index in indices and a.finished and not a.answers(entry_id) for a in self.answers.values())
