# SPDX-License-Identifier: Apache-2.0
"""What an error says of a change whose compare-and-set got no answer: certainly not applied, or perhaps."""

from __future__ import annotations

import pytest

from bk_core.errors import (
    BookKeeperError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
    TransactionVersionRegressedError,
)
from bk_core.logs import commit
from bk_core.logs.head import Extent, LogHead, PublishId
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.transactions import Transaction, recorded
from bk_core.logs.machines.upkeep import Compact, Trim
from bk_core.logs.machines.vacuum import Vacuum
from bk_core.model import Versioned
from tests.logs.change_kit import EMPTY, LOST, NONCE, extent, publication, published, run, writing


@pytest.mark.rule("N4")
@pytest.mark.rule("N5")
def test_a_refused_version_is_certain_while_the_record_would_remember_it() -> None:
    later = recorded(None, Transaction("app", 5), PublishId.txn("app", 5), 1, 1)
    for moved, outcome in ((1, Outcome.NOT_APPLIED), (127, Outcome.NOT_APPLIED), (128, Outcome.UNKNOWN)):
        machine = writing(publication(1, transaction=Transaction("app", 4)), 7)
        run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
        (fail,) = machine.step(ev.HeadRead(Versioned(published(EMPTY, 9, "other"), 7 + moved), Versioned(later, 3)))
        assert isinstance(fail, ev.Fail)
        assert isinstance(fail.error, TransactionVersionRegressedError)
        assert fail.error.outcome is outcome, moved


@pytest.mark.rule("N7")
def test_a_compaction_whose_answer_was_lost_may_have_been_there_and_be_gone_again() -> None:
    head = published(EMPTY, 1, "a")
    (old,) = head.tail
    machine: HeadChange[Extent] = HeadChange(Compact((old,), extent(2), NONCE))
    (write,) = run(machine, ev.Start(), ev.HeadRead(Versioned(head, 7)), ev.LedgersChecked())
    assert isinstance(write, ev.WriteHead)
    replaced = commit.replace_extents(write.head, write.head.tail, extent(3), nonce=NONCE).head
    run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
    (fail,) = machine.step(ev.HeadRead(Versioned(replaced, 9)))
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.UNKNOWN

    machine = HeadChange(Compact((old,), extent(2), NONCE))
    run(machine, ev.Start(), ev.HeadRead(Versioned(head, 7)), ev.LedgersChecked())
    run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded(), ev.HeadRead(Versioned(head, 8)), ev.LedgersChecked())
    (fail,) = machine.step(ev.RequestFailed(BookKeeperError("broken")))
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.NOT_APPLIED, "the head is as it was: the first one was not applied"


def compacting(head: LogHead, version: int = 7) -> HeadChange[Extent]:
    """The answer of its compare-and-set with this head was lost."""
    machine: HeadChange[Extent] = HeadChange(Compact(head.sealed_tail[:1], extent(2), NONCE))
    run(machine, ev.Start(), ev.HeadRead(Versioned(head, version)), ev.LedgersChecked())
    assert run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded()) == [ev.ReadHead(sync=True)]
    return machine


def outcome_of(effects: list[ev.Effect]) -> Outcome:
    (fail,) = effects
    assert isinstance(fail, ev.Fail), fail
    return fail.error.outcome


@pytest.mark.rule("N7")
def test_a_compaction_is_certain_only_after_it_saw_its_run_there_in_a_later_head() -> None:
    head = published(EMPTY, 1, "a")
    gone = PublishConflictError("the new ledger does not exist")
    for version, outcome in ((7, Outcome.UNKNOWN), (8, Outcome.NOT_APPLIED)):
        machine = compacting(head)
        machine.step(ev.HeadRead(Versioned(head, version)))
        assert outcome_of(machine.step(ev.RequestFailed(gone))) is outcome, version
    trimmed = commit.trim(published(head, 5, "b"), 2, nonce=NONCE).head
    assert outcome_of(compacting(head).step(ev.HeadRead(Versioned(trimmed, 10)))) is Outcome.UNKNOWN


@pytest.mark.rule("N7")
def test_a_trim_to_beyond_the_end_may_have_been_done_though_the_end_moved_on() -> None:
    head = published(EMPTY, 1, "a")
    grown = published(head, 2, "b")
    done = commit.trim(head, 100, nonce=NONCE).head
    assert done.start_offset == 2
    for later, outcome in ((published(done, 2, "b"), Outcome.UNKNOWN), (grown, Outcome.NOT_APPLIED)):
        machine: HeadChange[int] = HeadChange(Trim(100, NONCE))
        run(machine, ev.Start(), ev.HeadRead(Versioned(head, 7)), ev.HeadWriteUnknown(LOST), ev.WaitEnded())
        (write,) = machine.step(ev.HeadRead(Versioned(later, 9)))
        assert isinstance(write, ev.WriteHead)
        assert write.head.start_offset == 4, "it is wanted still"
        broken = BookKeeperError("broken")
        assert outcome_of(machine.copy().step(ev.RequestFailed(broken))) is outcome
        run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
        machine.step(ev.HeadRead(Versioned(published(later, 3, "c"), 10)))  # the second was not applied
        assert outcome_of(machine.step(ev.RequestFailed(BookKeeperError("broken")))) is outcome


@pytest.mark.rule("N4")
@pytest.mark.rule("N6")
def test_a_publish_whose_ledgers_are_gone_is_certain_once_the_head_moved_on() -> None:
    gone = NoSuchLedgerError("vacuumed")
    for head, outcome in (
        (Versioned(EMPTY, 7), Outcome.UNKNOWN),
        (Versioned(published(EMPTY, 9, "other"), 8), Outcome.NOT_APPLIED),
    ):
        machine = writing(publication(1), 7)
        run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded(), ev.HeadRead(head))
        assert outcome_of(machine.step(ev.RequestFailed(gone))) is outcome


@pytest.mark.rule("N4")
def test_a_publish_that_was_overwritten_before_its_answer_was_looked_for_is_done() -> None:
    machine = writing(publication(1), 7)
    ours = published(EMPTY, 1, "j")
    over = commit.overwrite(ours, [extent(9)], PublishId.job("other"), now_ms=1, nonce=NONCE).head
    (done,) = run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded(), ev.HeadRead(Versioned(over, 9)))
    assert isinstance(done, ev.Finish)
    assert (done.result.base_offset, done.result.rows) == (0, 2)


@pytest.mark.rule("N4")
@pytest.mark.rule("N5")
def test_the_record_of_a_transaction_tells_for_longer_than_the_head_but_only_if_it_is_there() -> None:
    earlier = recorded(None, Transaction("app", 3), PublishId.txn("app", 3), 1, 1)
    wanted = Transaction("app", 4)
    for record, kind in ((Versioned(earlier, 3), ev.CheckLedgers), (None, ev.Fail)):
        machine = writing(publication(1, transaction=wanted), 7)
        run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
        (effect,) = machine.step(ev.HeadRead(Versioned(published(EMPTY, 9, "other"), 7 + 128), record))
        assert isinstance(effect, kind)
        if isinstance(effect, ev.Fail):
            assert effect.error.outcome is Outcome.UNKNOWN, "a vacuum may have deleted the record"


@pytest.mark.rule("N6")
def test_a_vacuum_that_fails_says_whether_it_did_anything() -> None:
    broken = BookKeeperError("broken", outcome=Outcome.UNKNOWN)
    machine = Vacuum(EMPTY.uuid, 100, NONCE)
    run(machine, ev.Start(), ev.OrphansListed((2,)))
    assert outcome_of(machine.copy().step(ev.RequestFailed(broken))) is Outcome.NOT_APPLIED
    run(machine, ev.HeadRead(Versioned(EMPTY, 5)), ev.UnlinkedRead(()), ev.HeadWritten())
    broken = BookKeeperError("broken", outcome=Outcome.NOT_APPLIED)
    assert outcome_of(machine.step(ev.RequestFailed(broken))) is Outcome.UNKNOWN, "it is condemned"
