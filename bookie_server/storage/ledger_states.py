# SPDX-License-Identifier: Apache-2.0
"""What the records of the log say of each ledger, deleted and unheard ones too (RULES S4, S8). Pure memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bk_core.model import LedgerId
from bk_core.wire.lane import Reason
from bookie_server.storage.index_rows import I64, Rows
from bookie_server.storage.intervals import IntervalSet
from bookie_server.storage.ledger_table import HAS_COPY_STATE, KEY_CONFLICT, LedgerState, LedgerTable, states_of

EVERY_UNHEARD_LEDGER: LedgerId = (1 << 63) - 1
"""Ledger id of LIMBO_SET records that stand for each ledger this bookie has not heard of: after damage that cannot be
named, one that it only fenced may have been lost whole."""

_REASON_OF_SEVERITY = (Reason.REASON_NONE, Reason.REASON_NONE, Reason.LIMBO, Reason.COPY_DROPPED)


class LedgerStates:
    """The table of ledgers, and what cuts across it. A deleted ledger is in no other part any more."""

    def __init__(self) -> None:
        self.table = LedgerTable()
        self.deleted = IntervalSet()
        self.drops: dict[LedgerId, int] = {}
        """Drop counters other than 0: frames with a lower counter are from before a drop."""
        self._unheard: LedgerState | None = None  # of EVERY_UNHEARD_LEDGER

    def fold(self, ledger_id: LedgerId, kind: int, payload: bytes) -> bool:
        """Fold a record of another kind than DELETED; whether copies of the ledger count as dropped that did not."""
        return ledger_id not in self.deleted and self._heed(self.table.fold(ledger_id, kind, payload))

    def _heed(self, state: LedgerState) -> bool:
        if state.ledger_id == EVERY_UNHEARD_LEDGER:
            self._unheard = state
        elif state.drop_counter > self.drops.get(state.ledger_id, 0):
            self.drops[state.ledger_id] = state.drop_counter
            return True
        return False

    def delete(self, ledger_id: LedgerId) -> None:
        """Nothing is known of the ledger any more but that it is deleted, for good."""
        self.deleted.add(ledger_id, ledger_id)
        self.forget(ledger_id)

    def forget(self, ledger_id: LedgerId) -> None:
        self.table.forget(ledger_id)
        self.drops.pop(ledger_id, None)

    def load(self, rows: Rows) -> list[LedgerId]:
        """Fold ledger records of a checkpoint, sorted; ledgers of which copies count as dropped that did not."""
        rows = rows[~self.deleted.holds(np.ascontiguousarray(rows["ledger"]))]
        self.table.load(rows)
        special = rows[(rows["drop_counter"] > 0) | (rows["ledger"] == EVERY_UNHEARD_LEDGER)]
        return [state.ledger_id for state in states_of(special) if self._heed(self.table.get(state.ledger_id) or state)]

    def load_deleted(self, intervals: I64) -> list[LedgerId]:
        """Take in deleted ledgers, an array of (first, last); those that were known until now."""
        for first, last in intervals.tolist():
            self.deleted.add(first, last)
        ledger_ids = self.table.ids()
        gone: list[int] = ledger_ids[self.deleted.holds(ledger_ids)].tolist()
        return gone

    def counting(self, summary: Rows) -> npt.NDArray[np.bool_]:
        """Which records of a segment's summary count: not those of deleted ledgers and of copies from before a drop.
        The ledgers of the others are known from now on."""
        ledgers = np.ascontiguousarray(summary["ledger"])
        counts = ~self.deleted.holds(ledgers)
        self.table.ensure(ledgers[counts])
        if self.drops:
            for k in np.flatnonzero(np.isin(ledgers, list(self.drops))).tolist():
                counts[k] &= int(summary["counter"][k]) >= self.drops[int(ledgers[k])]
        return counts

    def trouble(self, state: LedgerState | None) -> Reason:
        """Why what is not found of a ledger in this state is UNKNOWN; None for one that was never heard of."""
        if state is None or not state.flags & (KEY_CONFLICT | HAS_COPY_STATE):
            state = self._unheard
        if state is None:
            return Reason.REASON_NONE
        return Reason.DAMAGED if state.flags & KEY_CONFLICT else _REASON_OF_SEVERITY[state.severity]

    def ids(self) -> list[LedgerId]:
        """Every ledger known and not deleted, sorted."""
        ledger_ids: list[int] = self.table.ids().tolist()
        return ledger_ids[:-1] if self._unheard is not None else ledger_ids

    def __len__(self) -> int:
        return len(self.table) - (self._unheard is not None)
