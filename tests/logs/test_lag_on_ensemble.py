# SPDX-License-Identifier: Apache-2.0
"""A driver on a real ensemble whose server is held back while a task, through another, closes what it is to publish."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import NoSuchLedgerError
from bk_core.logs.model.head import PublishId
from bk_core.metadata import open_store
from bk_core.metadata.tree.tree import NoNodeError
from bk_core.model import BookieServiceInfo
from tests.kit.extents import new_extent
from tests.kit.memory_bookie import MemoryNetwork
from tests.kit.memory_cluster import FAST
from tests.kit.metadata_worlds import LET_GO_S, EnsembleLagWorld, a_ledger, tree_of
from tests.kit.zookeeper_ensemble import ZooKeeperEnsemble
from tests.logs.leader_kit import PASSWORD, log_of

pytestmark = [pytest.mark.rule("M5"), pytest.mark.zookeeper]


@pytest.fixture
def world(zookeeper_ensemble: ZooKeeperEnsemble) -> Iterator[EnsembleLagWorld]:
    made = EnsembleLagWorld(zookeeper_ensemble)
    yield made
    made.close()


async def test_ledger_that_a_task_closed_a_moment_ago_is_published_and_planned(world: EnsembleLagWorld) -> None:
    network = MemoryNetwork("b1", "b2", "b3")
    for name in ("b1", "b2", "b3"):
        await asyncio.to_thread(world.writer.register_bookie, BookieServiceInfo(name))
    instance_id = world.writer.instance_id()
    task = BookKeeper(world.writer, network.transport(), instance_id=instance_id, config=FAST)
    driver = BookKeeper(world.reader, network.transport(), instance_id=instance_id, config=FAST)
    await log_of(driver).create()
    world.lag()
    ledger = await task.create_ledger(password=PASSWORD)
    await ledger.append_batch(EntryBatch.from_list([b"a", b"b"]))
    await ledger.close()
    with pytest.raises(NoNodeError):  # a bare read is old
        await asyncio.to_thread(tree_of(world.reader).get, world.reader._znode_of(ledger.ledger_id))
    extent = new_extent(ledger.ledger_id, 2, 2, fragments=ledger.metadata.fragments)
    assert (await log_of(driver).publish([extent], PublishId.job("x"))).rows == 2
    world.lag()
    await log_of(task).overwrite([], PublishId.job("y"))
    assert (await log_of(driver).head(sync=False)).value.epoch == 0, "a bare read is old"
    assert world.lags
    assert (await log_of(driver).head()).value.epoch == 1
    await driver.transport.close()
    await task.transport.close()


def test_session_that_begins_with_a_server_that_lags_has_all_that_was_done_before(
    world: EnsembleLagWorld, zookeeper_ensemble: ZooKeeperEnsemble
) -> None:
    """Beginning one is a write: that is why nothing needs to sync where it has just connected."""
    world.lag()
    ledger_id, _ = world.writer.create_ledger(a_ledger())
    path = world.reader._znode_of(ledger_id)
    with pytest.raises(NoNodeError):
        tree_of(world.reader).get(path)
    healing = threading.Timer(LET_GO_S, zookeeper_ensemble.heal)
    healing.start()
    with closing(open_store(f"zk://{world.follower.connect_string}{world.root}", timeout_s=8)) as late:
        assert tree_of(late).get(path)[1].version == 0
    healing.join()


def test_held_back_follower_goes_on_serving_reads_and_catches_up(world: EnsembleLagWorld) -> None:
    with pytest.raises(NoSuchLedgerError):
        world.reader.read_ledger(1)
    world.lag()
    ids = [world.writer.create_ledger(a_ledger())[0] for _ in range(20)]
    assert list(world.reader.list_ledgers()) == []
    assert world.lags
    world.reader.sync()
    assert list(world.reader.list_ledgers()) == ids
