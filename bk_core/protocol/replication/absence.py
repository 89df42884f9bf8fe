# SPDX-License-Identifier: Apache-2.0
"""Decides when a bookie that is not registered counts as lost. Pure.

A restart is no loss, and neither is a rolling restart of many bookies: each bookie has the whole delay to come back,
however many are away. (Apache's auditor waits only if exactly one is away.) When a bookie comes back, its absence ends;
the next one has the whole delay again.
"""

from __future__ import annotations

from collections.abc import Collection

from bk_core.model import BookieId


class Absences:
    """Remembers since when each bookie has been away, by the caller's clock, which must never go back."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}

    def lost(
        self, known: Collection[BookieId], registered: Collection[BookieId], now_ms: float, delay_ms: float
    ) -> tuple[BookieId, ...]:
        """Return those of ``known`` that have been away for ``delay_ms``, sorted. A bookie that is away for the first
        time counts as away from now on: how long it was away before is unknown."""
        away = sorted(set(known).difference(registered))
        self._since = {bookie: self._since.get(bookie, now_ms) for bookie in away}
        return tuple(bookie for bookie in away if now_ms - self._since[bookie] >= delay_ms)

    def waiting(self) -> dict[BookieId, float]:
        """Return the bookies that are away, and since when."""
        return dict(self._since)
