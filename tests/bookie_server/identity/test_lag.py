# SPDX-License-Identifier: Apache-2.0
"""A bookie that starts while its metadata server does not know yet what it noted at its last start."""

from __future__ import annotations

import pytest

from bk_core.errors import BookieIdentityError
from tests.kit.directories_world import IN_A, A, bookie, session, write
from tests.kit.memory_store import MemoryCluster
from tests.kit.segment_world import entries
from tests.sim.disk import SimDisk

pytestmark = pytest.mark.rule("M5", "S8")


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster()
    with session(made) as store:
        store.initialize_cluster()
    return made


def test_older_copy_of_a_directory_is_refused_though_the_server_knows_of_no_newer_one(cluster: MemoryCluster) -> None:
    """Taken for the newest it would deny what it acknowledged since."""
    disk = SimDisk()
    with bookie(cluster, disk, A):
        pass
    copy, behind = disk.snapshot(), cluster.copy()
    with bookie(cluster, disk, A) as opened:
        write(opened[A], entries(IN_A, range(10)))
    disk.restore(copy)
    with pytest.raises(BookieIdentityError, match="boot"), bookie(cluster, disk, A, behind=behind):
        pass


def test_directory_that_was_used_a_moment_ago_starts_though_the_server_knows_no_cookie(cluster: MemoryCluster) -> None:
    behind, disk = cluster.copy(), SimDisk()
    with bookie(cluster, disk, A) as opened:
        write(opened[A], entries(IN_A, range(10)))
    with bookie(cluster, disk, A, behind=behind) as opened:
        assert opened[A].index.folded(IN_A)[0] is not None
