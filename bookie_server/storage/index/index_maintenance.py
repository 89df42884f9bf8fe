# SPDX-License-Identifier: Apache-2.0
"""What maintenance asks of the index and tells it: state for checkpoints, segments and what lives in them, copies.

Part of :class:`~bookie_server.storage.index.index.LedgerIndex`, on its thread and without I/O, as all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bk_core.model import LedgerId
from bookie_server.storage.bytes.index_rows import I64, Rows
from bookie_server.storage.index.ledger_frames import LedgerFrames
from bookie_server.storage.index.ledger_states import LedgerStates
from bookie_server.storage.index.search import DamagedPlaces
from bookie_server.storage.index.segment_directory import SegmentDirectory


@dataclass(frozen=True, slots=True, eq=False)
class DamagedIndex:
    """``summary``: ledger, first, last and bytes of what the segment held that still counts; ``unreadable``:
    numbers of blocks of its ``.idx`` that are not to be believed."""

    summary: Rows
    unreadable: frozenset[int]


class IndexMaintenance:
    """The maintenance side of the index."""

    _states: LedgerStates
    _directory: SegmentDirectory
    _unsealed: dict[int, dict[LedgerId, LedgerFrames]]
    _damage: DamagedPlaces
    _unreadable: dict[int, set[int]]
    newest_sealed: int
    damaged_indexes: set[int]

    # --- state ------------------------------------------------------------------------------------------------------

    def export_ledgers(self, first_ledger: LedgerId, limit: int) -> Rows:
        """A copy of the ledger records from ``first_ledger`` on, at most ``limit``, sorted, EVERY_LEDGER's too;
        empty at the end. A checkpoint goes on with the last one + 1; what changes meanwhile may be in it or not."""
        return self._states.table.rows_from(first_ledger, limit)

    def deleted_intervals(self) -> I64:
        """Deleted ledgers: an array of (first, last)."""
        return self._states.deleted.pairs()

    # --- segments ---------------------------------------------------------------------------------------------------

    def live_bytes(self) -> dict[int, int]:
        """Of each sealed segment the bytes of frames that may still be served."""
        return self._directory.live_bytes()

    def ledgers_in(self, generation: int) -> I64:
        """Ledgers with live frames in a sealed segment, sorted."""
        return self._directory.ledgers_in(generation)

    def sealed_generations(self) -> list[int]:
        return self._directory.generations()

    def unsealed_generations(self) -> list[int]:
        return sorted(self._unsealed)

    def is_sealed(self, generation: int) -> bool:
        """Whether a sealed segment of this generation is held: False once it is dropped."""
        return generation in self._directory

    def damaged_index(self, generation: int) -> DamagedIndex | None:
        """What memory knows of a sealed segment whose ``.idx`` is to be made anew; None if it is not, or is dropped."""
        if generation not in self.damaged_indexes or generation not in self._directory:
            return None
        return DamagedIndex(self._directory.summary(generation), frozenset(self._unreadable.get(generation, ())))

    def damaged_segments(self) -> set[int]:
        """Segments in which, or in whose ``.idx``, something is known to be damaged. It stays so until the segment is
        dropped, or for an ``.idx`` until it is made anew."""
        return self._damage.generations() | self.damaged_indexes

    def place_copies(self, copies: Mapping[int, Rows]) -> None:
        """Take in index records of durable copies of frames, by generation and as ``add_rows`` wants them.

        What was deleted since the frames were read stays dead (RULES S4). Left out are also those in a segment that was
        sealed meanwhile: its summary names them, or they are all dead. A ledger whose copy was dropped meanwhile comes
        back; it is dropped again.
        """
        for generation, rows in copies.items():
            was_sealed = generation <= self.newest_sealed and generation not in self._unsealed
            if generation not in self._directory and not was_sealed:
                self.add_rows(generation, rows[self._states.counting(generation, rows)])

    def add_rows(self, generation: int, rows: Rows) -> None:
        raise NotImplementedError
