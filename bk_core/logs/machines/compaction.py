# SPDX-License-Identifier: Apache-2.0
"""Compaction: many small sealed extents become few, run by run, in steps that a crash may end at any point. Pure.

LIST the log → choose runs → COPY one into a new ledger → VERIFY: read the copy back and compare → LIST it in the run's
place by compare-and-set, if the log still has the run → the next run; when none is left, LIST again. Only what was read
back and found equal is ever listed, and the compare-and-set replaces exactly the extents that were copied, so a trim,
an overwrite or another compaction meanwhile costs this one its copy and the log nothing. A copy is deleted while nobody
has tried to list it; after that only vacuum does that (RULES N4, N6).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeAlias

from bk_core.errors import (
    BookKeeperError,
    IntegrityError,
    LogRecreatedError,
    MetadataCorruptError,
    NoSuchEntryError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.compaction import CompactionLimits, Content, Run, content_problem, runs_to_compact, weight_of
from bk_core.logs.head import Extent, NewExtent
from bk_core.model import LedgerId

DISTURBANCES_MAX = 10
"""Runs in a row that others changed while they were copied, before the compaction gives up."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done: ``extents`` became ``ledgers``, of ``entries`` in all."""

    ledgers: tuple[LedgerId, ...] = ()
    extents: int = 0
    entries: int = 0
    size_bytes: int = 0


# --- what is asked for, and what comes back ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Begin."""


@dataclass(frozen=True, slots=True)
class ListExtents:
    """Read the log as it is now and its sealed extents → ExtentsListed. An older head could list what is gone."""


@dataclass(frozen=True, slots=True)
class ExtentsListed:
    """The log's sealed extents in order, and the limits with its retention in view."""

    log_uuid: str
    extents: Sequence[Extent]
    limits: CompactionLimits


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Copy all entries of the run, in order, into a new ledger and close it → RunCopied. ``number`` counts copies."""

    run: Run
    number: int


@dataclass(frozen=True, slots=True)
class RunCopied:
    """``new`` is closed; ``content`` is what was read from the run."""

    new: NewExtent
    content: Content


@dataclass(frozen=True, slots=True)
class VerifyCopy:
    """Read the whole new ledger → CopyVerified."""

    new: NewExtent


@dataclass(frozen=True, slots=True)
class CopyVerified:
    """What the new ledger holds, as read from its bookies."""

    content: Content


@dataclass(frozen=True, slots=True)
class ListCopy:
    """List ``new`` in the place of the run by compare-and-set → CopyListed."""

    run: Run
    new: NewExtent


@dataclass(frozen=True, slots=True)
class CopyListed:
    """It is listed."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Delete a ledger of ours that nobody tried to list, best effort; no answer."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request failed. A copy that was begun is gone or left to vacuum."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do."""

    result: Compacted


@dataclass(frozen=True, slots=True)
class Fail:
    """The compaction ends; the runs that were listed before stay so."""

    error: BookKeeperError


Event: TypeAlias = Start | ExtentsListed | RunCopied | CopyVerified | CopyListed | RequestFailed
Request: TypeAlias = ListExtents | CopyRun | VerifyCopy | ListCopy
Effect: TypeAlias = Request | DropCopy | Finish | Fail
Effects: TypeAlias = list[Effect]


class State(enum.Enum):
    """Where a compaction stands."""

    NEW = "new"
    LISTING = "listing"
    COPYING = "copying"
    VERIFYING = "verifying"
    REPLACING = "replacing"
    DONE = "done"
    FAILED = "failed"


MOVES: dict[State, tuple[State, ...]] = {
    State.NEW: (State.LISTING,),
    State.LISTING: (State.COPYING, State.DONE, State.FAILED),
    State.COPYING: (State.VERIFYING, State.LISTING, State.FAILED),
    State.VERIFYING: (State.REPLACING, State.LISTING, State.FAILED),
    State.REPLACING: (State.COPYING, State.LISTING, State.DONE, State.FAILED),
    State.DONE: (),
    State.FAILED: (),
}
"""The legal moves: checked at every step."""


class Compaction:
    """One compaction of one log. Step it with one event at a time, beginning with Start; every list of effects ends in
    one request, in Finish or in Fail. An event that does not belong to the state is late or doubled, and ignored."""

    def __init__(self, limits: CompactionLimits) -> None:
        self.state = State.NEW
        self.result = Compacted()
        self._limits = limits
        self._log_uuid: str | None = None
        self._runs: tuple[Run, ...] = ()  # to do; the first is under way
        self._copied: RunCopied | None = None
        self._copies = 0
        self._weight = 0  # copied so far
        self._disturbed = 0  # runs in a row that others changed
        self._incomplete: Run | None = None  # some of it could not be found

    def copy(self) -> Compaction:
        """An independent machine in the same state; all that it holds is replaced, never changed."""
        return copy(self)

    def step(self, event: Event) -> Effects:
        """Take one event; returns the effects in the order they are to be carried out."""
        before = self.state
        effects = self._step(event)
        assert self.state is before or self.state in MOVES[before], (before, event, self.state)
        return effects

    def _step(self, event: Event) -> Effects:
        match self.state, event:
            case State.NEW, Start():
                return self._list()
            case State.LISTING, ExtentsListed():
                return self._on_listed(event)
            case State.COPYING, RunCopied():
                return self._on_copied(event)
            case State.VERIFYING, CopyVerified(content):
                return self._on_verified(content)
            case State.REPLACING, CopyListed(extent):
                return self._on_replaced(extent)
            case State.NEW | State.DONE | State.FAILED, _:
                return []
            case _, RequestFailed(error):
                return self._on_failed(error)
        return []

    def _list(self) -> Effects:
        self._runs = ()
        return self._to(State.LISTING, ListExtents())

    def _on_listed(self, event: ExtentsListed) -> Effects:
        if self._log_uuid not in (None, event.log_uuid):
            return self._fail(LogRecreatedError("the log was deleted and made again", remedy="compact the new one"))
        self._log_uuid = event.log_uuid
        self._runs = tuple(runs_to_compact(event.extents, event.limits))
        return self._next()

    def _next(self) -> Effects:
        enough = self._limits.copy_bytes_max
        if not self._runs or (enough is not None and self._weight >= enough):
            return self._to(State.DONE, Finish(self.result))
        self._copies += 1
        return self._to(State.COPYING, CopyRun(self._runs[0], self._copies))

    def _on_copied(self, copied: RunCopied) -> Effects:
        self._copied = copied
        problem = content_problem(self._runs[0], copied.content)
        if problem is not None:
            return self._refuse(problem)
        return self._to(State.VERIFYING, VerifyCopy(copied.new))

    def _on_verified(self, content: Content) -> Effects:
        assert self._copied is not None
        if content != self._copied.content:
            return self._refuse(f"read {self._copied.content}, the copy holds {content}")
        return self._to(State.REPLACING, ListCopy(self._runs[0], self._copied.new))

    def _on_replaced(self, extent: Extent) -> Effects:
        run, done = self._runs[0], self.result
        self._weight += sum(map(weight_of, run))
        self._disturbed = 0
        self.result = Compacted(
            (*done.ledgers, extent.ledger_id),
            done.extents + len(run),
            done.entries + extent.entry_count,
            done.size_bytes + extent.size_bytes,
        )
        self._runs = self._runs[1:]
        return self._next() if self._runs else self._list()

    # --- trouble ---

    def _refuse(self, problem: str) -> Effects:
        assert self._copied is not None
        ledger_id = self._copied.new.ledger_id
        error = IntegrityError(
            "a copy is not what the log lists, and was not used",
            value=f"offsets {self._runs[0][0].base_offset} to {self._runs[0][-1].next_offset}: {problem}",
            remedy="the log is as it was; check its ledgers with bk ledger read",
        )
        return [DropCopy(ledger_id), *self._fail(error)]

    def _on_failed(self, error: BookKeeperError) -> Effects:
        """What others changed is looked at again; everything else is final."""
        is_gone = isinstance(error, NoSuchLedgerError | NoSuchEntryError)
        match self.state:
            case State.LISTING if isinstance(error, MetadataCorruptError | PublishConflictError):
                return self._again(error)  # a page was replaced and deleted between head and page
            case State.COPYING if is_gone and self._incomplete != self._runs[0]:
                self._incomplete = self._runs[0]  # if the log still lists it, its data are lost
                return self._again(error)
            case State.VERIFYING if isinstance(error, NoSuchLedgerError):  # a vacuum took it for an orphan
                return self._again(error)
            case State.VERIFYING:
                assert self._copied is not None
                return [DropCopy(self._copied.new.ledger_id), *self._fail(error)]
            case State.REPLACING if isinstance(error, PublishConflictError) and error.outcome is Outcome.NOT_APPLIED:
                return self._again(error)
        return self._fail(error)

    def _again(self, error: BookKeeperError) -> Effects:
        self._disturbed += 1
        return self._fail(error) if self._disturbed > DISTURBANCES_MAX else self._list()

    def _fail(self, error: BookKeeperError) -> Effects:
        return self._to(State.FAILED, Fail(error))

    def _to(self, state: State, *effects: Effect) -> Effects:
        self.state = state
        return list(effects)
