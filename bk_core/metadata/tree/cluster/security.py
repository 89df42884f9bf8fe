# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the table of roles at ``<root>-security/roles``. It is beside Apache's tree, so Apache's tools do
not find it (decision 0064)."""

from __future__ import annotations

from bk_core.access.roles import RolesTable, decode_roles, encode_roles
from bk_core.metadata.tree.base import StorePart
from bk_core.model import Versioned
from bk_core.observe.audit import audited


class Security(StorePart):
    """The part of a store that has the table of roles."""

    @property
    def _roles(self) -> str:
        return f"{self._root}-security/roles"

    def read_roles(self) -> Versioned[RolesTable] | None:
        found = self._read(self._roles)
        return None if found is None else Versioned(decode_roles(found.value), found.version)

    def write_roles(self, table: RolesTable, version: int | None) -> Versioned[RolesTable]:
        with audited("set-roles", count=len(table.lines)):
            return self._write_roles(table, version)

    def _write_roles(self, table: RolesTable, version: int | None) -> Versioned[RolesTable]:
        new_version = self._write_versioned(
            self._roles,
            encode_roles(table),
            version,
            conflict="Another administrator changed the table of roles meanwhile",
            remedy="read it (bk role list) and try again",
        )
        return Versioned(table, new_version)
