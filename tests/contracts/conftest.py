# SPDX-License-Identifier: Apache-2.0
"""Each port's adapters, as parameters of its suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_core.metadata.port import MetadataStore
from tests.kit.metadata_worlds import (
    EnsembleLagWorld,
    LagWorld,
    MemoryLagWorld,
    MemoryWorld,
    MetadataWorld,
    ZooKeeperWorld,
)


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def metadata_world(request: pytest.FixtureRequest) -> Iterator[MetadataWorld]:
    """A cluster of its own for each test, not yet initialised."""
    if request.param == "memory":
        world: MetadataWorld = MemoryWorld()
    else:
        server = request.getfixturevalue("zookeeper_server")
        world = ZooKeeperWorld(server.host, server.port)
    yield world
    world.close()


@pytest.fixture(params=["memory", pytest.param("ensemble", marks=pytest.mark.zookeeper)])
def lag_world(request: pytest.FixtureRequest) -> Iterator[LagWorld]:
    """A cluster whose one client is with a server that can be made to lag."""
    if request.param == "memory":
        world: LagWorld = MemoryLagWorld()
    else:
        world = EnsembleLagWorld(request.getfixturevalue("zookeeper_ensemble"))
    yield world
    world.close()


@pytest.fixture
def store(metadata_world: MetadataWorld) -> MetadataStore:
    """A store of that cluster, initialised."""
    opened = metadata_world.open()
    opened.initialize_cluster()
    return opened
