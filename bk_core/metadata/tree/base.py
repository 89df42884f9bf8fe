# SPDX-License-Identifier: Apache-2.0
"""What the parts of a store share: the tree, the root, the watches, and how a write with a lost answer is settled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from bk_core.errors import MetadataError, MetadataUnavailableError, Outcome
from bk_core.metadata.layout import Layout
from bk_core.metadata.port import CancelWatch
from bk_core.metadata.tree.tree import (
    ANY_VERSION,
    WRITE_TRIES,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    Tree,
    ensure_path,
)
from bk_core.metadata.tree.watches import Snapshot, Watches, read_data


def first_loss(lost: MetadataUnavailableError | None, error: MetadataUnavailableError) -> MetadataUnavailableError:
    """What to raise should no later try settle it: ``error`` at once if nothing can have been applied by any try."""
    if lost is None and error.outcome is Outcome.NOT_APPLIED:
        raise error
    return lost or error


@contextlib.contextmanager
def looking_after(lost: MetadataUnavailableError | None) -> Iterator[None]:
    """Round a look at what a lost write did: that there is no answer to the look says nothing of the write."""
    try:
        yield
    except MetadataUnavailableError as error:
        if lost is None:
            raise
        raise lost from error


class Part:
    """Base of the parts, which together are one store and so share one constructor.

    ``root`` is the ledgers root, such as ``/ledgers``; ``layout`` what the URI asks for, None for what LAYOUT says.
    """

    def __init__(self, tree: Tree, root: str, watches: Watches, layout: Layout | None) -> None:
        self._tree, self._root, self._watches, self._asked_layout = tree, root, watches, layout

    def _no_cluster(self) -> MetadataError:
        """What to raise where INSTANCEID or LAYOUT is missing."""
        raise NotImplementedError

    def _create_with_parents(self, path: str, data: bytes) -> None:
        """Create a node whose content only its maker writes: after a lost answer, equal bytes are its own.

        Raises NodeExistsError where other bytes are there, MetadataUnavailableError when the outcome stays unknown.
        """
        self._create_settled(path, data, lambda found: found == data)

    def _create_settled(self, path: str, data: bytes, is_mine: Callable[[bytes], bool]) -> None:
        """Create a node and what is missing above it. After a lost answer ``is_mine`` tells our node from another's."""
        lost: MetadataUnavailableError | None = None
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
        """Whether the node was made now; if not, and ``look``, what is there. Makes what is missing above it."""
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
        """Delete a node; absence after a lost answer is success. Raises NoNodeError, BadVersionError, NotEmptyError."""
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

    # --- reads of one node: a server that lags is not believed when it knows nothing of it (RULES M5) ---

    def _get(self, path: str) -> tuple[bytes, NodeStat]:
        """Raises NoNodeError."""
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
        """Raises NoNodeError. Which names there are may be old."""
        try:
            return self._tree.children(path)
        except NoNodeError:
            self._tree.sync(self._root)
            return self._tree.children(path)

    def _find(self, path: str) -> bytes | None:
        try:
            return self._get(path)[0]
        except NoNodeError:
            return None

    def _watch_node(self, path: str, listener: Callable[[Snapshot], None]) -> CancelWatch | None:
        """Watch what stands at ``path``; None if there is nothing."""
        present, cancel = self._watches.add(path, read_data, listener)
        if present is None:
            self._tree.sync(self._root)
            present, cancel = self._watches.add(path, read_data, listener)
        return None if present is None else cancel
