# SPDX-License-Identifier: Apache-2.0
"""The first start of a cluster's bookies: who makes the cluster, and who must not."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.errors import NoClusterError
from bk_core.metadata import open_store
from bookie_server.main import Bookie
from tests.kit.lanes import bookie_config
from tests.kit.memory_store import MemoryCluster, MemoryStore


def test_a_bookie_without_a_cluster_says_so_and_touches_nothing(tmp_path: Path, uri: str) -> None:
    with pytest.raises(NoClusterError, match="bk cluster init"):
        asyncio.run(Bookie.start(bookie_config(tmp_path / "data", uri)))
    assert not (tmp_path / "data").exists()
    store = open_store(uri)
    with pytest.raises(NoClusterError):
        store.instance_id()
    store.close()


async def test_bookies_that_may_make_the_cluster_start_together_and_are_of_one(tmp_path: Path, uri: str) -> None:
    configs = [bookie_config(tmp_path / str(number), uri) for number in range(3)]
    bookies = await asyncio.gather(*(Bookie.start(each, init_cluster=True) for each in configs))
    store = open_store(uri)
    assert len(store.writable_bookies()) == 3
    for bookie in bookies:
        await bookie.stop()
    store.close()
    for each in configs:  # a bookie of another cluster would be refused now
        await (await Bookie.start(each)).stop()


async def test_a_bookie_with_data_makes_no_second_cluster_when_the_firsts_metadata_is_gone(
    tmp_path: Path, uri: str
) -> None:
    """Nor does it say how to make one: the new cluster would refuse this bookie, and be in the way of the backup."""

    config = bookie_config(tmp_path, uri)
    await (await Bookie.start(config, init_cluster=True)).stop()
    emptied = MemoryStore(MemoryCluster(), uri=uri)
    with pytest.raises(NoClusterError) as caught:
        await Bookie.start(config, emptied, init_cluster=True)
    assert str(tmp_path) in str(caught.value)
    assert "backup" in caught.value.remedy
    assert "bk cluster init" not in str(caught.value)


async def test_one_used_directory_among_several_is_data(tmp_path: Path, uri: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    await (await Bookie.start(bookie_config(first, uri), init_cluster=True)).stop()
    config = replace(bookie_config(tmp_path, uri), data_dir=None, data_dirs=(second, first / "bookie"))
    with pytest.raises(NoClusterError, match=str(first)):
        await Bookie.start(config, MemoryStore(MemoryCluster(), uri=uri), init_cluster=True)
    shutil.rmtree(first)
    emptied = MemoryCluster()
    await (await Bookie.start(config, MemoryStore(emptied, uri=uri), init_cluster=True)).stop()
    assert MemoryStore(emptied).instance_id()
