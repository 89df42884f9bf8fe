# SPDX-License-Identifier: Apache-2.0
"""Auditor and workers over a cluster in this process: whole lives of marks, drains, and lost locks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_cli.bookies.bookie_leaving import DrainWatch
from bk_core.client.repairing.repair import ByteRate
from bk_core.errors import InvalidArgumentError
from bk_core.metadata.layout import Layout, ledger_path, lock_path, mark_path
from bk_core.metadata.port import Audit
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BookieServiceInfo, DigestType, LedgerId, LedgerState
from bookie_server.autorecovery.auditor import Auditor
from bookie_server.autorecovery.main import AutoRecovery
from bookie_server.autorecovery.presence import Presence
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from bookie_server.autorecovery.worker import PutOff, Workers
from bookie_server.main import Bookie
from tests.kit.canaries import PASSWORD
from tests.kit.lanes import bookie_config
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.memory_store import MemoryStore, shared_cluster
from tests.kit.metadata_worlds import a_ledger_on
from tests.kit.waiting import eventually
from tests.sim.frames import contents

QUICK = AutoRecoveryConfig(lost_bookie_delay_s=0.1, poll_s=0.02, retry_s=0.05, retry_max_s=0.2, open_ledger_grace_s=0.1)


@asynccontextmanager
async def recovering(
    cluster: MemoryBookKeeper, config: AutoRecoveryConfig = QUICK, owner: str = "host1"
) -> AsyncIterator[AutoRecovery]:
    async with AutoRecovery(cluster.client(), owner, config) as running:
        yield running


async def a_ledger(cluster: MemoryBookKeeper, *, close: bool = True) -> tuple[LedgerId, tuple[str, ...]]:
    writer = await cluster.client().create_ledger(password=PASSWORD)
    for entry in range(20):
        await writer.append(b"entry %d" % entry)
    if close:
        await writer.close()
    return writer.ledger_id, writer.metadata.last_fragment.ensemble


def members(cluster: MemoryBookKeeper, ledger_id: LedgerId) -> tuple[str, ...]:
    return cluster.store.read_ledger(ledger_id).value.last_fragment.ensemble


def check_whole(cluster: MemoryBookKeeper, ledger_id: LedgerId) -> None:
    """Each member has every entry on its disk."""
    for member in members(cluster, ledger_id):
        frames = cluster.network.bookies[member].frames_of(ledger_id)
        assert {entry for frame in frames for entry in contents(frame.data).ids} == set(range(20)), member


@pytest.mark.rule("D23")
async def test_ledgers_of_a_lost_bookie_are_whole_again_on_others() -> None:
    async with memory_cluster(5) as cluster:
        ledgers = [await a_ledger(cluster) for _ in range(5)]
        lost = ledgers[0][1][0]
        cluster.kill(lost)
        async with recovering(cluster) as running:
            await eventually(lambda: all(lost not in members(cluster, i) for i, _ in ledgers), 10)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
            assert running.auditor.elected
            wanted = sum(lost in ensemble for _, ensemble in ledgers)
            await eventually(lambda: running.workers.repaired == wanted, 10)  # counted after the mark has gone
        for ledger_id, _ in ledgers:
            check_whole(cluster, ledger_id)
        assert cluster.store.underreplication_locks() == {}
        assert cluster.store.current_auditor() is None


async def test_bookie_that_comes_back_in_time_keeps_its_ledgers() -> None:
    async with memory_cluster(5) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        async with recovering(cluster, AutoRecoveryConfig(lost_bookie_delay_s=0.3, poll_s=0.02)) as running:
            cluster.store.unregister_bookie(ensemble[0])
            await asyncio.sleep(0.1)
            cluster.register(ensemble[0])
            await asyncio.sleep(0.4)
            assert running.auditor.marked == 0
        assert members(cluster, ledger_id) == ensemble


@pytest.mark.rule("D23")
def test_bookie_that_came_back_and_is_lost_again_is_marked_again() -> None:
    """What it was given in between has no mark of the first time."""
    store, now = MemoryStore(), [0.0]
    store.initialize_cluster()
    closed = {"last_entry_id": 0, "state": LedgerState.CLOSED, "digest_type": DigestType.CRC32C}
    ledger_id, _ = store.create_ledger(a_ledger_on(("b1",), **closed))
    config = AutoRecoveryConfig(lost_bookie_delay_s=5)

    def clock() -> float:
        return now[0]

    auditor = Auditor(store, "host1", Presence(store, 5, clock=clock), config, clock=clock)

    def look(at_s: float) -> bool:
        now[0] = at_s
        auditor.look()
        return bool(list(store.list_underreplicated()))

    assert [look(0), look(1), look(5), look(7)] == [False, False, False, True]
    assert store.lock_underreplicated(ledger_id, "a worker that found it whole")
    assert store.remove_underreplicated(ledger_id, 0)
    store.register_bookie(BookieServiceInfo("b1"))
    assert not look(8)
    store.unregister_bookie("b1")
    assert [look(9), look(13), look(15)] == [False, False, True]


async def test_delay_that_is_set_for_the_cluster_wins_and_nobody_works_while_it_is_disabled() -> None:
    async with memory_cluster(5) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        cluster.store.set_lost_bookie_recovery_delay_s(0)
        cluster.store.enable_replication(False)
        cluster.kill(ensemble[0])
        cluster.store.mark_underreplicated(ledger_id, ensemble[:1])
        async with recovering(cluster, AutoRecoveryConfig(lost_bookie_delay_s=600, poll_s=0.02)):
            await asyncio.sleep(0.2)
            assert members(cluster, ledger_id) == ensemble
            cluster.store.enable_replication(True)
            await eventually(lambda: ensemble[0] not in members(cluster, ledger_id), 10)


@pytest.mark.rule("D23")
async def test_open_ledger_that_nobody_writes_is_closed_and_repaired() -> None:
    async with memory_cluster(5) as cluster:
        ledger_id, ensemble = await a_ledger(cluster, close=False)
        cluster.kill(ensemble[1])
        async with recovering(cluster):
            await eventually(lambda: cluster.store.read_ledger(ledger_id).value.is_closed, 10)
            await eventually(lambda: ensemble[1] not in members(cluster, ledger_id), 10)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
        check_whole(cluster, ledger_id)


async def test_two_processes_share_the_work_and_one_of_them_audits() -> None:
    async with memory_cluster(5) as cluster:
        ledgers = [await a_ledger(cluster) for _ in range(6)]
        lost = ledgers[0][1][0]
        cluster.kill(lost)
        async with recovering(cluster) as one, recovering(cluster, owner="host2") as other:
            await eventually(lambda: all(lost not in members(cluster, i) for i, _ in ledgers), 25)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 25)
            assert [one.auditor.elected, other.auditor.elected].count(True) == 1
            assert {one.auditor.marked, other.auditor.marked} >= {0}


async def test_repairs_follow_each_other_and_a_writer_that_is_waited_for_holds_up_none() -> None:
    async with memory_cluster(5) as cluster:
        open_ones = [(await a_ledger(cluster, close=False))[0] for _ in range(3)]
        closed = [(await a_ledger(cluster))[0] for _ in range(6)]
        cluster.kill("b0")
        for ledger_id in (*open_ones, *closed):
            cluster.store.mark_underreplicated(ledger_id, ("b0",))
        slow = AutoRecoveryConfig(lost_bookie_delay_s=0, poll_s=0.5, repairs_max=1, open_ledger_grace_s=600)
        async with recovering(cluster, slow):
            await eventually(lambda: all("b0" not in members(cluster, i) for i in closed), 2)


async def test_a_lock_that_is_taken_while_the_workers_stop_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster(4) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        client, taken, go = cluster.client(), threading.Event(), threading.Event()
        lock = client.store.lock_underreplicated

        def lock_slowly(ledger_id: LedgerId, owner: str) -> bool:
            locked = lock(ledger_id, owner)
            taken.set()
            return go.wait(5) and locked

        monkeypatch.setattr(client.store, "lock_underreplicated", lock_slowly)
        cluster.store.mark_underreplicated(ledger_id, [ensemble[0]])
        async with AutoRecovery(client, "host1", QUICK):
            await eventually(taken.is_set, 10)
            asyncio.get_running_loop().call_later(0.1, go.set)
        assert cluster.store.underreplication_locks() == {}


async def test_a_lock_is_given_back_though_a_stop_comes_before_a_thread_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    async with memory_cluster(4) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        client, removed, go = cluster.client(), threading.Event(), threading.Event()
        remove = client.store.remove_underreplicated

        def remove_and_block(ledger_id: LedgerId, version: int) -> bool:
            threads.submit(go.wait, 5)
            removed.set()
            return remove(ledger_id, version)

        monkeypatch.setattr(client.store, "remove_underreplicated", remove_and_block)
        cluster.store.mark_underreplicated(ledger_id, [ensemble[0]])
        async with AutoRecovery(client, "host1", QUICK):
            await eventually(removed.is_set, 10)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
            asyncio.get_running_loop().call_later(0.1, go.set)
        assert cluster.store.underreplication_locks() == {}


async def test_a_lock_that_could_not_be_given_back_holds_nobody_up_for_long() -> None:
    """The store was away at the end of a repair: the lock stayed, and so did the session."""

    async with memory_cluster(5) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        async with recovering(cluster) as running:
            cluster.store.enable_replication(False)
            assert running.workers._client.store.lock_underreplicated(ledger_id, "host1")
            cluster.kill(ensemble[0])
            cluster.store.mark_underreplicated(ledger_id, ensemble[:1])
            cluster.store.enable_replication(True)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
        check_whole(cluster, ledger_id)
        assert cluster.store.underreplication_locks() == {}


async def test_what_blocks_a_repair_is_told_and_it_goes_on_once_that_is_gone() -> None:
    async with memory_cluster(4) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        spare = next(name for name in cluster.names if name not in ensemble)
        cluster.kill(ensemble[0])
        cluster.store.unregister_bookie(spare)
        async with recovering(cluster) as running:
            await eventually(lambda: ledger_id in running.workers.put_off, 10)
            await eventually(lambda: "no bookie can take over" in running.workers.put_off[ledger_id].why, 10)
            cluster.register(spare)
            await eventually(lambda: spare in members(cluster, ledger_id), 10)
            await eventually(lambda: ledger_id not in running.workers.put_off, 10)


async def test_mark_of_a_deleted_ledger_goes() -> None:
    async with memory_cluster(4) as cluster:
        cluster.store.mark_underreplicated(77, ["b1"])
        async with recovering(cluster):
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)


@pytest.mark.parametrize("wrong_ms", [-60_000, 8 * 86_400_000], ids=["long ago", "a clock was wrong"])
async def test_check_of_all_ledgers_finds_a_copy_that_nobody_knew_to_be_missing(wrong_ms: int) -> None:
    async with memory_cluster(4) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        cluster.network.bookies[ensemble[0]].frames_of(ledger_id).clear()
        cluster.store.write_audit_time_ms(Audit.LEDGERS, int(time.time() * 1000) + wrong_ms)
        config = AutoRecoveryConfig(poll_s=0.02, check_s=30)
        async with recovering(cluster, config) as running:
            await eventually(lambda: running.workers.copied_entries == 20, 10)
            await eventually(lambda: (cluster.store.audit_time_ms(Audit.LEDGERS) or 0) > time.time() * 1000 - 9_000)
        check_whole(cluster, ledger_id)
        assert members(cluster, ledger_id) == ensemble


async def test_bookie_that_is_told_to_takes_part_in_recovery_and_upkeep(tmp_path: Path) -> None:
    uri = f"memory://{tmp_path.name}"
    store = MemoryStore(shared_cluster(uri))
    store.initialize_cluster()
    config = replace(bookie_config(tmp_path / "data", uri), auto_recovery=True, upkeep=True)
    bookie = await Bookie.start(config)
    try:
        await eventually(lambda: store.current_auditor() == bookie.bookie_id)
        await eventually(lambda: store.current_upkeep_worker() == bookie.bookie_id)
    finally:
        await bookie.stop()
    assert (store.current_auditor(), store.current_upkeep_worker()) == (None, None)
    store.close()


async def test_budget_bounds_the_bytes_of_all_repairs() -> None:
    budget, began = ByteRate(2_000_000), time.monotonic()
    await asyncio.gather(*(budget.spend(250_000) for _ in range(6)))
    assert 0.2 <= time.monotonic() - began < 3  # half a second was saved up
    await ByteRate(0).spend(1 << 40)


def test_settings_are_checked() -> None:
    for wrong in ({"repairs_max": 0}, {"poll_s": 0}, {"retry_s": 700.0}, {"replication_bytes_per_s": -1.0}):
        with pytest.raises(InvalidArgumentError):
            AutoRecoveryConfig(**wrong)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.rule("M6")
async def test_unreadable_marks_locks_records_and_settings_stop_no_other_repair() -> None:
    async with memory_cluster(5) as cluster:
        ledgers = [(await a_ledger(cluster))[0] for _ in range(8)]
        ((lost, _),) = Counter(name for each in ledgers for name in members(cluster, each)).most_common(1)
        named = [ledger_id for ledger_id in ledgers if lost in members(cluster, ledger_id)]
        assert len(named) > 3, "24 copies on five bookies"
        marked, locked, recordless, *well = named
        tree, root = cluster.store.tree, "/ledgers/underreplication"
        cluster.store.mark_underreplicated(marked, [lost])  # which makes the folders
        tree.set(f"{root}/ledgers{mark_path(marked)}", b"garbage", -1)
        tree.create(f"/ledgers{lock_path(locked)}", b"\xff")
        tree.create(f"{root}/lostBookieRecoveryDelay", b"soon")
        tree.set(f"/ledgers{ledger_path(Layout.HIERARCHICAL, recordless)}", b"garbage", -1)
        cluster.kill(lost)
        async with recovering(cluster) as running:
            await eventually(lambda: all(lost not in members(cluster, i) for i in well), 10)
            await eventually(lambda: running.workers.repaired >= len(well), 10)
            assert running.auditor.elected
        for ledger_id in well:
            check_whole(cluster, ledger_id)
        assert lost in members(cluster, marked), "nobody knows what its mark says"
        assert tree.get(f"{root}/ledgers{mark_path(marked)}")[0] == b"garbage"
        assert lost in members(cluster, locked), "a lock that cannot be read is a lock"


@pytest.mark.parametrize("mark", [b"", b'laterField: "b1"\n'])
@pytest.mark.rule("M6")
async def test_mark_that_names_nobody_is_removed_only_once_every_copy_was_checked(mark: bytes) -> None:
    async with memory_cluster(5) as cluster:
        ledger_id, ensemble = await a_ledger(cluster)
        cluster.store.mark_underreplicated(ledger_id, [])
        path = f"/ledgers/underreplication/ledgers{mark_path(ledger_id)}"
        cluster.store.tree.set(path, mark, -1)
        cluster.kill(ensemble[1])
        async with recovering(cluster, replace(QUICK, lost_bookie_delay_s=600)) as running:
            await eventually(lambda: ledger_id in running.workers.put_off, 10)
            assert ensemble[1] in running.workers.put_off[ledger_id].why
            assert dict(cluster.store.list_underreplicated()) == {ledger_id: ()}
            cluster.store.set_lost_bookie_recovery_delay_s(0)
            await eventually(lambda: not list(cluster.store.list_underreplicated()), 10)
        check_whole(cluster, ledger_id)


@pytest.mark.rule("M6")
def test_bookie_whose_registration_cannot_be_read_is_not_lost() -> None:
    store, now = MemoryStore(), [0.0]
    store.initialize_cluster()
    for name in ("b1", "b2"):
        store.write_cookie(name, b"", None)
    store.tree.create("/ledgers/available/b1", b"\xff\xff")
    presence = Presence(store, 5, clock=lambda: now[0])
    presence.look()
    now[0] = 10
    present = presence.look()
    assert (present.lost, present.away) == (("b2",), ("b1",))
    assert not present.writable


# --- drains ---


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


# --- locks ---


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
