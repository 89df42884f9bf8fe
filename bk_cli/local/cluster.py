# SPDX-License-Identifier: Apache-2.0
"""A cluster on this machine: a real ZooKeeper, and bookies of ours or of Apache's. Each is a process of its own; all
share one data directory.

``bk local``, the demo, the benchmarks and the tests run it. However this process ends, its children end with it (RULES
E4). It listens on loopback only, so that only this machine can connect (RULES E3).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from bk_cli.access import Access
from bk_cli.local import cluster_layout
from bk_cli.local.apache_jars import find_jars
from bk_cli.local.children import check_port_free, child_environment, last_lines
from bk_cli.local.cluster_layout import HOST, PORTS_ABOVE, WantedCluster
from bk_cli.local.java import find_java
from bk_cli.local.local_security import ADMIN, CLIENT, LocalSecurity
from bk_cli.local.zookeeper_server import ServerTls, ZooKeeperServer
from bk_core.errors import MetadataConflictError, NotEnoughBookiesError, PortInUseError
from bk_core.metadata.port import MetadataStore

LEDGERS_ROOT = "/ledgers"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
FOLLOW_S = 0.05
"""The seconds between two looks while a command waits for a process."""

APACHE_JAVA = (
    *("-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    *("-Djava.net.preferIPv4Stack=true", "-Dio.netty.tryReflectionSetAccessible=true"),
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "java.io", "java.util.zip", "sun.nio.ch")
    ),
)
"""Options of a bookie's Java. Several Javas share a developer's machine, and one lives for minutes."""
APACHE_SETTINGS: Mapping[str, object] = {
    "journalPreAllocSizeMB": 4,
    "journalMaxSizeMB": 64,
    "skipListSizeLimit": 8 << 20,  # a bookie holds two of them
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
    "minUsableSizeForEntryLogCreation": 0,
    "zkTimeout": 10_000,
}
"""Settings of Apache's bookies for a developer's machine. Apache's defaults are for the disks of servers."""


class BookieProcess:
    """A process of one bookie. ``settings`` are settings in addition to those that this class gives it. Its data stays
    when it ends, and it can be started again."""

    def __init__(
        self, number: int, data_dir: Path, port: int, uri: str, settings: Mapping[str, object] | None = None
    ) -> None:
        self.number, self.data_dir, self.port, self._uri = number, data_dir, port, uri
        self.config_path: Path | None = None
        if settings is not None:
            self.configure(settings)
        self.log_path = data_dir.parent / "logs" / f"bookie-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def bookie_id(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """The exit code (negative: the signal that ended it), or None while it runs or if it never ran."""
        return self._process.poll() if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports on which the bookie listens."""
        return self.port, *(self.port + above for above in PORTS_ABOVE)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Use these settings from the next start on."""
        self.config_path = self.data_dir.parent / f"bookie-{self.number}.toml"
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        self.config_path.write_text("".join(lines), encoding="utf-8")

    def check_ports_free(self) -> None:
        """Check that the bookie's ports are free. Raises PortInUseError."""
        for port in self.ports:
            check_port_free(HOST, port, f"bookie {self.number}")

    def start(self) -> None:
        """Start the process. The bookie serves once it has registered (:meth:`LocalCluster.wait_ready`). Raises
        PortInUseError."""
        self.check_ports_free()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,  # the lifeline: the kernel closes it however this process ends
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is for the parent, which stops its children in order
            )

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "bk_cli.main", "bookie", "run", "--lifeline-fd", "0", "--allow-loopback"]
        command += ["--data", str(self.data_dir), "--port", str(self.port), "--metadata-service-uri", self._uri]
        command += ["--listen-address", HOST, "--advertised-address", HOST, "--init-cluster"]
        return command if self.config_path is None else [*command, "--config", str(self.config_path)]

    @property
    def is_ready(self) -> bool:
        """Whether the bookie has reported since its last start that it serves. Its registration does not show this,
        because after SIGKILL the node of the previous start remains until its session ends."""
        return any(line.startswith(b"ready ") for line in self._said())

    def _said(self) -> Iterator[bytes]:
        """Yield the lines of its log since its last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            yield from log

    def terminate(self) -> None:
        """Ask the process to stop cleanly, and do not wait."""
        if self.is_running and self._process:
            self._process.terminate()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop the process cleanly, or by force after ``timeout_s``. Return its exit code."""
        if self._process is None:
            return 0
        self.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._reap()

    def kill(self) -> None:
        """Kill the process with SIGKILL. Data that is not on disk is lost, as in a crash."""
        if self.is_running and self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process is not None:
            self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        code = self._process.wait()
        self._process.stdin.close()
        return code


class ApacheBookieProcess(BookieProcess):
    """A process of one of Apache's bookies, in a Java of its own."""

    def __init__(self, number: int, data_dir: Path, port: int, uri: str, class_path: str) -> None:
        super().__init__(number, data_dir, port, uri)
        self._class_path = class_path

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,)

    def _command(self) -> list[str]:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        settings = {
            "metadataServiceUri": self._uri,
            "bookiePort": self.port,
            "advertisedAddress": HOST,
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "journalDirectories": self.data_dir / "journal",
            "ledgerDirectories": self.data_dir / "ledgers",
            **APACHE_SETTINGS,
        }
        conf = self.data_dir / "bookie.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        java = [find_java().path, *APACHE_JAVA, "-cp", self._class_path]
        return [
            sys.executable,
            "-m",
            "bk_cli.local.lifeline",
            *java,
            "org.apache.bookkeeper.server.Main",
            "-c",
            str(conf),
        ]

    @property
    def is_ready(self) -> bool:
        """Whether the bookie listens; it does so only once it has registered."""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False

    def kill(self) -> None:
        """Kill the Java process, and wait until its port is free. The process is a child of our child, so only the port
        shows when it is gone."""
        super().kill()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while True:
            try:
                return self.check_ports_free()
            except PortInUseError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(FOLLOW_S)


class LocalCluster:
    """ZooKeeper and ``bookies`` bookies with their data in ``data_dir``; a context manager that starts and stops them.

    ``zookeeper_uri`` uses a running ZooKeeper instead of starting one. Ports count up from ``port``; 0 takes free ones.
    With ``apache`` the bookies are Apache's. With ``secure`` all ports are of mode secure, and the certificates are
    made here. All of these are for the first start only: the directory keeps them, and later starts refuse other
    values. ``settings`` are more settings of each of our bookies. ``note`` is called with one line about each step that
    takes time.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        bookies: int | None = None,
        port: int | None = None,
        zookeeper_port: int | None = None,
        zookeeper_uri: str | None = None,
        apache: bool = False,
        secure: bool = False,
        settings: Mapping[str, object] | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._wanted = WantedCluster(bookies, port, zookeeper_port, zookeeper_uri, apache, secure)
        self._zookeeper_uri, self._note, self._settings = zookeeper_uri, note, settings
        self.security: LocalSecurity | None = None
        self._lock: IO[bytes] | None = None
        self.zookeeper: ZooKeeperServer | None = None
        self.uri = ""
        self.bookies: list[BookieProcess] = []

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def client_settings(self) -> dict[str, Any]:
        """The settings of a client's configuration; empty for an open cluster."""
        return self.security.settings(CLIENT) if self.security else {}

    @property
    def spark_options(self) -> dict[str, str]:
        return {"metadataServiceUri": self.uri, **(self.security.spark_options() if self.security else {})}

    def access(self) -> Access:
        """Return access to the cluster as its administrator."""
        return Access(self.uri, settings=self.security.settings(ADMIN) if self.security else {})

    def start(self) -> None:
        """Start everything and wait until every bookie serves. If it raises, nothing is left running.

        Raises DataDirectoryError (in use by another process), InvalidArgumentError (other ports or fewer bookies than
        the directory has), JavaMissingError, PortInUseError, MetadataUnavailableError, NotEnoughBookiesError (a bookie
        did not start; with the end of its log), PackageMismatchError (Apache's jars cannot be had).
        """
        self._lock = cluster_layout.lock(self.data_dir)
        try:
            layout = cluster_layout.choose(self.data_dir, self._wanted)
            if layout.secure:
                self.security = LocalSecurity(self.data_dir / "security")
                self.security.prepare()
            own = layout.zookeeper_port
            self.uri = self._start_zookeeper(own) if own else self._zookeeper_uri or ""
            new_bookie = self._apache() if layout.apache else self._ours()
            self._note(f"starting {len(layout.bookie_ports)} bookies")
            self.bookies = [
                new_bookie(number, self.data_dir / f"bookie-{number}", port, self.uri)
                for number, port in enumerate(layout.bookie_ports, start=1)
            ]
            for bookie in self.bookies:
                bookie.check_ports_free()
            cluster_layout.save(self.data_dir, layout)  # before the first bookie fixes its identity
            for bookie in self.bookies:
                bookie.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def _start_zookeeper(self, port: int) -> str:
        """Start ZooKeeper. Return the URI of the cluster."""
        self._note("starting ZooKeeper")
        tls = ServerTls(self.security.zookeeper_pem, self.security.ca) if self.security else None
        self.zookeeper = ZooKeeperServer(note=self._note, tls=tls)
        address = self.zookeeper.start(self.data_dir / "zookeeper", port)
        return f"zk://{address}{LEDGERS_ROOT}"

    def _ours(self) -> Callable[[int, Path, int, str], BookieProcess]:
        """Return a function that makes our bookies. In mode secure, first make a cluster in which they have their
        role."""
        if self.security is None:
            return partial(BookieProcess, settings=self._settings)
        with self.access().store() as store:
            store.initialize_cluster(str(uuid.uuid4()))
            if store.read_roles() is None:
                with contextlib.suppress(
                    MetadataConflictError
                ):  # another process made the table meanwhile: that one stays
                    store.write_roles(self.security.roles(), None)
        self.security.save_environments(self.uri)
        return partial(BookieProcess, settings={**self.security.bookie_settings(), **(self._settings or {})})

    def _apache(self) -> Callable[[int, Path, int, str], BookieProcess]:
        """Make a cluster, which Apache's bookies need. Return a function that makes such bookies."""
        jars = find_jars(os.environ, self._note)
        with Access(self.uri).store() as store:
            store.initialize_cluster(str(uuid.uuid4()))
        return partial(ApacheBookieProcess, class_path=os.pathsep.join(map(str, jars)))

    def stop(self) -> None:
        """Stop all bookies at the same time, then ZooKeeper. Idempotent."""
        for bookie in self.bookies:
            bookie.terminate()
        for bookie in self.bookies:
            bookie.stop()
        if self.zookeeper is not None:
            self.zookeeper.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def wait_ready(self, bookies: list[BookieProcess] | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until these (by default all) bookies are registered and serve. Raises NotEnoughBookiesError."""
        with self.access().store() as store:
            self._wait_registered(store, self.bookies if bookies is None else bookies, timeout_s)

    def _wait_registered(self, store: MetadataStore, bookies: list[BookieProcess], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        waiting = list(bookies)
        while waiting:
            registered = store.writable_bookies()
            waiting = [b for b in waiting if b.bookie_id not in registered or not b.is_ready]
            ended = [bookie for bookie in waiting if not bookie.is_running]
            if ended or (waiting and time.monotonic() > deadline):
                bookie = (ended or waiting)[0]
                raise NotEnoughBookiesError(
                    f"bookie {bookie.number} {'ended while it started' if ended else 'did not register in time'}",
                    value=last_lines(bookie.log_path),
                    remedy=f"read {bookie.log_path}",
                )
            if waiting:
                time.sleep(FOLLOW_S)
