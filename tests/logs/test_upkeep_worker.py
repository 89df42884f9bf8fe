# SPDX-License-Identifier: Apache-2.0
"""The worker that keeps all logs, over bookies in memory: killed at each write, deposed, without a store, beside logs
that cannot be kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from bk_core.client import BookKeeper
from bk_core.errors import ClientClosedError
from bk_core.logs.model.upkeep_plan import DAY_MS, Step, StepKind, UpkeepConfig, UpkeepPlan
from bk_core.logs.model.upkeep_record import UpkeepRecord, decode_upkeep_record
from bk_core.logs.named_log import NamedLog
from bk_core.logs.upkeep_worker import Survey, UpkeepWorker, dry_run
from tests.kit.memory_cluster import FAST, MemoryBookKeeper
from tests.kit.memory_store import MemoryStore, MemoryTree
from tests.kit.metadata_worlds import tree_of
from tests.kit.waiting import eventually
from tests.logs.leader_kit import PASSWORD, StoreClock, content_of, ledger, one_log
from tests.logs.model.test_compaction import publish, values

LEDGERS = 6
QUICK = UpkeepConfig(extents_min=2, poll_s=0.02, retry_s=0.02, retry_max_s=0.1)


@dataclass
class World:
    """A log of six ledgers of which retention keeps four, and one that a job made long ago and never published."""

    cluster: MemoryBookKeeper
    clock: StoreClock
    log: NamedLog
    orphan: int

    def worker(self, owner: str, config: UpkeepConfig = QUICK) -> tuple[UpkeepWorker, MemoryTree]:
        client = self.cluster.client()
        return UpkeepWorker(client, owner, config, lambda name: PASSWORD), tree_of(client.store)

    def ledgers(self) -> list[int]:
        return list(self.cluster.store.list_ledgers())

    async def listed(self) -> list[int]:
        return [extent.ledger_id for extent in await self.log.extents()]


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    clock = StoreClock()
    async with one_log(3, clock_ms=clock) as (cluster, bookkeeper, log):
        for n in range(LEDGERS):
            await publish(bookkeeper, log, values(10 + 2 * n, 2))
        orphan = await ledger(bookkeeper, log, b"of a job that failed")
        clock.now_ms += 8 * DAY_MS
        third = (await log.extents())[2]  # an extent is as old as the one after it
        await log.set_retention(retention_ms=clock.now_ms - third.created_ms)
        yield World(cluster, clock, log, orphan.ledger_id)


def kinds(plan: UpkeepPlan | None) -> list[StepKind] | None:
    return None if plan is None else [step.kind for step in plan.steps]


async def finish(world: World, worker: UpkeepWorker | None = None) -> None:
    """This worker, or a new one, does what is left, and eight days later deletes what was unlinked: then there is the
    log and nothing else."""
    worker = worker or world.worker("w2")[0]
    await worker.look()
    assert await content_of(world.log) == values(14, 8)
    assert len(await world.listed()) == 1
    assert world.orphan not in world.ledgers()
    assert kinds(await worker.look()) == []
    await world.log.set_retention(retention_ms=0)
    world.clock.now_ms += 8 * DAY_MS
    await worker.look()
    assert world.ledgers() == await world.listed()
    assert await content_of(world.log) == values(14, 8)
    assert world.cluster.store.read_unlinked("events") == []
    assert (await world.log.head()).value.condemned == ()


async def test_a_round_trims_deletes_and_compacts_and_the_next_has_nothing_to_do() -> None:
    async with a_world() as world:
        worker, _ = world.worker("w1")
        before = world.ledgers()
        planned, _, elected = await dry_run(world.cluster.client(), QUICK, lambda name: PASSWORD)
        assert (kinds(planned), elected) == ([StepKind.TRIM, StepKind.VACUUM, StepKind.COMPACT], None)
        assert world.ledgers() == before, "a dry run changes nothing"
        done = await worker.look()
        assert done is not None
        assert [replace(step, why="") for step in done.steps] == [replace(step, why="") for step in planned.steps]
        assert (worker.done.trimmed_ledgers, worker.done.deleted_ledgers, worker.done.merged_extents) == (2, 1, 4)
        record = world.cluster.store.read_upkeep_record()
        assert record is not None
        assert decode_upkeep_record(record.value).turn == "events"
        await finish(world, worker)


@pytest.mark.long
@pytest.mark.rule("N6")
@pytest.mark.parametrize("applied", [False, True])
async def test_a_worker_killed_at_any_write_leaves_nothing_that_the_next_does_not_finish(applied: bool) -> None:
    async def killed_at(number: int) -> bool:
        async with a_world() as world:
            worker, tree = world.worker("w1")
            tree.die_at_write(number, applied=applied)
            try:
                await worker.look()
                return False
            except ClientClosedError:
                pass
            assert await content_of(world.log) in (values(10, 12), values(14, 8))
            world.cluster.cluster.end_session(tree.session_id)
            await finish(world)
            return True

    for number in itertools.count():
        if not await killed_at(number):
            assert number > 10
            return


async def test_a_worker_that_another_has_followed_takes_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session ends in the middle of a round, between two steps."""

    async with a_world() as world:
        first, tree = world.worker("w1")
        second, _ = world.worker("w2")
        carry_out, took = first._carry_out, list[StepKind]()

        async def and_then(step: Step, now_ms: int) -> None:
            await carry_out(step, now_ms)
            took.append(step.kind)
            tree.expire()
            await second.look()

        assert await first.look() is not None
        assert kinds(await second.look()) is None
        await world.log.set_retention(retention_ms=0)
        world.clock.now_ms += 8 * DAY_MS
        for n in range(3):
            await publish(world.cluster.client(), world.log, values(22 + 2 * n, 2))
        monkeypatch.setattr(first, "_carry_out", and_then)
        assert await first.look() is None
        assert (took, first.elected, second.elected) == ([StepKind.VACUUM], False, True)
        assert kinds(await second.look()) == []
        record = world.cluster.store.read_upkeep_record()
        assert await first.look() is None, "it votes again, behind the other"
        assert world.cluster.store.read_upkeep_record() == record
        assert await content_of(world.log) == values(14, 14)


@pytest.mark.long
async def test_two_workers_in_the_same_step_copy_twice_and_list_once() -> None:
    """The first one is deposed while it copies, and the second copies the same run meanwhile."""

    async with a_world() as world:
        first, tree = world.worker("w1", replace(QUICK, copy_bytes_per_s=50))
        second, _ = world.worker("w2")
        before = len(world.ledgers())
        slow = asyncio.create_task(first.look())
        await eventually(lambda: first.done.deleted_ledgers == 1 and len(world.ledgers()) == before)  # and its copy
        tree.expire()
        await second.look()
        assert second.done.merged_extents == 4
        assert await slow is None
        assert first.done.merged_extents == 0, "its copy was not listed"
        await finish(world, second)


async def test_a_worker_whose_session_ended_takes_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has followed it yet, but nobody has elected it either."""

    async with a_world() as world:
        worker, tree = world.worker("w1")
        carry_out, took = worker._carry_out, list[StepKind]()

        async def and_then(step: Step, now_ms: int) -> None:
            await carry_out(step, now_ms)
            took.append(step.kind)
            tree.expire()

        monkeypatch.setattr(worker, "_carry_out", and_then)
        assert await worker.look() is None
        assert (took, worker.elected) == ([StepKind.TRIM], False)
        monkeypatch.undo()
        await finish(world, worker)


async def test_a_worker_whose_session_goes_on_is_fenced_by_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another believes itself elected, however that came: who writes the record last goes on, alone."""

    async with a_world() as world:
        worker, _ = world.worker("w1")
        await worker.look()
        found = world.cluster.store.read_upkeep_record()
        assert found is not None
        world.cluster.store.write_upkeep_record(found.value, found.version)
        await publish(world.cluster.client(), world.log, values(22, 2))
        await world.log.set_retention(retention_ms=1)
        before = (await world.log.head()).value
        assert await worker.look() is None
        assert not worker.elected
        assert (await world.log.head()).value == before
        assert kinds(await worker.look()) == [StepKind.TRIM]


async def test_a_store_that_is_away_is_waited_for_and_then_asked_who_is_elected() -> None:
    async with a_world() as world:
        client = BookKeeper(
            MemoryStore(world.cluster.cluster, timeout_s=0.05),
            world.cluster.network.transport(),
            instance_id=world.cluster.store.instance_id(),
            config=FAST,
        )
        tree = tree_of(client.store)
        tree.suspend()
        async with UpkeepWorker(client, "w1", QUICK, lambda name: PASSWORD) as worker:
            await asyncio.sleep(0.3)
            assert not worker.elected
            assert len(await world.listed()) == LEDGERS
            tree.resume()
            await eventually(lambda: worker.done.merged_extents == 4, 10)
            tree.suspend()
            await eventually(lambda: not worker.elected, 10)
            tree.resume()
            await eventually(lambda: worker.elected, 10)
        assert world.cluster.store.current_upkeep_worker() is None, "its vote is withdrawn"
        await finish(world)
        await client.close()


async def test_logs_that_cannot_be_kept_hinder_no_other_and_say_why() -> None:
    async with a_world() as world:
        client = world.cluster.client()
        await NamedLog(client, "another", password=b"other").create()
        worker, _ = world.worker("w1")
        world.cluster.store.create_log("bad", b"no head")
        done = await worker.look()
        assert kinds(done) == [StepKind.TRIM, StepKind.VACUUM, StepKind.COMPACT]
        why = {each.log: each.why for each in worker.waits if each.what == "all"}
        assert "BK_WRONG_PASSWORD" in why["another"]
        assert "BK_METADATA_CORRUPT" in why["bad"]
        await finish(world, worker)


async def test_a_step_that_fails_puts_its_log_off_and_is_tried_again() -> None:
    async with a_world() as world:
        worker, _ = world.worker("w1", replace(QUICK, retry_s=0.2, retry_max_s=0.2))
        names = world.cluster.names
        for name in names[1:]:
            world.cluster.kill(name)
        await worker.look()
        assert (worker.done.failures, worker.done.trimmed_ledgers, worker.done.deleted_ledgers) == (1, 2, 1)
        assert kinds(await worker.look()) == []
        assert "compact failed" in worker.waits[0].why
        for name in names[1:]:
            world.cluster.network.restart(name)
            world.cluster.register(name)
        await asyncio.sleep(0.25)
        await asyncio.wait_for(until_merged(worker), 10)
        await finish(world, worker)


async def until_merged(worker: UpkeepWorker) -> None:
    while not worker.done.merged_extents:
        await worker.look()
        await asyncio.sleep(0.05)


async def test_a_retention_that_is_lifted_after_the_plan_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world() as world:
        worker, _ = world.worker("w1")
        survey_of = worker.survey

        async def and_then(record: UpkeepRecord | None = None, *, vacuum: bool = False) -> Survey:
            found = await survey_of(record, vacuum=vacuum)
            await world.log.set_retention(retention_ms=0)
            return found

        monkeypatch.setattr(worker, "survey", and_then)
        done = await worker.look()
        assert (kinds(done) or [])[0] is StepKind.TRIM
        assert await content_of(world.log) == values(10, 12)


@pytest.mark.rule("N6")
async def test_retention_goes_by_the_stores_clock() -> None:
    """This machine's clock is decades ahead of the store's."""

    async with a_world() as world:
        await world.log.set_retention(retention_ms=10 * world.clock.now_ms)
        worker, _ = world.worker("w1")
        assert kinds(await worker.look()) == [StepKind.VACUUM, StepKind.COMPACT]
        assert await content_of(world.log) == values(10, 12)


async def test_a_record_that_cannot_be_read_is_made_anew() -> None:
    async with a_world() as world:
        world.cluster.store.write_upkeep_record(b"?", None)
        worker, _ = world.worker("w1")
        assert await worker.look() is not None
        await finish(world, worker)
