# SPDX-License-Identifier: Apache-2.0
"""Events and effects that only the repair of a ledger has; the others are those of :mod:`bk_core.protocol.events`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from bk_core.errors import BookKeeperError
from bk_core.model import BookieId
from bk_core.placement import FLAT, Landscape


class Outcome(enum.Enum):
    """How a repair ended."""

    REPLICATED = "replicated"  # every copy that the mark says is missing is there, or is not wanted any more
    DELETED = "deleted"  # there is no such ledger


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the ledger's record, as new as the call: that of a closed ledger changes, too, where others repair it."""


@dataclass(frozen=True, slots=True)
class ReadCluster:
    """Read which bookies are registered now."""


@dataclass(frozen=True, slots=True)
class ClusterRead:
    """The registered bookies. ``away``: those that are not registered, and not for so long that they count as lost.
    ``incarnations``: of those that have one. ``leaving``: those that are being drained, which keep no copy;
    ``patient``: those of them that wait for the writers of open ledgers. ``quarantined``: those that failed lately,
    which are chosen last."""

    writable: tuple[BookieId, ...]
    read_only: tuple[BookieId, ...] = ()
    away: tuple[BookieId, ...] = ()
    incarnations: Mapping[BookieId, str] = field(default_factory=dict)
    leaving: tuple[BookieId, ...] = ()
    patient: tuple[BookieId, ...] = ()
    quarantined: tuple[BookieId, ...] = ()
    landscape: Landscape = FLAT

    def life_of(self, bookie: BookieId) -> str | None:
        """The incarnation of a registered bookie, empty if it has none; None if the bookie is not registered."""
        known = bookie in self.writable or bookie in self.read_only
        return self.incarnations.get(bookie, "") if known else None


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Recover the ledger: fence it, find its end, close it. Its writer is fenced by that."""


@dataclass(frozen=True, slots=True)
class LedgerRecovered:
    """The ledger is closed, or (``error``) could not be recovered."""

    error: BookKeeperError | None = None


@dataclass(frozen=True, slots=True)
class SpendBudget:
    """Reports the bytes that were read; the driver answers when more may be read."""

    size: int


@dataclass(frozen=True, slots=True)
class BudgetGranted:
    """More may be read."""


@dataclass(frozen=True, slots=True)
class FinishReplication:
    """The repair is over: the mark may go, if it has the version that it had before the repair began."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PostponeReplication:
    """The mark stays; the repair is to be tried again later. ``why`` says what blocks it; ``soon``: it may end any
    moment, for nothing is wrong."""

    why: str
    soon: bool = False


ClusterEvent: TypeAlias = ClusterRead | LedgerRecovered | BudgetGranted
ClusterEffect: TypeAlias = (
    ReadRecord | ReadCluster | RecoverLedger | SpendBudget | FinishReplication | PostponeReplication
)
