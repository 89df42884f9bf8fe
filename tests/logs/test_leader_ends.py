# SPDX-License-Identifier: Apache-2.0
"""Leaders that roll by age, lose leadership, duel, are cancelled or closed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bk_core.errors import (
    InvalidArgumentError,
    LeadershipLostError,
    NotEnoughBookiesError,
)
from tests.kit.memory_cluster import FAST, hold, memory_cluster, release
from tests.kit.waiting import eventually
from tests.logs.leader_kit import log_of, one_log, read_all


async def test_a_ledger_is_rolled_by_age_only_if_something_was_appended() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        leader = await log.lead(roll_age_s=0.05)
        first = leader.ledger_id
        await asyncio.sleep(0.15)
        assert leader.ledger_id == first
        await leader.append(b"0")
        await eventually(lambda: leader.ledger_id != first)
        await leader.close()
        assert await read_all(log) == [b"0"]


async def test_still_leader_is_asked_before_a_roll_and_a_no_ends_leadership() -> None:
    async with memory_cluster() as cluster:
        answers = iter([True, False])
        threads: list[threading.Thread] = []

        def still_leader() -> bool:
            threads.append(threading.current_thread())
            return next(answers)

        leader = await log_of(cluster.client()).lead(still_leader=still_leader)
        await leader.append(b"0")
        await leader.roll()
        with pytest.raises(LeadershipLostError, match="still_leader"):
            await leader.roll()
        with pytest.raises(LeadershipLostError):
            await leader.append(b"1")
        assert threading.main_thread() not in threads


async def test_an_answer_of_still_leader_that_fails_counts_as_no() -> None:
    async with memory_cluster() as cluster:
        leader = await log_of(cluster.client()).lead(still_leader=lambda: 1 // 0 == 1)
        with pytest.raises(LeadershipLostError):
            await leader.roll()


async def test_a_roll_without_enough_bookies_goes_on_in_the_current_ledger() -> None:
    async with memory_cluster(3) as cluster:
        log = log_of(cluster.client())
        leader = await log.lead()
        await leader.append(b"0")
        cluster.store.unregister_bookie("b0")
        with pytest.raises(NotEnoughBookiesError):
            await leader.roll()
        assert await leader.append(b"1") == 1
        cluster.register("b0")
        await leader.roll()
        assert await leader.append(b"2") == 2
        await leader.close()
        assert await read_all(log) == [b"0", b"1", b"2"]


async def test_what_cannot_lead_does_not_fence_who_does() -> None:
    async with memory_cluster(3) as cluster:
        log = log_of(cluster.client())
        leader = await log.lead()
        other = log_of(cluster.client())
        for options, error in (
            ({"write_quorum_size": 4}, InvalidArgumentError),
            ({"roll_bytes": 0}, InvalidArgumentError),
            ({"ensemble_size": 4}, NotEnoughBookiesError),
        ):
            with pytest.raises(error):
                await other.lead(**options)
        assert await leader.append(b"0") == 0
        await leader.close()


@pytest.mark.rule("N6")
async def test_a_ledger_that_a_vacuum_deleted_meanwhile_is_not_listed() -> None:
    async with one_log() as (cluster, bookkeeper, log):
        leader = await log.lead()
        assert await leader.append(b"0") == 0
        create, deleted = bookkeeper.create_ledger, []

        async def and_pause_for_days(**options: Any) -> Any:
            writer = await create(**options)
            cluster.store.delete_ledger(writer.ledger_id)
            deleted.append(writer.ledger_id)
            return writer

        setattr(bookkeeper, "create_ledger", and_pause_for_days)  # noqa: B010 - mypy refuses the plain assignment
        with pytest.raises(LeadershipLostError):
            await leader.roll()
        listed = [each.ledger_id for each in await log.extents()]
        assert not set(deleted) & set(listed)
        setattr(bookkeeper, "create_ledger", create)  # noqa: B010 - mypy refuses the plain assignment
        async with await log.lead() as successor:
            assert await successor.append(b"1") == 1
        assert await read_all(log) == [b"0", b"1"]


async def test_an_application_that_is_cancelled_while_it_takes_over_gives_the_log_back() -> None:
    async with memory_cluster() as cluster:
        old = await log_of(cluster.client()).lead()
        await old.append(b"0")
        hold(cluster)  # so that the fence has no answer
        log = log_of(cluster.client())
        taking = asyncio.create_task(log.lead())
        await asyncio.sleep(0.05)
        taking.cancel()
        await asyncio.sleep(0.01)
        release(cluster)
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert not (await log.head()).value.open_extents
        assert await read_all(log) == [b"0"]


async def test_a_leader_that_is_closed_twice_and_one_that_leaves_with_an_error_are_both_sealed() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client(FAST))
        leader = await log.lead()

        async def fail() -> None:
            async with leader:
                await leader.append(b"0")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await leader.close()
        assert not (await log.head()).value.open_extents
        assert await read_all(log) == [b"0"]
