# SPDX-License-Identifier: Apache-2.0
"""What keeps a log in shape, without ``await``, over bookies in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bk_core.blocking import BookKeeper
from bk_core.blocking.logs import NamedLog
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    InvalidArgumentError,
    PublishConflictError,
    TransactionReplayDiffersError,
    TransactionVersionRegressedError,
)
from bk_core.logs.machines.publication import FORGOTTEN_OFFSET, PublishOptions, Transaction
from bk_core.logs.model.head import NewExtent, PublishId, custom_metadata_for
from tests.kit.canaries import PASSWORD
from tests.kit.extents import new_extent
from tests.kit.memory_cluster import blocking_cluster


@pytest.fixture
def bookkeeper() -> Iterator[BookKeeper]:
    with blocking_cluster(3) as (client, _):
        yield client


@pytest.fixture
def log(bookkeeper: BookKeeper) -> NamedLog:
    log = bookkeeper.log("events", password=PASSWORD)
    log.create()
    return log


def ledger(bookkeeper: BookKeeper, log: NamedLog, *entries: bytes) -> NewExtent:
    """A closed ledger as a job writes it."""
    uuid = log.head().value.uuid
    keys = custom_metadata_for(uuid, PublishId.job("x"), partition=0, attempt=0, codec="raw")
    with bookkeeper.create_ledger(password=PASSWORD, custom_metadata=keys) as writer:
        writer.append_batch(EntryBatch.from_list(list(entries)))
    return new_extent(writer.ledger_id, len(entries), sum(map(len, entries)))


def content(log: NamedLog) -> list[bytes]:
    head = log.head().value
    return [entry for _, batch in log.read(head.start_offset, head.next_offset) for entry in batch.to_list()]


@pytest.mark.rule("N6", "N7")
def test_a_log_is_compacted_trimmed_overwritten_and_vacuumed(bookkeeper: BookKeeper, log: NamedLog) -> None:
    for number, entries in enumerate(([b"a"], [b"b", b"c"], [b"d"])):
        done = log.publish([ledger(bookkeeper, log, *entries)], PublishId.job(str(number)))
    assert (done.base_offset, done.rows) == (3, 1)

    run = log.extents()[:2]
    copied = ledger(bookkeeper, log, b"a", b"b", b"c")
    assert log.compact(run, copied).ledger_id == copied.ledger_id
    assert content(log) == [b"a", b"b", b"c", b"d"]
    with pytest.raises(PublishConflictError, match="replaced meanwhile"):
        log.compact(run, ledger(bookkeeper, log, b"a", b"b", b"c"))

    assert log.trim(2) == 2
    assert log.trim(1) == 2, "never back"
    assert log.trim_expired() == 2, "this log keeps all for ever"
    assert content(log) == [b"c", b"d"]

    new = ledger(bookkeeper, log, b"e")
    done = log.overwrite([new], PublishId.job("again"))
    assert (done.base_offset, content(log), log.head().value.epoch) == (4, [b"e"], 1)

    with pytest.raises(InvalidArgumentError, match="running jobs"):
        log.vacuum(delete_delay_ms=0)
    time.sleep(0.005)  # made before now
    vacuumed = log.vacuum(delete_delay_ms=0, force=True)
    assert (len(vacuumed.ledgers), vacuumed.remaining) == (5, ())
    assert bookkeeper.list_ledgers() == [new.ledger_id]
    assert content(log) == [b"e"]


@pytest.mark.rule("N5")
def test_a_version_is_published_once_until_a_vacuum_forgets_it(bookkeeper: BookKeeper, log: NamedLog) -> None:
    def publish(version: int, *entries: bytes, name: str = "") -> int:
        wanted = Transaction("app", version)
        publish_id = PublishId.job(name) if name else PublishId.txn("app", version)
        return log.publish(
            [ledger(bookkeeper, log, *entries)], publish_id, PublishOptions(transaction=wanted)
        ).base_offset

    assert publish(3, b"a") == 0
    assert publish(5, b"b") == 1
    assert publish(3, b"a") == 0, "the head remembers it"
    assert publish(3, b"a", name="other") == FORGOTTEN_OFFSET, "its transaction does"
    with pytest.raises(TransactionReplayDiffersError):
        publish(3, b"a", b"b", name="other")
    with pytest.raises(TransactionVersionRegressedError):
        publish(4, b"c")
    wanted = Transaction("app", 6)
    done = log.overwrite([ledger(bookkeeper, log, b"d")], PublishId.txn("app", 6), PublishOptions(transaction=wanted))
    assert (done.base_offset, content(log)) == (2, [b"d"])

    with pytest.raises(InvalidArgumentError, match="forgotten"):
        log.vacuum(txn_retention_ms=0)
    time.sleep(0.005)
    assert log.vacuum(txn_retention_ms=0, force=True).transactions == ("app",)
    assert publish(4, b"e") == 3


def test_a_takeover_publishes_over_a_leader(bookkeeper: BookKeeper, log: NamedLog) -> None:
    leader = log.lead()
    assert leader.append(b"a") == 0
    made = ledger(bookkeeper, log, b"b")
    takeover = PublishOptions(takeover=True)
    with pytest.raises(InvalidArgumentError, match="fences none"):
        bookkeeper.publish_to_logs({log.name: [made]}, PublishId.job("1"), password=PASSWORD, options=takeover)
    assert log.publish([made], PublishId.job("1"), takeover).base_offset == 1
    assert content(log) == [b"a", b"b"]
    leader.close()
    assert not leader.is_leader
