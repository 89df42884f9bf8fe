# SPDX-License-Identifier: Apache-2.0
"""The bounds of taking a log over, and rolling it and giving it up, event by event."""

from __future__ import annotations

from copy import copy

import pytest

from bk_core.errors import (
    AuthenticationError,
    LeadershipLostError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
    QuorumTimeoutError,
)
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.machines.leadership_events import (
    DeleteLedger,
    FinishRoll,
    HeadConflicted,
    HeadRead,
    HeadWriteUnknown,
    LeaderAnswered,
    LedgerClosed,
    LedgerCreated,
    LoseLeadership,
    ReadHead,
    RecoverLedger,
    RequestFailed,
    Roll,
    SealExtents,
    SwitchLedger,
    TakeOver,
    Wait,
    WaitEnded,
    WriterFailed,
)
from tests.kit.extents import open_extent
from tests.logs.leadership_kit import BOTH, EMPTY, ROLLED, end, listed, published, rolling, run, serving, v


@pytest.mark.rule("N2", "MUST15")
def test_taking_over_fences_the_open_extents_and_the_last_two_ledgers() -> None:
    head = listed(published(EMPTY, 4, 5), 6)
    assert run(LogLeadership(), TakeOver(), HeadRead(v(head, 3), (5, 6))) == [RecoverLedger(6), RecoverLedger(5)]


def test_the_attempts_of_taking_over_have_a_budget() -> None:
    machine = LogLeadership(attempts_max=3)
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(open_extent(7)))
    for version in (1, 2, 3):
        run(machine, HeadConflicted(), LeaderAnswered(True), WaitEnded(), HeadRead(v(EMPTY, version)))
    deletion, loss = machine.step(HeadConflicted())
    assert deletion == DeleteLedger(7)
    assert isinstance(loss, LoseLeadership)
    assert "3 attempts" in str(loss.error)


def test_a_read_that_fails_after_a_lost_answer_is_tried_again_within_the_budget() -> None:
    machine, error = LogLeadership(attempts_max=2), MetadataUnavailableError("no answer")
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(open_extent(7)), HeadWriteUnknown(), WaitEnded())
    assert machine.step(RequestFailed(error)) == [Wait(2)]
    (loss,) = run(machine, WaitEnded(), RequestFailed(error))
    assert isinstance(loss, LoseLeadership)


# --- rolling and giving up --------------------------------------------------------------------------------------------


def test_a_lost_answer_of_a_roll_is_settled_by_reading() -> None:
    machine = rolling()
    run(machine, HeadWriteUnknown(), WaitEnded())
    assert machine.step(HeadRead(v(BOTH, 2), (7, 8))) == [SwitchLedger(7, 8)]
    run(machine, LedgerClosed(7, end(5)), HeadWriteUnknown(), WaitEnded())
    assert copy(machine).step(HeadRead(v(ROLLED, 3), (7, 8))) == [FinishRoll()]
    assert machine.step(HeadRead(v(BOTH, 2), (7, 8))) == [SealExtents(v(BOTH, 2), ((7, end(5)),))]


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
    run(machine, Roll(), LeaderAnswered(True), LedgerCreated(open_extent(8)), HeadConflicted(), LeaderAnswered(True))
    assert machine.step(WaitEnded()) == [ReadHead()]
    drop, lost = machine.step(RequestFailed(NoSuchLogError("there is no log")))
    assert drop == DeleteLedger(8)
    assert isinstance(lost, LoseLeadership)
    assert "the log was deleted" in str(lost.error)
    assert lost.error.outcome is Outcome.UNKNOWN
