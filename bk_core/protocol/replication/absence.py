# SPDX-License-Identifier: Apache-2.0
"""When a bookie that is not registered counts as lost. Pure.

A restart, a rolling one of many bookies too, is no loss: each bookie has the whole delay to come back, however many are
away. (Apache's auditor waits only where exactly one is away.) A bookie that comes back begins anew.
"""

from __future__ import annotations

from collections.abc import Collection

from bk_core.model import BookieId


class Absences:
    """Knows since when each bookie is away, by the clock that the caller passes in, which never goes back."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}

    def lost(
        self, known: Collection[BookieId], registered: Collection[BookieId], now_ms: float, delay_ms: float
    ) -> tuple[BookieId, ...]:
        """Those of ``known`` that have been away for ``delay_ms``, sorted. A bookie seen away for the first time is
        away since now: for how long it was before, nobody knows."""
        away = sorted(set(known).difference(registered))
        self._since = {bookie: self._since.get(bookie, now_ms) for bookie in away}
        return tuple(bookie for bookie in away if now_ms - self._since[bookie] >= delay_ms)

    def waiting(self) -> dict[BookieId, float]:
        """The bookies that are away, and since when."""
        return dict(self._since)
