# SPDX-License-Identifier: Apache-2.0
"""Clusters of real processes for the tests of a module or a session, which leave nothing on disk when they end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bk_cli.local.cluster import LocalCluster
from tests.kit import canaries


@contextmanager
def temporary_cluster(factory: pytest.TempPathFactory, bookies: int = 4) -> Iterator[LocalCluster]:
    """Run ZooKeeper and ``bookies`` bookies on free ports. At the end, their half gigabyte of segments each is deleted:
    pytest keeps a factory's directories to the end of its run, and together they filled the disk until bookies turned
    read-only."""
    path = factory.mktemp("cluster")
    with LocalCluster(path, bookies=bookies, port=0, zookeeper_port=0) as running:
        yield running
    canaries.check(path)
    shutil.rmtree(path)
