# SPDX-License-Identifier: Apache-2.0
"""The place where a group is measured: our cluster and each peer's. Each starts when it is first asked for, and ends
with the world."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from benchmarks.report.figures import Run, VariedBytes
from benchmarks.running.processes import BOOKIES, ZOOKEEPER, Processes
from bk_cli.local.cluster import LocalCluster
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core import client
from bk_core.blocking import BookKeeper, connect
from bk_core.client.config import ClientConfig

BOOKIE_COUNT = 3
Profile = Callable[[str, Callable[[], Run]], None]
Part = TypeVar("Part")


class World:
    """The world of a group; a context manager. ``lane`` is the lane between our client and our bookies."""

    def __init__(self, folder: Path, *, scale: float = 1.0, lane: str = "direct", profiled: bool = False) -> None:
        self.scale, self.lane, self._profiled = scale, lane, profiled
        self.stack, self.processes = ExitStack(), Processes()
        self.during = ExitStack()
        """The resources that end with the current measurement."""
        self._parts = dict[Callable[[World], Any], Any]()
        self.folder = Path(
            self.stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=folder))
        ).absolute()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Open and close the resources of one measurement."""
        with ExitStack() as self.during:
            yield

    def scaled(self, count: float, least: int = 1) -> int:
        """Return the share of ``count`` that is to be measured."""
        return max(least, int(count * self.scale))

    @cached_property
    def data(self) -> VariedBytes:
        return VariedBytes()

    @cached_property
    def zookeeper(self) -> str:
        """The address of ZooKeeper."""
        server = ZooKeeperServer()
        with self.processes.born(ZOOKEEPER):
            address = server.start(self.folder / "zookeeper")
        self.stack.callback(server.stop)
        return address

    @cached_property
    def cluster(self) -> LocalCluster:
        """Three of our bookies."""
        uri = f"zk://{self.zookeeper}/ours/ledgers"
        with self.processes.born(BOOKIES):
            return self.stack.enter_context(
                LocalCluster(self.folder / "ours", bookies=BOOKIE_COUNT, port=0, zookeeper_uri=uri)
            )

    @cached_property
    def bookkeeper(self) -> BookKeeper:
        """Our client on our bookies."""
        return self.stack.enter_context(connect(self.cluster.uri, config=ClientConfig(lanes=self.lane)))

    def of(self, kind: Callable[[World], Part]) -> Part:
        """Return the part of this kind, such as a peer. It is made when it is first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        part: Part = self._parts[kind]
        return part

    @property
    def profile(self) -> Profile | None:
        """A function that runs a measurement once more and prints which functions take its time; None without
        ``--profile``."""
        from benchmarks.running.profiling import profile

        return (lambda name, run: profile(name, run, self.bookkeeper)) if self._profiled else None


def connected(world: World) -> Coroutine[Any, Any, client.BookKeeper]:
    """Return a client with asyncio that has no connection to a bookie yet."""
    return client.connect(world.cluster.uri, config=ClientConfig(lanes=world.lane))
