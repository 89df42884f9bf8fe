# SPDX-License-Identifier: Apache-2.0
"""What the parts of a store share: the tree, the root, the watches, and how a write with a lost answer is settled."""

from __future__ import annotations

from collections.abc import Callable

from bk_core.errors import MetadataUnavailableError, Outcome
from bk_core.metadata.layout import Layout
from bk_core.metadata.tree import ANY_VERSION, WRITE_TRIES, NodeExistsError, NoNodeError, Tree, ensure_path
from bk_core.metadata.watches import Watches


def first_loss(lost: MetadataUnavailableError | None, error: MetadataUnavailableError) -> MetadataUnavailableError:
    """What to raise should no later try settle it: ``error`` at once if nothing can have been applied by any try."""
    if lost is None and error.outcome is Outcome.NOT_APPLIED:
        raise error
    return lost or error


class Part:
    """Base of the parts, which together are one store and so share one constructor.

    ``root`` is the ledgers root, such as ``/ledgers``; ``layout`` what the URI asks for, None for what LAYOUT says.
    """

    def __init__(self, tree: Tree, root: str, watches: Watches, layout: Layout | None) -> None:
        self._tree, self._root, self._watches, self._asked_layout = tree, root, watches, layout

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
                self._tree.create(path, data)
                return
            except NoNodeError:
                ensure_path(self._tree, path.rpartition("/")[0])
            except NodeExistsError:
                if lost is None:
                    raise
                found = self._find(path)
                if found is None:
                    continue
                if is_mine(found):
                    return
                raise
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        raise lost or MetadataUnavailableError(
            "The parents of a record were deleted again and again while it was made",
            value=path,
            remedy="try again",
            outcome=Outcome.NOT_APPLIED,
        )

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

    def _find(self, path: str) -> bytes | None:
        try:
            return self._tree.get(path)[0]
        except NoNodeError:
            return None
