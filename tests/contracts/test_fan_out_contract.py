# SPDX-License-Identifier: Apache-2.0
"""A publish into several logs over every metadata store: lost answers, rivals, logs at the limit of their size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.entries.digest import ledger_key
from bk_core.errors import (
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
    TransactionReplayDiffersError,
)
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.publication import PublishOptions, Transaction, publish_among, recorded
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.codec import encode_head, encode_transactions
from bk_core.logs.model.head import LogHead, LogTransactions, NewExtent, Published, PublishId
from bk_core.logs.store import LogStore, nonce
from bk_core.metadata.port import LogWrite, MetadataStore, TxnWrite
from bk_core.model import DigestType, Fragment, LedgerState
from tests.kit.extents import new_extent
from tests.kit.log_changes import carried_out
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, before_write

pytestmark = pytest.mark.rule("K10")
FRAGMENTS = (Fragment(0, ("b1:3181", "b2:3181", "b3:3181")),)


def made(store: MetadataStore, *logs: str) -> None:
    for number, log in enumerate(logs):
        uuid = f"12345678-9abc-def0-1234-{number:012d}"
        head = LogHead(uuid=uuid, created_ms=1, digest_type=DigestType.CRC32C, ledger_key=ledger_key(b""))
        LogStore(store, log).create(head)


def ledger(store: MetadataStore, rows: int = 2) -> NewExtent:
    closed = a_ledger(state=LedgerState.CLOSED, last_entry_id=rows - 1, length=rows)
    ledger_id, _ = store.create_ledger(closed)
    return new_extent(ledger_id, rows, rows, fragments=FRAGMENTS)


def publish(
    store: MetadataStore,
    ledgers: dict[str, list[NewExtent]],
    job: PublishId,
    txn: Transaction | None = None,
    **limits: int,
) -> dict[str, Published]:
    return carried_out(
        [LogStore(store, log) for log in ledgers],
        HeadChange(
            publish_among(ledgers, job, now_ms=5, nonce=nonce, options=PublishOptions(transaction=txn)), **limits
        ).run(),
    )


def ends(store: MetadataStore, *logs: str) -> list[int]:
    return [LogStore(store, log).read().value.next_offset for log in logs]


JOB = PublishId.job("j")


def test_ledgers_appear_in_all_logs_at_once_and_a_second_time_in_none(store: MetadataStore) -> None:
    made(store, "a", "b", "c")
    ledgers = {"a": [ledger(store), ledger(store)], "b": [ledger(store, 3)]}
    found = publish(store, ledgers, JOB)
    assert [(log, each.base_offset, each.rows) for log, each in found.items()] == [("a", 0, 4), ("b", 0, 3)]
    assert publish(store, ledgers, JOB) == found
    assert ends(store, "a", "b", "c") == [4, 3, 0]


def test_a_log_that_is_missing_keeps_the_others_as_they_are(store: MetadataStore) -> None:
    made(store, "a")
    with pytest.raises(NoSuchLogError, match="b"):
        publish(store, {"a": [ledger(store)], "b": [ledger(store)]}, JOB)
    assert ends(store, "a") == [0]


@pytest.mark.rule("N4")
@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_of_the_multi_is_settled_by_looking(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    made(store, "a", "b")
    ledgers = {"a": [ledger(store)], "b": [ledger(store)]}
    metadata_world.lose_next_answer(store, applied=applied)
    found = publish(store, ledgers, JOB, Transaction("app", 3))
    assert [each.base_offset for each in found.values()] == [0, 0]
    assert ends(store, "a", "b") == [2, 2]


@pytest.mark.rule("N4")
def test_a_store_that_stays_away_leaves_the_outcome_unknown(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open(timeout_s=2.0)
    store.initialize_cluster()
    made(store, "a", "b")
    ledgers = {"a": [ledger(store)], "b": [ledger(store)]}

    metadata_world.lose_next_answer(store, applied=True)
    with pytest.raises(MetadataUnavailableError) as raised:
        publish(store, ledgers, JOB, failures_max=1)
    assert raised.value.outcome is Outcome.UNKNOWN
    assert publish(metadata_world.open(), ledgers, JOB)["a"].base_offset == 0
    assert ends(metadata_world.open(), "a", "b") == [2, 2]


def test_a_rival_in_one_log_is_outlasted_and_both_are_there(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    made(store, "a", "b")
    rival, theirs = metadata_world.open(), ledger(store, 5)
    ledgers = {"a": [ledger(store)], "b": [ledger(store)]}
    before_write(store, 0, lambda: publish(rival, {"b": [theirs]}, PublishId.job("rival")))
    found = publish(store, ledgers, JOB)
    assert (found["a"].base_offset, found["b"].base_offset) == (0, 5)
    assert ends(store, "a", "b") == [2, 7]


@pytest.mark.rule("N5")
def test_a_version_that_went_to_other_logs_is_refused_in_all(store: MetadataStore) -> None:
    made(store, "a", "b", "c")
    txn = Transaction("app", 1)
    publish(store, {"a": [ledger(store)], "b": [ledger(store)]}, PublishId.txn("app", 1), txn)
    for logs in (("a", "c"), ("b",), ("a", "b", "c")):
        with pytest.raises(TransactionReplayDiffersError, match=r"log [ab]") as raised:
            publish(store, {log: [ledger(store)] for log in logs}, PublishId.txn("app", 1), txn)
        assert raised.value.outcome is Outcome.NOT_APPLIED
    assert ends(store, "a", "b", "c") == [2, 2, 0]


@pytest.mark.long
@pytest.mark.rule("N3")
def test_a_hundred_logs_with_long_histories_fit_one_step_and_move_their_lists_into_pages(store: MetadataStore) -> None:
    logs = [f"log-{number:03d}" for number in range(100)]
    made(store, *logs)
    head, record = _aged(LogStore(store, logs[0]).read().value)
    txns = TxnWrite(record.key, encode_transactions(record), None)
    for log in logs:
        found = LogStore(store, log).read()
        store.write_logs([LogWrite(log, encode_head(replace(head, uuid=found.value.uuid)), found.version, txns)])
    size = sum(len(store.read_log(log).value) for log in logs)
    assert size > 650_000, "the heads alone are nearly a step, and their transactions as much again"
    for version in (500, 501):
        ledgers = {log: [ledger(store)] for log in logs}
        found = publish(store, ledgers, PublishId.txn("app", version), Transaction("app", version))
        assert {each.rows for each in found.values()} == {2}
    heads = [LogStore(store, log).read().value for log in logs]
    assert all(head.pages for head in heads)
    assert {head.next_offset for head in heads} == {heads[0].next_offset}


def _aged(head: LogHead) -> tuple[LogHead, LogTransactions]:
    """Make the head of a log that lists many ledgers, after a stream of many batches."""
    record = None
    for batch in range(140):
        new = new_extent(10**9 + batch, 10**6, 10**9, 1_763_000_000_000, fragments=FRAGMENTS)
        job, now_ms = PublishId.txn("app", batch), 1_763_000_000_000 + batch
        head = commit.publish(head, [new] if batch >= 80 else [], job, now_ms=now_ms, nonce=nonce).head
        record = recorded(record, Transaction("app", batch), job, 10**6, now_ms)
    assert record is not None
    return head, record


def test_logs_that_cannot_fit_one_step_are_refused_with_their_number_and_size(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bk_core.logs.machines.change.STEP_BYTES_MAX", 500)
    made(store, "a", "b")
    with pytest.raises(InvalidArgumentError, match=r"2 logs, \d+ of 500 bytes"):
        publish(store, {"a": [ledger(store)], "b": [ledger(store)]}, JOB)
    assert ends(store, "a", "b") == [0, 0]
