# SPDX-License-Identifier: Apache-2.0
"""A cluster with bookies of both kinds, each of which can be killed, stopped and started again by itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from bk_cli.local.cluster import BookieProcess
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import BookKeeperError
from tests.interop.jars import KitError, toolchain
from tests.interop.peer_client import PeerClient
from tests.interop.peers import ApacheBookie, ApacheCluster
from tests.interop.secured import Secured
from tests.kit.certificates import java_settings
from tests.kit.process_cluster import wait_ready


class OurBookie(BookieProcess):
    """A bookie of ours as a process."""

    is_ours = True

    def pause(self) -> None:
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.pid is not None
        os.kill(self.pid, signal.SIGCONT)

    def start(self) -> None:
        super().start()
        wait_ready([self])


AnyBookie: TypeAlias = OurBookie | ApacheBookie


class MixedCluster:
    """Bookies of both kinds below one ledgers root, which Apache's code made; a context manager. ``apache`` has the
    version of each of Apache's bookies. With ``secured`` all bookies require certificates, and ours also roles."""

    def __init__(
        self, zookeeper: str, path: Path, *, ours: int, apache: Sequence[str], secured: Secured | None = None
    ) -> None:
        self.path, self.uri, self.secured = path, "", secured
        self.ours: list[OurBookie] = []
        self.theirs: list[ApacheBookie] = []
        self._stack = contextlib.ExitStack()
        self._peers: dict[str, PeerClient] = {}
        path.mkdir(parents=True, exist_ok=True)
        try:
            hosts = []
            for number, version in enumerate(apache, start=1):
                folder = path / f"apache-{number}-{version}"
                made = ApacheCluster(toolchain(version), zookeeper, folder, uri=self.uri)
                hosts.append(self._stack.enter_context(made))
                self.uri = made.uri
            if secured is not None:
                secured.give_roles(self.uri)
            conf = None if secured is None else secured.apaches()
            ports = free_bookie_ports(ours)
            self.ours = [self._our_bookie(number, port) for number, port in enumerate(ports, start=1)]
            with ThreadPoolExecutor() as threads:
                starts = [threads.submit(bookie.start) for bookie in self.ours]
                for (bookie,) in threads.map(lambda host: host.start(1, conf), hosts):
                    self.theirs.append(bookie)
                for start in starts:
                    start.result()
        except BaseException:
            self.close()
            raise

    @property
    def bookies(self) -> list[AnyBookie]:
        return [*self.ours, *self.theirs]

    @property
    def our_client(self) -> dict[str, Any]:
        """The security settings of a client of ours."""
        return {} if self.secured is None else self.secured.client.settings(security="mixed")

    @property
    def their_client(self) -> dict[str, object]:
        """The security settings of a client of Apache's."""
        return {} if self.secured is None else java_settings(self.secured.client)

    def peer(self, version: str) -> PeerClient:
        """Return the JVM for clients of a version."""
        if version not in self._peers:
            made = PeerClient(toolchain(version), self.path / f"client-{version}.log")
            self._peers[version] = self._stack.enter_context(made)
        return self._peers[version]

    def _our_bookie(self, number: int, port: int) -> OurBookie:
        settings = None if self.secured is None else self.secured.ours()
        bookie = OurBookie(number, self.path / f"bookie-{number}", port, self.uri, settings)
        self._stack.callback(bookie.kill)
        return bookie

    def close(self) -> None:
        """End everything that was started here. Directories and logs stay."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def mixed_cluster(path: Path, *, ours: int, apache: Sequence[str], secure: bool = False) -> Iterator[MixedCluster]:
    """Run a cluster with a ZooKeeper of its own. On a busy machine a start may time out, so it is tried three times."""
    zookeeper, cluster = _started(path, ours, apache, secure)
    try:
        with cluster:
            yield cluster
    finally:
        zookeeper.stop()


def _started(folder: Path, ours: int, apache: Sequence[str], secure: bool) -> tuple[ZooKeeperServer, MixedCluster]:
    for last_try in (False, False, True):
        zookeeper = ZooKeeperServer(tick_ms=200, durable=False)
        try:
            where = zookeeper.start(folder / "zookeeper")
            secured = Secured(folder / "security") if secure else None
            return zookeeper, MixedCluster(where, folder / "cluster", ours=ours, apache=apache, secured=secured)
        except (BookKeeperError, KitError):
            zookeeper.stop()
            if last_try:
                raise
            shutil.rmtree(folder)
    raise AssertionError("not reached")
