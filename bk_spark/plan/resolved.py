# SPDX-License-Identifier: Apache-2.0
"""The result of planning, and parallel lookups of several ledgers or logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bk_core.model import LedgerId, LedgerMetadata
from bk_spark.options.selection import kind_of
from bk_spark.plan.packing import LedgerRange

logger = logging.getLogger("bk_spark.plan")

LOOKUPS_MAX = 8
"""The maximum number of ledgers or logs that are looked up at the same time."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of a plan: the ranges to read, in order. ``ledgers`` has the records of the bare ledgers among them.
    ``written`` maps each log, or None for the bare ledgers, to the codecs and schema numbers of its extents."""

    ranges: tuple[LedgerRange, ...] = ()
    ledgers: Mapping[LedgerId, LedgerMetadata] = field(default_factory=dict)
    written: Mapping[str | None, frozenset[tuple[str, int]]] = field(default_factory=dict)

    @classmethod
    def together(cls, parts: Iterable[Resolved]) -> Resolved:
        """Join several results, in their order."""
        ranges: list[LedgerRange] = []
        ledgers: dict[LedgerId, LedgerMetadata] = {}
        written: dict[str | None, frozenset[tuple[str, int]]] = {}
        for part in parts:
            ranges += part.ranges
            ledgers.update(part.ledgers)
            for log, found in part.written.items():
                written[log] = written.get(log, frozenset()) | found
        return cls(tuple(ranges), ledgers, written)

    def without_lost(self) -> Resolved:
        """Return the result without the ranges that have no layout because their ledgers were deleted. Log a warning
        about each."""
        lost = [each for each in self.ranges if each.layout is None]
        for each in lost:
            warn_of_lost(each.log, each.ledger_id, each.entries)
        return replace(self, ranges=tuple(r for r in self.ranges if r.layout is not None)) if lost else self


NOTHING = Resolved()


def warn_of_lost(log: str | None, ledger_id: LedgerId, entries: int) -> None:
    """Log what a read with ``failOnDataLoss=false`` leaves out."""
    where = f"ledger {ledger_id}" if log is None else f"ledger {ledger_id} of {kind_of(log)} {log}"
    logger.warning("%s was deleted: %d entries are skipped (failOnDataLoss=false)", where, entries)


def side_by_side(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of ``work`` for ``items``, in order, with several calls at a time. Raises the error of the
    first item that failed; no further call begins then."""
    if len(items) < 2:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(min(LOOKUPS_MAX, len(items)), "bookkeeper-plan")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
