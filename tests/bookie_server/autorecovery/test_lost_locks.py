# SPDX-License-Identifier: Apache-2.0
"""A repair whose lock is gone changes no record: another process may be repairing the ledger by then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

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
