# SPDX-License-Identifier: Apache-2.0
"""Moves of copies over a cluster in this process: the record changes last, and nothing is moved twice."""

from __future__ import annotations

import asyncio

import pytest

from bk_core.client.repairing.mover import Mover
from bk_core.client.repairing.repair import ByteRate
from bk_core.errors import MetadataUnavailableError
from bk_core.model import LedgerId
from bk_core.protocol.replication.balance import Move
from tests.bookie_server.autorecovery.test_autorecovery import a_ledger, check_whole, members
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.waiting import eventually


def a_move(cluster: MemoryBookKeeper, ledger_id: LedgerId) -> Move:
    ensemble = members(cluster, ledger_id)
    target = next(name for name in cluster.names if name not in ensemble)
    return Move(ledger_id, ensemble[0], target, (0,), 160)


@pytest.mark.rule("MUST4")
async def test_a_move_puts_the_copy_on_its_target_and_changes_nothing_else() -> None:
    async with memory_cluster(5) as cluster:
        ledger_id, before = await a_ledger(cluster)
        move = a_move(cluster, ledger_id)
        budget = ByteRate(0)
        moved = await Mover(cluster.client(), "mover", budget).carry_out(move)
        assert (moved.why, moved.size) == ("", budget.spent)
        assert members(cluster, ledger_id) == (move.target, *before[1:])
        check_whole(cluster, ledger_id)
        assert cluster.store.underreplication_locks() == {}
        again = await Mover(cluster.client(), "mover", ByteRate(0)).carry_out(move)
        assert (again.why, again.size) == ("", 0), "it is there"


async def test_a_move_is_not_made_where_something_else_is_due() -> None:
    async with memory_cluster(5) as cluster:
        mover = Mover(cluster.client(), "mover", ByteRate(0))
        opened, _ = await a_ledger(cluster, close=False)
        assert (await mover.carry_out(a_move(cluster, opened))).why == "it is not closed"
        closed, before = await a_ledger(cluster)
        move = a_move(cluster, closed)
        assert cluster.store.lock_underreplicated(closed, "a worker")
        assert (await mover.carry_out(move)).why == "it is under repair"
        cluster.store.unlock_underreplicated(closed)
        cluster.store.mark_underreplicated(closed, before[:1])
        assert "it lacks copies" in (await mover.carry_out(move)).why
        lost, _ = await a_ledger(cluster)
        away = a_move(cluster, lost)
        cluster.kill(away.target)
        assert "no bookie can take over" in (await mover.carry_out(away)).why
        gone, _ = await a_ledger(cluster)
        moving = a_move(cluster, gone)
        cluster.store.delete_ledger(gone)
        assert (await mover.carry_out(moving)).why == "it was deleted"
        assert members(cluster, closed) == before


async def test_a_lock_that_could_not_be_given_back_goes_with_the_next_move(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster(5) as cluster:
        first, second = (await a_ledger(cluster))[0], (await a_ledger(cluster))[0]
        client = cluster.client()
        mover = Mover(client, "mover", ByteRate(0))
        with monkeypatch.context() as away:
            away.setattr(client.store, "unlock_underreplicated", unreachable)
            assert "is away" in (await mover.carry_out(a_move(cluster, first))).why
        assert list(cluster.store.underreplication_locks()) == [first]
        assert (await mover.carry_out(a_move(cluster, second))).why == ""
        assert cluster.store.underreplication_locks() == {}


def unreachable(_: LedgerId) -> None:
    raise MetadataUnavailableError("the store is away")


async def test_a_move_that_is_cancelled_leaves_the_record_and_no_lock() -> None:
    async with memory_cluster(5) as cluster:
        ledger_id, before = await a_ledger(cluster)
        slow = ByteRate(1)  # a byte a second
        spent = asyncio.create_task(slow.spend(1_000))
        task = asyncio.create_task(Mover(cluster.client(), "mover", slow).carry_out(a_move(cluster, ledger_id)))
        await eventually(cluster.store.underreplication_locks)
        await asyncio.sleep(0.1)
        for each in (task, spent):
            each.cancel()
        await asyncio.gather(task, spent, return_exceptions=True)
        assert task.cancelled()
        assert members(cluster, ledger_id) == before
        assert cluster.store.underreplication_locks() == {}
