# SPDX-License-Identifier: Apache-2.0
"""One change of a log's head, whatever it is for: publish, overwrite, trim, compact, condemn. Pure (RULES N3, N4).

READ the head → is what is wanted there already? then DONE → ASK what must be known about this head → CREATE pages →
WRITE by compare-and-set → look again. What is wanted is an :class:`Intent`; it knows the rules of its own change and
nothing of the store.

A conflict reads again. So does an answer that was lost: looking is the only way to learn what became of it, and it
stays in doubt exactly as long as the head has the version that it was compared with. Whatever is known about the world
beside the head (do the ledgers still exist?) counts only if it was asked after the head was read that it is used for:
what makes it untrue changes the head first.
"""

from __future__ import annotations

import enum
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

from bk_core.errors import BookKeeperError, MetadataUnavailableError, Outcome, PublishConflictError
from bk_core.logs.commit import LedgerEnd
from bk_core.logs.head import PUBLISHED_MAX, LogHead, LogPage, LogTransactions
from bk_core.logs.machines import change_events as ev
from bk_core.logs.paging import Change, PagesNeeded, merge_candidates
from bk_core.model import LedgerId, Versioned

ATTEMPTS_MAX = 30
FAILURES_MAX = 5

R = TypeVar("R")
Ask: TypeAlias = ev.CheckLedgers | ev.RecoverLedgers
Effects: TypeAlias = list[ev.Effect]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the head. ``is_checked`` and ``transactions`` are those of the head that was read last."""

    pages: dict[str, LogPage] = field(default_factory=dict)
    ends: dict[LedgerId, LedgerEnd] = field(default_factory=dict)  # of closed ledgers: they stay true
    missing: frozenset[LedgerId] = frozenset()  # that were to be recovered: ids are never used again
    transactions: Versioned[LogTransactions] | None = None
    is_checked: bool = False
    is_written: bool = False  # the head is the one that our own compare-and-set made


class Intent(Generic[R]):
    """What is wanted of a log. Both methods are asked about each head that is read, may raise PagesNeeded, and have no
    effects of their own."""

    app_id: str | None = None
    """Whose transactions are read with the head."""
    heads_remembered: int | None = None
    """After how many changes by others a head may not show any more that ours was applied; None: it always does."""
    may_be_undone = False
    """Whether one change by others may hide that ours was applied: then only a head that takes ours once more tells."""

    def settled(self, head: LogHead, facts: Facts) -> R | None:
        """The result, if ``head`` is as wanted; asked before anything else (RULES N4)."""
        raise NotImplementedError

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """The change that makes it so, or what must be known first. Raises what refuses the change."""
        raise NotImplementedError


class State(enum.Enum):
    """Where a change stands."""

    NEW = "new"
    READING = "reading"
    ASKING = "asking"
    CREATING = "creating"
    WRITING = "writing"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


_ENDS = (State.DONE, State.FAILED)
_DECIDED = (State.ASKING, State.CREATING, State.WRITING)
MOVES: dict[State, tuple[State, ...]] = {
    State.NEW: (State.READING, State.FAILED),
    State.READING: (*_DECIDED, State.WAITING, *_ENDS),
    State.ASKING: (*_DECIDED, State.WAITING, *_ENDS),
    State.CREATING: (State.WRITING, State.WAITING, State.FAILED),
    State.WRITING: (State.WAITING, *_ENDS),
    State.WAITING: (State.READING, State.FAILED),
    State.DONE: (),
    State.FAILED: (),
}
"""The legal moves: checked at every step, and the picture in docs/protocol.md."""


class HeadChange(Generic[R]):
    """Carries one intent out. Step it with one event at a time, beginning with Start; every list of effects ends in
    one request, in Finish or in Fail. An event that does not belong to the state is late or doubled, and ignored."""

    def __init__(self, intent: Intent[R], *, attempts_max: int = ATTEMPTS_MAX, failures_max: int = FAILURES_MAX):
        self.intent = intent
        self.state = State.NEW
        self.was_attempted = False  # a compare-and-set was sent
        self.result: R | None = None
        self._attempts, self._attempts_max = 0, attempts_max
        self._failures, self._failures_max = 0, failures_max
        self._facts = Facts()
        self._found: Versioned[LogHead] | None = None
        self._change: Change | None = None
        self._doubt: tuple[int, BookKeeperError] | None = None  # version and error of a write without an answer

    def copy(self) -> HeadChange[R]:
        """An independent machine in the same state; all that it holds is replaced, never changed."""
        return copy(self)

    def step(self, event: ev.Event) -> Effects:
        """Take one event; returns the effects in the order they are to be carried out."""
        before = self.state
        effects = self._step(event)
        assert self.state is before or self.state in MOVES[before], (before, event, self.state)
        return effects

    def _step(self, event: ev.Event) -> Effects:
        match self.state, event:
            case State.NEW, ev.Start():
                return self._read()
            case State.WAITING, ev.WaitEnded():
                return self._read()
            case State.READING, ev.HeadRead(head, transactions):
                return self._on_read(head, transactions)
            case State.ASKING, ev.PagesRead(pages):
                return self._look(replace(self._facts, pages={**self._facts.pages, **pages}))
            case State.ASKING, ev.LedgersChecked():
                return self._look(replace(self._facts, is_checked=True))
            case State.ASKING, ev.LedgersRecovered(ends, missing):
                known = self._facts
                return self._look(replace(known, ends={**known.ends, **ends}, missing=known.missing | missing))
            case State.CREATING, ev.PagesCreated():
                return self._write()
            case State.WRITING, _:
                return self._on_write_ended(event)
            case ((State.READING | State.ASKING | State.CREATING), ev.RequestFailed(error)):
                return self._on_failed(error)
        return []

    # --- looking and deciding ---

    def _read(self) -> Effects:
        return self._to(State.READING, ev.ReadHead(sync=self._doubt is not None, app_id=self.intent.app_id))

    def _on_read(self, head: Versioned[LogHead], transactions: Versioned[LogTransactions] | None) -> Effects:
        before, self._found = self._found, head
        if before is not None and before.value.uuid != head.value.uuid:
            return self._fail(PublishConflictError("the log was deleted and made again"))
        is_new = before is None or before.version != head.version
        facts = replace(self._facts, transactions=transactions, is_checked=self._facts.is_checked and not is_new)
        return self._look(facts)

    def _look(self, facts: Facts) -> Effects:
        assert self._found is not None
        self._facts = facts
        try:
            if (result := self.intent.settled(self._found.value, facts)) is not None:
                return self._finish(result)
            if self._doubt is not None and (effects := self._judge_doubt(self._found.version)) is not None:
                return effects
            decision = self.intent.decide(self._found.value, facts)
            if isinstance(decision, Change) and decision.new_pages:
                self._want_merged(self._found.value)
        except PagesNeeded as needed:
            return self._to(State.ASKING, ev.ReadPages(needed.names))
        except BookKeeperError as error:
            return self._refuse(error)
        if not isinstance(decision, Change):
            return self._to(State.ASKING, decision)
        self._change = decision
        if decision.new_pages:
            return self._to(State.CREATING, ev.CreatePages(decision.new_pages))
        return self._write()

    def _judge_doubt(self, version: int) -> Effects | None:
        """What we want is not there. If the version moved on, ours was not applied and never will be; an older head
        says nothing."""
        assert self._doubt is not None
        moved = version - self._doubt[0]
        if self.intent.heads_remembered is not None and moved > self.intent.heads_remembered:
            return self._fail(self._doubt[1])  # it may have been there, and been forgotten
        if moved > 0 and not self.intent.may_be_undone:
            self._doubt = None
        return None

    def _refuse(self, error: BookKeeperError) -> Effects:
        """The intent refuses this head: ours was not applied before if the head would remember that."""
        assert self._found is not None
        if self._doubt is not None and not self.intent.may_be_undone:
            is_remembered = 0 < self._found.version - self._doubt[0] < PUBLISHED_MAX
            self._doubt = None if is_remembered else self._doubt
        return self._fail(error)

    def _want_merged(self, head: LogHead) -> None:
        """Pages are made anyway: read those that they can be merged with (RULES N3)."""
        if missing := [ref.name for ref in merge_candidates(head) if ref.name not in self._facts.pages]:
            raise PagesNeeded(missing)

    # --- writing ---

    def _write(self) -> Effects:
        assert self._found is not None
        assert self._change is not None
        self.was_attempted = True
        if self._doubt is not None and self._doubt[0] < self._found.version:
            self._doubt = None  # a later head takes ours: the one in doubt was not applied
        version = None
        if self._change.transactions is not None and self._facts.transactions is not None:
            version = self._facts.transactions.version
        write = ev.WriteHead(self._change.head, self._found.version, self._change.transactions, version)
        return self._to(State.WRITING, write)

    def _on_write_ended(self, event: ev.Event) -> Effects:
        assert self._change is not None
        match event:
            case ev.HeadWritten():
                return self._finish(self._written(self._change))
            case ev.HeadConflicted():
                return [*self._drop_pages(), *self._pause()]
            case ev.HeadWriteUnknown(error):
                self._doubted(error)
                return self._on_failed(error)
            case ev.RequestFailed(error):
                return [*self._drop_pages(), *self._on_failed(error)]
        return []

    def _doubted(self, error: BookKeeperError) -> None:
        assert self._found is not None
        self._doubt = (self._found.version, error)

    def _written(self, change: Change) -> R:
        transactions = None if change.transactions is None else Versioned(change.transactions, 0)
        pages = {**self._facts.pages, **{new.name: new.page for new in change.new_pages}}
        facts = replace(self._facts, pages=pages, transactions=transactions, is_written=True)
        result = self.intent.settled(change.head, facts)
        assert result is not None, "the change does not do what it is for"
        return result

    def _drop_pages(self) -> Effects:
        assert self._change is not None
        return [ev.DropPages(tuple(new.name for new in self._change.new_pages))] if self._change.new_pages else []

    # --- trouble and the end ---

    def _on_failed(self, error: BookKeeperError) -> Effects:
        """A store that is away may come back; everything else is final."""
        self._failures += 1
        if not isinstance(error, MetadataUnavailableError) or self._failures >= self._failures_max:
            return self._fail(error)
        return self._pause()

    def _pause(self) -> Effects:
        self._attempts += 1
        if self._attempts >= self._attempts_max:
            return self._fail(
                PublishConflictError(
                    f"others changed the log first, {self._attempts} times",
                    remedy="try again, with fewer writers at a time",
                )
            )
        return self._to(State.WAITING, ev.Wait(self._attempts))

    def _finish(self, result: R) -> Effects:
        self.result = result
        return self._to(State.DONE, ev.Finish(result))

    def _fail(self, error: BookKeeperError) -> Effects:
        error.outcome = Outcome.UNKNOWN if self._doubt is not None else Outcome.NOT_APPLIED
        return self._to(State.FAILED, ev.Fail(error))

    def _to(self, state: State, *effects: ev.Effect) -> Effects:
        self.state = state
        return list(effects)
