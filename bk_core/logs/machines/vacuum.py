# SPDX-License-Identifier: Apache-2.0
"""Vacuum: delete what nobody lists, in steps that a crash may end at any point. Pure (RULES N6).

LIST ledgers that say they are this log's and are old enough → CONDEMN, by compare-and-set, those that the log does not
list and that no record says were unlinked lately, as many as the head has room for → DELETE them → ABSOLVE: the head
forgets those that are gone for certain → the next round. Then pages: LIST → FENCE → DELETE the old records, which keep
nothing any more, and then the pages, so that no record ever names a page that is gone. A ledger is looked for in the
head that its condemnation is compared with, and no publish takes a condemned one, so nothing that is listed is ever
deleted. Last, transaction records that nobody used for long (RULES N5): LIST → READ some → DELETE those by
compare-and-set, so that one used meanwhile stays.
"""

from __future__ import annotations

import enum
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from bk_core.errors import LogRecreatedError, MetadataUnavailableError, Outcome
from bk_core.logs.head import LogTransactions
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import Effects, HeadChange, Intent
from bk_core.logs.machines.upkeep import Absolve, Condemn, FencePages, Unneeded
from bk_core.logs.paging import Nonce
from bk_core.model import LedgerId


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was deleted, and the condemned ledgers that could not be; the next vacuum tries again."""

    ledgers: tuple[LedgerId, ...] = ()
    remaining: tuple[LedgerId, ...] = ()
    pages: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()  # by the names of their applications or queries


TXNS_AT_ONCE = 100
"""Transaction records read, and deleted, at a time."""
TXNS_LOOKS_MAX = 5
"""Looks at as many records before they are left to the next vacuum: others change the log too fast."""


class State(enum.Enum):
    """Where a vacuum stands."""

    NEW = "new"
    LISTING = "listing"
    CONDEMNING = "condemning"
    DELETING = "deleting"
    ABSOLVING = "absolving"
    LISTING_PAGES = "listing pages"
    FENCING_PAGES = "fencing pages"
    DELETING_UNLINKED = "deleting unlinked records"
    DELETING_PAGES = "deleting pages"
    LISTING_TXNS = "listing transactions"
    READING_TXNS = "reading transactions"
    DELETING_TXNS = "deleting transactions"
    DONE = "done"
    FAILED = "failed"


MOVES: dict[State, tuple[State, ...]] = {
    State.NEW: (State.LISTING,),
    State.LISTING: (State.CONDEMNING, State.FAILED),
    State.CONDEMNING: (State.DELETING, State.LISTING_PAGES, State.FAILED),
    State.DELETING: (State.ABSOLVING, State.LISTING_PAGES, State.FAILED),
    State.ABSOLVING: (State.CONDEMNING, State.LISTING_PAGES, State.FAILED),
    State.LISTING_PAGES: (State.FENCING_PAGES, State.FAILED),
    State.FENCING_PAGES: (
        *(State.DELETING_UNLINKED, State.DELETING_PAGES, State.LISTING_TXNS),
        *(State.DONE, State.FAILED),
    ),
    State.DELETING_UNLINKED: (State.DELETING_PAGES, State.LISTING_TXNS, State.DONE, State.FAILED),
    State.DELETING_PAGES: (State.LISTING_TXNS, State.DONE, State.FAILED),
    State.LISTING_TXNS: (State.READING_TXNS, State.DONE, State.FAILED),
    State.READING_TXNS: (State.DELETING_TXNS, State.DONE, State.FAILED),
    State.DELETING_TXNS: (State.READING_TXNS, State.DONE, State.FAILED),
    State.DONE: (),
    State.FAILED: (),
}
"""The legal moves: checked at every step, and the picture in docs/protocol.md."""
_REQUESTING = (
    *(State.LISTING, State.DELETING, State.LISTING_PAGES, State.DELETING_UNLINKED, State.DELETING_PAGES),
    *(State.LISTING_TXNS, State.READING_TXNS, State.DELETING_TXNS),
)
"""Where a request is under way that is none of a change of the head."""
_CHANGING = (ev.WriteHead, ev.DeleteLedgers, ev.DeleteUnlinked, ev.DeletePages, ev.DeleteTransactions)


class Vacuum:
    """One vacuum of one log: ledgers and pages made before ``before_ms`` and not unlinked since, by the store's clock;
    transactions last used before ``txns_before_ms`` by their writers' (0: none). Step it with one event at a time,
    beginning with Start."""

    def __init__(self, log_uuid: str, before_ms: int, nonce: Nonce, *, txns_before_ms: int = 0) -> None:
        self.log_uuid, self.before_ms, self.txns_before_ms = log_uuid, before_ms, txns_before_ms
        self.state = State.NEW
        self.result = Vacuumed()
        self._nonce = nonce
        self._candidates: tuple[LedgerId, ...] = ()
        self._change: HeadChange[Any] | None = None  # of the head, under way
        self._unneeded = Unneeded((), ())
        self._keys: tuple[str, ...] = ()  # of transactions, not looked at to the end
        self._unused: dict[str, str] = {}  # key → application of those that are to be deleted
        self._looks = 0  # at the first of ``_keys``
        self._is_begun = False  # something was asked for that changes the world

    def copy(self) -> Vacuum:
        """An independent machine in the same state."""
        twin = copy(self)
        twin._change = self._change.copy() if self._change is not None else None
        return twin

    def step(self, event: ev.Event) -> Effects:
        """Take one event; returns the effects in the order they are to be carried out."""
        before = self.state
        effects = self._step(event)
        assert self.state is before or self.state in MOVES[before], (before, event, self.state)
        for effect in effects:
            self._is_begun = self._is_begun or isinstance(effect, _CHANGING)
            if isinstance(effect, ev.Fail):
                effect.error.outcome = Outcome.UNKNOWN if self._is_begun else Outcome.NOT_APPLIED
        return effects

    def _step(self, event: ev.Event) -> Effects:
        match self.state, event:
            case State.NEW, ev.Start():
                return self._to(State.LISTING, ev.ListOrphans(self.log_uuid, self.before_ms))
            case State.LISTING, ev.OrphansListed(ledgers):
                self._candidates = ledgers
                return self._condemn()
            case State.DELETING, ev.LedgersDeleted(ledgers):
                return self._on_deleted(ledgers)
            case State.LISTING_PAGES, ev.PagesListed(names):
                return self._begin(State.FENCING_PAGES, FencePages(names, self.before_ms))
            case State.DELETING_UNLINKED, ev.UnlinkedDeleted():
                return self._delete_pages()
            case State.DELETING_PAGES, ev.PagesDeleted():
                return self._list_txns()
            case ((State.CONDEMNING | State.ABSOLVING | State.FENCING_PAGES), _):
                return self._step_change(event)
        return self._step_txns(event)

    def _step_txns(self, event: ev.Event) -> Effects:
        match self.state, event:
            case State.LISTING_TXNS, ev.TransactionsListed(keys):
                self._keys = keys
                return self._read_txns()
            case State.READING_TXNS, ev.TransactionsRead():
                return self._on_txns_read(event)
            case State.DELETING_TXNS, ev.TransactionsDeleted():
                self._count(self._unused)
                return self._next_txns()
            case State.DELETING_TXNS, (ev.HeadConflicted() | ev.RequestFailed(MetadataUnavailableError())):
                return self._read_txns() if self._looks < TXNS_LOOKS_MAX else self._next_txns()
            case state, ev.RequestFailed(error) if state in _REQUESTING:
                return self._to(State.FAILED, ev.Fail(error))
        return []

    def _condemn(self) -> Effects:
        return self._begin(State.CONDEMNING, Condemn(self._candidates, self.before_ms, self.log_uuid, self._nonce))

    def _begin(self, state: State, intent: Intent[Any]) -> Effects:
        self.state, self._change = state, HeadChange(intent)
        return self._change.step(ev.Start())

    def _step_change(self, event: ev.Event) -> Effects:
        assert self._change is not None
        effects = self._change.step(event)
        match effects[-1:]:
            case [ev.Finish(result)]:
                return [*effects[:-1], *self._on_changed(result)]
            case [ev.Fail()]:
                return self._to(State.FAILED, *effects)
        return effects

    def _on_changed(self, result: Any) -> Effects:
        match self.state:
            case State.CONDEMNING if result:
                return self._to(State.DELETING, ev.DeleteLedgers(result, self.log_uuid))
            case State.ABSOLVING if not self.result.remaining:
                return self._condemn()
            case State.FENCING_PAGES:
                self._unneeded = result
                if result.records:
                    return self._to(State.DELETING_UNLINKED, ev.DeleteUnlinked(result.records))
                return self._delete_pages()
        return self._to(State.LISTING_PAGES, ev.ListPages(self.before_ms))

    def _delete_pages(self) -> Effects:
        names = self._unneeded.pages
        self.result = replace(self.result, pages=names)
        return self._to(State.DELETING_PAGES, ev.DeletePages(names)) if names else self._list_txns()

    def _on_deleted(self, gone: tuple[LedgerId, ...]) -> Effects:
        assert self._change is not None
        condemned: tuple[LedgerId, ...] = self._change.result or ()
        remaining = tuple(each for each in condemned if each not in gone)
        self.result = replace(self.result, ledgers=(*self.result.ledgers, *gone), remaining=remaining)
        self._candidates = tuple(each for each in self._candidates if each not in gone)
        if not gone:
            return self._to(State.LISTING_PAGES, ev.ListPages(self.before_ms))
        return self._begin(State.ABSOLVING, Absolve(gone, self._nonce))

    # --- transactions ---

    def _list_txns(self) -> Effects:
        if self.txns_before_ms <= 0:
            return self._end()
        return self._to(State.LISTING_TXNS, ev.ListTransactions())

    def _read_txns(self) -> Effects:
        if not self._keys:
            return self._end()
        self._looks += 1
        return self._to(State.READING_TXNS, ev.ReadTransactions(self._keys[:TXNS_AT_ONCE]))

    def _on_txns_read(self, event: ev.TransactionsRead) -> Effects:
        if event.head.value.uuid != self.log_uuid:
            error = LogRecreatedError("the log was deleted and made again", remedy="vacuum the new one")
            return self._to(State.FAILED, ev.Fail(error))
        self._count({key: name for key, name in self._unused.items() if key not in event.records})
        old = {key: found for key, found in event.records.items() if self._is_unused(found.value)}
        if not old:
            return self._next_txns()
        self._unused = {key: found.value.app_id for key, found in old.items()}
        versions = {key: found.version for key, found in old.items()}
        return self._to(State.DELETING_TXNS, ev.DeleteTransactions(versions, event.head.version))

    def _is_unused(self, record: LogTransactions) -> bool:
        return record.last_used_ms < self.txns_before_ms

    def _count(self, gone: dict[str, str]) -> None:
        self.result = replace(self.result, transactions=(*self.result.transactions, *gone.values()))

    def _next_txns(self) -> Effects:
        self._keys, self._unused, self._looks = self._keys[TXNS_AT_ONCE:], {}, 0
        return self._read_txns()

    def _end(self) -> Effects:
        return self._to(State.DONE, ev.Finish(self.result))

    def _to(self, state: State, *effects: ev.Effect) -> Effects:
        self.state = state
        return list(effects)
