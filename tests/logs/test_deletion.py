# SPDX-License-Identifier: Apache-2.0
"""Deleting a log over bookies in memory: who reads goes on, ledgers go after the delay, and a client that dies at any
write leaves nothing that the next one does not finish."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime

import pytest

from bk_core.errors import (
    ClientClosedError,
    InvalidArgumentError,
    LeadershipLostError,
    LogHasLeaderError,
    LogInUseError,
    LogRecreatedError,
    MetadataCorruptError,
    NoSuchLogError,
    PublishConflictError,
    WrongPasswordError,
)
from bk_core.logs.model.codec import HEAD_LINE, MARK_LINE, decode_head, encode_head
from bk_core.logs.model.deleted import decode_deleted_log, encode_deleted_log, mark_of
from bk_core.logs.model.head import PublishId
from bk_core.logs.model.upkeep_plan import DAY_MS, StepKind, UpkeepConfig
from bk_core.logs.named_log import DELETE_DELAY_MS, NamedLog
from bk_core.logs.store import LogStore, deleted_logs
from bk_core.logs.upkeep_worker import UpkeepWorker
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.metadata_worlds import tree_of
from tests.logs.leader_kit import PASSWORD, StoreClock, content_of, ledger, log_of, one_log, publish

OLD_MS = DELETE_DELAY_MS + 1


async def test_a_deleted_log_is_gone_and_says_so_and_its_name_is_free() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await publish(bookkeeper, log, b"a", b"b")
        await NamedLog(bookkeeper, "event", password=PASSWORD).create()
        before = (await log.head()).value.uuid
        deleted = await log.delete()
        assert (deleted.name, deleted.uuid, deleted.ledgers) == ("events", before, ())
        assert bookkeeper.store.list_logs() == ["event"]
        with pytest.raises(NoSuchLogError) as caught:
            await log.head()
        (when,) = re.findall(r"it was deleted at (\S+Z)", str(caught.value))
        assert datetime.fromisoformat(when).timestamp() == deleted.deleted_ms // 1000
        assert "event" in caught.value.remedy
        with pytest.raises(NoSuchLogError):
            await log.delete()
        assert await log.deleted() == [deleted]
        again = await log.create()
        assert again.uuid != before
        assert await content_of(log) == []
        await publish(bookkeeper, log, b"c")
        assert await content_of(log) == [b"c"]


@pytest.mark.rule("N6")
async def test_who_reads_goes_on_and_the_ledgers_go_after_the_delay() -> None:
    clock = StoreClock()
    async with one_log(3, clock_ms=clock) as (_cluster, bookkeeper, log):
        made = [await publish(bookkeeper, log, b"%d" % n) for n in range(3)]
        unpublished = await ledger(bookkeeper, log, b"of a job that failed")
        foreign = await bookkeeper.create_ledger(password=PASSWORD)
        async with aclosing(log.read(0, 3)) as entries:
            found = [(await anext(entries))[1].to_list()]
            await log.delete()
            clock.now_ms += DELETE_DELAY_MS - 10_000
            assert (await log.vacuum()).ledgers == ()
            found += [batch.to_list() async for _, batch in entries]
        assert found == [[b"0"], [b"1"], [b"2"]]
        clock.now_ms += 20_000
        wanted = sorted([*(each.ledger_id for each in made), unpublished.ledger_id])
        assert sorted((await log.vacuum_candidates(DELETE_DELAY_MS, 0)).ledgers) == wanted
        assert sorted((await log.vacuum()).ledgers) == wanted
        assert list(bookkeeper.store.list_ledgers()) == [foreign.ledger_id]
        assert await log.deleted() == []
        with pytest.raises(NoSuchLogError) as caught:
            await log.vacuum()
        assert "deleted at" not in str(caught.value)


@pytest.mark.rule("N7")
async def test_a_tail_of_a_deleted_log_ends_and_one_of_a_log_made_again_says_that() -> None:
    async with one_log() as (cluster, bookkeeper, log):
        await publish(bookkeeper, log, b"a")
        for remake, error in ((False, NoSuchLogError), (True, (LogRecreatedError, NoSuchLogError))):
            async with aclosing(log.tail(0)) as tail:
                assert (await anext(tail))[0] == 0
                await log_of(cluster.client()).delete()
                if remake:
                    await log.create()
                with pytest.raises(error):
                    await asyncio.wait_for(anext(tail), 10)
            await publish(bookkeeper, log, b"a")


@pytest.mark.rule("N2")
async def test_a_log_with_a_leader_stays_unless_it_is_taken_over_and_then_nothing_more_is_confirmed() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        leader = await log_of(cluster.client()).lead()
        assert await leader.append(b"first") == 0
        for now in (False, True):
            with pytest.raises(LogHasLeaderError if not now else LogInUseError):
                await log.delete(now=now)
        with pytest.raises(InvalidArgumentError):
            await log.delete(now=True, takeover=True)
        assert cluster.store.list_logs() == ["events"]
        await log.delete(takeover=True)
        with pytest.raises(LeadershipLostError):
            await leader.append(b"second")
        assert cluster.store.list_logs() == []


async def test_a_log_whose_open_ledger_is_lost_can_be_deleted() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        leader = await log.lead()
        await leader.append(b"first")
        (extent,) = await log.extents()
        bookkeeper.store.delete_ledger(extent.ledger_id)
        await log.delete(takeover=True)
        assert bookkeeper.store.list_logs() == []


@pytest.mark.rule("N4")
async def test_a_publish_that_comes_later_is_refused_and_its_ledgers_go_with_the_others() -> None:
    clock = StoreClock()
    async with one_log(3, clock_ms=clock) as (_cluster, bookkeeper, log):
        late = await ledger(bookkeeper, log, b"late")
        await log.delete()
        with pytest.raises(NoSuchLogError):
            await log.publish([late], PublishId.job("late"))
        await log.create()
        with pytest.raises(PublishConflictError, match="another log"):
            await log.publish([late], PublishId.job("late"))
        clock.now_ms += OLD_MS
        assert (await log.vacuum()).ledgers == (late.ledger_id,)


@pytest.mark.rule("N6")
async def test_at_once_is_refused_while_a_job_writes_and_finds_later_what_it_could_not_see() -> None:
    clock = StoreClock()
    async with one_log(3, clock_ms=clock) as (_cluster, bookkeeper, log):
        first = await publish(bookkeeper, log, b"a")
        keys = bookkeeper.store.read_ledger(first.ledger_id).value.custom_metadata
        job = await bookkeeper.create_ledger(password=PASSWORD, custom_metadata=keys)
        with pytest.raises(LogInUseError, match=f"ledger {job.ledger_id} is open"):
            await log.delete(now=True)
        assert await content_of(log) == [b"a"], "refused, and something was deleted"
        await job.close()
        deleted = await log.delete(now=True)
        assert sorted(deleted.ledgers) == [first.ledger_id, job.ledger_id]
        assert list(bookkeeper.store.list_ledgers()) == []
        unseen = await bookkeeper.create_ledger(password=PASSWORD, custom_metadata=keys)
        await unseen.close()
        clock.now_ms += OLD_MS
        assert (await log.vacuum()).ledgers == (unseen.ledger_id,)


async def test_only_who_has_the_password_deletes_a_log_or_what_it_left() -> None:
    clock = StoreClock()
    async with memory_cluster(3, clock_ms=clock) as cluster:
        bookkeeper = cluster.client()
        log, stranger = log_of(bookkeeper), NamedLog(bookkeeper, "events", password=b"another")
        await publish(bookkeeper, log, b"a")
        with pytest.raises(WrongPasswordError):
            await stranger.delete()
        assert await content_of(log) == [b"a"]
        await log.delete()
        clock.now_ms += OLD_MS
        with pytest.raises(NoSuchLogError):
            await stranger.vacuum()
        await stranger.create()
        assert (await stranger.vacuum()).ledgers == ()
        assert len(list(bookkeeper.store.list_ledgers())) == 1


async def test_a_deletion_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        await log.create()
        with caplog.at_level(logging.INFO, "bk_core.audit"):
            await log.delete()
            with pytest.raises(NoSuchLogError):
                await log.delete()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "bk_core.audit"]
    assert '"did": "delete-log", "outcome": "done", "log": "events"' in line


async def deleted_again(cluster: MemoryBookKeeper, log: NamedLog) -> None:
    try:
        await log.delete()
    except NoSuchLogError:
        assert await log.deleted(), "the log is gone, and nobody knows of its ledgers"


async def made_again(cluster: MemoryBookKeeper, log: NamedLog) -> None:
    await log.open_or_create()
    if await log.deleted():
        assert await content_of(log) == []
    else:
        assert await content_of(log) == [b"a", b"b"], "the deletion did not happen, and the log is another one"
        await log.delete()
        await log.create()


async def vacuumed(cluster: MemoryBookKeeper, log: NamedLog) -> None:
    await log.vacuum()
    if not await log.deleted():
        await log.delete()


async def kept(cluster: MemoryBookKeeper, log: NamedLog) -> None:
    worker = UpkeepWorker(cluster.client(), "w", UpkeepConfig(), lambda name: PASSWORD)
    await worker.look()
    if not await log.deleted():
        await log.delete()


@pytest.mark.rule("N6")
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("next_one", [deleted_again, made_again, vacuumed, kept])
async def test_a_client_that_dies_at_any_write_leaves_nothing_that_the_next_does_not_finish(
    applied: bool, next_one: Callable[[MemoryBookKeeper, NamedLog], Awaitable[None]]
) -> None:
    async def killed_at(number: int) -> bool:
        clock = StoreClock()
        async with memory_cluster(3, clock_ms=clock) as cluster:
            log = log_of(cluster.client())
            made = [await publish(cluster.client(), log, each) for each in (b"a", b"b")]
            dying = cluster.client()
            tree_of(dying.store).die_at_write(number, applied=applied)
            try:
                await log_of(dying).delete()
                is_killed = False
            except ClientClosedError:
                is_killed = True
            assert set(cluster.store.list_ledgers()) == {each.ledger_id for each in made}
            await next_one(cluster, log)
            assert len(await log.deleted()) == 1
            assert LogStore(cluster.store, "events").mark() is None
            clock.now_ms += OLD_MS
            await log.vacuum()
            assert list(cluster.store.list_ledgers()) == []
            assert await log.deleted() == []
            return is_killed

    for number in itertools.count(1):
        if not await killed_at(number):
            assert number > 3
            return


@pytest.mark.rule("N6")
async def test_upkeep_deletes_the_ledgers_of_a_deleted_log_after_the_delay_and_then_what_is_on_record() -> None:
    clock = StoreClock()
    async with one_log(3, clock_ms=clock) as (cluster, bookkeeper, log):
        made = [await publish(bookkeeper, log, b"%d" % n) for n in range(3)]
        await log.delete()
        config = UpkeepConfig(ledgers_per_hour=2)
        worker = UpkeepWorker(cluster.client(), "w", config, lambda name: PASSWORD)
        plan = await worker.look()
        assert plan is not None
        assert plan.steps == ()
        assert [(each.log, "less than 7 days" in each.why) for each in plan.waits] == [("events", True)]
        clock.now_ms += OLD_MS
        plan = await worker.look()
        assert plan is not None
        assert [(step.kind, step.log, step.ledgers) for step in plan.steps] == [(StepKind.DELETE, "events", 2)]
        assert list(bookkeeper.store.list_ledgers()) == [made[2].ledger_id], "no more than the budget of the hour"
        for left in (1, 0):
            clock.now_ms += DAY_MS
            plan = await worker.look()
            assert plan is not None
            assert [(step.kind, step.ledgers) for step in plan.steps] == [(StepKind.DELETE, left)]
        assert list(bookkeeper.store.list_ledgers()) == []
        assert deleted_logs(bookkeeper.store) == []
        assert worker.done.deleted_ledgers == 3


async def test_upkeep_without_the_password_of_a_deleted_log_deletes_nothing_and_says_why() -> None:
    clock = StoreClock()
    async with memory_cluster(3, clock_ms=clock) as cluster:
        log = log_of(cluster.client())
        await publish(cluster.client(), log, b"a")
        await log.delete()
        clock.now_ms += OLD_MS
        plan = await UpkeepWorker(cluster.client(), "w", UpkeepConfig(), lambda name: b"").look()
        assert plan is not None
        assert plan.steps == ()
        assert [(each.log, "password" in each.why) for each in plan.waits] == [("events", True)]
        assert len(list(cluster.store.list_ledgers())) == 1


async def test_no_version_takes_the_mark_for_a_log() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        await publish(cluster.client(), log, b"a")
        head = (await log.head()).value
        mark = mark_of(head)
        data = encode_head(mark)
        assert data.startswith(MARK_LINE)
        assert not data.startswith(HEAD_LINE), "an older version would write the log on"
        assert decode_head(data) == mark
        assert (mark.uuid, mark.ledger_key, mark.tail, mark.next_offset) == (head.uuid, head.ledger_key, (), 1)
        record = encode_deleted_log("events", mark)
        found = decode_deleted_log(record, head.uuid, 5)
        assert (found.name, found.uuid, found.deleted_ms, found.ledger_key) == (
            "events",
            head.uuid,
            5,
            head.ledger_key,
        )
        assert decode_deleted_log(record[:-1] + b',"more":1}', head.uuid, 5) == found
        for bad in (b"", b"{}", b"[]", b'{"uuid":7}', record.replace(b'"ledgerKey":"', b'"ledgerKey":"x')):
            with pytest.raises(MetadataCorruptError):
                decode_deleted_log(bad, head.uuid, 5)


async def test_a_record_that_cannot_be_read_hides_no_other() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        await log.create()
        deleted = await log.delete()
        cluster.store.create_deleted_log("00000000-0000-0000-0000-000000000000", b"garbage")
        assert deleted_logs(cluster.store) == [deleted]
