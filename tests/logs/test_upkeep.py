# SPDX-License-Identifier: Apache-2.0
"""Overwrite, trim, compact, vacuum and transactions of a named log over bookies in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bk_core.client import BookKeeper
from bk_core.errors import (
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
    PublishConflictError,
    TransactionReplayDiffersError,
    TransactionVersionRegressedError,
)
from bk_core.logs.machines.publication import FORGOTTEN_OFFSET, PublishOptions, Transaction
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import PublishId
from bk_core.logs.store import nonce
from bookie_server.machine.events import LookForDeletion
from tests.kit.extents import new_extent
from tests.kit.memory_cluster import memory_cluster
from tests.logs.change_kit import EMPTY
from tests.logs.leader_kit import PASSWORD, StoreClock, content_of, ledger, log_of, one_log, publish


def is_there(bookkeeper: BookKeeper, ledger_id: int) -> bool:
    try:
        bookkeeper.store.read_ledger(ledger_id)
    except NoSuchLedgerError:
        return False
    return True


@pytest.mark.rule("N7")
async def test_an_overwrite_takes_the_place_of_everything_and_the_numbering_goes_on() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await publish(bookkeeper, log, b"a", b"b")
        new = await ledger(bookkeeper, log, b"c")
        done = await log.overwrite([new], PublishId.job("again"))
        assert (done.base_offset, done.rows) == (2, 1)
        assert await log.overwrite([new], PublishId.job("again")) == done  # N4: once
        head = (await log.head()).value
        assert (head.epoch, head.start_offset, head.next_offset) == (1, 2, 3)
        assert await content_of(log) == [b"c"]


@pytest.mark.rule("N7")
async def test_a_trim_unlinks_what_lies_below_and_moves_nothing() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        for n in range(4):
            await publish(bookkeeper, log, b"%d" % n, b"%d'" % n)
        assert await log.trim(5) == 5
        assert await log.trim(3) == 5  # never back
        assert [e.base_offset for e in await log.extents()] == [4, 6]
        assert await content_of(log) == [b"2'", b"3", b"3'"]
        with pytest.raises(NoSuchEntryError):
            [batch async for batch in log.read(4, 6)]
        assert await log.trim(100) == 8
        assert await log.extents() == []
        await publish(bookkeeper, log, b"next")
        assert [e.base_offset for e in await log.extents()] == [8]


@pytest.mark.rule("N7")
def test_retention_keeps_what_is_young_and_enough_bytes() -> None:
    extents = [new_extent(n, 10, 100, 1000 * n) for n in range(1, 5)]
    head = commit.publish(EMPTY, extents, PublishId.job("1"), now_ms=1, nonce=nonce).head
    assert commit.expired_below(head, 10**9, {}) == 0  # no retention
    by_age = replace(head, retention_ms=2000)
    assert [commit.expired_below(by_age, now, {}) for now in (3999, 4000, 5000, 10**9)] == [0, 10, 20, 30]
    by_size = replace(head, retention_bytes=150)
    assert commit.expired_below(by_size, 0, {}) == 20


@pytest.mark.rule("N7")
async def test_a_compaction_keeps_offsets_and_fails_when_its_run_was_unlinked() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        for n in range(4):
            await publish(bookkeeper, log, b"%d" % n)
        old = await log.extents()
        one = await ledger(bookkeeper, log, b"1", b"2")
        extent = await log.compact(old[1:3], one)
        assert (extent.base_offset, extent.next_offset) == (1, 3)
        assert await log.compact(old[1:3], one) == extent  # once
        assert await content_of(log) == [b"0", b"1", b"2", b"3"]
        other = await ledger(bookkeeper, log, b"1", b"2")
        with pytest.raises(PublishConflictError, match="unlinked or replaced"):
            await log.compact(old[1:3], other)
        with pytest.raises(InvalidArgumentError, match="must have all entries that it replaces"):
            await log.compact(old[3:4], other)


@pytest.mark.rule("N6")
async def test_vacuum_deletes_what_nobody_lists_and_nothing_else() -> None:
    async with one_log() as (cluster, bookkeeper, log):
        trimmed = await publish(bookkeeper, log, b"a")
        kept = await publish(bookkeeper, log, b"b")
        orphan = await ledger(bookkeeper, log, b"c")
        foreign = await bookkeeper.create_ledger(password=PASSWORD)
        await foreign.close()
        await log.trim(1)
        assert (await log.vacuum()).ledgers == ()  # all are too young
        with pytest.raises(InvalidArgumentError, match="running jobs"):
            await log.vacuum(delete_delay_ms=0)
        await asyncio.sleep(0.005)  # older than no delay at all
        done = await log.vacuum(delete_delay_ms=0, force=True)
        assert set(done.ledgers) == {trimmed.ledger_id, orphan.ledger_id}
        found = {each: is_there(bookkeeper, each.ledger_id) for each in (trimmed, orphan, kept)}
        assert found == {trimmed: False, orphan: False, kept: True}
        assert is_there(bookkeeper, foreign.ledger_id)
        assert (await log.head()).value.condemned == ()
        told = {
            ledger_id
            for bookie in cluster.network.bookies.values()
            for effect in bookie.effects
            if isinstance(effect, LookForDeletion)
            for ledger_id in effect.ledger_ids
        }
        assert told == set(done.ledgers), "their bookies may give the space back"


@pytest.mark.rule("N5")
async def test_a_version_is_published_once_and_never_goes_back() -> None:
    async with one_log() as (_cluster, bookkeeper, log):

        async def version(number: int, *entries: bytes) -> int:
            made = await ledger(bookkeeper, log, *entries)
            wanted = Transaction("app", number)
            return (
                await log.publish([made], PublishId.txn("app", number), PublishOptions(transaction=wanted))
            ).base_offset

        assert [await version(1, b"a"), await version(3, b"b", b"c")] == [0, 1]
        assert await version(1, b"a") == 0  # a replay
        with pytest.raises(TransactionReplayDiffersError):
            await version(3, b"b")
        with pytest.raises(TransactionVersionRegressedError):
            await version(2, b"x")
        for n in range(130):  # until the head has forgotten version 1
            await log.publish([], PublishId.job(str(n)))
        assert await version(1, b"a") == FORGOTTEN_OFFSET
        assert await content_of(log) == [b"a", b"b", b"c"]


@pytest.mark.rule("N5")
async def test_vacuum_forgets_transactions_that_nobody_used_for_long() -> None:
    clock = StoreClock()

    async with memory_cluster(clock_ms=clock) as cluster:
        log = log_of(cluster.client())
        await log.create()
        for name in ("old", "new"):
            await log.publish([], PublishId.txn(name, 1), PublishOptions(transaction=Transaction(name, 1)))
            await asyncio.sleep(0.002)
        assert (await log.vacuum()).transactions == ()
        with pytest.raises(InvalidArgumentError, match="transaction might be forgotten"):
            await log.vacuum(txn_retention_ms=0)
        with pytest.raises(InvalidArgumentError, match="transaction might be forgotten"):
            await log.vacuum(txn_retention_ms=-1, force=True)
        await log.publish([], PublishId.txn("new", 2), PublishOptions(transaction=Transaction("new", 2)))
        used_ms = {record.app_id: record.last_used_ms for record in await log.transactions()}
        clock.now_ms = used_ms["new"] + 20
        assert (await log.vacuum(txn_retention_ms=20, force=True)).transactions == ("old",)
        clock.now_ms += 1
        assert (await log.vacuum(txn_retention_ms=20, force=True)).transactions == ("new",)
