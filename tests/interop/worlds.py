# SPDX-License-Identifier: Apache-2.0
"""A cluster with bookies of both kinds, each of which can be killed, stopped and started again by itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from bk_cli.local.cluster import BookieProcess
from bk_cli.local.cluster_layout import free_bookie_ports
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import BookKeeperError
from tests.interop.jars import KitError, toolchain
from tests.interop.peer_client import PeerClient
from tests.interop.peers import ApacheBookie, ApacheCluster
from tests.interop.secured import Secured
from tests.kit.certificates import java_settings

READY_S = 60.0
_POLL_S = 0.05


class AnyBookie(Protocol):
    """A bookie of either kind."""

    bookie_id: str
    is_ours: bool

    def kill(self) -> None:
        """End the process with ``kill -9``."""

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""

    def resume(self) -> None:
        """Continue the process with SIGCONT."""

    def start(self) -> None:
        """Start the bookie again after a kill, and wait until it serves."""

    @property
    def log_path(self) -> Path: ...


class OurBookie:
    """A bookie of ours as a process."""

    is_ours = True

    def __init__(self, process: BookieProcess) -> None:
        self._process, self.bookie_id = process, process.bookie_id

    @property
    def log_path(self) -> Path:
        return self._process.log_path

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def submit_start(self) -> None:
        self._process.start()

    def start(self) -> None:
        self._process.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self._process.is_ready:
            if not self._process.is_running or time.monotonic() > deadline:
                raise KitError("our bookie does not start", value=str(self.log_path))
            time.sleep(_POLL_S)

    def close(self) -> None:
        self._process.kill()


class TheirBookie:
    """A bookie of Apache's in a JVM of its own."""

    is_ours = False

    def __init__(self, bookie: ApacheBookie) -> None:
        self._bookie, self.bookie_id = bookie, bookie.bookie_id

    @property
    def log_path(self) -> Path:
        return self._bookie.log_path

    def kill(self) -> None:
        self._bookie.kill()

    def pause(self) -> None:
        self._bookie.pause()

    def resume(self) -> None:
        self._bookie.resume()

    def start(self) -> None:
        self._bookie.start()


class MixedCluster:
    """Bookies of both kinds below one ledgers root, which Apache's code made; a context manager. ``apache`` has the
    version of each of Apache's bookies. With ``secured`` all bookies require certificates, and ours also roles."""

    def __init__(
        self, zookeeper: str, path: Path, *, ours: int, apache: Sequence[str], secured: Secured | None = None
    ) -> None:
        self.path, self.uri, self.secured = path, "", secured
        self.ours: list[OurBookie] = []
        self.theirs: list[TheirBookie] = []
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
            self.ours = [self._our_bookie(number) for number in range(1, ours + 1)]
            with ThreadPoolExecutor(max_workers=len(hosts)) as threads:
                for (bookie,) in threads.map(lambda host: host.start(1, conf), hosts):
                    self.theirs.append(TheirBookie(bookie))
            for ours_ in self.ours:
                ours_.wait_ready()
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

    def _our_bookie(self, number: int) -> OurBookie:
        (port,) = free_bookie_ports(1)
        settings = None if self.secured is None else self.secured.ours()
        bookie = OurBookie(BookieProcess(number, self.path / f"bookie-{number}", port, self.uri, settings))
        self._stack.callback(bookie.close)
        bookie.submit_start()
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
