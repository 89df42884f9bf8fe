# SPDX-License-Identifier: Apache-2.0
"""Named logs through a metadata server that does not know yet what another client was told is done."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.logs.ledgers import check_publishable
from bk_core.logs.machines import ask
from bk_core.logs.model.head import NewExtent, PublishId
from bk_core.logs.named_log import NamedLog, publish_to_logs
from bk_core.logs.store import LogStore
from tests.kit.extents import new_extent
from tests.kit.log_changes import answers
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.metadata_worlds import tree_of
from tests.logs.leader_kit import PASSWORD, log_of, read_all

pytestmark = pytest.mark.rule("M5")


def clients(cluster: MemoryBookKeeper) -> tuple[BookKeeper, BookKeeper]:
    """One that writes, and one whose server is made to lag."""
    return cluster.client(), cluster.client()


async def task(bookkeeper: BookKeeper, *entries: bytes) -> NewExtent:
    """A closed ledger, as a task reports it."""
    ledger = await bookkeeper.create_ledger(password=PASSWORD)
    await ledger.append_batch(EntryBatch.from_list(list(entries)))
    await ledger.close()
    return new_extent(ledger.ledger_id, len(entries), sum(map(len, entries)), fragments=ledger.metadata.fragments)


async def test_ledgers_that_tasks_closed_a_moment_ago_are_published() -> None:
    async with memory_cluster() as cluster:
        tasks, driver = clients(cluster)
        await log_of(driver).create()
        for overwrite in (False, True):
            ledger = await tasks.create_ledger(password=PASSWORD)  # known as open before the lag
            await ledger.abandon()
            tree_of(driver.store).lag()
            extents = [await task(tasks, b"a"), await task(tasks, b"b")]
            put = log_of(driver).overwrite if overwrite else log_of(driver).publish
            assert (await put(extents, PublishId.job(f"{overwrite}"))).rows == 2


async def test_ledger_that_was_closed_a_moment_ago_passes_the_check_of_a_publish() -> None:
    """Also one that began before it was closed and so before its sync says nothing."""

    async with memory_cluster() as cluster:
        tasks, driver = clients(cluster)
        head = await log_of(driver).create()
        tree_of(driver.store).lag()
        absent = await task(tasks, b"a")
        await asyncio.to_thread(check_publishable, driver.store, head, [absent])
        ledger = await tasks.create_ledger(password=PASSWORD)
        driver.store.sync()
        tree_of(driver.store).lag()
        await ledger.append(b"xy")
        await ledger.close()
        still_open = new_extent(ledger.ledger_id, 1, 2)
        assert not driver.store.read_ledger(ledger.ledger_id).value.is_closed, "a bare read is old"
        await asyncio.to_thread(check_publishable, driver.store, head, [still_open])


async def test_log_whose_leader_ended_a_moment_ago_takes_a_publish() -> None:
    async with memory_cluster() as cluster:
        leading, driver = clients(cluster)
        extent = await task(driver, b"b")
        async with await log_of(leading).lead() as leader:
            await leader.append(b"a")
            driver.store.sync()
            tree_of(driver.store).lag()
        assert (await log_of(driver).publish([extent], PublishId.job("x"))).base_offset == 1


async def test_every_log_of_a_fan_out_is_read_behind_one_sync() -> None:
    async with memory_cluster() as cluster:
        leading, driver = clients(cluster)
        logs = [NamedLog(leading, name, password=PASSWORD) for name in ("a", "b", "c")]
        extents = [await task(driver, b"x") for _ in logs]
        leaders = [await log.lead() for log in logs]
        driver.store.sync()
        tree_of(driver.store).lag()
        for leader in leaders:
            await leader.close()
        ledgers = {log.name: [extent] for log, extent in zip(logs, extents, strict=True)}
        assert len(await publish_to_logs(driver, ledgers, PublishId.job("x"), password=PASSWORD)) == 3


async def test_logs_that_are_changed_are_read_behind_one_sync() -> None:
    async with memory_cluster() as cluster:
        writing, driver = clients(cluster)
        names = ["a", "b"]
        for name in names:
            await NamedLog(writing, name, password=PASSWORD).create()
        tree_of(driver.store).lag()
        for name in names:
            extent = await task(writing, b"x")
            await NamedLog(writing, name, password=PASSWORD).publish([extent], PublishId.job("x"))
        answering = answers([LogStore(driver.store, name) for name in names])
        heads = await answering.answer(ask.ForLogs({name: ask.ReadHead() for name in names}, sync=True))
        assert {name: read.head.value.next_offset for name, read in heads.items()} == {"a": 1, "b": 1}


async def test_what_another_client_published_a_moment_ago_is_there_for_every_way_of_reading() -> None:
    async with memory_cluster() as cluster:
        writing, reading = clients(cluster)
        await log_of(writing).create()
        log = log_of(reading)
        for number in range(5):
            reading.store.sync()
            tree_of(reading.store).lag()
            await log_of(writing).publish([await task(writing, b"%d" % number)], PublishId.job(str(number)))
            match number:
                case 0:
                    assert (await log.head()).value.next_offset == 1
                case 1:
                    assert await log.end_offset() == 2
                case 2:
                    assert len(await log.extents()) == 3
                case 3:
                    batches = [each async for _, batch in log.read(0, 4) for each in batch.to_list()]
                    assert batches == [b"0", b"1", b"2", b"3"]
                case 4:
                    async with aclosing(log.tail(4)) as tail, asyncio.timeout(0.5):  # a poll comes after two
                        _, batch = await anext(tail)
                        assert batch.to_list() == [b"4"]


async def test_a_head_without_sync_may_be_old_and_asks_no_leader() -> None:
    """What streams read their heads with: the watch tells of the next one."""

    async with memory_cluster() as cluster:
        writing, reading = clients(cluster)
        await log_of(writing).create()
        tree_of(reading.store).lag()
        await log_of(writing).publish([await task(writing, b"a")], PublishId.job("a"))
        assert (await log_of(reading).head(sync=False)).value.next_offset == 0
        assert tree_of(reading.store).lags


async def test_takeover_begins_with_the_head_as_it_is() -> None:
    async with memory_cluster() as cluster:
        first, second = clients(cluster)
        async with await log_of(second).lead() as leader:
            tree_of(second.store).lag()
            async with await log_of(first).lead() as other:
                found = await leader._requests.read_head()
                assert other.ledger_id in [each.ledger_id for each in found.head.value.open_extents]
        assert await read_all(log_of(first)) == []


async def test_what_a_vacuum_would_take_is_decided_on_the_head_as_it_is() -> None:
    async with memory_cluster() as cluster:
        writing, looking = clients(cluster)
        await log_of(writing).create()
        uuid = (await log_of(writing).head()).value.uuid
        ledger = await writing.create_ledger(
            password=PASSWORD,
            custom_metadata={"application": b"pyspark-bookkeeper", "bk.log.uuid": uuid.encode()},
        )
        await ledger.append(b"a")
        await ledger.close()
        looking.store.sync()
        tree_of(looking.store).lag()
        extent = new_extent(ledger.ledger_id, 1, 1, fragments=ledger.metadata.fragments)
        await log_of(writing).publish([extent], PublishId.job("a"))
        found = await asyncio.to_thread(log_of(looking)._store.vacuum_candidates, 1 << 60, 0)
        assert found.ledgers == ()
