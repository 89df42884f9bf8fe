# SPDX-License-Identifier: Apache-2.0
"""Ids of new ledgers, made as Apache's clients make them."""

from __future__ import annotations

import contextlib
import re

from bk_core.errors import MetadataError, MetadataUnavailableError, Outcome
from bk_core.metadata.layout import SHORT_IDS_END, Layout
from bk_core.metadata.tree.tree import WRITE_TRIES, NodeExistsError, NoNodeError, Tree, TreeError, ensure_path

_HOB = re.compile(r"HOB-([0-9]{10})")
_KEPT_FOLDERS = 3
_TRIES = 8


class IdGenerator:
    """Makes ids that nobody else gets, unless ledgers are also created with given ids. It does as Apache's clients do,
    so that both can work on one cluster: an id is the number of an ephemeral sequential node, which is deleted at once.
    Once the 31-bit ids of ``idgen`` are used up, ``idgen-long`` gives ids of 63 bits from then on."""

    def __init__(self, tree: Tree, root: str) -> None:
        self._tree, self._root = tree, root

    def next(self, layout: Layout) -> int:
        """A new id for a cluster of this layout."""
        if layout is Layout.FLAT:
            return self._short(self._root)
        long_folder = f"{self._root}/idgen-long"
        if layout is Layout.LONG_HIERARCHICAL or (
            layout is Layout.HIERARCHICAL and self._tree.exists(long_folder) is not None
        ):
            return self._long(long_folder)
        made = self._sequence(f"{self._root}/idgen")
        if made is not None:
            return made
        if layout is Layout.HIERARCHICAL:
            return self._long(long_folder)
        raise _used_up()

    def _short(self, folder: str) -> int:
        made = self._sequence(folder)
        if made is None:
            raise _used_up()
        return made

    def _long(self, folder: str) -> int:
        ensure_path(self._tree, folder)
        for _ in range(_TRIES):
            highs = sorted(int(match[1]) for name in self._tree.children(folder) if (match := _HOB.fullmatch(name)))
            if not highs:
                self._make_high(folder, 1)
                continue
            low = self._sequence(f"{folder}/{_high_name(highs[-1])}")
            if low is not None:
                return highs[-1] << 32 | low
            self._make_high(folder, highs[-1] + 1)
            self._prune(folder, highs[: -(_KEPT_FOLDERS - 1)])
        raise _used_up()

    def _make_high(self, folder: str, high: int) -> None:
        with contextlib.suppress(NodeExistsError):  # another client made it first
            self._tree.create(f"{folder}/{_high_name(high)}")

    def _prune(self, folder: str, highs: list[int]) -> None:
        for high in highs:
            with contextlib.suppress(TreeError, MetadataUnavailableError):
                self._tree.delete(f"{folder}/{_high_name(high)}")

    def _sequence(self, folder: str) -> int | None:
        """The next number of this folder; None when its 31-bit numbers are used up."""
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                made = self._tree.create(f"{folder}/ID-", ephemeral=True, sequential=True)
            except NoNodeError:
                ensure_path(self._tree, folder)
                continue
            except MetadataUnavailableError as error:
                if error.outcome is Outcome.NOT_APPLIED:
                    raise
                lost = error  # a number may be lost: ask for another one
                continue
            with contextlib.suppress(TreeError, MetadataUnavailableError):
                self._tree.delete(made)  # if that fails, it goes with the session
            digits = made.rpartition("ID-")[2]  # after an overflow ZooKeeper writes a negative number
            return int(digits) if digits.isdigit() and int(digits) < SHORT_IDS_END else None
        raise lost or MetadataError("The folder of ledger ids is deleted again and again", value=folder)


def _high_name(high: int) -> str:
    return f"HOB-{high:010d}"


def _used_up() -> MetadataError:
    return MetadataError("This cluster has used up its ledger ids", remedy="use the layout hierarchical")
