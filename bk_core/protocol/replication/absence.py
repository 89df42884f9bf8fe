# SPDX-License-Identifier: Apache-2.0
"""Decides when a bookie that is not registered counts as lost. Pure.

A bookie that restarts is not lost, even during a rolling restart of many bookies. Each bookie has the whole delay to
come back, however many others are away. (Apache's auditor waits only if exactly one is away.) When a bookie comes back,
its absence ends, and its next absence has the whole delay again.
"""

from __future__ import annotations

from collections.abc import Collection

from bk_core.model import BookieId


class Absences:
    """Remembers since when each bookie has been away. All times are those of the caller's clock, which must never go
    back."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}

    def lost(
        self, known: Collection[BookieId], registered: Collection[BookieId], now_ms: float, delay_ms: float
    ) -> tuple[BookieId, ...]:
        """Return the bookies of ``known`` that have been away for ``delay_ms``, sorted. A bookie whose absence is new
        counts as away from ``now_ms`` on."""
        away = sorted(set(known).difference(registered))
        self._since = {bookie: self._since.get(bookie, now_ms) for bookie in away}
        return tuple(bookie for bookie in away if now_ms - self._since[bookie] >= delay_ms)

    def waiting(self) -> dict[BookieId, float]:
        """Return the bookies that are away, each with the time of its first absence in a row."""
        return dict(self._since)
