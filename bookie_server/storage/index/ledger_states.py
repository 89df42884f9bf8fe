# SPDX-License-Identifier: Apache-2.0
"""The state of each ledger by the records of the log, including deleted and unknown ledgers (RULES S4, S8). Pure
memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.index_rows import I64, Rows
from bookie_server.storage.bytes.intervals import IntervalSet
from bookie_server.storage.index.ledger_table import (
    KEY_CONFLICT,
    NO_ABSENT,
    NO_ADDS,
    LedgerState,
    LedgerTable,
    states_of,
)

EVERY_LEDGER: LedgerId = (1 << 63) - 1
"""The ledger id of a LIMBO record that applies to every ledger of the directory, even to unknown ones. It is written
after damage whose ledger is unknown, because all records of a ledger that was only fenced may be lost."""


class LedgerStates:
    """The table of ledgers, the deleted ledgers and the dropped copies. A deleted ledger is only in the set of deleted
    ledgers."""

    def __init__(self) -> None:
        self.table = LedgerTable()
        self.deleted = IntervalSet()
        self.drops: dict[LedgerId, int] = {}
        """For each ledger with a dropped copy, a generation: its frames in segments up to it are dead."""
        self._of_every_ledger = 0  # flags of EVERY_LEDGER

    def fold(self, ledger_id: LedgerId, kind: int, payload: bytes) -> bool:
        """Fold a record of any kind but DELETED; return whether it makes more of the ledger dead."""
        return ledger_id not in self.deleted and self._heed(self.table.fold(ledger_id, kind, payload))

    def _heed(self, state: LedgerState) -> bool:
        if state.ledger_id == EVERY_LEDGER:
            self._of_every_ledger = state.flags
        elif state.dropped > self.drops.get(state.ledger_id, 0):
            self.drops[state.ledger_id] = state.dropped
            return True
        return False

    def forget(self, ledger_id: LedgerId) -> None:
        self.table.forget(ledger_id)
        self.drops.pop(ledger_id, None)

    def load(self, rows: Rows) -> list[LedgerId]:
        """Fold the ledger records of a checkpoint, which are sorted. Return the ledgers more of whose frames are dead
        now."""
        rows = rows[~self.deleted.holds(np.ascontiguousarray(rows["ledger"]))]
        self.table.load(rows)
        special = rows[(rows["dropped"] > 0) | (rows["ledger"] == EVERY_LEDGER)]
        return [state.ledger_id for state in states_of(special) if self._heed(self.table.get(state.ledger_id) or state)]

    def load_deleted(self, intervals: I64) -> list[LedgerId]:
        """Add deleted ledgers, given as an array of (first, last). Return those that were known until now."""
        self.table.version += 1
        for first, last in intervals.tolist():
            self.deleted.add(first, last)
        ledger_ids = self.table.ids()
        gone: list[int] = ledger_ids[self.deleted.holds(ledger_ids)].tolist()
        return gone

    def counting(self, generation: int, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which records of a segment's summary or index count: all but those of deleted ledgers and dropped
        copies. Ledgers that are not deleted become known."""
        ledgers = np.ascontiguousarray(rows["ledger"])
        counts = ~self.deleted.holds(ledgers)
        self.table.ensure(ledgers[counts])
        if self.drops:
            dead = [ledger_id for ledger_id, through in self.drops.items() if generation <= through]
            counts &= ~np.isin(ledgers, dead)
        return counts

    def trouble(self, state: LedgerState | None) -> Reason:
        """Return the reason to answer UNKNOWN instead of ABSENT for this ledger, or REASON_NONE if ABSENT is safe.
        ``state`` is None for a ledger that is not known."""
        flags = self._of_every_ledger | (state.flags if state is not None else 0)
        if flags & KEY_CONFLICT:
            return Reason.DAMAGED
        if flags & NO_ADDS:
            return Reason.LIMBO
        return Reason.COPY_DROPPED if flags & NO_ABSENT else Reason.REASON_NONE

    def ids(self) -> list[LedgerId]:
        """Return every ledger that is known and not deleted, sorted."""
        ledger_ids: list[int] = self.table.ids().tolist()
        return ledger_ids[:-1] if EVERY_LEDGER in self.table else ledger_ids

    def __len__(self) -> int:
        return len(self.table) - (EVERY_LEDGER in self.table)
