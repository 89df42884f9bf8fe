# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the records of deleted logs whose ledgers are not deleted yet, at ``<root>-deletedlogs/<uuid>``
(docs/formats.md §4; N6)."""

from __future__ import annotations

import contextlib

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.layout import check_node_name
from bk_core.metadata.tree.base import StorePart, first_loss
from bk_core.metadata.tree.tree import ANY_VERSION, WRITE_TRIES, NodeExistsError, NoNodeError, ensure_path


class DeletedLogs(StorePart):
    """The part of a store that has the records of deleted logs. A record is opaque bytes. Its age is by the store's
    clock."""

    def deleted_log_path(self, log_uuid: str = "") -> str:
        folder = f"{self._root}-deletedlogs"
        return f"{folder}/{check_node_name(log_uuid, 'deleted log')}" if log_uuid else folder

    def create_deleted_log(self, log_uuid: str, record: bytes) -> None:
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                with contextlib.suppress(NodeExistsError):  # another client made the record; a log is deleted only once
                    self._create_with_parents(self.deleted_log_path(log_uuid), record)
                return
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        assert lost is not None
        raise lost

    def read_deleted_log(self, log_uuid: str) -> tuple[int, bytes] | None:
        try:
            data, stat = self._get(self.deleted_log_path(log_uuid))
        except NoNodeError:
            return None
        return stat.ctime_ms, data

    def read_deleted_logs(self) -> list[tuple[str, int, bytes]]:
        try:
            uuids = sorted(self._tree.children(self.deleted_log_path()))
        except NoNodeError:
            return []
        found = self._tree.get_many([self.deleted_log_path(each) for each in uuids])
        return [(each, node[1].ctime_ms, node[0]) for each, node in zip(uuids, found, strict=True) if node is not None]

    def forget_deleted_log(self, log_uuid: str) -> None:
        self._delete_if_there(self.deleted_log_path(log_uuid))

    def deleted_logs_clock_ms(self) -> int:
        """Return the present time by the store's clock. Write the folder, and read the time that the store gave the
        write."""
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                self._tree.set(self.deleted_log_path(), b"", ANY_VERSION)
                stat = self._tree.exists(self.deleted_log_path())
                if stat is not None:
                    return stat.mtime_ms
            except NoNodeError:
                ensure_path(self._tree, self.deleted_log_path())
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        raise lost or MetadataUnavailableError("The folder of deleted logs is deleted again and again")
