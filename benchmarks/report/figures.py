# SPDX-License-Identifier: Apache-2.0
"""One measured figure, the peer's figure, and the ways to print them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MESSAGES_BYTES = 64 << 20
Record = dict[str, Any]
"""A figure as an object of JSON."""


@dataclass
class Figure:
    """The values of the timed runs in ``unit``. ``less_is_better`` inverts the ratio, so that a ratio above 1 always
    means that ours is better.

    ``wanted`` is the limit for the median. ``wanted_ratio`` is the least ratio to the peer.
    """

    name: str
    unit: str
    values: list[float]
    lane: str = "direct"
    wanted: float | None = None
    less_is_better: bool = False
    peer: str = ""
    peer_values: list[float] = field(default_factory=list)
    note: str = ""
    wanted_ratio: float | None = None
    peer_note: str = ""
    cpu_s_per_gb: dict[str, float] = field(default_factory=dict)
    peer_cpu_s_per_gb: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def worst(self) -> float:
        return max(self.values) if self.less_is_better else min(self.values)

    @property
    def peer_median(self) -> float | None:
        return statistics.median(self.peer_values) if self.peer_values else None

    @property
    def ratio(self) -> float | None:
        if self.peer_median is None:
            return None
        return self.peer_median / self.median if self.less_is_better else self.median / self.peer_median

    @property
    def worst_ratio(self) -> float | None:
        """The least of the ratios of the runs that took turns with the peer's."""
        if len(self.values) != len(self.peer_values):
            return self.ratio
        pairs = zip(self.values, self.peer_values, strict=True)
        return min(theirs / ours if self.less_is_better else ours / theirs for ours, theirs in pairs)

    @property
    def meets(self) -> bool | None:
        """Whether the medians meet the wanted values, or None if nothing is wanted."""
        met = []
        if self.wanted is not None:
            met.append(self.median <= self.wanted if self.less_is_better else self.median >= self.wanted)
        if self.wanted_ratio is not None:
            met.append(self.ratio is not None and self.ratio >= self.wanted_ratio)
        return all(met) if met else None

    @property
    def wish(self) -> str:
        """The wanted value and the wanted ratio to the peer, in words."""
        wishes = []
        if self.wanted is not None:
            wishes.append(f"{'≤' if self.less_is_better else '≥'} {self.wanted:g} {self.unit}")
        if self.wanted_ratio is not None:
            wishes.append(f"≥ {self.wanted_ratio:.3g} ×")
        return ", ".join(wishes)

    def as_record(self) -> Record:
        """Return everything as a record. ``--json`` prints it, and tables and pages are made from it."""
        return {
            "name": self.name, "lane": self.lane, "value": self.median, "unit": self.unit, "runs": self.values,
            "peer": self.peer or None, "peer_value": self.peer_median, "ratio": self.ratio,
            "peer_runs": self.peer_values, "worst": self.worst, "worst_ratio": self.worst_ratio,
            "cpu_s_per_gb": self.cpu_s_per_gb, "peer_cpu_s_per_gb": self.peer_cpu_s_per_gb,
            "wish": self.wish, "wanted_ratio": self.wanted_ratio, "meets": self.meets,
            "note": self.note, "peer_note": self.peer_note,
        }  # fmt: skip


def repeat(runs: int, measure: Callable[[], float]) -> list[float]:
    """Run once to warm up, then return the values of ``runs`` runs."""
    measure()
    return [measure() for _ in range(runs)]


def side_by_side(
    runs: int, ours: Callable[[], float], peer: Callable[[], float], *, warm_up: int = 1
) -> tuple[list[float], list[float]]:
    """Warm both up, then return the values of ``runs`` runs of each. They take turns, so that a disturbance affects
    both."""
    for _ in range(warm_up):
        ours(), peer()
    pairs = [(ours(), peer()) for _ in range(runs)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def elapsed(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def number(value: float) -> str:
    """Return a number with about four digits, and never with an exponent."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1}f}"


def percentile(samples: list[float], share: float) -> float:
    return float(np.percentile(np.array(samples), share * 100))


class VariedBytes:
    """Random bytes, more than the caches hold. Slices of them do not repeat within a run of up to ``size`` bytes."""

    def __init__(self, size: int = 128 << 20, seed: int = 1) -> None:
        self._data = memoryview(np.random.default_rng(seed).bytes(size))
        self._at = 0

    def take(self, size: int) -> memoryview:
        if self._at + size > len(self._data):
            self._at = 0
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

    def messages(self, size: int, total: int) -> list[bytes]:
        """Return different messages of one size, at most ``MESSAGES_BYTES`` in all, as a program holds them in its
        memory."""
        return [bytes(self.take(size)) for _ in range(min(total, MESSAGES_BYTES) // size)]

    def chunks(self, total: int, size: int) -> Iterator[memoryview]:
        for _ in range(-(-total // size)):
            yield self.take(size)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one timed run: a value for each name of its measurement, and the bytes of payload that it moved."""

    values: tuple[float, ...]
    payload_bytes: int = 0

    @classmethod
    def of(cls, value: float, payload_bytes: int = 0) -> Run:
        """Return the run of a measurement with one name."""
        return cls((value,), payload_bytes)
