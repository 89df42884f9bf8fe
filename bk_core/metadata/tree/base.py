# SPDX-License-Identifier: Apache-2.0
"""The base class of the parts of a store. It has the tree, the root and the watches, and handles writes whose answer
was lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from bk_core.errors import MetadataConflictError, MetadataError, MetadataUnavailableError, Outcome
from bk_core.metadata.layout import Layout
from bk_core.metadata.port import CancelWatch
from bk_core.metadata.tree.tree import (
    ANY_VERSION,
    WRITE_TRIES,
    BadVersionError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    Tree,
    ensure_path,
)
from bk_core.metadata.tree.watches import Snapshot, Watches, read_data
from bk_core.metadata.unreadable import UnreadableNodes
from bk_core.model import Versioned


def first_loss(lost: MetadataUnavailableError | None, error: MetadataUnavailableError) -> MetadataUnavailableError:
    """Return the first error of a write whose outcome is unknown. The caller raises it if no later try shows the
    outcome. ``lost`` is the result of this function after an earlier try. Raises ``error`` itself if no try so far can
    have been applied."""
    if lost is None and error.outcome is Outcome.NOT_APPLIED:
        raise error
    return lost or error


@contextlib.contextmanager
def looking_after(lost: MetadataUnavailableError | None) -> Iterator[None]:
    """Wrap the read that follows a write whose answer was lost. If the read fails, too, raise ``lost``, because the
    outcome of the write is still unknown."""
    try:
        yield
    except MetadataUnavailableError as error:
        if lost is None:
            raise
        raise lost from error


class StorePart:
    """The base class of the parts of a store. Together the parts are one :class:`~bk_core.metadata.port.MetadataStore`
    and share one constructor. The port documents their public methods.

    ``root`` is the ledgers root, such as ``/ledgers``. ``layout`` is the layout in the URI, or None if the URI names
    none. All parts of a store note unreadable nodes in the same ``unreadable``.
    """

    def __init__(self, tree: Tree, root: str, watches: Watches, layout: Layout | None) -> None:
        self._tree, self._root, self._watches, self._asked_layout = tree, root, watches, layout
        self.unreadable = UnreadableNodes()

    def _no_cluster(self) -> MetadataError:
        """Return the error for a root without INSTANCEID or LAYOUT."""
        raise NotImplementedError

    def _create_with_parents(self, path: str, data: bytes) -> None:
        """Create a node and its missing parents. No other process writes the same bytes, so after a lost answer a node
        with equal bytes counts as ours.

        Raises NodeExistsError if the node has other bytes, and MetadataUnavailableError if the outcome stays unknown.
        """
        self._create_settled(path, data, lambda found: found == data)

    def _create_settled(
        self,
        path: str,
        data: bytes,
        is_mine: Callable[[bytes], bool],
        lost: MetadataUnavailableError | None = None,
    ) -> None:
        """Create a node and its missing parents. After a lost answer, ``is_mine`` decides by the bytes of an existing
        node whether it is ours. ``lost`` is the error of an earlier write of this node whose answer was lost."""
        for _ in range(WRITE_TRIES):
            try:
                is_made, found = self._create_or_find(path, data, look=lost is not None)
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
                continue
            if is_made or (found is not None and is_mine(found)):
                return
            if found is not None:
                raise NodeExistsError(path)
        raise lost or MetadataUnavailableError(
            "The parents of a record were deleted again and again while it was made",
            value=path,
            remedy="try again",
            outcome=Outcome.NOT_APPLIED,
        )

    def _create_or_find(self, path: str, data: bytes, *, look: bool) -> tuple[bool, bytes | None]:
        """Return whether the node was created now, and, if it exists and ``look`` is set, its bytes. If its parents are
        missing, create them and return False, so that the caller tries again."""
        try:
            self._tree.create(path, data)
            return True, None
        except NoNodeError:
            ensure_path(self._tree, path.rpartition("/")[0])
            return False, None
        except NodeExistsError:
            if look:
                return False, self._find(path)
            raise

    def _delete_settled(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. If it does not exist after a lost answer, the delete counts as successful. Raises NoNodeError,
        BadVersionError, NotEmptyError."""
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                self._tree.delete(path, version)
                return
            except NoNodeError:
                if lost is None:
                    raise
                return
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        assert lost is not None
        raise lost

    def _delete_if_there(self, path: str) -> None:
        with contextlib.suppress(NoNodeError):
            self._delete_settled(path)

    def _delete_own(self, path: str) -> None:
        """Delete the ephemeral node at ``path`` if it belongs to this session."""
        stat = self._tree.exists(path)
        if stat is not None and stat.owner == self._tree.session_id:
            self._delete_if_there(path)

    def _set_settled(self, path: str, data: bytes, version: int) -> None:
        """Write a node by compare-and-set. After a lost answer, our bytes in the next version count as our write."""
        try:
            self._tree.set(path, data, version)
        except MetadataUnavailableError as lost:
            if lost.outcome is Outcome.NOT_APPLIED:
                raise
            with looking_after(lost):
                self._tree.sync(self._root)  # this server may not have the write yet
                found = self._read(path)
            if found != Versioned(data, version + 1):
                raise

    def _write_versioned(self, path: str, data: bytes, version: int | None, *, conflict: str, remedy: str) -> int:
        """Create the node if ``version`` is None, or write it by compare-and-set. Return its new version. Raises
        MetadataConflictError with the texts ``conflict`` and ``remedy`` if another process wrote it."""
        try:
            if version is None:
                self._create_with_parents(path, data)
                return 0
            self._set_settled(path, data, version)
            return version + 1
        except (NodeExistsError, NoNodeError, BadVersionError) as error:
            expected = "no record" if version is None else f"version {version}"
            raise MetadataConflictError(conflict, value=f"{path}: expected {expected}", remedy=remedy) from error

    # --- reads of one node: if the server does not have it, sync and read again, since the server may lag (M5) ---

    def _get(self, path: str) -> tuple[bytes, NodeStat]:
        """Return a node's data and stat. Raises NoNodeError."""
        try:
            return self._tree.get(path)
        except NoNodeError:
            self._tree.sync(self._root)
            return self._tree.get(path)

    def _stat(self, path: str) -> NodeStat | None:
        stat = self._tree.exists(path)
        if stat is None:
            self._tree.sync(self._root)
            stat = self._tree.exists(path)
        return stat

    def _children(self, path: str) -> list[str]:
        """Return the names of a node's children, which may be old. Raises NoNodeError."""
        try:
            return self._tree.children(path)
        except NoNodeError:
            self._tree.sync(self._root)
            return self._tree.children(path)

    def _nodes(self, folder: str) -> list[tuple[str, bytes, NodeStat]]:
        """Return the name, data and stat of each child of a folder. If there is no such folder, return an empty
        list."""
        try:
            names = self._children(folder)
        except NoNodeError:
            return []
        nodes = self._tree.get_many([f"{folder}/{name}" for name in names])
        return [(name, *node) for name, node in zip(names, nodes, strict=True) if node is not None]

    def _read(self, path: str) -> Versioned[bytes] | None:
        try:
            data, stat = self._get(path)
        except NoNodeError:
            return None
        return Versioned(data, stat.version)

    def _find(self, path: str) -> bytes | None:
        try:
            return self._get(path)[0]
        except NoNodeError:
            return None

    def _watch_node(self, path: str, listener: Callable[[Snapshot], None]) -> CancelWatch | None:
        """Watch the data of the node at ``path``. Return the function that ends the watch, or None if there is no such
        node."""
        present, cancel = self._watches.add(path, read_data, listener)
        if present is None:
            self._tree.sync(self._root)
            present, cancel = self._watches.add(path, read_data, listener)
        return None if present is None else cancel
