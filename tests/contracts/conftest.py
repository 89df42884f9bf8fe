# SPDX-License-Identifier: Apache-2.0
"""The adapters of each port, as parameters of its suite."""

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
    """Make a cluster for one test, not yet initialised."""
    if request.param == "memory":
        world: MetadataWorld = MemoryWorld()
    else:
        server = request.getfixturevalue("zookeeper_server")
        world = ZooKeeperWorld(server.host, server.port)
    yield world
    world.close()


@pytest.fixture(params=["memory", pytest.param("ensemble", marks=pytest.mark.zookeeper)])
def lag_world(request: pytest.FixtureRequest) -> Iterator[LagWorld]:
    """Make a cluster with a client whose server can be made to lag."""
    if request.param == "memory":
        world: LagWorld = MemoryLagWorld()
    else:
        world = EnsembleLagWorld(request.getfixturevalue("zookeeper_ensemble"))
    yield world
    world.close()


@pytest.fixture
def store(metadata_world: MetadataWorld) -> MetadataStore:
    """Open a store of that cluster, and initialise it."""
    opened = metadata_world.open()
    opened.initialize_cluster()
    return opened
