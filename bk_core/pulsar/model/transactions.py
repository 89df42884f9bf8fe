# SPDX-License-Identifier: Apache-2.0
"""Tracks which transactions of a topic were committed, and where a read of committed messages ends.

The state is in the topic itself. A message of a transaction has the transaction's id. A marker with the same id, which
always comes after the messages, says whether the transaction was committed or aborted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from bk_core.pulsar.model.message_id import EntryPosition

COMMIT, ABORT = 21, 22
"""The types of the markers that end a transaction. Markers of other types do not concern messages."""


class TxnId(NamedTuple):
    """The id of a transaction: its coordinator's number (``most``), and its number at that coordinator (``least``)."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


@dataclass(slots=True)
class Transactions:
    """The outcomes of transactions, from the markers that were read so far. The caller must pass the entries of one
    topic in order."""

    aborted: set[TxnId] = field(default_factory=set)
    committed: set[TxnId] = field(default_factory=set)
    undecided: dict[TxnId, EntryPosition] = field(default_factory=dict)
    """The transactions without a marker so far. Each has the position of its first message, and they are in the order
    of these positions."""

    def message(self, txn: TxnId, at: EntryPosition) -> None:
        """Record that a message at ``at`` belongs to a transaction."""
        if txn not in self.aborted and txn not in self.committed:
            self.undecided.setdefault(txn, at)

    def marker(self, kind: int, txn: TxnId) -> None:
        """Record a marker. If a topic has two markers of one transaction, the first marker counts."""
        if kind not in (COMMIT, ABORT):
            return
        self.undecided.pop(txn, None)
        if kind == ABORT and txn not in self.committed:
            self.aborted.add(txn)
        elif kind == COMMIT and txn not in self.aborted:
            self.committed.add(txn)

    @property
    def first_undecided(self) -> EntryPosition | None:
        """The position of the first message of a transaction without a marker, or None. A read of committed messages
        ends before this position."""
        return next(iter(self.undecided.values()), None)
