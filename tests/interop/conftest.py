# SPDX-License-Identifier: Apache-2.0
"""Fixtures with Apache's cluster and client for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.interop.jars import MAIN, toolchain
from tests.interop.peer_client import JavaClient, PeerClient
from tests.interop.peers import ApacheCluster


@pytest.fixture(scope="module")
def apache(
    request: pytest.FixtureRequest, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    """Yield three bookies in one JVM, of the main peer, or of the version that a test requests by its parameter."""
    version = getattr(request, "param", MAIN)
    path = tmp_path_factory.mktemp(f"apache-{version}")
    with ApacheCluster(toolchain(version), zookeeper_server.connect_string, path) as cluster:
        cluster.start(3)
        yield cluster


@pytest.fixture(scope="module")
def peer(apache: ApacheCluster) -> PeerClient:
    """Yield a JVM with the client library of the same version."""
    return apache.peer_client()


@pytest.fixture(scope="module")
def java(apache: ApacheCluster, peer: PeerClient) -> JavaClient:
    """Yield a client of these bookies in that JVM."""
    return peer.client(apache.uri)
