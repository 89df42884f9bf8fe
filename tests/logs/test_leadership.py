# SPDX-License-Identifier: Apache-2.0
"""Taking a log over, event by event.

Over 400 lines because each state answers each event: one machine, one table of cases.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import (
    BookKeeperError,
    LeadershipLostError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    Outcome,
)
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.machines.leadership_events import (
    AskLeader,
    CreateLedger,
    DeleteLedger,
    HeadConflicted,
    HeadRead,
    HeadWriteUnknown,
    HeadWritten,
    LeaderAnswered,
    LedgerCreated,
    LedgerMissing,
    LedgerRecovered,
    ListLedger,
    LoseLeadership,
    ReadHead,
    RecoverLedger,
    RequestFailed,
    SealExtents,
    Serve,
    TakeOver,
    Wait,
    WaitEnded,
)
from bk_core.logs.model.next_head import seal
from tests.logs.leadership_kit import EMPTY, NONCE, end, listed, opened, published, rolling, run, v

# --- taking over ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("MUST15")
def test_taking_over_an_empty_log_serves_only_after_the_compare_and_set() -> None:
    machine = LogLeadership()
    assert machine.step(TakeOver()) == [ReadHead()]
    assert machine.step(HeadRead(v(EMPTY, 0))) == [CreateLedger()]
    assert machine.step(LedgerCreated(opened(7))) == [ListLedger(v(EMPTY, 0), opened(7))]
    assert machine.step(HeadWritten(v(listed(EMPTY, 7), 1))) == [Serve(7, 0)]


@pytest.mark.rule("N2", "MUST15")
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
