# SPDX-License-Identifier: Apache-2.0
"""After a deletion the ledger's bookies are told, best effort: nothing about it fails or holds up the deletion."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from bk_core.client import BookKeeper
from bk_core.client.deletion import Hints
from bk_core.errors import MetadataConflictError, NoSuchLedgerError
from bk_core.logs.ledgers import delete_of_log
from bk_core.logs.model.head import APPLICATION
from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine import events as ev
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, memory_cluster
from tests.kit.memory_transport import MemoryLink


async def written(client: BookKeeper, size: int = 3) -> LedgerId:
    async with await client.create_ledger(ensemble_size=size, write_quorum_size=size, ack_quorum_size=size) as ledger:
        await ledger.append(b"entry")
        return ledger.ledger_id


def told(cluster: MemoryBookKeeper, ledger_id: LedgerId) -> set[str]:
    """Bookies that were told of the ledger's deletion."""
    return {
        name
        for name, bookie in cluster.network.bookies.items()
        for effect in bookie.effects
        if isinstance(effect, ev.LookForDeletion) and ledger_id in effect.ledger_ids
    }


@pytest.mark.rule("S9")
async def test_every_bookie_of_the_ledger_is_told() -> None:
    async with memory_cluster(5) as cluster:
        client = cluster.client()
        ledger_id, other = await written(client), await written(client)
        ensemble = set((await client.read_metadata(ledger_id)).value.last_fragment.ensemble)
        await client.delete_ledger(ledger_id)
        assert told(cluster, ledger_id) == ensemble
        assert told(cluster, other) == set()


async def test_bookies_of_earlier_fragments_are_told_too() -> None:
    async with memory_cluster(5) as cluster:
        client = cluster.client()
        writer = await client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
        await writer.append(b"entry")
        (fragment,) = writer.metadata.fragments
        cluster.network.down(fragment.ensemble[0])
        cluster.store.unregister_bookie(fragment.ensemble[0])
        await writer.append(b"entry")
        await writer.close()
        assert len(writer.metadata.fragments) == 2
        cluster.network.up(fragment.ensemble[0])
        await client.delete_ledger(writer.ledger_id)
        last = writer.metadata.last_fragment
        assert told(cluster, writer.ledger_id) == {*fragment.ensemble, *last.ensemble}


async def test_a_bookie_that_has_moved_is_told_once_its_new_address_is_known() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        ledger_id = await written(client)
        metadata = (await client.read_metadata(ledger_id)).value
        cluster.network.down("b0")

        async def refresh() -> None:
            cluster.network.up("b0")

        await Hints(client.transport, refresh, timeout_s=5, pause_s=5).send({ledger_id: metadata})
        assert told(cluster, ledger_id) == {"b0", "b1", "b2"}


@pytest.mark.parametrize("trouble", ["dead", "unreachable", "silent", "refusing"])
async def test_a_bookie_in_trouble_does_not_fail_or_hold_up_a_deletion(trouble: str) -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client(replace(FAST, delete_hint_timeout_ms=150))
        first, second = await written(client), await written(client)
        if trouble == "dead":
            cluster.network.kill("b1")
        elif trouble == "unreachable":
            cluster.network.down("b1")
        elif trouble == "silent":
            cluster.network.hold("b1")
        else:
            cluster.network.bookies["b1"].feed(ev.CommitFailed(Reason.STORAGE_FAILED, "made to fail", True))
        began = time.monotonic()
        await client.delete_ledger(first)
        assert time.monotonic() - began < 1.0
        assert told(cluster, first) >= {"b0", "b2"}
        began = time.monotonic()
        await client.delete_ledger(second)
        assert time.monotonic() - began < 0.15, "who did not answer is left in peace for a while"
        assert told(cluster, second) >= {"b0", "b2"}
        assert await client.list_ledgers() == []


async def test_a_slow_store_holds_up_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client(replace(FAST, delete_hint_timeout_ms=100))
        ledger_id = await written(client)
        cluster.network.down("b1")
        answer = threading.Event()
        monkeypatch.setattr(client.store, "writable_bookies", lambda: answer.wait(5) and {})
        began = time.monotonic()
        await client.delete_ledger(ledger_id)
        assert time.monotonic() - began < 2.0
        answer.set()


async def test_a_hint_that_breaks_in_an_unknown_way_does_not_fail_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of the transport")

    async with memory_cluster(3) as cluster:
        client = cluster.client()
        ledger_id = await written(client)
        monkeypatch.setattr(MemoryLink, "delete_hint", fails)
        await client.delete_ledger(ledger_id)
        assert await client.list_ledgers() == []


@pytest.mark.rule("S9")
async def test_nobody_is_told_of_a_ledger_that_was_not_deleted() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        ledger_id = await written(client)
        with pytest.raises(MetadataConflictError):
            await client.delete_ledger(ledger_id, version=77)
        assert told(cluster, ledger_id) == set()
        with pytest.raises(NoSuchLedgerError):
            await client.delete_ledger(10**6)
        version = (await client.read_metadata(ledger_id)).version
        await client.delete_ledger(ledger_id, version=version)
        assert told(cluster, ledger_id) == {"b0", "b1", "b2"}


async def test_a_ledger_whose_record_is_garbage_can_be_deleted() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        ledger_id = await written(client)
        cluster.store.tree.set(cluster.store._znode_of(ledger_id), b"garbage", -1)
        await client.delete_ledger(ledger_id)
        assert await client.list_ledgers() == []


@pytest.mark.rule("N6")
async def test_what_a_log_deletes_its_bookies_are_told_of_too() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        ledgers = [await written(client) for _ in range(3)]
        keys = {"bk.log.uuid": b"mine", "application": APPLICATION.encode()}
        for each in ledgers[:2]:
            found = await client.read_metadata(each)
            record = replace(found.value, custom_metadata=keys)
            await asyncio.to_thread(client.store.write_ledger, each, record, found.version)
        gone = await asyncio.to_thread(delete_of_log, client.store, "mine", ledgers, client.tell_deleted)
        assert gone == tuple(ledgers[:2])
        assert [told(cluster, each) for each in ledgers] == [{"b0", "b1", "b2"}, {"b0", "b1", "b2"}, set()]
        await client.delete_ledger(ledgers[2])
        assert told(cluster, ledgers[2]) == {"b0", "b1", "b2"}
        assert await client.list_ledgers() == []
