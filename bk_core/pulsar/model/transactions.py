# SPDX-License-Identifier: Apache-2.0
"""The outcomes of a topic's transactions, and the end of a read of committed messages.

The state is in the topic itself: a message of a transaction has the transaction's id, and a marker with the same id,
always behind the messages, says whether it was committed or aborted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from bk_core.pulsar.model.message_id import EntryPosition

COMMIT, ABORT = 21, 22
"""Types of markers that end a transaction; markers of other types say nothing about messages."""


class TxnId(NamedTuple):
    """A transaction: the coordinator's number and a number of its own."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


@dataclass(slots=True)
class Transactions:
    """The outcomes that markers have shown so far. Feed it the entries of one topic in order."""

    aborted: set[TxnId] = field(default_factory=set)
    committed: set[TxnId] = field(default_factory=set)
    undecided: dict[TxnId, EntryPosition] = field(default_factory=dict)
    """The transactions without a marker, and the first message of each; in the order of these."""

    def message(self, txn: TxnId, at: EntryPosition) -> None:
        """A message of a transaction."""
        if txn not in self.aborted and txn not in self.committed:
            self.undecided.setdefault(txn, at)

    def marker(self, kind: int, txn: TxnId) -> None:
        """A marker. It may stand in the topic twice; the first one decides."""
        if kind not in (COMMIT, ABORT):
            return
        self.undecided.pop(txn, None)
        if kind == ABORT and txn not in self.committed:
            self.aborted.add(txn)
        elif kind == COMMIT and txn not in self.aborted:
            self.committed.add(txn)

    @property
    def first_undecided(self) -> EntryPosition | None:
        """The first message of a transaction without a marker: a read of committed messages ends before it."""
        return next(iter(self.undecided.values()), None)
