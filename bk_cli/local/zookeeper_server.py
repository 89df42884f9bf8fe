# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper server on this machine, for ``bk local`` and for tests. It runs from the jars that come with
pyspark, so that nothing needs to be installed. It ends when its parent ends (RULES E4)."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bk_cli.local.children import check_port_free, child_environment, free_port, last_lines
from bk_cli.local.java import find_java
from bk_cli.local.zookeeper_jars import find_jars
from bk_core.errors import InvalidArgumentError, MetadataUnavailableError, Outcome
from bk_core.model import host_and_port

MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
_START_S = 20.0
_STOP_S = 8.0
_TRIES = 3  # another process may take the free port that we found

JAVA: tuple[str, ...] = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""Options of the server's Java, which has little to do and is to start soon. Tests add an archive of its classes."""

_CONFIG = """\
dataDir={data_dir}
{ports}
tickTime={tick_ms}
maxSessionTimeout=600000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


class ServerTls(NamedTuple):
    """PEM files of a server that speaks TLS: one with its certificate and key, and one with the authority whose clients
    it admits."""

    pem: Path
    ca: Path

    def settings(self, host: str, port: int) -> dict[str, object]:
        """Return settings of the server: it listens on this port for clients with a certificate."""
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPortAddress": host,
            "secureClientPort": port,
            "ssl.keyStore.location": self.pem,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": self.ca,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
            "ssl.hostnameVerification": "false",  # of clients
        }


class ZooKeeperServer:
    """One server process. It ends with :meth:`stop`, and also when this process dies in any way. ``durable`` False
    leaves out the syncs, for tests. With ``tls`` its port speaks nothing but TLS. ``note`` is called with a line about
    a download of the jars."""

    main_class = MAIN_CLASS

    def __init__(
        self,
        *,
        classpath: list[Path] | None = None,
        host: str = "127.0.0.1",
        tick_ms: int = 1000,
        durable: bool = True,
        heap_mb: int = 128,
        tls: ServerTls | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._note, self._tls = note, tls
        self._classpath = classpath
        self.host, self._tick_ms, self._durable, self._heap_mb = host, tick_ms, durable, heap_mb
        self.port = 0
        self.log_path: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connect_string(self) -> str:
        """The address of the server, as ``host:port``."""
        return host_and_port(self.host, self.port)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, data_dir: str | os.PathLike[str], port: int = 0) -> str:
        """Start the server with its data in ``data_dir`` (made if missing) and wait until it serves. Return
        ``host:port``.

        ``port`` 0 takes a free one. Raises JavaMissingError, InvalidArgumentError (it runs already), PortInUseError,
        MetadataUnavailableError with the end of its log, and what :func:`bk_cli.local.zookeeper_jars.find_jars` raises.
        """
        if self.is_running:
            raise InvalidArgumentError("This ZooKeeper server runs already", value=self.connect_string)
        command = self._command(Path(data_dir))
        for last_try in (*[False] * (_TRIES - 1), True):
            self.port = port or free_port(self.host)
            check_port_free(self.host, self.port, "ZooKeeper")
            try:
                self._launch(command, Path(data_dir))
                return self.connect_string
            except MetadataUnavailableError:
                self.stop()
                if last_try or port:
                    raise
        raise AssertionError("not reached")

    def stop(self) -> None:
        """End the server, and wait until it has ended. Its data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()  # the lifeline
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _command(self, data_dir: Path) -> list[str]:
        java = find_java().path
        classpath = self._classpath or find_jars(os.environ, self._note, tls=self._tls is not None)
        return [
            java,
            f"-Xmx{self._heap_mb}m",
            *JAVA,
            "-Dzookeeper.preAllocSize=1024",  # KiB of its log at a time; 64 MiB by default
            f"-Dzookeeper.forceSync={'yes' if self._durable else 'no'}",
            "-cp",
            os.pathsep.join(str(jar) for jar in classpath),
            self.main_class,
            str(data_dir.absolute() / "zoo.cfg"),
        ]

    def _launch(self, command: list[str], data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        (data_dir / "zoo.cfg").write_text(self._config(data_dir), encoding="utf-8")
        self.log_path = data_dir / "zookeeper.log"
        with open(self.log_path, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bk_cli.local.lifeline", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is for the parent, which stops its children in order
            )
        self._wait_serving()

    def _config(self, data_dir: Path) -> str:
        plain: dict[str, object] = {"clientPortAddress": self.host, "clientPort": self.port}
        settings = self._tls.settings(self.host, self.port) if self._tls else plain
        ports = "\n".join(f"{name}={value}" for name, value in settings.items())
        return _CONFIG.format(data_dir=data_dir.absolute() / "data", ports=ports, tick_ms=self._tick_ms)

    def _wait_serving(self) -> None:
        assert self.log_path is not None
        deadline = time.monotonic() + _START_S
        while not self.mode():
            if not self.is_running or time.monotonic() > deadline:
                raise MetadataUnavailableError(
                    "ZooKeeper did not start",
                    value=last_lines(self.log_path),
                    remedy=f"see {self.log_path}",
                    outcome=Outcome.NOT_APPLIED,
                )
            time.sleep(0.05)

    def mode(self) -> str:
        """Return ``standalone``, ``leader`` or ``follower``, or an empty text while the server does not serve."""
        try:
            with self._connected() as connection:
                connection.sendall(b"srvr")
                said = connection.makefile("rb").read()
        except OSError:
            return ""
        return next((line[6:].decode() for line in said.splitlines() if line.startswith(b"Mode: ")), "")

    def _connected(self) -> socket.socket:
        """Connect to the server's port. Raises OSError."""
        plain = socket.create_connection((self.host, self.port), timeout=1)
        if self._tls is None:
            return plain
        try:
            context = ssl.create_default_context(cafile=str(self._tls.ca))
            context.load_cert_chain(str(self._tls.pem))
            return context.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
