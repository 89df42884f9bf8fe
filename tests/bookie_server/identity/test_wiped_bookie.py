# SPDX-License-Identifier: Apache-2.0
"""One of three bookies loses its disk, on a real ZooKeeper: recovery neither cuts the ledger short nor lies."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.client import BookKeeper
from bk_core.client.bookkeeper import connect
from bk_core.errors import BookieIdentityError, QuorumError
from bk_core.metadata import open_store
from bk_core.model import LedgerId, LedgerState
from bk_core.wire.lane.reasons import Reason
from bookie_server.main import Bookie
from tests.kit.lanes import bookie_config, lane_to
from tests.kit.memory_cluster import FAST

pytestmark = [pytest.mark.zookeeper, pytest.mark.e2e, pytest.mark.rule("S8"), pytest.mark.rule("MUST4")]

CLIENT = replace(FAST, allow_degraded_writes=True, session_timeout_s=2.0)


class Cluster:
    """Bookies b1 to b3 in this process."""

    def __init__(self, path: Path, uri: str) -> None:
        self.path, self.uri = path, uri
        self.running: dict[str, Bookie] = {}

    async def start(self, *names: str, accept_loss: bool = False) -> None:
        for name in names:
            config = bookie_config(self.path / name, self.uri, bookie_id=name, session_timeout_s=1.0)
            self.running[name] = await Bookie.start(config, accept_loss=accept_loss)

    async def stop(self, *names: str) -> None:
        for name in names:
            await self.running.pop(name).stop()

    def wipe(self, name: str) -> None:
        shutil.rmtree(self.path / name)

    async def client(self) -> BookKeeper:
        return await connect(self.uri, config=CLIENT)


async def write_acked_by_two(cluster: Cluster) -> tuple[LedgerId, list[bytes]]:
    """A ledger without a writer, whose last entries only b1 and b2 have."""
    bookkeeper = await cluster.client()
    ledger = await bookkeeper.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    entries = [b"entry %d" % number for number in range(20)]
    for entry in entries[:10]:
        await ledger.append(entry)
    await cluster.stop("b3")
    for entry in entries[10:]:
        await ledger.append(entry)
    await ledger.abandon()
    await bookkeeper.close()
    return ledger.ledger_id, entries


async def recovered(cluster: Cluster, ledger_id: LedgerId) -> list[bytes]:
    bookkeeper = await cluster.client()
    try:
        reader = await bookkeeper.open_ledger(ledger_id, recover=True)
        return [value async for batch in reader.read(0, reader.last_add_confirmed) for value in batch.to_list()]
    finally:
        await bookkeeper.close()


def test_recovery_is_inconclusive_rather_than_short_and_whole_once_a_copy_is_back(
    zookeeper_uri: str, tmp_path: Path
) -> None:
    async def story(cluster: Cluster) -> None:
        ledger_id, entries = await write_acked_by_two(cluster)
        await cluster.stop("b1")
        cluster.wipe("b1")
        with pytest.raises(BookieIdentityError, match="--accept-loss"):
            await cluster.start("b1")
        await cluster.start("b1", accept_loss=True)
        await cluster.start("b3")
        await cluster.stop("b2")
        # b3 honestly never had the last ten entries, b1 has lost them: if it denied them, they would be gone
        with pytest.raises(QuorumError):
            await recovered(cluster, ledger_id)
        assert (await state_of(cluster, ledger_id)) is not LedgerState.CLOSED
        await assert_unknown(cluster, ledger_id)
        await cluster.start("b2")
        assert await recovered(cluster, ledger_id) == entries
        assert (await state_of(cluster, ledger_id)) is LedgerState.CLOSED
        await assert_takes_new_ledgers(cluster)

    run(story, zookeeper_uri, tmp_path)


async def assert_unknown(cluster: Cluster, ledger_id: LedgerId) -> None:
    """What b1 itself says."""
    store = await asyncio.to_thread(open_store, cluster.uri)
    lane = lane_to(store, "b1")
    entries, trailer = await lane.read(ledger_id, 0, 100)
    await lane.transport.close()
    await asyncio.to_thread(store.close)
    assert (trailer.absent, trailer.fenced) == ((), True)
    assert {gap.reason for gap in trailer.unknown} == {Reason.LIMBO}
    assert len(entries) < 20


async def state_of(cluster: Cluster, ledger_id: LedgerId) -> LedgerState:
    bookkeeper = await cluster.client()
    try:
        return (await bookkeeper.read_metadata(ledger_id)).value.state
    finally:
        await bookkeeper.close()


async def assert_takes_new_ledgers(cluster: Cluster) -> None:
    bookkeeper = await cluster.client()
    async with await bookkeeper.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3) as ledger:
        await ledger.append(b"on all three")
    await bookkeeper.close()


def run(story: Callable[[Cluster], Awaitable[None]], zookeeper_uri: str, path: Path) -> None:
    uri = f"{zookeeper_uri}/{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    store.close()

    async def whole() -> None:
        cluster = Cluster(path, uri)
        await cluster.start("b1", "b2", "b3")
        try:
            await story(cluster)
        finally:
            await cluster.stop(*cluster.running)

    asyncio.run(whole())
