# SPDX-License-Identifier: Apache-2.0
"""One change of a log's head, whatever it is for: publish, overwrite, trim, compact, condemn. Pure (RULES N3, N4).

READ the head → is what is wanted there already? then DONE → ASK what must be known about this head → CREATE pages →
WRITE by compare-and-set → look again. What is wanted is an :class:`Intent`; it knows the rules of its own change and
nothing of the store.

A conflict reads again. So does an answer that was lost: looking is the only way to learn what became of it. It stays in
doubt as long as the head has the version that it was compared with, and after that unless the head shows that it was
never applied: what was applied may have been trimmed, replaced or forgotten since. An error says NOT_APPLIED only if
nothing is in doubt. Whatever is known about the world
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
from bk_core.logs.head import LogHead, LogPage, LogTransactions
from bk_core.logs.machines import change_events as ev
from bk_core.logs.paging import Change, PagesNeeded, merge_candidates
from bk_core.logs.unlinking import UnlinkedRecord, unlinked_by
from bk_core.model import LedgerId, Versioned

ATTEMPTS_MAX = 30
FAILURES_MAX = 5

R = TypeVar("R")
Ask: TypeAlias = ev.CheckLedgers | ev.RecoverLedgers | ev.ReadUnlinked
Effects: TypeAlias = list[ev.Effect]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the head. ``is_checked``, ``unlinked`` and ``transactions`` are those of the head that was
    read last."""

    pages: dict[str, LogPage] = field(default_factory=dict)
    ends: dict[LedgerId, LedgerEnd] = field(default_factory=dict)  # of closed ledgers: they stay true
    missing: frozenset[LedgerId] = frozenset()  # that were to be recovered: ids are never used again
    transactions: Versioned[LogTransactions] | None = None
    is_checked: bool = False
    unlinked: tuple[UnlinkedRecord, ...] | None = None  # every record that there was; None: not asked
    is_written: bool = False  # the head is the one that our own compare-and-set made

    def with_answer(self, answer: ev.Event) -> Facts:
        """These, and what was asked for about the head that was read last."""
        match answer:
            case ev.PagesRead(pages):
                return replace(self, pages={**self.pages, **pages})
            case ev.LedgersChecked():
                return replace(self, is_checked=True)
            case ev.LedgersRecovered(ends, missing):
                return replace(self, ends={**self.ends, **ends}, missing=self.missing | missing)
            case ev.UnlinkedRead(records):
                return replace(self, unlinked=records)
        raise AssertionError(answer)


def write_of(found: Versioned[LogHead], change: Change, facts: Facts) -> ev.WriteHead:
    """The compare-and-set that makes ``change`` of the head ``found``; what it unlinks goes on record (RULES N6)."""
    version = None
    if change.transactions is not None and facts.transactions is not None:
        version = facts.transactions.version
    unlinked = unlinked_by(found.value, change, facts.pages)
    return ev.WriteHead(change.head, found.version, change.transactions, version, unlinked)


class Intent(Generic[R]):
    """What is wanted of a log. Both methods are asked about each head that is read, may raise PagesNeeded, and have no
    effects of their own."""

    app_id: str | None = None
    """Whose transactions are read with the head."""
    is_repeatable = True
    """Whether it may be applied again where it may have been applied already."""

    def settled(self, head: LogHead, facts: Facts) -> R | None:
        """The result, if ``head`` is as wanted; asked before anything else (RULES N4)."""
        raise NotImplementedError

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """The change that makes it so, or what must be known first. Raises what refuses the change."""
        raise NotImplementedError

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """Whether ``head``, which is not as wanted, shows that ``made`` never was the head: that is what a
        compare-and-set without an answer would have made, with the version ``moved`` − 1 ≥ 0 changes before this."""
        return False


@dataclass(frozen=True, slots=True)
class Doubt:
    """A compare-and-set that got no answer: the version it was compared with, and what it would have made."""

    version: int
    made: LogHead
    error: BookKeeperError


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
        self._doubts: tuple[Doubt, ...] = ()

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
            case State.ASKING, (ev.PagesRead() | ev.LedgersChecked() | ev.LedgersRecovered() | ev.UnlinkedRead()):
                return self._look(self._facts.with_answer(event))
            case State.CREATING, ev.PagesCreated():
                return self._write()
            case State.WRITING, _:
                return self._on_write_ended(event)
            case ((State.READING | State.ASKING | State.CREATING), ev.RequestFailed(error)):
                return self._on_failed(error)
        return []

    # --- looking and deciding ---

    def _read(self) -> Effects:
        sync = self._found is None or bool(self._doubts)
        return self._to(State.READING, ev.ReadHead(sync=sync, app_id=self.intent.app_id))

    def _on_read(self, head: Versioned[LogHead], transactions: Versioned[LogTransactions] | None) -> Effects:
        before, self._found = self._found, head
        if before is not None and before.value.uuid != head.value.uuid:
            return self._fail(PublishConflictError("the log was deleted and made again"))
        is_new = before is None or before.version != head.version
        facts = replace(self._facts, transactions=transactions)
        return self._look(replace(facts, is_checked=False, unlinked=None) if is_new else facts)

    def _look(self, facts: Facts) -> Effects:
        assert self._found is not None
        self._facts = facts
        try:
            if (result := self._settled(self._found.value)) is not None:
                return self._finish(result)
            if not self.intent.is_repeatable and (effects := self._give_up(self._found.version)) is not None:
                return effects
            decision = self.intent.decide(self._found.value, facts)
            if isinstance(decision, Change) and decision.new_pages:
                self._want_merged(self._found.value)
        except PagesNeeded as needed:
            return self._to(State.ASKING, ev.ReadPages(needed.names))
        except BookKeeperError as error:
            return self._fail(error)
        if not isinstance(decision, Change):
            return self._to(State.ASKING, decision)
        self._change = decision
        if decision.new_pages:
            return self._to(State.CREATING, ev.CreatePages(decision.new_pages))
        return self._write()

    def _settled(self, head: LogHead) -> R | None:
        """What the intent says of the head. Unless that is as wanted, some of what is in doubt may be ruled out."""
        try:
            result = self.intent.settled(head, self._facts)
        except PagesNeeded:
            raise
        except BookKeeperError:
            self._judge_doubts()
            raise
        if result is None:
            self._judge_doubts()
        return result

    def _judge_doubts(self) -> None:
        """The head that a write was compared with, or an older one, says nothing: it may still come."""
        assert self._found is not None
        head, version, rules_out = self._found.value, self._found.version, self.intent.rules_out
        self._doubts = tuple(
            doubt
            for doubt in self._doubts
            if version <= doubt.version or not rules_out(doubt.made, version - doubt.version, head, self._facts)
        )

    def _give_up(self, version: int) -> Effects | None:
        """It may have been there, and been forgotten."""
        forgotten = [doubt for doubt in self._doubts if doubt.version < version]
        return self._fail(forgotten[0].error) if forgotten else None

    def _want_merged(self, head: LogHead) -> None:
        """Pages are made anyway: read those that they can be merged with (RULES N3)."""
        if missing := [ref.name for ref in merge_candidates(head) if ref.name not in self._facts.pages]:
            raise PagesNeeded(missing)

    # --- writing ---

    def _write(self) -> Effects:
        assert self._found is not None
        assert self._change is not None
        self.was_attempted = True
        return self._to(State.WRITING, write_of(self._found, self._change, self._facts))

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
        assert self._change is not None
        self._doubts = (*self._doubts, Doubt(self._found.version, self._change.head, error))

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
        error.outcome = Outcome.UNKNOWN if self._doubts else Outcome.NOT_APPLIED
        return self._to(State.FAILED, ev.Fail(error))

    def _to(self, state: State, *effects: ev.Effect) -> Effects:
        self.state = state
        return list(effects)
