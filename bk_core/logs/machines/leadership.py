# SPDX-License-Identifier: Apache-2.0
"""Leadership of a named log: take it over by fencing, roll its ledgers, give it up. Pure.

Sources: protocol document "Ledgers to logs" (opening a log, rolling ledgers); RULES N2; MUST15.

Taking over, in the document's steps: READ the head → RECOVER every open extent and the last two ledgers, which fences
whoever writes them → SEAL the open ones in the head → CREATE a ledger → LIST it by compare-and-set → SERVE. Nothing is
served before that compare-and-set, and one that fails sends us back to the first step, after asking whoever elects
whether we still lead. Rolling: CREATE → LIST while appends go on to the current ledger → switch → close the previous
ledger → SEAL it.

An answer that is lost is settled by reading the head again: the ledger that was to be listed is there, or the version
is still the same and the change is tried again, or somebody else was faster. A ledger is deleted only where each
compare-and-set that named it was refused for certain; otherwise vacuum finds it (RULES N4, N6).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from bk_core.errors import BookKeeperError, LeadershipLostError, NoSuchLedgerError, Outcome
from bk_core.logs.machines.leadership_events import (
    AskLeader,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    FinishLeadership,
    FinishRoll,
    GiveUp,
    HeadConflicted,
    HeadRead,
    HeadWriteUnknown,
    HeadWritten,
    LeaderAnswered,
    LeadershipEffect,
    LeadershipEvent,
    LedgerClosed,
    LedgerCreated,
    LedgerMissing,
    LedgerRecovered,
    ListLedger,
    LoseLeadership,
    ReadHead,
    RecoverLedger,
    RequestFailed,
    Roll,
    SealExtents,
    Serve,
    SwitchLedger,
    TakeOver,
    Wait,
    WaitEnded,
    WriterFailed,
)
from bk_core.logs.machines.leadership_states import MOVES, State
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.next_head import LedgerEnd, NewOpenExtent
from bk_core.model import LedgerId, Versioned

Effects: TypeAlias = list[LeadershipEffect]


@dataclass(slots=True, eq=False)
class LogLeadership:
    """One leader of one log, from taking over to the end. Step it with one event at a time; an event that does not
    belong to the state is late or doubled, and ignored."""

    attempts_max: int = 10
    state: State = field(default=State.NEW, init=False)
    _attempt: int = field(default=0, init=False)  # failed compare-and-sets since the last one that worked
    _head: Versioned[LogHead] | None = field(default=None, init=False)  # what the next change is compared with
    _to_recover: tuple[LedgerId, ...] = field(default=(), init=False)
    _ends: tuple[tuple[LedgerId, LedgerEnd], ...] = field(default=(), init=False)  # of open extents, once recovered
    _creating: bool = field(default=False, init=False)  # a CreateLedger has not been answered
    _spare: NewOpenExtent | None = field(default=None, init=False)  # made, and as far as we know not listed
    _listing: bool = field(default=False, init=False)  # a compare-and-set that names the spare has not been answered
    _spare_uncertain: bool = field(default=False, init=False)  # one that named it had no answer
    _current: LedgerId | None = field(default=None, init=False)  # where appends go; None before the first Serve
    _previous: LedgerId | None = field(default=None, init=False)  # where they went before a roll, until it is sealed
    _closed: tuple[LedgerId, LedgerEnd] | None = field(default=None, init=False)  # ours, to be sealed
    _resume: State = field(default=State.READING, init=False)  # what to go on with after REREADING
    _give_up_wanted: bool = field(default=False, init=False)

    def copy(self) -> LogLeadership:
        """An independent machine in the same state; all that it holds is immutable."""
        return copy(self)

    def fingerprint(self) -> tuple[object, ...]:
        """Equal for machines that will behave alike."""
        return tuple(getattr(self, each.name) for each in fields(self))

    def step(self, event: LeadershipEvent) -> Effects:
        """Take one event; returns the effects in the order they are to be carried out."""
        before = self.state
        effects = self._step(event)
        assert self.state is before or self.state in MOVES[before], (before, event, self.state)
        return effects

    # --- dispatch ---

    def _step(self, event: LeadershipEvent) -> Effects:
        match event:
            case TakeOver() | Roll() | GiveUp():
                return self._on_command(event)
            case HeadRead():
                return self._on_head_read(event)
            case HeadWritten(head):
                return self._on_head_written(head)
            case HeadConflicted() | HeadWriteUnknown():
                return self._settle(ask=isinstance(event, HeadConflicted))
            case LedgerRecovered() | LedgerMissing() | LedgerCreated() | LedgerClosed() | WriterFailed():
                return self._on_ledger(event)
            case LeaderAnswered(still_leader):
                return self._on_leader_answered(still_leader)
            case WaitEnded():
                return self._to(State.REREADING, ReadHead()) if self.state is State.WAITING else []
            case RequestFailed(error):
                return self._on_request_failed(error)

    def _on_command(self, command: TakeOver | Roll | GiveUp) -> Effects:
        match command, self.state:
            case TakeOver(), State.NEW:
                return self._to(State.READING, ReadHead())
            case Roll(), State.SERVING:
                return self._to(State.ROLL_ASKING, AskLeader())
            case GiveUp(), State.NEW:
                return self._to(State.ENDED, FinishLeadership())
            case GiveUp(), State.SERVING:
                return self._give_up()
            case GiveUp(), _:
                self._give_up_wanted = True
        return []

    def _on_ledger(
        self, event: LedgerRecovered | LedgerMissing | LedgerCreated | LedgerClosed | WriterFailed
    ) -> Effects:
        match event:
            case LedgerRecovered(ledger_id, end):
                return self._on_recovered(ledger_id, end)
            case LedgerMissing(ledger_id):
                return self._on_missing(ledger_id)
            case LedgerCreated(ledger):
                return self._on_created(ledger)
            case LedgerClosed(ledger_id, end):
                return self._on_closed(ledger_id, end)
            case WriterFailed(ledger_id, error):
                if self.state in (State.ENDED, State.LOST) or ledger_id not in (self._current, self._previous):
                    return []
                return self._lose(f"ledger {ledger_id} takes no more entries: {error.what}")

    # --- taking over ---

    def _on_head_read(self, event: HeadRead) -> Effects:
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

    def _begin(self, event: HeadRead) -> Effects:
        """Step 1 has been done: fence whoever may be writing (protocol document, step 2)."""
        opened = tuple(extent.ledger_id for extent in event.head.value.open_extents)
        self._ends = ()
        self._to_recover = opened + tuple(ledger for ledger in event.last_ledgers if ledger not in opened)
        if not self._to_recover:
            return self._list_or_create()
        return self._to(State.RECOVERING, *(RecoverLedger(ledger) for ledger in self._to_recover))

    def _resume_taking_over(self, event: HeadRead, previous: Versioned[LogHead] | None) -> Effects:
        head = event.head
        if self._spare is not None and self._spare_uncertain:
            if _opened(head) == (self._spare.ledger_id,):
                return self._serve(head)
            if previous is not None and head.version == previous.version:
                return self._list(State.LISTING, head)
            # It may have been listed and, being empty, sealed away by another leader: never used, never deleted.
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
            # Where it ends is lost with it, and so is the offset of everything that would follow.
            return self._fail(
                NoSuchLedgerError(
                    "a ledger that the log's last leader wrote does not exist",
                    value=f"ledger {ledger_id}",
                    remedy="it was deleted outside the log: restore its metadata",
                )
            )
        return self._recovered_one(ledger_id)  # sealed: nobody writes to it, and reading it will say what is lost

    def _recovered_one(self, ledger_id: LedgerId) -> Effects:
        self._to_recover = tuple(ledger for ledger in self._to_recover if ledger != ledger_id)
        if self._to_recover:
            return []
        assert self._head is not None
        if self._ends:
            return self._to(State.SEALING, SealExtents(self._head, self._ends))
        return self._list_or_create()

    def _list_or_create(self) -> Effects:
        if self._spare is None:
            self._creating = True
            return self._to(State.CREATING, CreateLedger())
        assert self._head is not None
        return self._list(State.LISTING, self._head)

    def _list(self, state: State, head: Versioned[LogHead]) -> Effects:
        assert self._spare is not None
        self._listing = True
        return self._to(state, ListLedger(head, self._spare))

    def _on_created(self, ledger: NewOpenExtent) -> Effects:
        if not self._creating or ledger.ledger_id in (self._current, self._previous):
            return []
        self._creating = False
        if self.state is State.LOST:
            return [DeleteLedger(ledger.ledger_id)]
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
        """Whether ``head`` is what the change that is under way makes of it."""
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
        return self._serving(Serve(extent.ledger_id, extent.base_offset))

    def _serving(self, *effects: LeadershipEffect) -> Effects:
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
        return self._to(State.ROLL_CLOSING, SwitchLedger(self._previous, self._current))

    def _on_closed(self, ledger_id: LedgerId, end: LedgerEnd) -> Effects:
        closing = {State.ROLL_CLOSING: self._previous, State.CLOSING: self._current}
        if closing.get(self.state) != ledger_id:
            return []
        assert self._head is not None
        self._closed = (ledger_id, end)
        state = State.ROLL_SEALING if self.state is State.ROLL_CLOSING else State.CLOSE_SEALING
        return self._to(state, SealExtents(self._head, (self._closed,)))

    def _sealed(self) -> Effects:
        assert self._closed is not None
        ledger_id, self._closed, self._previous = self._closed[0], None, None
        if ledger_id == self._current:
            return self._to(State.ENDED, FinishLeadership())
        return self._serving(FinishRoll())

    def _give_up(self) -> Effects:
        assert self._current is not None
        return self._to(State.CLOSING, CloseLedger(self._current))

    def _resume_roll_listing(self, head: Versioned[LogHead], previous: Versioned[LogHead] | None) -> Effects:
        assert self._spare is not None
        assert self._current is not None
        opened = _opened(head)
        if opened == (self._current, self._spare.ledger_id):
            return self._listed_roll()
        if opened != (self._current,):
            return self._lose("another leader took the log over")
        # Ours is still open, so nobody sealed anything: the change was not applied. Where the version moved on, a
        # lost one cannot be applied any more; where it did not, ours is tried again under the same version.
        self._spare_uncertain = self._spare_uncertain and previous is not None and head.version == previous.version
        return self._list(State.ROLL_LISTING, head)

    def _resume_sealing(self, head: Versioned[LogHead]) -> Effects:
        assert self._closed is not None
        opened = _opened(head)
        if self._closed[0] in opened:
            return self._to(self._resume, SealExtents(head, (self._closed,)))
        if self._resume is State.ROLL_SEALING and opened != (self._current,):
            return self._lose("another leader took the log over")
        return self._sealed()  # by us or by another leader: a closed ledger has one end

    # --- trouble ---

    def _settle(self, *, ask: bool) -> Effects:
        """A compare-and-set failed or has no answer: pause, read again, look what became of it."""
        # Without an answer the spare may be in the list; a refusal takes back nothing of an earlier doubt.
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
        return self._to(State.ASKING, AskLeader()) if ask else self._to(State.WAITING, Wait(self._attempt))

    def _on_leader_answered(self, still_leader: bool) -> Effects:
        if self.state not in (State.ASKING, State.ROLL_ASKING):
            return []
        if not still_leader:
            return self._lose("still_leader says that this process does not lead any more")
        if self.state is State.ROLL_ASKING:
            self._creating = True
            return self._to(State.ROLL_CREATING, CreateLedger())
        return self._to(State.WAITING, Wait(self._attempt))

    def _on_request_failed(self, error: BookKeeperError) -> Effects:
        self._creating = False  # the one request that may outlive its state
        match self.state:
            case State.READING | State.RECOVERING | State.CREATING:
                return self._fail(error)
            case State.ROLL_CREATING:
                return self._serving(FinishRoll(error))  # the current ledger is as good as before
            case State.REREADING:
                return self._pause(ask=False)
            case State.SEALING | State.LISTING | State.ROLL_LISTING | State.ROLL_SEALING | State.CLOSE_SEALING:
                self._spare_uncertain = True  # refused, but not because of the version: let vacuum look at the ledger
                return self._lose(error.what) if self._current is not None else self._fail(error)
        return []

    def _lose(self, why: str) -> Effects:
        # Before anything was served, nothing can be of unknown outcome.
        outcome = Outcome.UNKNOWN if self._current is not None else Outcome.NOT_APPLIED
        return self._fail(LeadershipLostError(f"leadership of the log is lost: {why}", outcome=outcome))

    def _fail(self, error: BookKeeperError) -> Effects:
        if self._spare is None or self._spare_uncertain or self._listing:
            return self._to(State.LOST, LoseLeadership(error))
        return self._to(State.LOST, DeleteLedger(self._spare.ledger_id), LoseLeadership(error))

    def _to(self, state: State, *effects: LeadershipEffect) -> Effects:
        self.state = state
        return list(effects)


def _opened(head: Versioned[LogHead]) -> tuple[LedgerId, ...]:
    return tuple(extent.ledger_id for extent in head.value.open_extents)
