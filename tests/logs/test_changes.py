# SPDX-License-Identifier: Apache-2.0
"""The sequences that change a log's head, one answer at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LogRecreatedError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
    TransactionReplayDiffersError,
)
from bk_core.logs.machines import ask, upkeep
from bk_core.logs.machines.publication import Transaction, recorded
from bk_core.logs.machines.upkeep import Trim
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import Extent, LogTransactions, Published, PublishId, Unlinked
from bk_core.logs.model.unlinking import UnlinkedRecord
from bk_core.model import Versioned
from tests.kit.sequences import Told
from tests.logs.change_kit import (
    AWAY,
    CONFLICT,
    EMPTY,
    LOG,
    LOST,
    NONCE,
    changing,
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


@pytest.mark.rule("N6")
def test_ledgers_are_checked_again_for_every_head() -> None:
    told = writing(publication(1))
    assert isinstance(run(told, CONFLICT, None, head_read(published(EMPTY, 9, "other"), 1)), ask.CheckLedgers)


@pytest.mark.rule("N2", "MUST15")
def test_a_takeover_recovers_every_open_extent_and_the_last_two_ledgers() -> None:
    new = Extent(is_open=True, ledger_id=8, created_ms=1, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    head = commit.add_open_extent(published(EMPTY, 7, "before"), new, nonce=NONCE).head
    told = publication(9, takeover=True)
    asked = run(told, head_read(head))
    assert isinstance(asked, ask.RecoverLedgers)
    assert set(asked.ledgers) == {7, 8}
    ends = {8: commit.LedgerEnd(entry_count=3, size_bytes=3)}
    write = run(told, ask.LedgersRecovered(ends, frozenset({7})), None)
    assert isinstance(write, ask.WriteHead)
    assert [(e.ledger_id, e.base_offset) for e in write.head.tail] == [(7, 0), (8, 2), (9, 5)]

    lost = publication(9, takeover=True)
    error = run(lost, head_read(head), ask.LedgersRecovered({}, frozenset({7, 8})))
    assert isinstance(error, NoSuchLedgerError)
    assert "ledger 8" in str(error)


@pytest.mark.rule("N5")
def test_a_transaction_is_written_with_the_head_under_its_own_version() -> None:
    wanted = Transaction("app", 4)
    record = recorded(None, Transaction("app", 2), PublishId.txn("app", 2), 1, 1)
    told = publication(1, transaction=wanted)
    assert told.request == ask.ForLogs({LOG: ask.ReadHead("app")}, sync=True)
    write = run(told, head_read(EMPTY, 0, Versioned(record, 6)), None)
    assert isinstance(write, ask.WriteHead)
    assert write.transactions is not None
    assert [each.version for each in write.transactions.versions] == [2, 4]
    assert write.transactions_version == 6


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


def test_retries_end() -> None:
    told = changing(Trim(2, NONCE), attempts_max=3)
    read = head_read(published(EMPTY, 1, "a"))
    assert run(told, read, CONFLICT) == ask.Wait(1)
    assert run(told, None, read, CONFLICT) == ask.Wait(2)
    error = run(told, None, read, CONFLICT)
    assert isinstance(error, PublishConflictError)
    assert "3 times" in str(error)

    away = changing(Trim(2, NONCE), failures_max=2)
    assert run(away, AWAY) == ask.Wait(1)
    assert run(away, None, AWAY).what == AWAY.what

    no_sync = changing(Trim(2, NONCE), failures_max=2)
    assert no_sync.tell(LOST) == ask.Wait(1)
    no_sync.tell(None)
    assert no_sync.tell(LOST).outcome is Outcome.NOT_APPLIED


@pytest.mark.rule("N3")
@pytest.mark.parametrize("refused", [CONFLICT, AWAY, BROKEN])
def test_pages_are_dropped_where_certainly_no_head_names_them_and_no_error_of_that_counts(
    refused: BookKeeperError,
) -> None:
    many = range(100, 170)
    told = publication(*many)
    create = run(told, head_read(EMPTY), None)
    assert isinstance(create, ask.CreatePages)
    names = tuple(new.name for new in create.pages)
    assert isinstance(run(told, None), ask.WriteHead)
    in_doubt = told.copy()
    assert run(told, refused) == ask.DropPages({LOG: names})
    after = run(told, BROKEN)
    assert after.what == BROKEN.what if refused is BROKEN else after == ask.Wait(1)
    assert run(in_doubt, LOST) == ask.Wait(1), "the head may name them"


@pytest.mark.rule("N6")
def test_a_vacuum_deletes_what_it_condemned_and_forgets_what_is_gone() -> None:
    head = published(EMPTY, 1, "a")
    told = vacuuming()
    assert told.request == ask.ListOrphans(EMPTY.uuid, 100)
    assert run(told, (1, 2, 3, 4), head_read(head, 5)) == ask.ReadUnlinked()
    old, young = (UnlinkedRecord(f"r{at}", at, Unlinked(ledgers=(ledger,))) for at, ledger in ((99, 2), (100, 4)))
    write = run(told, (old, young))
    assert isinstance(write, ask.WriteHead)
    assert write.head.condemned == (2, 3)
    assert run(told, None) == ask.DeleteLedgers((2, 3), EMPTY.uuid)
    write = run(told, (3,), head_read(write.head, 6))
    assert isinstance(write, ask.WriteHead)
    assert write.head.condemned == (2,)
    assert run(told, None) == ask.ListPages(100)
    assert run(told, ("p", "q"), head_read(head, 7)) == ask.ReadUnlinked()
    young = replace(young, unlinked=Unlinked(names=("q",)))
    assert run(told, (old, young)) == ask.WriteHead(head, 7)
    assert run(told, None) == ask.DeleteUnlinked(("r99",))
    assert run(told, None) == ask.DeletePages(("p",))
    assert run(told, None) == upkeep.Vacuumed((3,), (2,), ("p",))


@pytest.mark.rule("N6")
def test_a_vacuum_condemns_in_rounds_as_the_head_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.logs.machines.upkeep.CONDEMNED_MAX", 2)
    told, head = vacuuming(), EMPTY
    told.tell((1, 2, 3))
    for round_, ledgers in enumerate(((1, 2), (3,))):
        write = run(told, head_read(head, 2 * round_), ())
        assert write.head.condemned == ledgers
        assert run(told, None) == ask.DeleteLedgers(ledgers, EMPTY.uuid)
        write = run(told, ledgers, head_read(write.head, 2 * round_ + 1))
        assert write.head.condemned == ()
        run(told, None)
        head = write.head
    assert run(told, head_read(head, 4)) == ask.ListPages(100)


def test_a_vacuum_of_a_log_that_was_made_again_deletes_nothing() -> None:
    told = vacuuming("00000000-0000-0000-0000-000000000000")
    assert isinstance(run(told, (1,), head_read(EMPTY, 5)), LogRecreatedError)


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


@pytest.mark.rule("N5")
def test_transactions_of_a_log_that_was_made_again_are_kept() -> None:
    old = record_of("old", 1)
    told = reading_transactions(old)
    other = replace(EMPTY, uuid="00000000-0000-0000-0000-000000000000")
    read = ask.TransactionsRead(Versioned(other, 0), {old.key: Versioned(old, 0)})
    assert isinstance(run(told, read), LogRecreatedError)


@pytest.mark.parametrize(("name", "version"), [("", 1), ("a", -1), ("a", 2**63), ("a" * 1025, 1), ("\ud800", 1)])
def test_a_transaction_that_no_record_can_hold_is_refused(name: str, version: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a transaction"):
        Transaction(name, version)
