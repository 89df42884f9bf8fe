# SPDX-License-Identifier: Apache-2.0
"""Has metrics, histograms, and the text of a scrape for Prometheus, without sockets and threads.

Code that counts increments plain integers, which a scrape reads. It uses only the histogram of this module. The text is
version 0.0.4 of Prometheus' format, which every version of Prometheus reads. The client library of Prometheus is not
used, because it would add ``_total`` to the names of counters, and Apache's names have no such suffix.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """The declaration of a metric. Each of its samples has values for ``labels``, in this order. ``apache`` says
    whether Apache's bookies have a metric with this name and this meaning."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    apache: bool = False


class Histogram:
    """Counts observations by ascending upper ``bounds``. One thread at a time may observe, and any thread may read."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)  # not cumulative; the last is for values above all bounds
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: npt.NDArray[np.float64]) -> None:
        """Observe each of the values."""
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
        self.counts = [*map(int.__add__, self.counts, found.tolist())]
        self.total += float(values.sum())

    def copy(self) -> Histogram:
        """Return a copy of the present counts."""
        twin = Histogram(self.bounds)
        twin.counts, twin.total = list(self.counts), self.total
        return twin


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the lowest bound that at least this share of the observations does not exceed. It is infinity if the
    quantile is above all finite bounds, and None if there are no observations. ``buckets`` has the cumulative count for
    each bound."""
    total = max(buckets.values(), default=0)
    if total <= 0:
        return None
    return min((bound for bound, count in buckets.items() if count >= share * total), default=None)


class Scrape:
    """The values of declared metrics at one time. Metrics without a value are left out of the text."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._lines: dict[str, list[str]] = {}

    def put(self, name: str, value: float | Histogram, *labels: str) -> None:
        """Add a sample. ``labels`` are the values of the metric's labels. Raises KeyError for an undeclared metric, and
        ValueError for a wrong number of labels or a wrong kind of value."""
        metric = self._metrics[name]
        pairs = dict(zip(metric.labels, labels, strict=True))
        if isinstance(value, Histogram) is not (metric.kind == "histogram"):
            raise ValueError(f"{name} is a {metric.kind}")
        lines = self._lines.setdefault(name, [])
        if isinstance(value, Histogram):
            lines += _histogram_lines(name, value, pairs)
        else:
            lines.append(_line(name, value, pairs))

    def text(self) -> str:
        lines: list[str] = []
        for name, metric in self._metrics.items():
            if name in self._lines:
                lines += [f"# HELP {name} {_escaped(metric.help)}", f"# TYPE {name} {metric.kind}", *self._lines[name]]
        return "\n".join(lines) + "\n"


def _histogram_lines(name: str, histogram: Histogram, labels: Mapping[str, str]) -> list[str]:
    """Return the lines of a histogram. The count is the sum of the buckets as they are read here, so it agrees with the
    buckets although another thread may observe at the same time."""
    lines, below = [], 0
    counts, total = list(histogram.counts), histogram.total
    for bound, count in zip((*map(float, histogram.bounds), "+Inf"), counts, strict=True):
        below += count
        lines.append(_line(f"{name}_bucket", below, {**labels, "le": str(bound)}))
    return [*lines, _line(f"{name}_sum", total, labels), _line(f"{name}_count", below, labels)]


def _line(name: str, value: float, labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
