# SPDX-License-Identifier: Apache-2.0
"""A real cluster on this machine: ZooKeeper and four bookies as processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_cli.local.cluster import LocalCluster
from tests.kit.clusters import temporary_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with temporary_cluster(tmp_path_factory) as running:
        yield running
