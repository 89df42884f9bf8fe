# SPDX-License-Identifier: Apache-2.0
"""The machines that change a log's head, one event at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LogRecreatedError,
    Outcome,
    TransactionReplayDiffersError,
)
from bk_core.logs import commit
from bk_core.logs.head import LogTransactions, PublishId, Unlinked
from bk_core.logs.machines import change, vacuum
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import HeadChange, State
from bk_core.logs.machines.transactions import Transaction, recorded
from bk_core.logs.machines.upkeep import Trim
from bk_core.logs.machines.vacuum import Vacuum
from bk_core.logs.paging import Change
from bk_core.logs.unlinking import UnlinkedRecord
from bk_core.model import Versioned
from tests.logs.change_kit import AWAY, EMPTY, LOST, NONCE, publication, published, run, writing


@pytest.mark.rule("N4")
def test_an_abort_deletes_ledgers_only_before_the_first_compare_and_set() -> None:
    machine = publication(1, 2)
    run(machine, ev.Start(), ev.HeadRead(Versioned(EMPTY, 0)))
    drop, fail = machine.step(ev.Abort())
    assert drop == ev.DropLedgers((1, 2))
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.NOT_APPLIED

    (fail,) = writing(publication(1)).step(ev.Abort())
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.UNKNOWN

    refused = writing(publication(1))
    refused.step(ev.HeadConflicted())
    (fail,) = refused.step(ev.Abort())
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.NOT_APPLIED


@pytest.mark.rule("N4")
def test_a_doubt_lasts_as_long_as_the_head_has_the_version_that_was_compared() -> None:
    unknown = [ev.HeadWriteUnknown(LOST), ev.WaitEnded()]
    machine = writing(publication(1), 7)
    assert run(machine, *unknown) == [ev.ReadHead(sync=True)]
    run(machine, ev.HeadRead(Versioned(EMPTY, 7)))
    (fail,) = run(machine, ev.RequestFailed(BookKeeperError("broken")))
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.UNKNOWN

    machine = writing(publication(1), 7)
    run(machine, *unknown, ev.HeadRead(Versioned(published(EMPTY, 9, "other"), 8)))
    (fail,) = run(machine, ev.RequestFailed(BookKeeperError("broken")))
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.NOT_APPLIED

    machine = writing(publication(1), 7)
    (done,) = run(machine, *unknown, ev.HeadRead(Versioned(published(EMPTY, 1, "j"), 8)))
    assert isinstance(done, ev.Finish)


@pytest.mark.rule("N4")
def test_a_publish_that_may_have_been_forgotten_stays_in_doubt() -> None:
    machine = writing(publication(1), 7)
    (fail,) = run(machine, ev.HeadWriteUnknown(LOST), ev.WaitEnded(), ev.HeadRead(Versioned(EMPTY, 7 + 128)))
    assert isinstance(fail, ev.Fail)
    assert fail.error.outcome is Outcome.UNKNOWN


@pytest.mark.rule("N6")
def test_ledgers_are_checked_again_for_every_head() -> None:
    machine = writing(publication(1))
    (asked,) = run(
        machine, ev.HeadConflicted(), ev.WaitEnded(), ev.HeadRead(Versioned(published(EMPTY, 9, "other"), 1))
    )
    assert isinstance(asked, ev.CheckLedgers)


@pytest.mark.rule("N2")
@pytest.mark.rule("MUST15")
def test_a_takeover_recovers_every_open_extent_and_the_last_two_ledgers() -> None:
    new = commit.NewOpenExtent(ledger_id=8, created_ms=1, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    head = commit.add_open_extent(published(EMPTY, 7, "before"), new, nonce=NONCE).head
    machine = publication(9, takeover=True)
    (asked,) = run(machine, ev.Start(), ev.HeadRead(Versioned(head, 0)))
    assert isinstance(asked, ev.RecoverLedgers)
    assert set(asked.ledgers) == {7, 8}
    ends = {8: commit.LedgerEnd(entry_count=3, size_bytes=3)}
    (write,) = run(machine, ev.LedgersRecovered(ends, frozenset({7})), ev.LedgersChecked())
    assert isinstance(write, ev.WriteHead)
    assert [(e.ledger_id, e.base_offset) for e in write.head.tail] == [(7, 0), (8, 2), (9, 5)]

    lost = publication(9, takeover=True)
    run(lost, ev.Start(), ev.HeadRead(Versioned(head, 0)))
    (fail,) = lost.step(ev.LedgersRecovered({}, frozenset({7, 8})))
    assert isinstance(fail, ev.Fail)
    assert "ledger 8" in str(fail.error)


@pytest.mark.rule("N5")
def test_a_transaction_is_written_with_the_head_under_its_own_version() -> None:
    wanted = Transaction("app", 4)
    record = recorded(None, Transaction("app", 2), PublishId.txn("app", 2), 1, 1)
    machine = publication(1, transaction=wanted)
    assert machine.step(ev.Start()) == [ev.ReadHead(sync=True, app_id="app")]
    (write,) = run(machine, ev.HeadRead(Versioned(EMPTY, 0), Versioned(record, 6)), ev.LedgersChecked())
    assert isinstance(write, ev.WriteHead)
    assert write.transactions is not None
    assert [each.version for each in write.transactions.versions] == [2, 4]
    assert write.transactions_version == 6


@pytest.mark.rule("N5")
def test_a_version_of_other_input_is_no_replay_whether_the_head_or_the_record_remembers_it() -> None:
    """Nor is it one with as many rows: a batch that is planned anew from an older checkpoint may have other ones."""
    first, anew = Transaction("app", 4, b"planned1"), Transaction("app", 4, b"planned2")
    record = Versioned(recorded(None, first, PublishId.job("j"), 2, 1), 0)
    for remembered in ("j", "another job since"):
        read = ev.HeadRead(Versioned(published(EMPTY, 1, remembered), 0), record)
        (refused,) = run(publication(1, transaction=anew), ev.Start(), read)
        assert isinstance(refused, ev.Fail)
        assert isinstance(refused.error, TransactionReplayDiffersError)
        assert "other input" in str(refused.error)
        assert refused.error.outcome is Outcome.NOT_APPLIED
        for same in (first, Transaction("app", 4)):
            (done,) = run(publication(1, transaction=same), ev.Start(), read)
            assert isinstance(done, ev.Finish)
    with pytest.raises(InvalidArgumentError, match="8 bytes"):
        Transaction("app", 4, b"short")


def test_retries_end() -> None:
    machine: HeadChange[int] = HeadChange(Trim(2, NONCE), attempts_max=3)
    head = Versioned(published(EMPTY, 1, "a"), 0)
    effects = machine.step(ev.Start())
    for _ in range(2):
        run(machine, ev.HeadRead(head), ev.HeadConflicted())
        effects = machine.step(ev.WaitEnded())
    (fail,) = run(machine, ev.HeadRead(head), ev.HeadConflicted())
    assert effects
    assert isinstance(fail, ev.Fail)
    assert "3 times" in str(fail.error)

    away: HeadChange[int] = HeadChange(Trim(2, NONCE), failures_max=2)
    (fail,) = run(away, ev.Start(), ev.RequestFailed(AWAY), ev.WaitEnded(), ev.RequestFailed(AWAY))
    assert fail == ev.Fail(AWAY)


def test_a_late_or_doubled_event_is_ignored() -> None:
    machine = writing(publication(1))
    for event in (ev.Start(), ev.LedgersChecked(), ev.WaitEnded(), ev.PagesCreated(), ev.PagesRead({})):
        assert machine.step(event) == []
    assert machine.state is State.WRITING


@pytest.mark.rule("N6")
def test_a_vacuum_deletes_what_it_condemned_and_forgets_what_is_gone() -> None:
    head = published(EMPTY, 1, "a")
    machine = Vacuum(EMPTY.uuid, 100, NONCE)
    assert machine.step(ev.Start()) == [ev.ListOrphans(EMPTY.uuid, 100)]
    machine.step(ev.OrphansListed((1, 2, 3, 4)))
    assert machine.step(ev.HeadRead(Versioned(head, 5))) == [ev.ReadUnlinked()]
    old, young = (UnlinkedRecord(f"r{at}", at, Unlinked(ledgers=(ledger,))) for at, ledger in ((99, 2), (100, 4)))
    (write,) = machine.step(ev.UnlinkedRead((old, young)))
    assert isinstance(write, ev.WriteHead)
    assert write.head.condemned == (2, 3)
    assert machine.step(ev.HeadWritten()) == [ev.DeleteLedgers((2, 3), EMPTY.uuid)]
    machine.step(ev.LedgersDeleted((3,)))
    (write,) = machine.step(ev.HeadRead(Versioned(write.head, 6)))
    assert isinstance(write, ev.WriteHead)
    assert write.head.condemned == (2,)
    assert machine.step(ev.HeadWritten()) == [ev.ListPages(100)]
    assert run(machine, ev.PagesListed(("p", "q")), ev.HeadRead(Versioned(head, 7))) == [ev.ReadUnlinked()]
    young = replace(young, unlinked=Unlinked(names=("q",)))
    assert machine.step(ev.UnlinkedRead((old, young))) == [ev.WriteHead(head, 7)]
    assert machine.step(ev.HeadWritten()) == [ev.DeleteUnlinked(("r99",))]
    assert machine.step(ev.UnlinkedDeleted()) == [ev.DeletePages(("p",))]
    assert machine.step(ev.PagesDeleted()) == [ev.Finish(vacuum.Vacuumed((3,), (2,), ("p",)))]


def test_a_vacuum_of_a_log_that_was_made_again_deletes_nothing() -> None:
    machine = Vacuum("00000000-0000-0000-0000-000000000000", 100, NONCE)
    (fail,) = run(machine, ev.Start(), ev.OrphansListed((1,)), ev.HeadRead(Versioned(EMPTY, 5)))
    assert isinstance(fail, ev.Fail)
    assert isinstance(fail.error, LogRecreatedError)


# --- transactions that nobody uses ---


def record_of(name: str, last_used_ms: int) -> LogTransactions:
    return recorded(None, Transaction(name, 1), PublishId.txn(name, 1), 1, last_used_ms)


def reading_transactions(*records: LogTransactions) -> Vacuum:
    machine = Vacuum(EMPTY.uuid, 100, NONCE, txns_before_ms=50)
    run(machine, ev.Start(), ev.OrphansListed(()), ev.HeadRead(Versioned(EMPTY, 5)))
    run(machine, ev.PagesListed(()), ev.HeadRead(Versioned(EMPTY, 5)))
    assert machine.step(ev.UnlinkedRead(())) == [ev.ListTransactions()]
    keys = tuple(each.key for each in records)
    assert machine.step(ev.TransactionsListed(keys)) == [ev.ReadTransactions(keys[: vacuum.TXNS_AT_ONCE])]
    return machine


def found(*records: LogTransactions, head_version: int = 5, version: int = 3) -> ev.TransactionsRead:
    return ev.TransactionsRead(Versioned(EMPTY, head_version), {each.key: Versioned(each, version) for each in records})


@pytest.mark.rule("N5")
def test_a_vacuum_deletes_old_transactions_as_it_read_them_and_keeps_those_used_meanwhile() -> None:
    old, older, young = record_of("old", 49), record_of("older", 1), record_of("young", 50)
    machine = reading_transactions(old, older, young)
    (delete,) = machine.step(found(old, older, young))
    assert delete == ev.DeleteTransactions({old.key: 3, older.key: 3}, 5)
    assert machine.step(ev.HeadConflicted()) == [ev.ReadTransactions((old.key, older.key, young.key))]
    (delete,) = machine.step(found(record_of("old", 60), older, young, head_version=6))
    assert delete == ev.DeleteTransactions({older.key: 3}, 6)
    assert machine.step(ev.TransactionsDeleted()) == [ev.Finish(vacuum.Vacuumed(transactions=("older",)))]


@pytest.mark.rule("N5")
def test_a_lost_answer_of_deleting_transactions_is_settled_by_looking() -> None:
    old, young = record_of("old", 49), record_of("young", 50)
    machine = reading_transactions(old, young)
    run(machine, found(old, young), ev.RequestFailed(LOST))
    assert machine.step(found(young)) == [ev.Finish(vacuum.Vacuumed(transactions=("old",)))]


@pytest.mark.rule("N5")
def test_transactions_of_a_busy_log_are_left_to_the_next_vacuum() -> None:
    records = [record_of(str(n), 1) for n in range(vacuum.TXNS_AT_ONCE + 1)]
    machine = reading_transactions(*records)
    for look in range(vacuum.TXNS_LOOKS_MAX):
        assert isinstance(machine.step(found(*records[:-1], head_version=look))[0], ev.DeleteTransactions)
        (asked,) = machine.step(ev.HeadConflicted())
    assert asked == ev.ReadTransactions((records[-1].key,))
    run(machine, found(records[-1]))
    assert machine.step(ev.TransactionsDeleted()) == [ev.Finish(vacuum.Vacuumed(transactions=(records[-1].app_id,)))]


@pytest.mark.rule("N5")
def test_transactions_of_a_log_that_was_made_again_are_kept() -> None:
    old = record_of("old", 1)
    machine = reading_transactions(old)
    other = replace(EMPTY, uuid="00000000-0000-0000-0000-000000000000")
    (fail,) = machine.step(ev.TransactionsRead(Versioned(other, 0), {old.key: Versioned(old, 0)}))
    assert isinstance(fail, ev.Fail)
    assert isinstance(fail.error, LogRecreatedError)


@pytest.mark.parametrize(("name", "version"), [("", 1), ("a", -1), ("a", 2**63), ("a" * 1025, 1), ("\ud800", 1)])
def test_a_transaction_that_no_record_can_hold_is_refused(name: str, version: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a transaction"):
        Transaction(name, version)


def test_every_state_has_its_moves() -> None:
    assert set(change.MOVES) == set(change.State)
    assert set(vacuum.MOVES) == set(vacuum.State)
    assert Change(EMPTY).transactions is None
