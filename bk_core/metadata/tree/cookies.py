# SPDX-License-Identifier: Apache-2.0
"""Cookies of bookies, in Apache's folder, and our own state records of bookies (S8)."""

from __future__ import annotations

import contextlib

from bk_core.errors import MetadataConflictError, MetadataUnavailableError, Outcome
from bk_core.metadata.layout import check_bookie_id
from bk_core.metadata.tree.base import Part, looking_after
from bk_core.metadata.tree.tree import BadVersionError, NodeExistsError, NoNodeError
from bk_core.model import BookieId, Versioned


class Cookies(Part):
    """The records of bookies, as opaque bytes."""

    def read_cookie(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        return self._read_record(self._cookie_path(bookie_id))

    def write_cookie(self, bookie_id: BookieId, cookie: bytes, version: int | None) -> None:
        self._write_record(self._cookie_path(bookie_id), cookie, version)

    def delete_cookie(self, bookie_id: BookieId) -> None:
        with contextlib.suppress(NoNodeError):
            self._delete_settled(self._cookie_path(bookie_id))

    def known_bookies(self) -> list[BookieId]:
        known = set[BookieId]()
        for folder in (f"{self._root}/cookies", f"{self._root}-bookies"):
            with contextlib.suppress(NoNodeError):
                known.update(self._tree.children(folder))
        return sorted(known)

    def read_bookie_state(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        return self._read_record(self._state_path(bookie_id))

    def write_bookie_state(self, bookie_id: BookieId, state: bytes, version: int | None) -> None:
        self._write_record(self._state_path(bookie_id), state, version)

    def _cookie_path(self, bookie_id: BookieId) -> str:
        return f"{self._root}/cookies/{check_bookie_id(bookie_id)}"

    def _state_path(self, bookie_id: BookieId) -> str:
        return f"{self._root}-bookies/{check_bookie_id(bookie_id)}"

    def _read_record(self, path: str) -> Versioned[bytes] | None:
        try:
            data, stat = self._get(path)
        except NoNodeError:
            return None
        return Versioned(data, stat.version)

    def _write_record(self, path: str, data: bytes, version: int | None) -> None:
        try:
            if version is None:
                self._create_with_parents(path, data)
            else:
                self._set_settled(path, data, version)
        except (NodeExistsError, NoNodeError, BadVersionError) as error:
            expected = "no record" if version is None else f"version {version}"
            raise MetadataConflictError(
                "A bookie's record was written by somebody else",
                value=f"{path}: expected {expected}",
                remedy="read it again; only one process may use a bookie id",
            ) from error

    def _set_settled(self, path: str, data: bytes, version: int) -> None:
        """Compare-and-set; after a lost answer, our bytes in the next version count as our write."""
        try:
            self._tree.set(path, data, version)
        except MetadataUnavailableError as lost:
            if lost.outcome is Outcome.NOT_APPLIED:
                raise
            with looking_after(lost):
                self._tree.sync(self._root)  # the server may not know the write yet
                found = self._read_record(path)
            if found != Versioned(data, version + 1):
                raise
