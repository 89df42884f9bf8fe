# SPDX-License-Identifier: Apache-2.0
"""Settings and transactions of a log, and what a vacuum would take: over the records in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError, MetadataUnavailableError, NoSuchLogError
from bk_core.logs.machines.publication import PublishOptions, Transaction
from bk_core.logs.model import paging
from bk_core.logs.model.head import LogHead, PublishId
from bk_core.logs.named_log import NamedLog
from bk_core.logs.store import LogStore
from bk_core.model import Versioned
from tests.kit.memory_cluster import memory_cluster
from tests.logs.leader_kit import log_of, one_log
from tests.logs.model.test_compaction import publish, values


async def take(log: NamedLog, app_id: str, version: int) -> None:
    """An empty publish of this version."""
    await log.publish([], PublishId.txn(app_id, version), PublishOptions(transaction=Transaction(app_id, version)))


async def test_a_log_keeps_for_ever_until_it_is_told_otherwise() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        with pytest.raises(NoSuchLogError):
            await log.set_retention(retention_ms=1)
        assert (await log.create()).retention_ms == 0
        await log.set_retention(retention_ms=1000)
        head = await log.set_retention(retention_bytes=5)
        assert (head.retention_ms, head.retention_bytes) == (1000, 5)
        await log.set_retention(retention_ms=0)
        found = await log.head()
        assert (found.value.retention_ms, found.value.retention_bytes) == (0, 5)
        assert await log.set_retention() == found.value
        assert (await log.head()).version == found.version, "nothing was to be changed"
        for wrong in (-1, 2**63):
            with pytest.raises(InvalidArgumentError, match="retention_bytes"):
                await log.set_retention(retention_bytes=wrong)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_setting_whose_answer_was_lost_is_looked_for(applied: bool) -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create()
        bookkeeper.store.tree.lose_next_answer(applied=applied)
        await log.set_retention(retention_ms=7)
        assert (await log.head()).value.retention_ms == 7


@pytest.mark.rule("N5")
async def test_forgotten_transactions_begin_anew_and_others_stay() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        await log.create()
        for version in (3, 5):
            await take(log, "nightly", version)
        await take(log, "other", 9)
        assert {record.app_id for record in log._store.all_transactions()} == {"nightly", "other"}
        forgotten = log._store.forget_transactions("nightly")
        assert forgotten is not None
        assert [each.version for each in forgotten.versions] == [3, 5]
        assert log._store.forget_transactions("nightly") is None
        assert [record.app_id for record in log._store.all_transactions()] == ["other"]
        await take(log, "nightly", 0)  # lower than before


@pytest.mark.rule("N5")
@pytest.mark.parametrize("applied", [True, False])
async def test_a_forgetting_whose_answer_was_lost_is_looked_for(applied: bool) -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create()
        await take(log, "nightly", 3)
        bookkeeper.store.tree.lose_next_answer(applied=applied)
        forgotten = log._store.forget_transactions("nightly")
        assert forgotten is not None
        assert list(log._store.all_transactions()) == []


@pytest.mark.rule("N5")
async def test_a_version_that_is_published_meanwhile_is_not_forgotten_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        await log.create()
        await take(log, "nightly", 3)
        rival, loop = log_of(cluster.client()), asyncio.get_running_loop()
        read, rivals = LogStore.transactions, [4]

        def read_too_early(self: LogStore, app_id: str) -> Any:
            found = read(self, app_id)
            if self is log._store and rivals:
                asyncio.run_coroutine_threadsafe(take(rival, "nightly", rivals.pop()), loop).result(10)
            return found

        monkeypatch.setattr(LogStore, "transactions", read_too_early)
        forgotten = await asyncio.to_thread(log._store.forget_transactions, "nightly")
        assert forgotten is not None
        assert [each.version for each in forgotten.versions] == [3, 4]


async def test_forgetting_gives_up_when_the_store_stays_away() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create()
        await take(log, "nightly", 3)
        lose = bookkeeper.store.tree.lose_next_answer
        read = log._store.read

        def and_lose() -> Versioned[LogHead]:
            found = read()
            lose(applied=False)
            return found

        log._store.read = and_lose
        with pytest.raises(MetadataUnavailableError):
            log._store.forget_transactions("nightly")


@pytest.mark.rule("N6")
async def test_what_a_vacuum_would_take_is_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "TAIL_EXTENTS_MAX", 3)

    async with one_log() as (_cluster, bookkeeper, log):
        foreign = await bookkeeper.create_ledger()
        await foreign.close()
        for n in range(10):  # enough for pages, and for pages that are replaced
            await publish(bookkeeper, log, values(n, 1))
        await take(log, "nightly", 3)
        await log.trim(5)
        await log.compactor().run()
        await asyncio.sleep(0.01)
        assert log._store.vacuum_candidates(60_000, 0).ledgers == ()
        before = await bookkeeper.list_ledgers()
        planned = log._store.vacuum_candidates(0, 0)
        assert await bookkeeper.list_ledgers() == before
        assert len(planned.ledgers) == 10
        assert planned.pages
        assert planned.transactions == ("nightly",)
        done = await log.vacuum(delete_delay_ms=0, txn_retention_ms=0, force=True)
        assert set(done.ledgers) == set(planned.ledgers)
        assert set(planned.pages) <= set(done.pages)
        assert done.transactions == planned.transactions
