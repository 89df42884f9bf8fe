# SPDX-License-Identifier: Apache-2.0
"""A drain over a cluster in this process: real machines, the auditor, the workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bk_cli.bookies.bookie_leaving import DrainWatch
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BookieServiceInfo
from bookie_server.autorecovery.worker import PutOff
from tests.bookie_server.autorecovery.test_autorecovery import QUICK, a_ledger, check_whole, members, recovering
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.waiting import eventually

NOBODY = PutOff("", 0.0, 0)


def order_drain(cluster: MemoryBookKeeper, name: str, *, fences: bool = False) -> None:
    """What the command and then the bookie do."""
    cluster.store.write_bookie_order(name, BookieOrder(Order.DRAIN, 1, fences))
    cluster.store.unregister_bookie(name)
    cluster.store.register_bookie(BookieServiceInfo(name), read_only=True)


@pytest.mark.rule("D23")
async def test_drain_moves_every_copy_and_goes_on_without_its_command() -> None:
    async with memory_cluster(5) as cluster:
        ledgers = [(await a_ledger(cluster))[0] for _ in range(8)]
        leaving = members(cluster, ledgers[0])[0]
        order_drain(cluster, leaving)
        async with recovering(cluster):  # nobody but the auditor marks
            await eventually(lambda: all(leaving not in members(cluster, i) for i in ledgers), 10)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
        for ledger_id in ledgers:
            check_whole(cluster, ledger_id)
        watch = DrainWatch(cluster.store, leaving)
        watch.survey()
        assert watch.look()


@pytest.mark.rule("D23")
async def test_drain_waits_for_a_writer_and_fences_it_only_if_that_is_ordered() -> None:
    async with memory_cluster(5) as cluster:
        ledger_id, ensemble = await a_ledger(cluster, close=False)
        order_drain(cluster, ensemble[0])
        watch = DrainWatch(cluster.store, ensemble[0])
        watch.survey()
        quick = replace(QUICK, open_ledger_grace_s=0.01)
        async with recovering(cluster, quick) as running:
            watch.look()
            await eventually(lambda: "at its next entry" in running.workers.put_off.get(ledger_id, NOBODY).why, 10)
            await asyncio.sleep(0.3)
            assert not cluster.store.read_ledger(ledger_id).value.is_closed
            assert [each.ledger_id for found in watch.blocked().values() for each in found] == [ledger_id]
            order_drain(cluster, ensemble[0], fences=True)
            await eventually(lambda: ensemble[0] not in members(cluster, ledger_id), 10)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
            assert watch.look()
        check_whole(cluster, ledger_id)
