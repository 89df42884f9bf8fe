# SPDX-License-Identifier: Apache-2.0
"""Figures of the storage engine beside the raw disk, and the rows of their table. Pure.

A raw figure was measured in the same run, in turns with ours, so that run k of one belongs to run k of the other. The
share is ours/raw, the median of the runs' shares.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report.figures import Figure, number

COLUMNS = ("figure", "unit", "median", "min", "max", "raw disk", "share", "wanted", "")


@dataclass
class StorageFigure(Figure):
    """A figure beside the raw disk. ``wanted`` limits the value, or the share if ``of_raw``: it is the most if
    ``less_is_better``, otherwise the least. ``extra`` are other numbers of the same runs, for the page."""

    lane: str = "none"
    of_raw: bool = False
    extra: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.values, f"{self.name} was not measured"
        assert not self.peer_values or len(self.peer_values) == len(self.values), f"{self.name}: runs come in pairs"
        assert self.peer_values or not self.of_raw, f"{self.name} is measured by a raw figure that it lacks"

    @property
    def shares(self) -> list[float]:
        """The ratio ours/raw of each run."""
        return [ours / raw for ours, raw in zip(self.values, self.peer_values, strict=False)]

    @property
    def share(self) -> float | None:
        return statistics.median(self.shares) if self.peer_values else None

    @property
    def judged(self) -> float:
        """The number that the limit is for."""
        return self.median if self.share is None or not self.of_raw else self.share

    @property
    def meets(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.judged <= self.wanted if self.less_is_better else self.judged >= self.wanted

    def as_record(self) -> dict[str, Any]:
        """Return everything as a record, for a file of results and the page."""
        return {
            "name": self.name, "lane": self.lane, "value": self.median, "unit": self.unit, "runs": self.values,
            "peer": self.peer or None, "peer_value": self.peer_median, "peer_runs": self.peer_values,
            "ratio": self.ratio, "min": min(self.values), "max": max(self.values), "share": self.share,
            "wanted": self.wanted, "of_raw": self.of_raw, "less_is_better": self.less_is_better, "meets": self.meets,
            "note": self.note, "extra": self.extra,
        }  # fmt: skip


def row(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of :data:`COLUMNS` for a record of :meth:`StorageFigure.as_record`."""
    wanted, meets = "", {True: "✓", False: "✗", None: ""}[record["meets"]]
    if record["wanted"] is not None:
        sign = "≤" if record["less_is_better"] else "≥"
        wanted = f"{sign} {record['wanted']:g}{' × raw' if record['of_raw'] else ' ' + record['unit']}"
    raw = "" if record["peer_value"] is None else number(record["peer_value"])
    share = "" if record["share"] is None else f"{record['share']:.2f}"
    three = (number(record[key]) for key in ("value", "min", "max"))
    return (record["name"], record["unit"], *three, raw, share, wanted, meets)
