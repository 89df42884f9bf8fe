# SPDX-License-Identifier: Apache-2.0
"""The sequences of deletion, answered by hand: what is asked in which order, and what a lost answer means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import LogHasLeaderError, LogRecreatedError, NoSuchLogError, Outcome
from bk_core.logs.machines import ask
from bk_core.logs.machines.deletion import DeleteLog, VacuumDeleted, VacuumedDeleted
from bk_core.logs.model.deleted import DeletedLog, mark_of
from bk_core.logs.model.head import Extent
from bk_core.logs.model.next_head import LedgerEnd, add_open_extent
from tests.kit.sequences import Told
from tests.logs.change_kit import AWAY, EMPTY, LOG, LOST, NONCE, head_read, published, run

UUID = EMPTY.uuid
DELETED = DeletedLog(name=LOG, uuid=UUID, deleted_ms=7)
GONE = NoSuchLogError("there is no log")
OPENED = Extent(is_open=True, ledger_id=20, created_ms=1, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
LED = add_open_extent(published(EMPTY, 3, "x"), OPENED, nonce=NONCE).head


def deleting(**more: Any) -> Told:
    return Told(lambda: DeleteLog(LOG, UUID, **more))


def test_a_mark_takes_the_place_of_the_head_then_the_deletion_is_on_record_then_the_mark_goes() -> None:
    told = deleting()
    head = published(EMPTY, 3, "x")
    write = run(told, head_read(head, 4))
    assert (write.head, write.version) == (mark_of(head), 4)
    assert run(told, None) == ask.RecordDeleted(UUID)
    assert run(told, DELETED) == ask.RemoveMark(UUID)
    assert run(told, None) == DELETED


@pytest.mark.rule("N2")
def test_a_leader_is_fenced_with_the_last_two_ledgers_before_the_mark_is_written() -> None:
    refused = run(deleting(), head_read(LED))
    assert isinstance(refused, LogHasLeaderError)
    assert refused.outcome is Outcome.NOT_APPLIED
    told = deleting(takeover=True)
    assert run(told, head_read(LED)) == ask.RecoverLedgers((20, 3))
    ends = {20: LedgerEnd(entry_count=1, size_bytes=1)}
    assert run(told, ask.LedgersRecovered(ends, frozenset({3}))).head == mark_of(LED)


@pytest.mark.parametrize("moved", [0, 1])
def test_a_lost_answer_is_settled_by_looking(moved: int) -> None:
    """A leader came after the write whose answer was lost: the write failed if the head went on."""
    told = deleting()
    run(told, head_read(EMPTY, 4), LOST, None)
    refused = run(told, head_read(LED, 4 + moved))
    assert isinstance(refused, LogHasLeaderError)
    assert refused.outcome is (Outcome.NOT_APPLIED if moved else Outcome.UNKNOWN)


def test_a_write_whose_answer_was_lost_and_that_was_applied_is_a_deletion() -> None:
    told = deleting()
    assert run(told, head_read(EMPTY), LOST, None, GONE) == ask.RecordDeleted(UUID)
    assert run(told, DELETED, None) == DELETED


def test_a_store_that_goes_away_after_a_lost_answer_leaves_it_open_whether_the_log_is_deleted() -> None:
    for away_at in (ask.RecordDeleted(UUID), ask.RemoveMark(UUID)):
        told = deleting()
        run(told, head_read(EMPTY), LOST, None, GONE)
        while told.request != away_at:
            run(told, DELETED)
        error = run(told, AWAY)
        assert error.outcome is Outcome.UNKNOWN
    told = deleting()
    assert run(told, GONE, AWAY).outcome is Outcome.NOT_APPLIED, "nothing was written"


def test_a_log_that_was_never_there_and_one_that_was_made_again_are_not_deleted() -> None:
    told = deleting()
    assert isinstance(run(told, GONE, GONE), NoSuchLogError)
    again = replace(EMPTY, uuid="aaaaaaaa-9abc-def0-1234-56789abcdef0")
    told = deleting()
    assert isinstance(run(told, head_read(again), GONE), LogRecreatedError)
    assert not any(isinstance(each, ask.WriteHeads) for each in told.asked)


def test_what_another_client_deleted_wholly_meanwhile_is_deleted() -> None:
    told = deleting()
    assert run(told, head_read(EMPTY), None, GONE) == DeletedLog(name=LOG, uuid=UUID)


@pytest.mark.rule("N6")
def test_the_record_stays_until_no_ledger_is_left() -> None:
    told = Told(lambda: VacuumDeleted(UUID, forget=True))
    assert told.request == ask.ListOrphans(UUID, ask.ANY_AGE_MS, None)
    assert run(told, (5, 6)) == ask.DeleteLedgers((5, 6), UUID)
    assert run(told.copy(), (5,)) == VacuumedDeleted((5,), (6,))
    assert run(told, (5, 6)) == ask.ForgetDeleted(UUID)
    assert run(told, None) == VacuumedDeleted((5, 6))
    kept = Told(lambda: VacuumDeleted(UUID, forget=False))
    assert run(kept, (5,), (5,)) == VacuumedDeleted((5,))
