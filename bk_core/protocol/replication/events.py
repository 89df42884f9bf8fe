# SPDX-License-Identifier: Apache-2.0
"""Events and effects that only the repair of a ledger has, in addition to those of :mod:`bk_core.protocol.events`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from bk_core.errors import BookKeeperError
from bk_core.model import BookieId
from bk_core.placement import FLAT, Landscape


class Outcome(enum.Enum):
    """The result of a repair."""

    REPLICATED = "replicated"  # every bookie that the mark names lacks no entry, or has left the record
    DELETED = "deleted"  # there is no such ledger


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the ledger's record, as new as this call, because other repairs change even the record of a closed
    ledger."""


@dataclass(frozen=True, slots=True)
class ReadCluster:
    """Read which bookies are registered now."""


@dataclass(frozen=True, slots=True)
class ClusterRead:
    """The cluster's bookies, as read now. ``writable`` and ``read_only`` are registered.

    The bookies in ``away`` are not registered, but have not been away long enough to count as lost. ``incarnations``
    has the incarnation of each bookie that published one. The bookies in ``leaving`` are being drained and keep no
    copy; those in ``patient`` are drained, too, but wait for the writers of open ledgers. The bookies in
    ``quarantined`` failed lately and are chosen last.
    """

    writable: tuple[BookieId, ...]
    read_only: tuple[BookieId, ...] = ()
    away: tuple[BookieId, ...] = ()
    incarnations: Mapping[BookieId, str] = field(default_factory=dict)
    leaving: tuple[BookieId, ...] = ()
    patient: tuple[BookieId, ...] = ()
    quarantined: tuple[BookieId, ...] = ()
    landscape: Landscape = FLAT

    def life_of(self, bookie: BookieId) -> str | None:
        """Return the incarnation of a registered bookie, or an empty text if it published none. Return None if the
        bookie is not registered."""
        known = bookie in self.writable or bookie in self.read_only
        return self.incarnations.get(bookie, "") if known else None


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Recover the ledger: fence it, which ends its writer, find its last entry, and close it."""


@dataclass(frozen=True, slots=True)
class LedgerRecovered:
    """The ledger is closed, or ``error`` says why it could not be recovered."""

    error: BookKeeperError | None = None


@dataclass(frozen=True, slots=True)
class SpendBudget:
    """Charge ``size`` bytes that were read to the budget, and answer with BudgetGranted when more may be read."""

    size: int


@dataclass(frozen=True, slots=True)
class BudgetGranted:
    """The budget allows the machine to read more."""


@dataclass(frozen=True, slots=True)
class FinishReplication:
    """End the repair and remove the mark, if the mark still has the version that it had before the repair began."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PostponeReplication:
    """Keep the mark, and repair the ledger later. ``why`` says what blocks the repair. ``soon`` says that nothing is
    wrong and that the block may end at any moment."""

    why: str
    soon: bool = False


ClusterEffect: TypeAlias = (
    ReadRecord | ReadCluster | RecoverLedger | SpendBudget | FinishReplication | PostponeReplication
)
