# SPDX-License-Identifier: Apache-2.0
"""Leadership of a log: the stories step by step, every event in every state, and duelling leaders in a small world."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from bk_core.errors import (
    BookKeeperError,
    LeadershipLostError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    Outcome,
)
from bk_core.logs.codec import encode_head
from bk_core.logs.commit import LedgerEnd, NewOpenExtent, add_open_extent, create, publish, seal
from bk_core.logs.head import Extent, LogHead, LogPage, NewExtent, PublishId
from bk_core.logs.paging import Change
from bk_core.model import Versioned
from bk_core.protocol.leadership import LogLeadership
from bk_core.protocol.leadership_events import (
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
from bk_core.protocol.leadership_states import MOVES, State

NONCE = itertools.count().__next__
EMPTY = create(uuid="12345678-9abc-def0-1234-56789abcdef0", created_ms=1, ledger_key=b"")


def opened(ledger_id: int) -> NewOpenExtent:
    return NewOpenExtent(ledger_id=ledger_id, created_ms=2, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)


def end(count: int) -> LedgerEnd:
    return LedgerEnd(entry_count=count, size_bytes=count)


def listed(head: LogHead, *ledgers: int) -> LogHead:
    for ledger in ledgers:
        head = add_open_extent(head, opened(ledger), nonce=NONCE).head
    return head


def published(head: LogHead, *ledgers: int) -> LogHead:
    extents = [
        NewExtent(
            ledger_id=ledger,
            entry_count=10,
            size_bytes=10,
            created_ms=2,
            ensemble_size=3,
            write_quorum_size=3,
            ack_quorum_size=2,
        )
        for ledger in ledgers
    ]
    return publish(head, extents, PublishId.job(str(ledgers)), now_ms=3, nonce=NONCE).head


def v(head: LogHead, version: int) -> Versioned[LogHead]:
    return Versioned(head, version)


def run(machine: LogLeadership, *events: LeadershipEvent) -> list[LeadershipEffect]:
    """Step through ``events``; returns the effects of the last."""
    effects: list[LeadershipEffect] = []
    for event in events:
        effects = machine.step(event)
    return effects


def serving() -> LogLeadership:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)), HeadWritten(v(listed(EMPTY, 7), 1)))
    assert machine.state is State.SERVING
    return machine


# --- taking over ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("MUST15")
def test_taking_over_an_empty_log_serves_only_after_the_compare_and_set() -> None:
    machine = LogLeadership()
    assert machine.step(TakeOver()) == [ReadHead()]
    assert machine.step(HeadRead(v(EMPTY, 0))) == [CreateLedger()]
    assert machine.step(LedgerCreated(opened(7))) == [ListLedger(v(EMPTY, 0), opened(7))]
    assert machine.step(HeadWritten(v(listed(EMPTY, 7), 1))) == [Serve(7, 0)]


@pytest.mark.rule("N2")
@pytest.mark.rule("MUST15")
def test_taking_over_fences_every_open_extent_and_the_last_two_ledgers_and_seals_the_open_ones_first() -> None:
    head = v(listed(published(EMPTY, 4, 5), 6), 8)
    machine = LogLeadership()
    assert run(machine, TakeOver(), HeadRead(head, (5, 6))) == [RecoverLedger(6), RecoverLedger(5)]
    assert machine.step(LedgerRecovered(5, end(10))) == []
    assert machine.step(LedgerRecovered(6, end(3))) == [SealExtents(head, ((6, end(3)),))]
    sealed = v(seal(head.value, {6: end(3)}, nonce=NONCE).head, 9)
    assert machine.step(HeadWritten(sealed)) == [CreateLedger()]
    assert machine.step(LedgerCreated(opened(7))) == [ListLedger(sealed, opened(7))]
    assert machine.step(HeadWritten(v(listed(sealed.value, 7), 10))) == [Serve(7, 23)]


@pytest.mark.rule("N2")
def test_both_ledgers_of_an_unfinished_roll_are_fenced_and_sealed() -> None:
    head = v(listed(EMPTY, 6, 7), 8)
    machine = LogLeadership()
    assert run(machine, TakeOver(), HeadRead(head, (6, 7))) == [RecoverLedger(6), RecoverLedger(7)]
    assert run(machine, LedgerRecovered(7, end(0)), LedgerRecovered(6, end(2))) == [
        SealExtents(head, ((7, end(0)), (6, end(2))))
    ]


@pytest.mark.rule("MUST15")
def test_a_failed_compare_and_set_asks_who_leads_and_begins_at_step_one() -> None:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)))
    assert machine.step(HeadConflicted()) == [AskLeader()]
    assert machine.step(LeaderAnswered(True)) == [Wait(1)]
    assert machine.step(WaitEnded()) == [ReadHead()]
    theirs = v(listed(EMPTY, 8), 1)
    assert machine.step(HeadRead(theirs, (8,))) == [RecoverLedger(8)]
    assert machine.step(LedgerRecovered(8, end(4))) == [SealExtents(theirs, ((8, end(4)),))]
    sealed = v(seal(theirs.value, {8: end(4)}, nonce=NONCE).head, 2)
    # The ledger of the first attempt was certainly never listed, so it is used now.
    assert machine.step(HeadWritten(sealed)) == [ListLedger(sealed, opened(7))]


@pytest.mark.rule("MUST15")
def test_who_does_not_lead_any_more_stops_and_deletes_the_ledger_nobody_saw() -> None:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)), HeadConflicted())
    deletion, loss = machine.step(LeaderAnswered(False))
    assert deletion == DeleteLedger(7)
    assert isinstance(loss, LoseLeadership)
    assert isinstance(loss.error, LeadershipLostError)
    assert loss.error.outcome is Outcome.NOT_APPLIED


@pytest.mark.rule("N4")
def test_a_lost_answer_is_settled_by_reading_the_ledger_is_listed() -> None:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)))
    assert run(machine, HeadWriteUnknown()) == [Wait(1)]
    assert run(machine, WaitEnded(), HeadRead(v(listed(EMPTY, 7), 1), (7,))) == [Serve(7, 0)]


def test_a_lost_answer_under_the_same_version_is_tried_again_with_the_same_ledger() -> None:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)), HeadWriteUnknown())
    assert run(machine, WaitEnded(), HeadRead(v(EMPTY, 0))) == [ListLedger(v(EMPTY, 0), opened(7))]
    # The first one arrives late, so the second meets its version: still settled by what the head says.
    run(machine, HeadConflicted(), LeaderAnswered(True), WaitEnded())
    assert machine.step(HeadRead(v(listed(EMPTY, 7), 1), (7,))) == [Serve(7, 0)]


@pytest.mark.rule("N4")
def test_a_ledger_that_may_have_been_listed_is_neither_used_again_nor_deleted() -> None:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)), HeadWriteUnknown(), WaitEnded())
    assert machine.step(HeadRead(v(EMPTY, 2))) == [CreateLedger()]
    loss = machine.step(RequestFailed(NotEnoughBookiesError("none")))
    assert [type(effect) for effect in loss] == [LoseLeadership]


def test_a_lost_answer_of_sealing_begins_again_with_what_the_head_says() -> None:
    machine = LogLeadership()
    head = v(listed(EMPTY, 6), 8)
    run(machine, TakeOver(), HeadRead(head, (6,)), LedgerRecovered(6, end(1)), HeadWriteUnknown(), WaitEnded())
    sealed = v(seal(head.value, {6: end(1)}, nonce=NONCE).head, 9)
    assert machine.step(HeadRead(sealed, (6,))) == [RecoverLedger(6)]
    assert machine.step(LedgerRecovered(6, end(1))) == [CreateLedger()]


def test_the_attempts_have_a_budget() -> None:
    machine = LogLeadership(attempts_max=3)
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)))
    for version in (1, 2, 3):
        run(machine, HeadConflicted(), LeaderAnswered(True), WaitEnded(), HeadRead(v(EMPTY, version)))
    deletion, loss = machine.step(HeadConflicted())
    assert deletion == DeleteLedger(7)
    assert isinstance(loss, LoseLeadership)
    assert "3 attempts" in str(loss.error)


def test_a_sealed_ledger_that_is_gone_does_not_keep_a_leader_away_but_an_open_one_does() -> None:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(published(EMPTY, 4), 1), (4,)))
    assert machine.step(LedgerMissing(4)) == [CreateLedger()]
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(listed(EMPTY, 6), 1), (6,)))
    (loss,) = machine.step(LedgerMissing(6))
    assert isinstance(loss, LoseLeadership)
    assert isinstance(loss.error, NoSuchLedgerError)


@pytest.mark.parametrize("before", [(), (HeadRead(v(listed(EMPTY, 6), 1), (6,)),), (HeadRead(v(EMPTY, 0)),)])
def test_a_request_that_fails_while_taking_over_ends_it_with_its_own_error(before: tuple[HeadRead, ...]) -> None:
    machine, error = LogLeadership(), NotEnoughBookiesError("three are needed")
    run(machine, TakeOver(), *before)
    assert machine.step(RequestFailed(error)) == [LoseLeadership(error)]


def test_a_change_that_is_refused_for_another_reason_ends_it_and_deletes_nothing() -> None:
    error = BookKeeperError("condemned")
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)))
    assert machine.step(RequestFailed(error)) == [LoseLeadership(error)]
    (loss,) = rolling().step(RequestFailed(error))
    assert isinstance(loss, LoseLeadership)
    assert loss.error.outcome is Outcome.UNKNOWN


def test_a_read_that_fails_while_settling_is_tried_again_within_the_budget() -> None:
    machine, error = LogLeadership(attempts_max=2), MetadataUnavailableError("no answer")
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)), HeadWriteUnknown(), WaitEnded())
    assert machine.step(RequestFailed(error)) == [Wait(2)]
    (loss,) = run(machine, WaitEnded(), RequestFailed(error))
    assert isinstance(loss, LoseLeadership)


def test_a_log_that_was_made_again_is_not_ours() -> None:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(opened(7)), HeadWriteUnknown(), WaitEnded())
    other = replace(EMPTY, uuid="00000000-0000-0000-0000-000000000000")
    (loss,) = machine.step(HeadRead(v(other, 0)))
    assert isinstance(loss, LoseLeadership)
    assert "made again" in str(loss.error)


# --- rolling and giving up --------------------------------------------------------------------------------------------

BOTH = listed(EMPTY, 7, 8)
ROLLED = seal(BOTH, {7: end(5)}, nonce=NONCE).head


@pytest.mark.rule("N2")
def test_a_roll_lists_the_new_ledger_before_it_closes_and_seals_the_previous_one() -> None:
    machine = serving()
    assert machine.step(Roll()) == [AskLeader()]
    assert machine.step(LeaderAnswered(True)) == [CreateLedger()]
    assert machine.step(LedgerCreated(opened(8))) == [ListLedger(v(listed(EMPTY, 7), 1), opened(8))]
    assert machine.step(HeadWritten(v(BOTH, 2))) == [SwitchLedger(7, 8)]
    assert machine.step(LedgerClosed(7, end(5))) == [SealExtents(v(BOTH, 2), ((7, end(5)),))]
    assert machine.step(HeadWritten(v(ROLLED, 3))) == [FinishRoll()]
    assert machine.state is State.SERVING


def test_a_roll_that_cannot_make_a_ledger_goes_on_in_the_current_one() -> None:
    machine, error = serving(), NotEnoughBookiesError("three are needed")
    run(machine, Roll(), LeaderAnswered(True))
    assert machine.step(RequestFailed(error)) == [FinishRoll(error)]
    assert machine.step(Roll()) == [AskLeader()]


def test_who_is_not_leader_any_more_does_not_roll() -> None:
    machine = serving()
    (loss,) = run(machine, Roll(), LeaderAnswered(False))
    assert isinstance(loss, LoseLeadership)
    assert loss.error.outcome is Outcome.UNKNOWN


def rolling() -> LogLeadership:
    machine = serving()
    run(machine, Roll(), LeaderAnswered(True), LedgerCreated(opened(8)))
    return machine


def test_a_harmless_change_of_the_head_only_delays_a_roll() -> None:
    machine = rolling()
    run(machine, HeadConflicted(), LeaderAnswered(True), WaitEnded())
    changed = v(replace(listed(EMPTY, 7), condemned=(99,)), 2)
    assert machine.step(HeadRead(changed, (7,))) == [ListLedger(changed, opened(8))]


@pytest.mark.rule("N2")
def test_a_roll_into_a_log_that_another_took_over_loses_leadership() -> None:
    machine = rolling()
    run(machine, HeadConflicted(), LeaderAnswered(True), WaitEnded())
    theirs = listed(seal(listed(EMPTY, 7), {7: end(5)}, nonce=NONCE).head, 9)
    deletion, loss = machine.step(HeadRead(v(theirs, 3), (7, 9)))
    assert deletion == DeleteLedger(8)
    assert isinstance(loss, LoseLeadership)
    assert loss.error.outcome is Outcome.UNKNOWN


def test_a_lost_answer_of_a_roll_is_settled_by_reading() -> None:
    machine = rolling()
    run(machine, HeadWriteUnknown(), WaitEnded())
    assert machine.step(HeadRead(v(BOTH, 2), (7, 8))) == [SwitchLedger(7, 8)]
    run(machine, LedgerClosed(7, end(5)), HeadWriteUnknown(), WaitEnded())
    assert machine.copy().step(HeadRead(v(ROLLED, 3), (7, 8))) == [FinishRoll()]
    assert machine.step(HeadRead(v(BOTH, 2), (7, 8))) == [SealExtents(v(BOTH, 2), ((7, end(5)),))]


def test_a_roll_whose_answer_is_lost_twice_keeps_the_doubt_only_while_the_version_stands() -> None:
    machine = rolling()
    run(machine, HeadWriteUnknown(), WaitEnded(), HeadRead(v(listed(EMPTY, 7), 1), (7,)))
    (loss,) = run(machine.copy(), HeadConflicted(), LeaderAnswered(False))
    assert isinstance(loss, LoseLeadership)
    run(machine, HeadConflicted(), LeaderAnswered(True), WaitEnded(), HeadRead(v(listed(EMPTY, 7), 5), (7,)))
    run(machine, HeadConflicted())
    deletion, _ = machine.step(WriterFailed(7, BookKeeperError("fenced")))
    assert deletion == DeleteLedger(8)


def test_sealing_the_previous_ledger_after_another_took_over_loses_leadership() -> None:
    machine = rolling()
    run(machine, HeadWritten(v(BOTH, 2)), LedgerClosed(7, end(5)), HeadConflicted(), LeaderAnswered(True), WaitEnded())
    theirs = seal(BOTH, {7: end(5), 8: end(1)}, nonce=NONCE).head
    (loss,) = machine.step(HeadRead(v(theirs, 3), (7, 8)))
    assert isinstance(loss, LoseLeadership)


@pytest.mark.rule("N4")
def test_a_ledger_whose_listing_has_no_answer_yet_is_not_deleted() -> None:
    effects = rolling().step(WriterFailed(7, BookKeeperError("fenced")))
    assert [type(effect) for effect in effects] == [LoseLeadership]


@pytest.mark.parametrize("ledger_id", [7, 8])
def test_a_ledger_of_ours_that_fails_in_a_roll_loses_leadership(ledger_id: int) -> None:
    machine = rolling()
    (loss,) = run(machine, HeadWritten(v(BOTH, 2)), WriterFailed(ledger_id, BookKeeperError("fenced")))
    assert isinstance(loss, LoseLeadership)
    assert machine.step(WriterFailed(ledger_id, BookKeeperError("fenced"))) == []


def test_the_ledger_of_a_create_that_outlived_the_leadership_is_deleted() -> None:
    machine = serving()
    run(machine, Roll(), LeaderAnswered(True), WriterFailed(7, BookKeeperError("fenced")))
    assert machine.step(LedgerCreated(opened(8))) == [DeleteLedger(8)]
    assert machine.step(LedgerCreated(opened(8))) == []


def test_a_doubled_answer_about_a_ledger_deletes_nothing() -> None:
    machine = serving()
    assert machine.step(LedgerCreated(opened(7))) == []
    run(machine, Roll(), LeaderAnswered(True))
    assert machine.step(LedgerCreated(opened(7))) == []


def test_giving_up_closes_and_seals() -> None:
    machine = serving()
    assert machine.step(GiveUp()) == [CloseLedger(7)]
    assert machine.step(LedgerClosed(7, end(5))) == [SealExtents(v(listed(EMPTY, 7), 1), ((7, end(5)),))]
    assert machine.step(HeadWritten(v(seal(listed(EMPTY, 7), {7: end(5)}, nonce=NONCE).head, 2))) == [
        FinishLeadership()
    ]


def test_giving_up_in_a_roll_waits_for_its_end() -> None:
    machine = rolling()
    assert machine.step(GiveUp()) == []
    run(machine, HeadWritten(v(BOTH, 2)), LedgerClosed(7, end(5)))
    assert machine.step(HeadWritten(v(ROLLED, 3))) == [FinishRoll(), CloseLedger(8)]


def test_giving_up_what_another_sealed_meanwhile_is_done() -> None:
    machine = serving()
    run(machine, GiveUp(), LedgerClosed(7, end(5)), HeadConflicted(), LeaderAnswered(True), WaitEnded())
    theirs = listed(seal(listed(EMPTY, 7), {7: end(5)}, nonce=NONCE).head, 9)
    assert machine.step(HeadRead(v(theirs, 3), (7, 9))) == [FinishLeadership()]


def test_giving_up_before_anything_ends_at_once() -> None:
    assert LogLeadership().step(GiveUp()) == [FinishLeadership()]


# --- every event in every state ---------------------------------------------------------------------------------------

HEADS = [v(EMPTY, 0), v(listed(EMPTY, 7), 1), v(BOTH, 2), v(ROLLED, 3), v(listed(EMPTY, 9), 4)]
EVENTS: list[LeadershipEvent] = [
    TakeOver(),
    Roll(),
    GiveUp(),
    *(HeadRead(head, (7,)) for head in HEADS),
    HeadConflicted(),
    HeadWriteUnknown(),
    *(LedgerRecovered(ledger, end(5)) for ledger in (7, 8, 9)),
    LedgerMissing(9),
    LedgerClosed(7, end(5)),
    LedgerClosed(8, end(5)),
    WriterFailed(7, BookKeeperError("fenced")),
    RequestFailed(BookKeeperError("no")),
    LeaderAnswered(True),
    LeaderAnswered(False),
    WaitEnded(),
]


def answers(effects: list[LeadershipEffect]) -> list[LeadershipEvent]:
    """What only the world can answer: the head a compare-and-set made, the ledger a create made."""
    events: list[LeadershipEvent] = []
    for effect in effects:
        match effect:
            case ListLedger(expected, ledger) if ledger.ledger_id not in {e.ledger_id for e in expected.value.tail}:
                head = add_open_extent(expected.value, ledger, nonce=NONCE).head
                events.append(HeadWritten(Versioned(head, expected.version + 1)))
            case SealExtents(expected, ends):
                head = seal(expected.value, dict(ends), nonce=NONCE).head
                events.append(HeadWritten(Versioned(head, expected.version + 1)))
            case CreateLedger():
                events.append(LedgerCreated(opened(NONCE() + 100)))
            case SwitchLedger(ledger_id, _) | CloseLedger(ledger_id):
                events += [LedgerClosed(ledger_id, end(5)), WriterFailed(ledger_id, BookKeeperError("fenced"))]
    return events


def test_every_event_in_every_state_ends_in_a_legal_state() -> None:
    """Breadth first from the start: each state that can be reached takes each event (h2's idea)."""
    start: tuple[LogLeadership, list[LeadershipEvent]] = (LogLeadership(attempts_max=2), [])
    seen, reached, pending = dict[object, None](), set[State](), [start]
    while pending:
        machine, late = pending.pop()
        for event in (*EVENTS, *late):
            after = machine.copy()
            effects = after.step(event)  # asserts the move
            reached.add(after.state)
            ended = [e for e in effects if isinstance(e, LoseLeadership | FinishLeadership)]
            assert bool(ended) == (after.state in (State.LOST, State.ENDED) and after.state is not machine.state)
            key = (
                after.state,
                *(type(e) for e in effects),
                after._attempt,
                after._give_up_wanted,
                after._current is None,
            )
            if key not in seen:
                seen[key] = None
                pending.append((after, [*late, *answers(effects)][-4:]))
    assert reached == set(State)
    assert set(MOVES) == set(State)


# --- duelling leaders -------------------------------------------------------------------------------------------------


class World:
    """One log and its ledgers, with leaders whose requests are answered in any order, late, lost or refused."""

    def __init__(self, seed: int, leaders: int) -> None:
        self.random = Random(seed)
        self.head, self.pages = v(EMPTY, 0), dict[str, LogPage]()
        self.ledgers: dict[int, list[str]] = {}
        self.closed: set[int] = set()
        self.deleted: set[int] = set()
        self.acked: list[tuple[int, str]] = []  # log offset, value
        self.pending: list[tuple[Leader, Callable[[], LeadershipEvent]]] = []
        self.late_writes: list[Callable[[], object]] = []
        self.trouble = True
        self.values = itertools.count()
        self.leaders: list[Leader] = []
        self.leaders += (Leader(self, n) for n in range(leaders))

    def chance(self, probability: float) -> bool:
        return self.trouble and self.random.random() < probability

    def step(self) -> None:
        if self.late_writes and self.chance(0.3):
            self.late_writes.pop(self.random.randrange(len(self.late_writes)))()
        elif self.pending and self.random.random() < 0.7:
            leader, answer = self.pending.pop(self.random.randrange(len(self.pending)))
            leader.take(answer())
        else:
            self.random.choice(self.leaders).act()

    def change(self, expected: Versioned[LogHead], apply: Callable[[LogHead], Change]) -> LeadershipEvent:
        def write() -> LeadershipEvent:
            if self.head.version != expected.version:
                return HeadConflicted()
            change = apply(expected.value)
            encode_head(change.head)  # checks the invariants of N2
            self.pages.update((made.name, made.page) for made in change.new_pages)
            self.head = v(change.head, expected.version + 1)
            return HeadWritten(self.head)

        if not self.chance(0.2):
            return write()
        kind = self.random.randrange(3)
        if kind == 0:
            write()  # applied, the answer lost
        elif kind == 1:
            self.late_writes.append(write)  # applied some time later, or refused
        return HeadWriteUnknown()

    def flat(self) -> list[str]:
        """Every value of the log, in order."""
        assert not self.head.value.open_extents
        found: list[str] = []
        extents = [e for ref in self.head.value.pages for e in self.pages_below(ref.name)] + list(self.head.value.tail)
        for extent in extents:
            assert extent.ledger_id not in self.deleted
            assert len(self.ledgers[extent.ledger_id]) == extent.entry_count
            found += self.ledgers[extent.ledger_id]
        return found

    def pages_below(self, name: str) -> list[Extent]:
        page = self.pages[name]
        return [*page.extents, *(e for ref in page.pages for e in self.pages_below(ref.name))]


class Leader:
    """A driver in miniature: carries effects out against the world, appends while it serves."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.machine = LogLeadership(attempts_max=4)
        self.current: int | None = None
        self.base = 0
        self.take(TakeOver())

    def restart(self) -> None:
        self.world.leaders[self.number] = Leader(self.world, self.number)

    def act(self) -> None:
        if self.machine.state in (State.LOST, State.ENDED):
            if self.world.chance(0.5):
                self.restart()
        elif self.world.chance(0.03):
            # The process is killed: nothing it asked for is heard by anybody, and another one starts.
            self.world.pending = [item for item in self.world.pending if item[0] is not self]
            self.restart()
        elif self.current is not None and self.world.random.random() < 0.15:
            self.take(self.world.random.choice((Roll(), Roll(), GiveUp())))
        elif self.current is not None:
            self.append()

    def append(self) -> None:
        world, ledger = self.world, self.current
        assert ledger is not None
        if ledger in world.closed:
            self.take(WriterFailed(ledger, BookKeeperError("fenced")))
            return
        value = f"{self.number}:{next(world.values)}"
        world.ledgers[ledger].append(value)
        if not world.chance(0.1):  # else it is stored, and nobody is told
            world.acked.append((self.base + len(world.ledgers[ledger]) - 1, value))

    def take(self, event: LeadershipEvent) -> None:
        for effect in self.machine.step(event):
            answer = self.carry_out(effect)
            if answer is not None:
                self.world.pending.append((self, answer))

    def carry_out(self, effect: LeadershipEffect) -> Callable[[], LeadershipEvent] | None:
        match effect:
            case Serve(ledger_id, base_offset):
                self.current, self.base = ledger_id, base_offset
            case DeleteLedger(ledger_id):
                self.world.deleted.add(ledger_id)
            case LoseLeadership() | FinishLeadership():
                self.current = None
            case SwitchLedger(previous_id, ledger_id):
                self.base += len(self.world.ledgers[previous_id])
                self.current = ledger_id
                return lambda: self.close(previous_id)
            case CloseLedger(ledger_id):
                self.current = None
                return lambda: self.close(ledger_id)
            case RecoverLedger(ledger_id):
                return lambda: self.recover(ledger_id)
            case CreateLedger():
                return self.create
            case _:
                return self.ask_metadata(effect)
        return None

    def ask_metadata(self, effect: LeadershipEffect) -> Callable[[], LeadershipEvent] | None:
        world = self.world
        match effect:
            case ReadHead():
                return lambda: HeadRead(world.head, tuple(e.ledger_id for e in world.head.value.tail[-2:]))
            case SealExtents(expected, ends):
                return lambda: world.change(expected, lambda h: seal(h, dict(ends), nonce=NONCE, pages=world.pages))
            case ListLedger(expected, ledger):
                return lambda: world.change(
                    expected, lambda h: add_open_extent(h, ledger, nonce=NONCE, pages=world.pages)
                )
            case AskLeader():
                return lambda: LeaderAnswered(not world.chance(0.1))
            case Wait():
                return WaitEnded
        return None

    def create(self) -> LeadershipEvent:
        if self.world.chance(0.05):
            return RequestFailed(NotEnoughBookiesError("none"))
        ledger_id = len(self.world.ledgers)
        self.world.ledgers[ledger_id] = []
        return LedgerCreated(opened(ledger_id))

    def recover(self, ledger_id: int) -> LeadershipEvent:
        if ledger_id in self.world.deleted:
            return LedgerMissing(ledger_id)
        self.world.closed.add(ledger_id)
        return LedgerRecovered(ledger_id, end(len(self.world.ledgers[ledger_id])))

    def close(self, ledger_id: int) -> LeadershipEvent:
        if ledger_id in self.world.closed:
            return WriterFailed(ledger_id, BookKeeperError("fenced"))
        self.world.closed.add(ledger_id)
        return LedgerClosed(ledger_id, end(len(self.world.ledgers[ledger_id])))


@pytest.mark.rule("N2")
@pytest.mark.rule("MUST15")
@pytest.mark.sim
@pytest.mark.parametrize("leaders", [1, 2, 3])
def test_duelling_leaders_never_lose_move_or_double_an_acknowledged_entry(leaders: int) -> None:
    acked = 0
    for seed in range(60):
        world = World(seed, leaders)
        for _ in range(400):
            world.step()
        world.trouble = False
        world.pending.clear()
        last = Leader(world, 99)
        world.leaders = [last]
        while last.current is None:
            _, answer = world.pending.pop(0)
            last.take(answer())
        last.append()
        last.take(GiveUp())
        while world.pending:
            _, answer = world.pending.pop(0)
            last.take(answer())
        assert last.machine.state is State.ENDED
        flat = world.flat()
        for offset, value in world.acked:
            assert flat[offset] == value, (seed, offset, value)
        assert len(set(flat)) == len(flat)
        acked += len(world.acked)
    assert acked > 1000
