# SPDX-License-Identifier: Apache-2.0
"""The sequences that change a log's head, one answer at a time."""

from __future__ import annotations

import pytest

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    Outcome,
    TransactionReplayDiffersError,
)
from bk_core.logs.machines import ask, upkeep
from bk_core.logs.machines.deletion import VacuumDeleted, VacuumedDeleted
from bk_core.logs.machines.publication import Transaction, recorded
from bk_core.logs.model.head import LogTransactions, Published, PublishId
from bk_core.model import Versioned
from tests.kit.sequences import Told
from tests.logs.change_kit import (
    CONFLICT,
    EMPTY,
    LOG,
    LOST,
    head_read,
    publication,
    published,
    run,
    vacuuming,
    writing,
)

BROKEN = BookKeeperError("broken")


@pytest.mark.rule("N4")
def test_a_doubt_lasts_as_long_as_the_head_has_the_version_that_was_compared() -> None:
    told = writing(publication(1), 7)
    run(told, LOST, None)
    assert told.request == ask.ForLogs({LOG: ask.ReadHead()}, sync=True)
    run(told, head_read(EMPTY, 7))
    assert run(told, BROKEN).outcome is Outcome.UNKNOWN

    told = writing(publication(1), 7)
    run(told, LOST, None, head_read(published(EMPTY, 9, "other"), 8))
    assert run(told, BROKEN).outcome is Outcome.NOT_APPLIED

    told = writing(publication(1), 7)
    assert isinstance(run(told, LOST, None, head_read(published(EMPTY, 1, "j"), 8)), Published)


@pytest.mark.rule("N4")
def test_a_publish_that_may_have_been_forgotten_stays_in_doubt() -> None:
    told = writing(publication(1), 7)
    assert run(told, LOST, None, head_read(EMPTY, 7 + 128)).outcome is Outcome.UNKNOWN


@pytest.mark.rule("N5")
def test_a_version_of_other_input_is_no_replay_whether_the_head_or_the_record_remembers_it() -> None:
    """Nor is it one with as many rows: a batch that is planned anew from an older checkpoint may have other ones."""
    first, anew = Transaction("app", 4, b"planned1"), Transaction("app", 4, b"planned2")
    record = Versioned(recorded(None, first, PublishId.job("j"), 2, 1), 0)
    for remembered in ("j", "another job since"):
        read = head_read(published(EMPTY, 1, remembered), 0, record)
        refused = run(publication(1, transaction=anew), read)
        assert isinstance(refused, TransactionReplayDiffersError)
        assert "other input" in str(refused)
        assert refused.outcome is Outcome.NOT_APPLIED
        for same in (first, Transaction("app", 4)):
            assert isinstance(run(publication(1, transaction=same), read), Published)
    with pytest.raises(InvalidArgumentError, match="8 bytes"):
        Transaction("app", 4, b"short")


@pytest.mark.rule("N6")
def test_the_record_of_a_deleted_log_stays_until_no_ledger_is_left() -> None:
    told = Told(lambda: VacuumDeleted(EMPTY.uuid, forget=True))
    assert told.request == ask.ListOrphans(EMPTY.uuid, ask.ANY_AGE_MS, None)
    assert run(told, (5, 6)) == ask.DeleteLedgers((5, 6), EMPTY.uuid)
    assert run(told.copy(), (5,)) == VacuumedDeleted((5,), (6,))
    assert run(told, (5, 6)) == ask.ForgetDeleted(EMPTY.uuid)
    assert run(told, None) == VacuumedDeleted((5, 6))
    kept = Told(lambda: VacuumDeleted(EMPTY.uuid, forget=False))
    assert run(kept, (5,), (5,)) == VacuumedDeleted((5,))


# --- transactions that nobody uses ---


def record_of(name: str, last_used_ms: int) -> LogTransactions:
    return recorded(None, Transaction(name, 1), PublishId.txn(name, 1), 1, last_used_ms)


def reading_transactions(*records: LogTransactions) -> Told:
    told = vacuuming(txns_before_ms=50)
    run(told, (), head_read(EMPTY, 5), (), head_read(EMPTY, 5))
    assert run(told, ()) == ask.ListTransactions()
    keys = tuple(each.key for each in records)
    assert run(told, keys) == ask.ReadTransactions(keys[: upkeep.TXNS_AT_ONCE])
    return told


def found(*records: LogTransactions, head_version: int = 5, version: int = 3) -> ask.TransactionsRead:
    return ask.TransactionsRead(
        Versioned(EMPTY, head_version), {each.key: Versioned(each, version) for each in records}
    )


@pytest.mark.rule("N5")
def test_a_vacuum_deletes_old_transactions_as_it_read_them_and_keeps_those_used_meanwhile() -> None:
    old, older, young = record_of("old", 49), record_of("older", 1), record_of("young", 50)
    told = reading_transactions(old, older, young)
    assert run(told, found(old, older, young)) == ask.DeleteTransactions({old.key: 3, older.key: 3}, 5)
    assert run(told, CONFLICT) == ask.ReadTransactions((old.key, older.key, young.key))
    delete = run(told, found(record_of("old", 60), older, young, head_version=6))
    assert delete == ask.DeleteTransactions({older.key: 3}, 6)
    assert run(told, None) == upkeep.Vacuumed(transactions=("older",))


@pytest.mark.rule("N5")
def test_a_lost_answer_of_deleting_transactions_is_settled_by_looking() -> None:
    old, young = record_of("old", 49), record_of("young", 50)
    told = reading_transactions(old, young)
    run(told, found(old, young), LOST)
    assert run(told, found(young)) == upkeep.Vacuumed(transactions=("old",))


@pytest.mark.rule("N5")
def test_transactions_of_a_busy_log_are_left_to_the_next_vacuum() -> None:
    records = [record_of(str(n), 1) for n in range(upkeep.TXNS_AT_ONCE + 1)]
    told = reading_transactions(*records)
    for look in range(upkeep.TXNS_LOOKS_MAX):
        assert isinstance(run(told, found(*records[:-1], head_version=look)), ask.DeleteTransactions)
        asked = run(told, CONFLICT)
    assert asked == ask.ReadTransactions((records[-1].key,))
    run(told, found(records[-1]))
    assert run(told, None) == upkeep.Vacuumed(transactions=(records[-1].app_id,))


@pytest.mark.parametrize(("name", "version"), [("", 1), ("a", -1), ("a", 2**63), ("a" * 1025, 1), ("\ud800", 1)])
def test_a_transaction_that_no_record_can_hold_is_refused(name: str, version: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a transaction"):
        Transaction(name, version)
