# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes, whose ZooKeeper and whose bookies' settings a test chooses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from bk_cli.local.children import last_lines
from bk_cli.local.cluster import BookieProcess
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import NotEnoughBookiesError

READY_S = 60.0
POLL_S = 0.02


def wait_ready(bookies: Sequence[BookieProcess], within_s: float = READY_S) -> None:
    """Wait until these bookies, which were started, serve. Raises NotEnoughBookiesError with the end of a log."""
    deadline = time.monotonic() + within_s
    while waiting := [bookie for bookie in bookies if not bookie.is_ready]:
        ended = [bookie for bookie in waiting if not bookie.is_running]
        if ended or time.monotonic() > deadline:
            bookie = (ended or waiting)[0]
            said = last_lines(bookie.log_path)
            raise NotEnoughBookiesError(f"bookie {bookie.number} does not serve, {bookie.exit_code}", value=said)
        time.sleep(POLL_S)


class ProcessCluster:
    """ZooKeeper and bookies in the folder ``path``, on free ports; a context manager."""

    def __init__(self, path: Path, zookeeper: ZooKeeperServer, bookies: int, settings: Mapping[str, object]) -> None:
        self.path, self.zookeeper = path, zookeeper
        self._count, self._settings = bookies, settings
        self.bookies: list[BookieProcess] = []
        self.uri = ""

    def settings_of(self, number: int) -> Mapping[str, object]:
        """Return the settings of a bookie."""
        return self._settings

    @property
    def address(self) -> str:
        """The address of ZooKeeper for bookies and clients."""
        return self.zookeeper.connect_string

    def __enter__(self) -> Self:
        try:
            self.zookeeper.start(self.path / "zookeeper")
            self.uri = f"zk://{self.address}/ledgers"
            self.bookies = [
                BookieProcess(number, self.path / f"bookie-{number}", port, self.uri, self.settings_of(number))
                for number, port in enumerate(free_bookie_ports(self._count), start=1)
            ]
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the bookies that do not run, and wait until all of them serve."""
        for bookie in self.bookies:
            if not bookie.is_running:
                bookie.start()
        wait_ready(self.bookies)

    def stop_bookies(self) -> list[int]:
        """Stop them cleanly, and return their exit codes. A second SIGTERM would end one that has all but ended."""
        for bookie in self.bookies:
            bookie.terminate()
        deadline = time.monotonic() + READY_S
        while any(bookie.is_running for bookie in self.bookies) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return [bookie.stop() for bookie in self.bookies]

    def stop(self) -> None:
        self.stop_bookies()
        self.zookeeper.stop()
