# SPDX-License-Identifier: Apache-2.0
"""Every order of small cases of the commit thread, as far as one or two switches out of turn go (RULES P1, S3, S6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError
from random import Random

import pytest

from bk_core.errors import DataDirectoryError, StorageFailedError
from tests.kit.amount import some
from tests.sim.threads.committer_world import BIG, Case, CommitterWorld
from tests.sim.threads.engines import EveryPath, RandomEngine

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def clean_in_every_order(case: Case, *, preemptions: int = 1, limit: int = 1500, random: int = some(30, few=6)) -> None:
    """All orders with so few switches out of turn, then some that switch between any two lines."""
    ways = EveryPath(preemptions=preemptions, limit=limit)
    for engine in ways.engines():
        world = CommitterWorld(engine, case)
        world.run()
        assert world.turns.failures == []
    for seed in range(random):
        world = CommitterWorld(RandomEngine(Random(seed)), case, lines=True)
        world.run()
        assert world.turns.failures == [], f"seed {seed}"
    assert ways.exhausted, f"{ways.count} orders were not all"


@pytest.mark.rule("P1")
def test_what_is_put_while_the_thread_falls_asleep_is_committed() -> None:
    async def case(world: CommitterWorld) -> None:
        world.put()
        await world.next()
        world.put()
        world.put()
        await world.all_answered()

    clean_in_every_order(case)


@pytest.mark.rule("S3")
def test_the_position_is_on_record_soon_after_the_last_group() -> None:
    async def case(world: CommitterWorld) -> None:
        world.put()
        await world.next()
        for _ in range(10):  # the thread may be held up while time passes
            await asyncio.sleep(0.2)
            if not world.log.position_unrecorded:
                return
        raise AssertionError("the position is not on record after 2 s")

    clean_in_every_order(case)


def test_a_stop_commits_what_was_put_before_it_and_records_the_position() -> None:
    async def case(world: CommitterWorld) -> None:
        world.put()
        world.put()
        world.put()
        await asyncio.to_thread(world.committer.stop)
        await world.all_answered()
        assert not world.log.position_unrecorded

    clean_in_every_order(case)


def test_copies_are_made_between_groups_and_their_future_ends() -> None:
    async def case(world: CommitterWorld) -> None:
        one = world.put()
        await world.next()
        for _ in range(4):
            world.put()
        [place] = await world.copied(one)
        assert world.disk.wrong_with(one, place) == ""
        await world.all_answered()

    clean_in_every_order(case)


def test_copies_asked_for_while_the_thread_sleeps_are_made() -> None:
    async def case(world: CommitterWorld) -> None:
        one = world.put()
        await world.next()
        await asyncio.sleep(0.2)  # the position is on record: it sleeps without a time-out
        [place] = await world.copied(one)
        assert world.disk.wrong_with(one, place) == ""

    clean_in_every_order(case)


def test_copies_take_turns_with_groups_of_which_there_is_always_one() -> None:
    async def case(world: CommitterWorld) -> None:
        one = world.put()
        await world.next()
        for _ in range(12):  # two a group
            world.put()
        asked = world.committer.copy([one])
        written = world.log.stats.frames
        places = [place for _ in range(12) if world.answers.qsize() or world.owed for place in await world.next()]
        await asyncio.sleep(0.2)
        [copied] = asked.result(0)
        before = 1 + sum(place < copied for place in places)
        assert before <= written + 4, "those of a group that was taken before, and of one more"

    clean_in_every_order(case)


def test_copies_asked_for_beside_a_stop_are_made_or_cancelled() -> None:
    async def case(world: CommitterWorld) -> None:
        one = world.put()
        await world.next()
        asked = asyncio.ensure_future(world.copied(one))
        await asyncio.to_thread(world.committer.stop)
        try:
            [place] = await asked
        except (CancelledError, asyncio.CancelledError):
            return
        assert world.disk.wrong_with(one, place) == ""

    clean_in_every_order(case)


def test_copies_that_a_halted_log_leaves_behind_are_cancelled_by_the_stop() -> None:
    async def case(world: CommitterWorld) -> None:
        one = world.put()
        await world.next()
        await world.full()
        world.put(BIG)
        with pytest.raises(DataDirectoryError):
            await world.next()
        asked = world.committer.copy([one])
        await asyncio.to_thread(world.committer.stop)
        assert asked.cancelled()
        world.refused(resume=False)

    clean_in_every_order(case)


@pytest.mark.rule("S10")
def test_two_threads_that_make_spares_make_different_ones_and_no_more_than_are_wanted() -> None:
    async def case(world: CommitterWorld) -> None:
        world.put()
        await world.next()
        pool = world.log.pool
        wanted = pool.spares + 2
        await asyncio.gather(*(asyncio.to_thread(pool.ensure, wanted) for _ in range(2)))
        assert len({spare.generation for spare in pool._spares}) == len(pool._spares) == wanted

    clean_in_every_order(case)


@pytest.mark.rule("P1")
def test_what_stands_behind_a_refused_group_is_not_written() -> None:
    async def case(world: CommitterWorld) -> None:
        await world.full()
        world.put(BIG)  # refused
        world.put(10)  # behind it: the machine gives up both, whatever room there would be
        with pytest.raises(DataDirectoryError):
            await world.next()
        before = world.log.stats.frames
        await asyncio.sleep(1)
        assert world.log.stats.frames == before
        world.refused(resume=True)
        world.disk.faults.no_space = False
        world.put(BIG)
        await world.all_answered()

    clean_in_every_order(case)


def test_copies_that_waited_while_the_log_was_halted_are_made_after_it_resumes() -> None:
    async def case(world: CommitterWorld) -> None:
        one = world.put()
        await world.next()
        await world.full()
        world.put(BIG)
        with pytest.raises(DataDirectoryError):
            await world.next()
        asked = asyncio.ensure_future(world.copied(one))
        await asyncio.sleep(0.5)
        world.refused(resume=True)
        [place] = await asked
        assert world.disk.wrong_with(one, place) == ""

    clean_in_every_order(case)


@pytest.mark.rule("S6")
def test_nothing_is_written_or_told_behind_a_failed_sync() -> None:
    async def case(world: CommitterWorld) -> None:
        one = world.put()
        await world.next()
        world.disk.faults.syncs = 1
        world.put()
        world.put()
        world.put()
        with pytest.raises(StorageFailedError):
            await world.all_answered()
        operations = world.disk.operations
        with pytest.raises((CancelledError, asyncio.CancelledError, StorageFailedError, TimeoutError)):
            await world.copied(one)
        world.refused(resume=False)
        world.put()
        await asyncio.sleep(1)
        assert world.disk.operations == operations
        assert world.answers.empty()

    clean_in_every_order(case)


@pytest.mark.rule("S6")
def test_an_error_that_nobody_foresaw_is_told_and_ends_all_acks() -> None:
    async def case(world: CommitterWorld) -> None:
        world.put()
        await world.next()
        world.disk.surprise = ZeroDivisionError()
        world.put()
        world.put()
        world.put()
        with pytest.raises(StorageFailedError, match="ZeroDivisionError"):
            await world.all_answered()
        await asyncio.sleep(1)
        assert world.answers.empty()
        world.refused(resume=False)

    clean_in_every_order(case)


@pytest.mark.rule("S6")
def test_a_group_during_whose_sync_another_writer_of_the_directory_fails_is_not_told_durable() -> None:
    async def case(world: CommitterWorld) -> None:
        world.put()
        await world.next()
        began = world.turns.points

        def fail() -> None:
            world.log.health.failed = world.log.health.failed or "another writer"
            world.disk.failed_at = world.turns.points

        world.put()
        await asyncio.to_thread(fail)
        try:
            [place] = await world.next()
        except StorageFailedError:
            return
        assert world.disk.failed_at is not None
        assert began < world.disk.synced_at(place) < world.disk.failed_at

    clean_in_every_order(case)
