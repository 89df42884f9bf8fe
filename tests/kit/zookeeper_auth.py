# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper server that authenticates clients by SASL, by digest, and on its TLS port by certificates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bk_cli.local.children import free_ports
from bk_cli.local.cluster import PORTS_ABOVE, BookieProcess
from tests.kit.certificates import Authority, Files
from tests.kit.zookeeper_tls import TlsZooKeeper

_SUPER_DIGEST = "super:R7b+rMjaJVqR9ILnttxHgMzs9E4="
"""The superuser of the scheme digest, who may do everything. The password is ``of-tests``."""


class AuthZooKeeper(TlsZooKeeper):
    """The server. ``users`` has names and passwords for SASL. With ``demands`` the server refuses a client without
    SASL."""

    def __init__(self, files: Files, users: Mapping[str, str], *, demands: bool = False) -> None:
        super().__init__(files)
        self._users, self._demands = dict(users), demands

    def _command(self, data_dir: Path) -> list[str]:
        data_dir.mkdir(parents=True, exist_ok=True)
        jaas = data_dir / "jaas.conf"
        users = "\n".join(f'  user_{name}="{password}"' for name, password in self._users.items())
        jaas.write_text(f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};\n}};\n")
        java, *rest = super()._command(data_dir)
        flags = [
            f"-Djava.security.auth.login.config={jaas}",
            f"-Dzookeeper.DigestAuthenticationProvider.superDigest={_SUPER_DIGEST}",
        ]
        return [java, *(flags if self._users else flags[1:]), *rest]

    def _config(self, data_dir: Path) -> str:
        settings = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
        if self._demands:
            settings |= {"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl"}
        return super()._config(data_dir) + "".join(f"{key}={value}\n" for key, value in settings.items())


def credentials(path: Path, *lines: str) -> str:
    """Write a file for ``zookeeper_auth_path``, and return its path."""
    path.write_text("\n".join(("# of a test", *lines)) + "\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


class AuthCluster:
    """Real bookies on a ZooKeeper that authenticates its clients; a context manager. ``paths`` has the file of
    credentials of each SASL user."""

    def __init__(self, path: Path, users: Mapping[str, str], bookies: int, settings: Mapping[str, object]) -> None:
        self.path = path
        self.zookeeper = AuthZooKeeper(Authority(path / "pki").issue("zookeeper", hosts=("127.0.0.1",)), users)
        self.paths = {name: credentials(path / f"{name}.auth", f"sasl:{name}:{users[name]}") for name in users}
        self._count, self._settings = bookies, settings
        self.bookies: list[BookieProcess] = []
        self.uri = ""

    def __enter__(self) -> Self:
        self.zookeeper.start(self.path / "zookeeper")
        self.uri = f"zk://{self.zookeeper.connect_string}/ledgers"
        try:
            for number, port in enumerate(free_ports(self._count, above=PORTS_ABOVE), 1):
                bookie = BookieProcess(number, self.path / f"bookie-{number}", port, self.uri, self._settings)
                self.bookies.append(bookie)
                bookie.start()
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def wait(self) -> None:
        """Wait until every bookie that was started serves."""
        deadline = time.monotonic() + 60
        for bookie in self.bookies:
            while not bookie.is_ready:
                assert bookie.is_running, bookie.log_path.read_text()
                assert time.monotonic() < deadline, "the bookies are not ready in time"
                time.sleep(0.05)

    def restart(self, settings: Mapping[str, object]) -> None:
        """Restart every bookie, one after the other, with other settings."""
        for bookie in self.bookies:
            bookie.terminate()
            bookie.stop()
            bookie.configure(settings)
            bookie.start()
            self.wait()

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.terminate()
        for bookie in self.bookies:
            bookie.stop()
        self.zookeeper.stop()

    def __exit__(self, *_error: object) -> None:
        self.stop()
