# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper server that authenticates clients by SASL, by digest, and on its TLS port by certificates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.kit.certificates import Authority, Files
from tests.kit.process_cluster import ProcessCluster
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


class AuthCluster(ProcessCluster):
    """Real bookies on a ZooKeeper that authenticates its clients. ``paths`` has the file of credentials of each SASL
    user."""

    def __init__(self, path: Path, users: Mapping[str, str], bookies: int, settings: Mapping[str, object]) -> None:
        zookeeper = AuthZooKeeper(Authority(path / "pki").issue("zookeeper", hosts=("127.0.0.1",)), users)
        super().__init__(path, zookeeper, bookies, settings)
        self.paths = {name: credentials(path / f"{name}.auth", f"sasl:{name}:{users[name]}") for name in users}

    def restart(self, settings: Mapping[str, object]) -> None:
        """Restart every bookie, one after the other, with other settings."""
        for bookie in self.bookies:
            bookie.stop()
            bookie.configure(settings)
            self.start()
