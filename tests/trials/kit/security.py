# SPDX-License-Identifier: Apache-2.0
"""Mode secure in a trial: certificates and roles for the addresses of its bookies, made as ``bk local --secure`` does.

Connections to ZooKeeper use no TLS, because proxies read the messages. All clients share a password for it. If there
are bookies of Apache's, the mode is mixed and ZooKeeper is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bk_cli.local.local_security import BOOKIE, CLIENT, LocalSecurity
from bk_core.access.roles import MIXED, RolesTable
from tests.interop.secured import java_settings
from tests.kit.certificates import Files
from tests.kit.zookeeper_auth import credentials


class TrialSecurity:
    """The certificates and roles of a trial. Their files are below ``path``."""

    def __init__(self, path: Path, hosts: Sequence[str], *, mixed: bool = False) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._local = LocalSecurity(path / "security", tuple(hosts))
        self._local.prepare()
        self._told: dict[str, Any] = {"tls_zookeeper": False}
        if mixed:
            self._told |= {"security": MIXED, "zookeeper_acl": "open"}
        else:
            auth = credentials(path / "zookeeper.auth", "digest:trial:of-the-trial")
            self._told |= {"zookeeper_acl": "creator", "zookeeper_auth_path": auth}

    def settings(self, who: str = CLIENT) -> dict[str, Any]:
        """Return the settings of a client of ours."""
        return {**self._local.settings(who), **self._told}

    def bookie_settings(self) -> dict[str, Any]:
        return {**self._local.bookie_settings(), **self._told}

    def java_settings(self, who: str = CLIENT) -> dict[str, object]:
        """Return the settings of a client of Apache's, or of a bookie of Apache's."""
        return java_settings(Files(self._local.certificate(who), self._local.key(who), self._local.ca))

    def java_bookie_settings(self) -> dict[str, object]:
        return self.java_settings(BOOKIE)

    def roles(self) -> RolesTable:
        return self._local.roles()
