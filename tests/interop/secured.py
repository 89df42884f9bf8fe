# SPDX-License-Identifier: Apache-2.0
"""Certificates and roles for a cluster of both kinds of bookies: certificates for all, and for our bookies roles.
Clients of Apache's wire have their role on the whole cluster (docs/security.md §6.5)."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

from bk_core.access.roles import Line, Role, RolesTable
from bk_core.metadata import open_store
from tests.kit.certificates import Authority, java_settings


class Secured:
    """The files of such a cluster, below ``path``. ``client`` has the role writer, ``stranger`` has none."""

    def __init__(self, path: Path) -> None:
        self.authority = Authority(path / "pki")
        self.client, self.stranger = self.authority.issue("client"), self.authority.issue("stranger")
        self._bookie = self.authority.issue("bookie")
        self._keys = path / "grant.keys"
        self._keys.write_text(f"{secrets.token_hex(32)}\n", encoding="ascii")
        self._keys.chmod(0o600)

    def ours(self) -> dict[str, Any]:
        """Return the settings of a bookie of ours."""
        return self._bookie.settings(security="mixed", grant_keys_path=str(self._keys))

    def apaches(self) -> dict[str, object]:
        """Return the settings of a bookie of Apache's."""
        return java_settings(self._bookie)

    def give_roles(self, uri: str) -> None:
        roles = Line("CN=client,O=Example", Role.WRITER), Line("CN=bookie,O=Example", Role.BOOKIE)
        with closing(open_store(uri)) as store:
            store.write_roles(RolesTable(roles), None)
