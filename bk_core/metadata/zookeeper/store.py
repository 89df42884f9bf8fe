# SPDX-License-Identifier: Apache-2.0
"""The whole store, in Apache's layout, over any tree: over ZooKeeper's sessions, or over memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from bk_core.errors import MetadataCorruptError, MetadataUnavailableError
from bk_core.metadata.layout import Layout, ServiceUri, encode_layout
from bk_core.metadata.port import CancelWatch, SessionState
from bk_core.metadata.tree import WRITE_TRIES, Create, NodeExistsError, NoNodeError, Tree, ensure_path
from bk_core.metadata.watches import Watches
from bk_core.metadata.worker import Worker
from bk_core.metadata.zookeeper.bookies import Bookies
from bk_core.metadata.zookeeper.cookies import Cookies
from bk_core.metadata.zookeeper.ledgers import Ledgers
from bk_core.metadata.zookeeper.logs import Logs
from bk_core.metadata.zookeeper.underreplication import Underreplication


class TreeStore(Ledgers, Bookies, Cookies, Underreplication, Logs):
    """A :class:`~bk_core.metadata.port.MetadataStore`, made of one part a subject. It owns its tree and its threads."""

    def __init__(self, tree: Tree, uri: ServiceUri) -> None:
        self._worker = Worker("bookkeeper-metadata-watches")
        self._uri = uri
        self._instance_id: str | None = None
        super().__init__(tree, uri.root, Watches(tree, self._worker), uri.layout)

    @property
    def uri(self) -> str:
        return str(self._uri)

    def instance_id(self) -> str:
        """See the port."""
        if self._instance_id is None:
            self._instance_id = self._read_instance_id()
        return self._instance_id

    def confirm_cluster(self) -> None:
        """See the port."""
        known, found = self.instance_id(), self._read_instance_id()
        if found != known:
            raise MetadataCorruptError(
                "Another cluster stands at this ledgers root",
                value=f"{self.uri}: INSTANCEID {found}, it was {known}",
                remedy="restore the metadata of the cluster that these bookies belong to",
            )

    def _read_instance_id(self) -> str:
        data = self._find(f"{self._root}/INSTANCEID")
        if not data:
            raise MetadataCorruptError(
                "There is no cluster at this ledgers root",
                value=self.uri,
                remedy="correct the path of the URI, usually /ledgers; bk local makes a cluster",
            )
        return data.decode("utf-8", "replace")

    @property
    def session_id(self) -> int:
        """See the port."""
        return self._tree.session_id

    def initialize_cluster(self) -> str:
        """See the port."""
        root = self._root
        for last_try in (*[False] * (WRITE_TRIES - 1), True):
            if self._tree.exists(root) is not None:
                break
            ensure_path(self._tree, root.rpartition("/")[0])
            try:  # one step: nobody ever meets half a cluster
                self._tree.multi(
                    [
                        Create(root),
                        Create(f"{root}/available"),
                        Create(f"{root}/available/readonly"),
                        Create(f"{root}/INSTANCEID", str(uuid.uuid4()).encode("ascii")),
                        Create(f"{root}/LAYOUT", encode_layout(self._asked_layout or Layout.HIERARCHICAL)),
                    ]
                )
            except (NodeExistsError, NoNodeError, MetadataUnavailableError):
                if last_try:
                    raise
        return self.instance_id()

    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch:
        """See the port."""
        return self._tree.on_session(callback)

    def sync(self) -> None:
        """See the port."""
        self._tree.sync(self._root)

    def close(self) -> None:
        """See the port. Safe to call twice."""
        self._stop_registering()
        self._tree.close()
        self._worker.stop()
