# SPDX-License-Identifier: Apache-2.0
"""Repairs share their looks at the cluster, and none gets an old one."""

from __future__ import annotations

import asyncio

import pytest

from bk_core.errors import MetadataUnavailableError
from bk_core.model import BookieId
from bk_core.protocol.replication.events import ClusterRead
from bookie_server.autorecovery.worker import SharedLook


class Cluster:
    """Each look waits to be let go, and sees which bookies there were when it began."""

    def __init__(self) -> None:
        self.bookies: tuple[BookieId, ...] = ("b1",)
        self.asked: list[tuple[BookieId, ...]] = []
        self.goes_on = asyncio.Event()
        self.fails = False

    async def look(self, named: tuple[BookieId, ...]) -> ClusterRead:
        self.asked.append(named)
        seen = self.bookies
        await self.goes_on.wait()
        if self.fails:
            raise MetadataUnavailableError("away")
        return ClusterRead(seen)


async def _a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_asks_while_a_look_is_under_way_gets_the_next_one_together_with_others() -> None:
    cluster = Cluster()
    shared = SharedLook(cluster.look)
    first = asyncio.create_task(shared(("x",)))
    await _a_moment()
    cluster.bookies = ("b1", "b2")
    later = [asyncio.create_task(shared((name,))) for name in ("y", "z", "y")]
    await _a_moment()
    later[1].cancel()
    await _a_moment()
    assert cluster.asked == [("x",)], "one at a time"
    cluster.goes_on.set()
    assert (await first).writable == ("b1",)
    assert [(await each).writable for each in (later[0], later[2])] == [("b1", "b2")] * 2
    assert cluster.asked == [("x",), ("y", "z")], "one who gave up takes nobody along"
    cluster.bookies = ()
    assert (await shared(())).writable == (), "nothing is kept"
    assert cluster.asked[2:] == [()]
    await shared.stop()


async def test_a_look_that_fails_fails_for_those_who_shared_it_and_a_stop_leaves_none() -> None:
    cluster = Cluster()
    shared = SharedLook(cluster.look)
    cluster.fails = True
    asking = [asyncio.create_task(shared(())) for _ in range(2)]
    await _a_moment()
    cluster.goes_on.set()
    for each in asking:
        with pytest.raises(MetadataUnavailableError):
            await each
    cluster.fails = False
    await shared(())
    cluster.goes_on.clear()
    left = asyncio.create_task(shared(()))
    await _a_moment()
    left.cancel()
    await shared.stop()
    assert [task for task in asyncio.all_tasks() if "_take" in repr(task)] == []
