# SPDX-License-Identifier: Apache-2.0
"""Marks of ledgers that lack copies (P8), in Apache's subtree, so that auto-recovery, Apache's or ours, repairs
them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from bk_core.errors import MetadataUnavailableError, Outcome
from bk_core.metadata.layout import ledger_of_mark, mark_path
from bk_core.metadata.records import UNDERREPLICATION_LAYOUT, UnderreplicationMark, decode_mark, encode_mark
from bk_core.metadata.tree.base import Part, first_loss
from bk_core.metadata.tree.tree import BadVersionError, NodeExistsError, NoNodeError, ensure_path
from bk_core.model import BookieId, LedgerId

_TRIES = 10


class Underreplication(Part):
    """The subtree ``underreplication`` of one cluster."""

    def mark_underreplicated(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> None:
        path = self._marks + mark_path(ledger_id)
        lost: MetadataUnavailableError | None = None
        for _ in range(_TRIES):
            try:
                self._mark(path, missing)
                return
            except (NoNodeError, NodeExistsError, BadVersionError):
                continue  # the mark changed between our read and our write
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)  # marking twice is marking once
        raise lost or MetadataUnavailableError(
            f"The mark of ledger {ledger_id} changed at each of {_TRIES} tries",
            remedy="try again",
            outcome=Outcome.NOT_APPLIED,
        )

    @property
    def _marks(self) -> str:
        return f"{self._root}/underreplication/ledgers"

    def _mark(self, path: str, missing: Sequence[BookieId]) -> None:
        try:
            data, stat = self._tree.get(path)
        except NoNodeError:
            self._make_folders()
            mark = UnderreplicationMark((), int(time.time() * 1000)).merged(missing)
            self._create_with_parents(path, encode_mark(mark))
            return
        # Written even if nothing is added: the new version keeps an earlier repair from removing the mark.
        self._tree.set(path, encode_mark(decode_mark(data).merged(missing)), stat.version)

    def _make_folders(self) -> None:
        if self._tree.exists(self._marks) is not None:
            return
        folder = f"{self._root}/underreplication"
        with contextlib.suppress(NodeExistsError):  # Apache checks its content
            self._create_with_parents(f"{folder}/LAYOUT", UNDERREPLICATION_LAYOUT)
        ensure_path(self._tree, f"{folder}/locks")
        ensure_path(self._tree, self._marks)

    def list_underreplicated(self) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        yield from self._walk_marks(self._marks, 4)

    def _walk_marks(self, folder: str, levels: int) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        try:
            names = self._tree.children(folder)
        except NoNodeError:
            return  # repaired and deleted while we walk
        if levels:
            for name in names:
                yield from self._walk_marks(f"{folder}/{name}", levels - 1)
            return
        for name, node in zip(names, self._tree.get_many([f"{folder}/{name}" for name in names]), strict=True):
            ledger_id = ledger_of_mark(name)
            if ledger_id is not None and node is not None:
                yield ledger_id, decode_mark(node[0]).missing
