# SPDX-License-Identifier: Apache-2.0
"""Clusters of real processes for the tests of a module or a session. When they end, they leave nothing on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bk_cli.local.cluster import LocalCluster
from tests.kit import canaries


@contextmanager
def temporary_cluster(factory: pytest.TempPathFactory, bookies: int = 4) -> Iterator[LocalCluster]:
    """Run ZooKeeper and ``bookies`` bookies on free ports, and delete their files at the end. The segments of each
    bookie take half a gigabyte, and pytest would keep them to the end of its run and fill the disk, so that bookies
    turn read-only."""
    path = factory.mktemp("cluster")
    with LocalCluster(path, bookies=bookies, port=0, zookeeper_port=0) as running:
        yield running
    canaries.check(path)
    shutil.rmtree(path)
