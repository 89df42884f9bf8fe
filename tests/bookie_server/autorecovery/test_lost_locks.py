# SPDX-License-Identifier: Apache-2.0
"""A repair whose lock is gone changes no record: another process may be repairing the ledger by then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bookie_server.autorecovery.worker import Workers
from tests.bookie_server.autorecovery.test_autorecovery import a_ledger, check_whole, members, recovering
from tests.bookie_server.autorecovery.test_drain import NOBODY
from tests.kit.memory_cluster import memory_cluster
from tests.kit.waiting import eventually


@pytest.mark.rule("MUST7")
async def test_a_repair_that_lost_its_lock_leaves_the_record_to_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster(4) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        async with recovering(cluster) as running:
            store = running.workers._client.store
            write, at_the_write, goes_on = store.write_repaired_ledger, threading.Event(), threading.Event()

            def write_late(*arguments: Any) -> Any:
                at_the_write.set()
                goes_on.wait(10)
                return write(*arguments)

            monkeypatch.setattr(store, "write_repaired_ledger", write_late)
            before = cluster.store.read_ledger(ledger_id)
            cluster.kill(ensemble[0])
            cluster.store.mark_underreplicated(ledger_id, ensemble[:1])
            await eventually(at_the_write.is_set, 10)
            store.unlock_underreplicated(ledger_id)  # as when the session ends
            assert cluster.store.lock_underreplicated(ledger_id, "another")
            goes_on.set()
            await eventually(lambda: "lock" in running.workers.put_off.get(ledger_id, NOBODY).why, 10)
            assert cluster.store.read_ledger(ledger_id) == before
            assert dict(cluster.store.list_underreplicated()) == {ledger_id: (ensemble[0],)}
            assert cluster.store.underreplication_locks() == {ledger_id: "another"}, "it is not given back either"
            cluster.store.unlock_underreplicated(ledger_id)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
        assert ensemble[0] not in members(cluster, ledger_id)
        check_whole(cluster, ledger_id)


@pytest.mark.rule("MUST7")
async def test_a_ledger_that_another_process_repairs_is_left_to_it() -> None:
    async with memory_cluster(4) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        assert cluster.store.lock_underreplicated(ledger_id, "another")
        cluster.kill(ensemble[0])
        cluster.store.mark_underreplicated(ledger_id, ensemble[:1])
        async with recovering(cluster) as running:
            await asyncio.sleep(0.3)
            assert running.workers.repaired == 0
            assert ensemble[0] in members(cluster, ledger_id)
            cluster.store.unlock_underreplicated(ledger_id)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
        check_whole(cluster, ledger_id)


async def test_a_bug_in_one_repair_puts_that_ledger_off_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster(4) as cluster:
        (bad, ensemble), (good, _) = await a_ledger(cluster), await a_ledger(cluster)
        cluster.kill(ensemble[0])
        for ledger_id in (bad, good):
            missing = [name for name in members(cluster, ledger_id) if name == ensemble[0]]
            cluster.store.mark_underreplicated(ledger_id, missing or members(cluster, ledger_id)[:1])
        repair = Workers._repair_locked

        async def broken(self: Workers, ledger_id: int) -> None:
            if ledger_id == bad:
                raise AssertionError("a bug")
            await repair(self, ledger_id)

        monkeypatch.setattr(Workers, "_repair_locked", broken)
        async with recovering(cluster) as running:
            await eventually(lambda: "a bug" in running.workers.put_off.get(bad, NOBODY).why, 10)
            await eventually(lambda: good not in dict(cluster.store.list_underreplicated()), 10)
            assert bad in dict(cluster.store.list_underreplicated())
