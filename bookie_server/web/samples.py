# SPDX-License-Identifier: Apache-2.0
"""Numbers of bookies over time, from the text of their scrapes: rates from counters, quantiles from histograms."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

SAMPLES_MAX = 120
"""Ten minutes at a sample in five seconds."""

_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ADDED, _WRITTEN, _READ = "bookkeeper_server_ADD_ENTRY_REQUEST_count", "bookie_WRITE_BYTES", "bookie_READ_BYTES"
_COMMITS, _INFO, _STARTED = "bookie_commit_seconds_bucket", "bookie_info", "process_start_time_seconds"
_TOTAL, _USABLE, _WRITABLE = (f"bookie_directory_{name}" for name in ("total_bytes", "usable_bytes", "writable"))
_DAMAGE = tuple(f"bookie_storage_{name}" for name in ("detected_scrub_errors", "frames_damaged", "read_io_errors"))
_LEDGERS, _MEMORY, _SESSIONS = "bookie_ledgers_count", "process_resident_memory_bytes", "bookie_sessions"
_WANTED = frozenset(
    {
        *(_ADDED, _WRITTEN, _READ, _COMMITS, _INFO, _STARTED, _TOTAL, _USABLE, _WRITABLE, *_DAMAGE),
        *(_LEDGERS, _MEMORY, _SESSIONS),
    }
)

Labels = dict[str, str]


class Told(NamedTuple):
    """What a bookie tells of itself: the text of a scrape, why it is not ready, and why it is read-only."""

    metrics: str
    not_ready: str = ""
    read_only: str = ""


class Sample(NamedTuple):
    """Counters at a moment; ``commits`` are cumulative counts by the upper bound of a commit's seconds. None: not
    told."""

    at_s: float
    added: float | None = None
    written: float | None = None
    read: float | None = None
    commits: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Scraped:
    """The wanted samples of a scrape, by name."""

    samples: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Scraped:
        """Lines that are no samples are passed over."""
        found: dict[str, list[tuple[Labels, float]]] = {}
        for line in text.splitlines():
            if line.partition("{")[0].partition(" ")[0] not in _WANTED:
                continue
            match = _SAMPLE.fullmatch(line)
            if match is None or (value := _number(match[3])) is None:
                continue
            labels = {name: _unquoted(quoted) for name, quoted in _LABEL.findall(match[2] or "")}
            found.setdefault(match[1], []).append((labels, value))
        return cls(found)

    def total(self, *names: str) -> float | None:
        """The sum over all labels and names; None if there is no such sample."""
        values = [value for name in names for _, value in self.samples.get(name, ())]
        return sum(values) if values else None

    @property
    def bookie_id(self) -> str | None:
        return next((labels.get("bookie") for labels, _ in self.samples.get(_INFO, ())), None)

    @property
    def version(self) -> str | None:
        return next((labels.get("version") for labels, _ in self.samples.get(_INFO, ())), None)

    def sample(self, at_s: float) -> Sample:
        commits: dict[float, float] = {}
        for labels, value in self.samples.get(_COMMITS, ()):
            bound = _number(labels.get("le", ""))
            if bound is not None:
                commits[bound] = commits.get(bound, 0) + value
        added = [value for labels, value in self.samples.get(_ADDED, ()) if labels.get("success", "true") == "true"]
        return Sample(
            at_s,
            sum(added) if added else None,
            self.total(_WRITTEN),
            self.total(_READ),
            tuple(sorted(commits.items())),
        )

    def now(self) -> dict[str, object]:
        """What is no rate, for people."""
        by_directory: dict[str, dict[str, object]] = {}
        for name, key in ((_TOTAL, "totalBytes"), (_USABLE, "usableBytes"), (_WRITABLE, "writable")):
            for labels, value in self.samples.get(name, ()):
                directory = by_directory.setdefault(labels.get("directory", ""), {})
                directory[key] = bool(value) if name == _WRITABLE else value
        return {
            "damage": int(self.total(*_DAMAGE) or 0),
            "ledgers": self.total(_LEDGERS),
            "sessions": self.total(_SESSIONS),
            "memoryBytes": self.total(_MEMORY),
            "startedS": self.total(_STARTED),
            "directories": [{"path": path, **each} for path, each in sorted(by_directory.items())],
        }


class History:
    """The last samples of one bookie."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._samples: deque[Sample] = deque(maxlen=samples_max + 1)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def series(self) -> dict[str, object]:
        """What happened between each two samples; None where that is not known: a bookie that was away or began
        anew."""
        steps = list(pairwise(self._samples))
        return {
            "seconds": [round(after.at_s - before.at_s, 1) for before, after in steps],
            "added": [_rate(before, after, before.added, after.added) for before, after in steps],
            "written": [_rate(before, after, before.written, after.written) for before, after in steps],
            "read": [_rate(before, after, before.read, after.read) for before, after in steps],
            "p50Ms": [_quantile_ms(before.commits, after.commits, 0.5) for before, after in steps],
            "p99Ms": [_quantile_ms(before.commits, after.commits, 0.99) for before, after in steps],
        }


def _rate(before: Sample, after: Sample, was: float | None, is_now: float | None) -> float | None:
    took_s = after.at_s - before.at_s
    if was is None or is_now is None or is_now < was or took_s <= 0:
        return None
    return round((is_now - was) / took_s, 1)


def _quantile_ms(
    before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]], share: float
) -> float | None:
    """Of what was observed between two states of a histogram; within a bucket values count as spread evenly. None if
    nothing was, or the histogram began anew."""
    if not after or [bound for bound, _ in before] != [bound for bound, _ in after]:
        return None
    counts = [now - was for (_, was), (_, now) in zip(before, after, strict=True)]
    if counts[-1] <= 0 or min(counts) < 0:
        return None
    wanted, lower, below = share * counts[-1], 0.0, 0.0
    for (bound, _), count in zip(after, counts, strict=True):
        if count >= wanted:
            if bound == float("inf"):
                return round(lower * 1000, 3)
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return round((lower + (bound - lower) * inside) * 1000, 3)
        lower, below = bound, count
    return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value != value else value  # NaN is no number


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)
