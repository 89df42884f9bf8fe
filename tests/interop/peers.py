# SPDX-License-Identifier: Apache-2.0
"""Apache's bookies on loopback, and Apache's command-line programs against them.

::

    with ApacheCluster(toolchain("4.17.3"), zookeeper.connect_string, tmp_path) as cluster:
        cluster.start(3)                    # three bookies in one JVM
        mortal = cluster.add_bookie()       # one in a JVM of its own
        mortal.kill()
        mortal.start()
        print(cluster.shell("listbookies", "-rw").checked())
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from bk_cli.local.children import free_ports
from bk_core.metadata.layout import parse_service_uri
from tests.interop.jars import KitError, Toolchain
from tests.interop.java_process import QUICK, START_S, Daemon, Finished, JavaProgram, run_main
from tests.interop.peer_client import PeerClient

SESSION_TIMEOUT_MS = 4000
SHELL_S = 60.0
_MIB = 1024 * 1024
_ANY_PORT = 3181  # for a configuration without a bookie, because Apache's check requires a port

_CONF: Mapping[str, object] = {
    "advertisedAddress": "127.0.0.1",
    "allowLoopback": "true",
    "zkTimeout": SESSION_TIMEOUT_MS,
    "journalSyncData": "true",
    "journalPreAllocSizeMB": 4,
    "journalMaxSizeMB": 64,
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "skipListSizeLimit": 8 * _MIB,  # a bookie holds two lists, and several bookies share a small heap
    "diskCheckInterval": 3_600_000,  # each check of a disk with room ends the read-only mode that a test set
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
    "minUsableSizeForEntryLogCreation": 0,
    "isForceGCAllowWhenNoSpace": "true",
    "numReadWorkerThreads": 2,
    "numHighPriorityWorkerThreads": 2,
    "serverNumIOThreads": 2,
    "autoRecoveryDaemonEnabled": "false",
    "gcWaitTime": 60_000,
}

_SOON: Mapping[str, object] = {
    "openLedgerRereplicationGracePeriod": 1000,
    "lockReleaseOfFailedLedgerGracePeriod": 1000,
    "rwRereplicateBackoffMs": 500,
    "statisticsEnabled": "false",
    "httpServerEnabled": "false",
}
"""Short waits of autorecovery for tests. The defaults are half a minute for some and five minutes for others."""

APACHE_WAITS: Mapping[str, object] = {
    "openLedgerRereplicationGracePeriod": 30_000,
    "lockReleaseOfFailedLedgerGracePeriod": 300_000,
    "rwRereplicateBackoffMs": 5000,
    "zkTimeout": 10_000,
}
"""The defaults of these settings, for :meth:`ApacheCluster.autorecovery`."""


class ApacheBookie:
    """One bookie, made by :class:`ApacheCluster`. Its directory outlives stops and kills."""

    is_ours = False

    def __init__(self, cluster: ApacheCluster, host: JavaProgram, conf_path: Path, port: int) -> None:
        self._cluster, self._host, self.conf_path, self.port = cluster, host, conf_path, port
        self.bookie_id = ""  # known once the bookie has started

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def log_path(self) -> Path:
        return self._host.log_path

    def submit_start(self) -> Future[dict[str, Any]]:
        return self._host.submit("start", conf=str(self.conf_path))

    def started(self, answer: Future[dict[str, Any]]) -> None:
        """Wait until the bookie is registered and serves."""
        self.bookie_id = self._host.result(answer, START_S, "start")["bookie"]

    def start(self) -> None:
        """Start the bookie again, after a stop or a kill."""
        if not self._host.is_running:
            self._host = self._cluster.new_host(self.conf_path.stem)
        self.started(self.submit_start())

    def stop(self) -> None:
        """Stop the bookie in order, as SIGTERM does."""
        self._host.call("stop", conf=str(self.conf_path))

    def kill(self) -> None:
        """End the bookie with ``kill -9``. Raises KitError if its JVM has other bookies."""
        self._check_alone()
        self._host.kill()

    def pause(self) -> None:
        """Stop the bookie until :meth:`resume`, as if its machine hung. Raises KitError if its JVM has other
        bookies."""
        self._check_alone()
        self._host.pause()

    def resume(self) -> None:
        self._host.resume()

    def set_read_only(self, on: bool) -> None:
        """Move the running bookie to read-only mode or back."""
        assert self._host.call("read_only", conf=str(self.conf_path), on=on)["read_only"] is on

    def _check_alone(self) -> None:
        if sum(other._host is self._host for other in self._cluster.bookies) > 1:
            raise KitError("other bookies live in this JVM", remedy="take one from ApacheCluster.add_bookie")


class ApacheCluster:
    """Bookies of one version below a ledgers root of their own. The constructor lets Apache's code make the root,
    unless ``uri`` names one that exists."""

    def __init__(
        self, tools: Toolchain, zookeeper: str, path: Path, *, uri: str = "", flags: Sequence[str] = QUICK
    ) -> None:
        """Make the cluster without bookies. ``zookeeper`` is ``host:port``; ``path`` gets directories, configurations
        and logs."""
        self.tools, self.path, self._flags = tools, path, flags
        self.uri = uri or f"zk+hierarchical://{zookeeper}/apache-{uuid.uuid4().hex[:8]}/ledgers"
        self.bookies: list[ApacheBookie] = []
        self._hosts: list[JavaProgram] = []
        self._clients: list[PeerClient] = []
        path.mkdir(parents=True, exist_ok=True)
        self._shell: JavaProgram | None = None
        self._first_host = self.new_host("bookies")
        if not uri:
            try:
                self.format(self.uri)
            except BaseException:
                self.close()
                raise

    def format(self, uri: str) -> None:
        """Let Apache's code make a cluster's records at ``uri``, as ``initnewcluster`` does. It does not make the node
        above the root."""
        kazoo = KazooClient(uri.split("/")[2], timeout=SESSION_TIMEOUT_MS / 1000)
        kazoo.start(START_S)
        try:
            kazoo.ensure_path(parse_service_uri(uri).root.rpartition("/")[0])
        finally:
            kazoo.stop()
            kazoo.close()
        conf = self._write_conf("format", _ANY_PORT, {"metadataServiceUri": uri})
        if not self._first_host.call("format", within_s=START_S, conf=str(conf))["made"]:
            raise KitError("Apache's code could not make a cluster", value=uri)

    def start(self, count: int, conf: Mapping[str, object] | None = None) -> list[ApacheBookie]:
        """Start ``count`` bookies at once, all in the cluster's first JVM."""
        ports = free_ports(count)
        made = [self._new_bookie(self._first_host, port, conf or {}) for port in ports]
        for bookie, answer in [(bookie, bookie.submit_start()) for bookie in made]:
            bookie.started(answer)
        return made

    def add_bookie(self, conf: Mapping[str, object] | None = None) -> ApacheBookie:
        """Start a bookie in a JVM of its own, so that it can be killed."""
        (port,) = free_ports(1)
        bookie = self._new_bookie(self.new_host(f"bookie-{port}"), port, conf or {})
        bookie.started(bookie.submit_start())
        return bookie

    def peer_client(self, tools: Toolchain | None = None) -> PeerClient:
        """Return a JVM with a client of this version, or of another. It ends with the cluster."""
        self._clients.append(PeerClient(tools or self.tools, self.path / f"client-{len(self._clients)}.log"))
        return self._clients[-1]

    def shell(self, *arguments: str, port: int = 0, within_s: float = SHELL_S) -> Finished:
        """Run a command of ``BookieShell`` with the configuration of the bookie at ``port``, one of ours or of
        Apache's. All commands of a cluster run in one JVM."""
        port = port or (self.bookies[0].port if self.bookies else _ANY_PORT)
        if self._shell is None:
            self._shell = JavaProgram(self.tools, "AdminShell", self.path / "shell.log", QUICK)
        conf = self.path / f"bookie-{port}.conf"
        if not conf.exists():
            self._write_conf(conf.stem, port, {})
        said = self._shell.call("shell", within_s=within_s, conf=str(conf), arguments=arguments)
        return Finished(said["code"], said["output"])

    def autorecovery(self, conf: Mapping[str, object] | None = None) -> Daemon:
        """Start an Auditor and a ReplicationWorker, as Apache's main class does, with short waits. The caller ends
        them."""
        path = self._write_conf("autorecovery", _ANY_PORT, {**_SOON, **(conf or {})})
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        return Daemon(self.tools, main, ["--conf", str(path)], self.path / "autorecovery.log")

    def benchmark(self, name: str, *arguments: str, within_s: float, flags: Sequence[str] = QUICK) -> Finished:
        """Run a class of Apache's benchmarks (``BenchThroughputLatency``). Raises KitError if this version has none."""
        if not self.tools.has_benchmark:
            raise KitError("Apache published no benchmark programs", value=self.tools.version)
        main = f"org.apache.bookkeeper.benchmark.{name}"
        return run_main(self.tools, main, arguments, within_s=within_s, flags=flags)

    @property
    def servers(self) -> str:
        """The value of ``-zookeeper`` for Apache's benchmarks, which append ``/ledgers`` to it."""
        return self.uri.partition("://")[2].removesuffix("/ledgers")

    def close(self) -> None:
        """Kill everything that was started here. Directories and logs stay."""
        for program in self._programs:
            program.kill()

    def end(self, within_s: float) -> None:
        """Wait until each program that was started here has ended by itself."""
        for program in self._programs:
            program.close(within_s)

    @property
    def _programs(self) -> list[JavaProgram]:
        return [*self._clients, *self._hosts, *filter(None, [self._shell])]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def new_host(self, name: str) -> JavaProgram:
        """Start a JVM for bookies."""
        host = JavaProgram(self.tools, "BookieHost", self.path / f"{name}.log", self._flags)
        self._hosts.append(host)
        return host

    def _new_bookie(self, host: JavaProgram, port: int, conf: Mapping[str, object]) -> ApacheBookie:
        bookie = ApacheBookie(self, host, self._write_conf(f"bookie-{port}", port, conf), port)
        self.bookies.append(bookie)
        return bookie

    def _write_conf(self, name: str, port: int, conf: Mapping[str, object]) -> Path:
        folder = self.path / name
        values = {
            **_CONF,
            "metadataServiceUri": self.uri,
            "bookiePort": port,
            "journalDirectories": folder / "journal",
            "ledgerDirectories": folder / "ledgers",
            **conf,
        }
        path = self.path / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        return path
