# SPDX-License-Identifier: Apache-2.0
"""Rolling a log and giving it up, event by event."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest

from bk_core.errors import (
    AuthenticationError,
    BookKeeperError,
    LeadershipLostError,
    NoSuchLogError,
    NotEnoughBookiesError,
    Outcome,
    QuorumTimeoutError,
)
from bk_core.logs.machines.leadership import LogLeadership, State
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
    LedgerClosed,
    LedgerCreated,
    ListLedger,
    LoseLeadership,
    ReadHead,
    RequestFailed,
    Roll,
    SealExtents,
    SwitchLedger,
    WaitEnded,
    WriterFailed,
)
from bk_core.logs.model.next_head import seal
from tests.logs.leadership_kit import BOTH, EMPTY, NONCE, ROLLED, end, listed, opened, rolling, run, serving, v

# --- rolling and giving up --------------------------------------------------------------------------------------------


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
    assert copy(machine).step(HeadRead(v(ROLLED, 3), (7, 8))) == [FinishRoll()]
    assert machine.step(HeadRead(v(BOTH, 2), (7, 8))) == [SealExtents(v(BOTH, 2), ((7, end(5)),))]


def test_a_roll_whose_answer_is_lost_twice_keeps_the_doubt_only_while_the_version_stands() -> None:
    machine = rolling()
    run(machine, HeadWriteUnknown(), WaitEnded(), HeadRead(v(listed(EMPTY, 7), 1), (7,)))
    (loss,) = run(copy(machine), HeadConflicted(), LeaderAnswered(False))
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


def test_a_writer_that_no_bookie_lets_in_says_so_and_one_that_is_unsure_names_the_cause() -> None:
    refused = AuthenticationError("b1 does not let this client in", value="the token has expired", remedy="renew it")
    assert LoseLeadership(refused) in rolling().step(WriterFailed(7, refused))
    unsure = QuorumTimeoutError("no ack quorum", value="the token has expired", remedy="renew it")
    (lost,) = [each.error for each in rolling().step(WriterFailed(7, unsure)) if isinstance(each, LoseLeadership)]
    assert isinstance(lost, LeadershipLostError)
    assert (lost.value, lost.remedy, lost.outcome) == ("the token has expired", "renew it", Outcome.UNKNOWN)


@pytest.mark.rule("N6")
def test_a_leader_whose_log_was_deleted_says_so_at_once() -> None:
    machine = serving()
    run(machine, Roll(), LeaderAnswered(True), LedgerCreated(opened(8)), HeadConflicted(), LeaderAnswered(True))
    assert machine.step(WaitEnded()) == [ReadHead()]
    drop, lost = machine.step(RequestFailed(NoSuchLogError("there is no log")))
    assert drop == DeleteLedger(8)
    assert isinstance(lost, LoseLeadership)
    assert "the log was deleted" in str(lost.error)
    assert lost.error.outcome is Outcome.UNKNOWN
