# SPDX-License-Identifier: Apache-2.0
"""The index as maintenance sees it: questions that are asked on the thread that owns it (RULES S10).

Everything that maintenance reads of the index or tells it goes through here, one question at a time: no state of the
index is held between two of them. Simulators and tests ask directly; the server hops to its loop for each
(``bookie_server/engine/index_hop.py``), so a question must be quick, and must not touch the disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from bk_core.model import LedgerId
from bookie_server.storage.bytes.index_rows import I64, Rows
from bookie_server.storage.bytes.segment import Place
from bookie_server.storage.index.checkpoint import Intervals
from bookie_server.storage.index.index import IndexBlock, LedgerIndex

T = TypeVar("T")


class Stopping(BaseException):
    """The bookie stops: what was asked or given was not done. No error, and not to be handled on the way."""


class IndexPort(ABC):
    """Also a :class:`~bookie_server.storage.maintenance.checkpointer.CheckpointSource`. Every method may raise what
    :meth:`ask` raises; then the index has not changed."""

    @abstractmethod
    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        """What ``question`` says of the index, asked on its thread; exceptions come through.

        In the server BookKeeperError when the loop did not come to it in time, and :class:`Stopping` when the loop has
        ended: the question was not asked and will not be.
        """
        ...

    # --- what a checkpoint is made of -------------------------------------------------------------------------------

    def generations(self) -> tuple[Sequence[int], Sequence[int], int]:
        """Sealed and unsealed generations, and the greatest that was ever sealed."""
        return self.ask(lambda index: (index.sealed_generations(), index.unsealed_generations(), index.newest_sealed))

    def rows(self, first_ledger: int, limit: int) -> Rows:
        """:meth:`LedgerIndex.export_ledgers`."""
        return self.ask(lambda index: index.export_ledgers(first_ledger, limit))

    def deleted(self) -> Intervals:
        """:meth:`LedgerIndex.deleted_intervals`."""
        return self.ask(lambda index: index.deleted_intervals())

    # --- segments ---------------------------------------------------------------------------------------------------

    def seal(self, generation: int, summary: Rows) -> None:
        """:meth:`LedgerIndex.seal`."""
        self.ask(lambda index: index.seal(generation, summary))

    def index_rebuilt(self, generation: int, summary: Rows) -> None:
        """:meth:`LedgerIndex.index_rebuilt`."""
        self.ask(lambda index: index.index_rebuilt(generation, summary))

    def drop_segment(self, generation: int) -> None:
        """:meth:`LedgerIndex.drop_segment`."""
        self.ask(lambda index: index.drop_segment(generation))

    def drop_dead(self) -> list[int]:
        """Drop every sealed segment in which nothing can be served any more; their generations, ascending."""
        return self.ask(_drop_dead)

    def live_bytes(self) -> dict[int, int]:
        """:meth:`LedgerIndex.live_bytes`."""
        return self.ask(lambda index: index.live_bytes())

    def ledgers_in(self, generation: int) -> I64:
        """:meth:`LedgerIndex.ledgers_in`."""
        return self.ask(lambda index: index.ledgers_in(generation))

    # --- damage -----------------------------------------------------------------------------------------------------

    def mark_damaged(self, ledger_id: LedgerId, place: Place | IndexBlock) -> None:
        """:meth:`LedgerIndex.mark_damaged`."""
        self.ask(lambda index: index.mark_damaged(ledger_id, place))

    def damaged_indexes(self) -> list[int]:
        """Sealed segments whose ``.idx`` is to be made anew, ascending."""
        return self.ask(lambda index: sorted(index.damaged_indexes))


class DirectIndexPort(IndexPort):
    """For whoever is on the index's thread."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index

    def ask(self, question: Callable[[LedgerIndex], T]) -> T:
        return question(self._index)


def _drop_dead(index: LedgerIndex) -> list[int]:
    dead = sorted(generation for generation, size in index.live_bytes().items() if not size)
    for generation in dead:
        index.drop_segment(generation)
    return dead
