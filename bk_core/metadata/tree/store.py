# SPDX-License-Identifier: Apache-2.0
"""The whole metadata store in Apache's layout, over any tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bk_core.errors import MetadataCorruptError, MetadataError
from bk_core.metadata.layout import ServiceUri
from bk_core.metadata.port import CancelWatch, SessionState
from bk_core.metadata.tree.cluster.bookies import Bookies, Cookies
from bk_core.metadata.tree.cluster.root import make_cluster, why_no_cluster
from bk_core.metadata.tree.cluster.security import Security
from bk_core.metadata.tree.foreign import ForeignNodes
from bk_core.metadata.tree.ledgers import Ledgers
from bk_core.metadata.tree.named_logs.deleted import DeletedLogs
from bk_core.metadata.tree.named_logs.records import Logs
from bk_core.metadata.tree.named_logs.upkeep import Upkeep
from bk_core.metadata.tree.tree import Tree, ensure_path
from bk_core.metadata.tree.underreplication import Underreplication
from bk_core.metadata.tree.watches import Watches
from bk_core.metadata.worker import Worker


class TreeStore(Ledgers, Bookies, Cookies, Underreplication, Upkeep, Security, Logs, DeletedLogs, ForeignNodes):
    """A :class:`~bk_core.metadata.port.MetadataStore` over a tree. It consists of one part for each subject, and owns
    the tree and its threads.

    ``first_folders``, below or beside the root, are created with a cluster, so that they get the intended ACLs.
    """

    def __init__(self, tree: Tree, uri: ServiceUri, first_folders: Sequence[str] = ()) -> None:
        self._first_folders = first_folders
        self._worker = Worker("bookkeeper-metadata-watches")
        self._uri = uri
        self._instance_id: str | None = None
        super().__init__(tree, uri.root, Watches(tree, self._worker), uri.layout)

    @property
    def uri(self) -> str:
        return str(self._uri)

    def instance_id(self) -> str:
        if self._instance_id is None:
            data = self._find(f"{self._root}/INSTANCEID")
            if not data:
                raise self._no_cluster()
            self._instance_id = data.decode("utf-8", "replace")
        return self._instance_id

    def confirm_cluster(self) -> None:
        known, data = self.instance_id(), self._find(f"{self._root}/INSTANCEID") or b""
        if (found := data.decode("utf-8", "replace")) != known:
            raise MetadataCorruptError(
                "Another cluster is at this ledgers root" if found else "The cluster at this ledgers root is gone",
                value=f"{self.uri}: INSTANCEID {found or 'none'}, it was {known}",
                remedy="restore the metadata of the cluster that these bookies belong to",
            )

    @property
    def session_id(self) -> int:
        return self._tree.session_id

    def initialize_cluster(self, instance_id: str | None = None) -> str:
        make_cluster(self._tree, self._root, self._asked_layout, instance_id)
        if self._first_folders:
            self._make_folders()
        for folder in self._first_folders:
            ensure_path(self._tree, self._root + folder)
        return self.instance_id()

    def _no_cluster(self) -> MetadataError:
        return why_no_cluster(self._tree, self._uri)

    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch:
        return self._tree.on_session(callback)

    def sync(self) -> None:
        self._tree.sync(self._root)

    def close(self) -> None:
        """End the session, as the port says. A second call is allowed."""
        self._stop_registering()
        self._tree.close()
        self._worker.stop()
