# SPDX-License-Identifier: Apache-2.0
"""Leads a named log: takes it over by fencing, rolls its ledgers, gives it up. Pure.

Sources: protocol document "Ledgers to logs" (opening a log, rolling ledgers); N2; MUST15.

A takeover has these steps: READ the head → RECOVER every open extent and at least the last two ledgers, which fences
their writers → SEAL the open extents in the head → CREATE a ledger → LIST it by compare-and-set → SERVE. Nothing is
appended before that compare-and-set. If a compare-and-set finds another version, the leader calls ``still_leader`` and
begins again at the first step. A roll has these steps: CREATE → LIST, while appends still go to the current ledger →
switch appends to the new ledger → close the previous ledger → SEAL it.

After a lost answer the leader reads the head again. Then the new ledger is listed, or the version is unchanged and the
leader repeats the write, or another client was faster. The leader deletes a new ledger only if every compare-and-set
that named it was certainly refused. Otherwise vacuum finds the ledger (N4, N6).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TypeAlias

from bk_core.errors import (
    AuthenticationError,
    BookKeeperError,
    LeadershipLostError,
    NoSuchLedgerError,
    NoSuchLogError,
    Outcome,
)
from bk_core.logs.machines import leadership_events as ev
from bk_core.logs.model.head import Extent, LogHead
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.model import LedgerId, Versioned

Effects: TypeAlias = list[ev.LeadershipEffect]


class State(enum.Enum):
    """The states of a leadership."""

    NEW = "new"
    READING = "reading"
    RECOVERING = "recovering"
    SEALING = "sealing"
    CREATING = "creating"
    LISTING = "listing"
    SERVING = "serving"
    ROLL_ASKING = "roll asking"
    ROLL_CREATING = "roll creating"
    ROLL_LISTING = "roll listing"
    ROLL_CLOSING = "roll closing"
    ROLL_SEALING = "roll sealing"
    CLOSING = "closing"
    CLOSE_SEALING = "close sealing"
    ASKING = "asking"  # the driver calls still_leader after a failed compare-and-set
    WAITING = "waiting"
    REREADING = "rereading"
    ENDED = "ended"
    LOST = "lost"


_SETTLING = (State.ASKING, State.WAITING)
MOVES: dict[State, tuple[State, ...]] = {
    State.NEW: (State.READING, State.ENDED),
    State.READING: (State.RECOVERING, State.CREATING, State.LOST),
    State.RECOVERING: (State.SEALING, State.CREATING, State.LISTING, State.LOST),
    State.SEALING: (State.CREATING, State.LISTING, *_SETTLING, State.LOST),
    State.CREATING: (State.LISTING, State.LOST),
    State.LISTING: (State.SERVING, State.CLOSING, *_SETTLING, State.LOST),
    State.SERVING: (State.ROLL_ASKING, State.CLOSING, State.LOST),
    State.ROLL_ASKING: (State.ROLL_CREATING, State.LOST),
    State.ROLL_CREATING: (State.ROLL_LISTING, State.SERVING, State.CLOSING, State.LOST),
    State.ROLL_LISTING: (State.ROLL_CLOSING, *_SETTLING, State.LOST),
    State.ROLL_CLOSING: (State.ROLL_SEALING, State.LOST),
    State.ROLL_SEALING: (State.SERVING, State.CLOSING, *_SETTLING, State.LOST),
    State.CLOSING: (State.CLOSE_SEALING, State.LOST),
    State.CLOSE_SEALING: (State.ENDED, *_SETTLING, State.LOST),
    State.ASKING: (State.WAITING, State.LOST),
    State.WAITING: (State.REREADING, State.LOST),
    State.REREADING: (
        State.RECOVERING,
        State.CREATING,
        State.LISTING,
        State.SERVING,
        State.ROLL_LISTING,
        State.ROLL_CLOSING,
        State.ROLL_SEALING,
        State.CLOSING,
        State.CLOSE_SEALING,
        State.WAITING,
        State.ENDED,
        State.LOST,
    ),
    State.ENDED: (),
    State.LOST: (),
}
"""The legal moves between states. Each step is checked against them, and docs/protocol.md shows them."""


@dataclass(slots=True, eq=False)
class LogLeadership:
    """The machine of one leader of one log, from the takeover to the end. :meth:`step` takes one event and returns
    effects. An event that does not fit the state is late or a duplicate, and is ignored."""

    attempts_max: int = 10
    state: State = field(default=State.NEW, init=False)
    _attempt: int = field(default=0, init=False)  # failed compare-and-sets since the last success
    _head: Versioned[LogHead] | None = field(default=None, init=False)  # the next change is compared with this
    _to_recover: tuple[LedgerId, ...] = field(default=(), init=False)
    _ends: tuple[tuple[LedgerId, LedgerEnd], ...] = field(default=(), init=False)  # of open extents that were recovered
    _creating: bool = field(default=False, init=False)  # whether a CreateLedger waits for its answer
    _spare: Extent | None = field(default=None, init=False)  # a created ledger that is not known to be listed
    _listing: bool = field(default=False, init=False)  # whether a write that lists the spare waits for its answer
    _spare_uncertain: bool = field(default=False, init=False)  # the answer to a write that lists the spare was lost
    _current: LedgerId | None = field(default=None, init=False)  # takes the appends; None before the first Serve
    _previous: LedgerId | None = field(default=None, init=False)  # took the appends before a roll, until it is sealed
    _closed: tuple[LedgerId, LedgerEnd] | None = field(default=None, init=False)  # our closed ledger, to be sealed
    _resume: State = field(default=State.READING, init=False)  # the state to continue with after REREADING
    _give_up_wanted: bool = field(default=False, init=False)

    def step(self, event: ev.LeadershipEvent) -> Effects:
        """Handle one event and return the effects in order."""
        before = self.state
        effects = self._step(event)
        assert self.state is before or self.state in MOVES[before], (before, event, self.state)
        return effects

    # --- dispatch ---

    def _step(self, event: ev.LeadershipEvent) -> Effects:
        match event:
            case ev.TakeOver() | ev.Roll() | ev.GiveUp():
                return self._on_command(event)
            case ev.HeadRead():
                return self._on_head_read(event)
            case ev.HeadWritten(head):
                return self._on_head_written(head)
            case ev.HeadConflicted() | ev.HeadWriteUnknown():
                return self._settle(ask=isinstance(event, ev.HeadConflicted))
            case ev.LedgerRecovered() | ev.LedgerMissing() | ev.LedgerCreated() | ev.LedgerClosed() | ev.WriterFailed():
                return self._on_ledger(event)
            case ev.LeaderAnswered(still_leader):
                return self._on_leader_answered(still_leader)
            case ev.WaitEnded():
                return self._to(State.REREADING, ev.ReadHead()) if self.state is State.WAITING else []
            case ev.RequestFailed(error):
                return self._on_request_failed(error)

    def _on_command(self, command: ev.TakeOver | ev.Roll | ev.GiveUp) -> Effects:
        match command, self.state:
            case ev.TakeOver(), State.NEW:
                return self._to(State.READING, ev.ReadHead())
            case ev.Roll(), State.SERVING:
                return self._to(State.ROLL_ASKING, ev.AskLeader())
            case ev.GiveUp(), State.NEW:
                return self._to(State.ENDED, ev.FinishLeadership())
            case ev.GiveUp(), State.SERVING:
                return self._give_up()
            case ev.GiveUp(), _:
                self._give_up_wanted = True
        return []

    def _on_ledger(
        self, event: ev.LedgerRecovered | ev.LedgerMissing | ev.LedgerCreated | ev.LedgerClosed | ev.WriterFailed
    ) -> Effects:
        match event:
            case ev.LedgerRecovered(ledger_id, end):
                return self._on_recovered(ledger_id, end)
            case ev.LedgerMissing(ledger_id):
                return self._on_missing(ledger_id)
            case ev.LedgerCreated(ledger):
                return self._on_created(ledger)
            case ev.LedgerClosed(ledger_id, end):
                return self._on_closed(ledger_id, end)
            case ev.WriterFailed(ledger_id, error):
                if self.state in (State.ENDED, State.LOST) or ledger_id not in (self._current, self._previous):
                    return []
                if isinstance(error, AuthenticationError):
                    return self._fail(error)  # the log was not taken over, and no waiting entry was sent
                return self._lose(f"ledger {ledger_id} takes no more entries: {error.what}", error)

    # --- taking over ---

    def _on_head_read(self, event: ev.HeadRead) -> Effects:
        if self.state not in (State.READING, State.REREADING):
            return []
        previous, self._head = self._head, event.head
        if previous is not None and previous.value.uuid != event.head.value.uuid:
            return self._lose("the log was deleted and made again")
        if self.state is State.READING:
            return self._begin(event)
        match self._resume:
            case State.ROLL_LISTING:
                return self._resume_roll_listing(event.head, previous)
            case State.ROLL_SEALING | State.CLOSE_SEALING:
                return self._resume_sealing(event.head)
        return self._resume_taking_over(event, previous)

    def _begin(self, event: ev.HeadRead) -> Effects:
        """Recover every ledger that another leader may be writing. The head was read just before."""
        opened = tuple(extent.ledger_id for extent in event.head.value.open_extents)
        self._ends = ()
        self._to_recover = opened + tuple(ledger for ledger in event.last_ledgers if ledger not in opened)
        if not self._to_recover:
            return self._list_or_create()
        return self._to(State.RECOVERING, *(ev.RecoverLedger(ledger) for ledger in self._to_recover))

    def _resume_taking_over(self, event: ev.HeadRead, previous: Versioned[LogHead] | None) -> Effects:
        head = event.head
        if self._spare is not None and self._spare_uncertain:
            if _opened(head) == (self._spare.ledger_id,):
                return self._serve(head)
            if previous is not None and head.version == previous.version:
                return self._list(State.LISTING, head)
            # Another leader may have sealed our empty ledger after it was listed, so it is neither used nor deleted.
            self._spare, self._spare_uncertain = None, False
        return self._begin(event)

    def _on_recovered(self, ledger_id: LedgerId, end: LedgerEnd) -> Effects:
        if self.state is not State.RECOVERING or ledger_id not in self._to_recover:
            return []
        assert self._head is not None
        if ledger_id in _opened(self._head):
            self._ends = (*self._ends, (ledger_id, end))
        return self._recovered_one(ledger_id)

    def _on_missing(self, ledger_id: LedgerId) -> Effects:
        if self.state is not State.RECOVERING or ledger_id not in self._to_recover:
            return []
        assert self._head is not None
        if ledger_id in _opened(self._head):
            # The end of this ledger is lost, and with it the offset of every later entry.
            return self._fail(
                NoSuchLedgerError(
                    "a ledger that the log's last leader wrote does not exist",
                    value=f"ledger {ledger_id}",
                    remedy="it was deleted outside the log: restore its metadata",
                )
            )
        return self._recovered_one(ledger_id)  # it is sealed, so no leader writes to it; reads will report the loss

    def _recovered_one(self, ledger_id: LedgerId) -> Effects:
        self._to_recover = tuple(ledger for ledger in self._to_recover if ledger != ledger_id)
        if self._to_recover:
            return []
        assert self._head is not None
        if self._ends:
            return self._to(State.SEALING, ev.SealExtents(self._head, self._ends))
        return self._list_or_create()

    def _list_or_create(self) -> Effects:
        if self._spare is None:
            self._creating = True
            return self._to(State.CREATING, ev.CreateLedger())
        assert self._head is not None
        return self._list(State.LISTING, self._head)

    def _list(self, state: State, head: Versioned[LogHead]) -> Effects:
        assert self._spare is not None
        self._listing = True
        return self._to(state, ev.ListLedger(head, self._spare))

    def _on_created(self, ledger: Extent) -> Effects:
        if not self._creating or ledger.ledger_id in (self._current, self._previous):
            return []
        self._creating = False
        if self.state is State.LOST:
            return [ev.DeleteLedger(ledger.ledger_id)]
        assert self._head is not None
        self._spare, self._spare_uncertain = ledger, False
        state = State.LISTING if self.state is State.CREATING else State.ROLL_LISTING
        return self._list(state, self._head)

    def _on_head_written(self, head: Versioned[LogHead]) -> Effects:
        if not self._is_applied(head):
            return []
        self._head, self._listing = head, False
        match self.state:
            case State.SEALING:
                return self._list_or_create()
            case State.LISTING:
                return self._serve(head)
            case State.ROLL_LISTING:
                return self._listed_roll()
        return self._sealed()

    def _is_applied(self, head: Versioned[LogHead]) -> bool:
        """Return whether ``head`` is the result of the change under way."""
        opened, spare = _opened(head), self._spare.ledger_id if self._spare else None
        match self.state:
            case State.SEALING:
                return not opened
            case State.LISTING:
                return opened == (spare,)
            case State.ROLL_LISTING:
                return opened == (self._current, spare)
            case State.ROLL_SEALING:
                return opened == (self._current,)
            case State.CLOSE_SEALING:
                return self._current not in opened
        return False

    def _serve(self, head: Versioned[LogHead]) -> Effects:
        assert self._spare is not None
        (extent,) = head.value.open_extents
        self._current, self._spare, self._spare_uncertain = extent.ledger_id, None, False
        return self._serving(ev.Serve(extent.ledger_id, extent.base_offset))

    def _serving(self, *effects: ev.LeadershipEffect) -> Effects:
        self._attempt = 0
        if self._give_up_wanted:
            return [*effects, *self._give_up()]
        return self._to(State.SERVING, *effects)

    # --- rolling and giving up ---

    def _listed_roll(self) -> Effects:
        assert self._spare is not None
        assert self._current is not None
        self._previous, self._current = self._current, self._spare.ledger_id
        self._spare, self._spare_uncertain, self._attempt = None, False, 0
        return self._to(State.ROLL_CLOSING, ev.SwitchLedger(self._previous, self._current))

    def _on_closed(self, ledger_id: LedgerId, end: LedgerEnd) -> Effects:
        closing = {State.ROLL_CLOSING: self._previous, State.CLOSING: self._current}
        if closing.get(self.state) != ledger_id:
            return []
        assert self._head is not None
        self._closed = (ledger_id, end)
        state = State.ROLL_SEALING if self.state is State.ROLL_CLOSING else State.CLOSE_SEALING
        return self._to(state, ev.SealExtents(self._head, (self._closed,)))

    def _sealed(self) -> Effects:
        assert self._closed is not None
        ledger_id, self._closed, self._previous = self._closed[0], None, None
        if ledger_id == self._current:
            return self._to(State.ENDED, ev.FinishLeadership())
        return self._serving(ev.FinishRoll())

    def _give_up(self) -> Effects:
        assert self._current is not None
        return self._to(State.CLOSING, ev.CloseLedger(self._current))

    def _resume_roll_listing(self, head: Versioned[LogHead], previous: Versioned[LogHead] | None) -> Effects:
        assert self._spare is not None
        assert self._current is not None
        opened = _opened(head)
        if opened == (self._current, self._spare.ledger_id):
            return self._listed_roll()
        if opened != (self._current,):
            return self._lose("another leader took the log over")
        # Only our ledger is open, so the new ledger was not listed. If the version has changed, the lost write can
        # never be applied; otherwise the same write is repeated with the same version.
        self._spare_uncertain = self._spare_uncertain and previous is not None and head.version == previous.version
        return self._list(State.ROLL_LISTING, head)

    def _resume_sealing(self, head: Versioned[LogHead]) -> Effects:
        assert self._closed is not None
        opened = _opened(head)
        if self._closed[0] in opened:
            return self._to(self._resume, ev.SealExtents(head, (self._closed,)))
        if self._resume is State.ROLL_SEALING and opened != (self._current,):
            return self._lose("another leader took the log over")
        return self._sealed()  # we or another leader sealed it; the result is the same, as a closed ledger has one end

    # --- trouble ---

    def _settle(self, *, ask: bool) -> Effects:
        """Pause and then read the head again, after a compare-and-set that found another version (``ask``) or got no
        answer."""
        # After a lost answer the spare may be listed; a later refusal does not change that.
        self._spare_uncertain, self._listing = self._spare_uncertain or (self._listing and not ask), False
        match self.state:
            case State.SEALING | State.LISTING:
                self._resume = State.READING
            case State.ROLL_LISTING | State.ROLL_SEALING | State.CLOSE_SEALING:
                self._resume = self.state
            case _:
                return []
        return self._pause(ask=ask)

    def _pause(self, *, ask: bool) -> Effects:
        self._attempt += 1
        if self._attempt > self.attempts_max:
            return self._lose(f"the log's head could not be changed in {self.attempts_max} attempts")
        return self._to(State.ASKING, ev.AskLeader()) if ask else self._to(State.WAITING, ev.Wait(self._attempt))

    def _on_leader_answered(self, still_leader: bool) -> Effects:
        if self.state not in (State.ASKING, State.ROLL_ASKING):
            return []
        if not still_leader:
            return self._lose("still_leader says that this process no longer leads")
        if self.state is State.ROLL_ASKING:
            self._creating = True
            return self._to(State.ROLL_CREATING, ev.CreateLedger())
        return self._to(State.WAITING, ev.Wait(self._attempt))

    def _on_request_failed(self, error: BookKeeperError) -> Effects:
        self._creating = False  # CreateLedger is the only request that may outlive its state
        match self.state:
            case State.READING | State.RECOVERING | State.CREATING:
                return self._fail(error)
            case State.ROLL_CREATING:
                return self._serving(ev.FinishRoll(error))  # appends continue to go to the current ledger
            case State.REREADING:
                if isinstance(error, NoSuchLogError):
                    return self._lose("the log was deleted", error)
                return self._pause(ask=False)
            case State.SEALING | State.LISTING | State.ROLL_LISTING | State.ROLL_SEALING | State.CLOSE_SEALING:
                self._spare_uncertain = True  # the write may have been applied: leave the ledger to vacuum
                return self._lose(error.what, error) if self._current is not None else self._fail(error)
        return []

    def _lose(self, why: str, cause: BookKeeperError | None = None) -> Effects:
        # Before the first Serve nothing was appended, so no outcome is unknown.
        outcome = Outcome.UNKNOWN if self._current is not None else Outcome.NOT_APPLIED
        value, remedy = (cause.value, cause.remedy) if cause is not None else ("", "")
        what = f"leadership of the log is lost: {why}"
        return self._fail(LeadershipLostError(what, value=value, remedy=remedy, outcome=outcome))

    def _fail(self, error: BookKeeperError) -> Effects:
        if self._spare is None or self._spare_uncertain or self._listing:
            return self._to(State.LOST, ev.LoseLeadership(error))
        return self._to(State.LOST, ev.DeleteLedger(self._spare.ledger_id), ev.LoseLeadership(error))

    def _to(self, state: State, *effects: ev.LeadershipEffect) -> Effects:
        self.state = state
        return list(effects)


def _opened(head: Versioned[LogHead]) -> tuple[LedgerId, ...]:
    return tuple(extent.ledger_id for extent in head.value.open_extents)
