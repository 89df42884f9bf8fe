# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the table of roles at ``<root>-security/roles``. It is beside Apache's tree, so Apache's tools do
not find it (decision 0064)."""

from __future__ import annotations

from bk_core.access.roles import RolesTable, decode_roles, encode_roles
from bk_core.errors import MetadataConflictError
from bk_core.metadata.tree.base import StorePart
from bk_core.metadata.tree.tree import BadVersionError, NodeExistsError, NoNodeError
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
        path, data = self._roles, encode_roles(table)
        try:
            if version is None:
                self._create_with_parents(path, data)
            else:
                self._set_settled(path, data, version)
        except (NodeExistsError, NoNodeError, BadVersionError) as error:
            raise MetadataConflictError(
                "Another administrator changed the table of roles meanwhile",
                value=f"{path}: expected {'no record' if version is None else f'version {version}'}",
                remedy="read it (bk role list) and try again",
            ) from error
        return Versioned(table, 0 if version is None else version + 1)
