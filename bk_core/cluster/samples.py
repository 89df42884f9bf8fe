# SPDX-License-Identifier: Apache-2.0
"""Computes series of numbers of bookies from their scrapes. Counters become rates, and histograms become quantiles."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from bk_core.cluster.admin_ports import Numbers
from bk_core.observe.metrics import quantile

SAMPLES_MAX = 120
"""The maximum number of steps in a bookie's history. They cover ten minutes with one sample every five seconds."""

DAMAGE = tuple(f"bookie_storage_{name}" for name in ("detected_scrub_errors", "frames_damaged", "read_io_errors"))
DIRECTORY = {
    "totalBytes": "bookie_directory_total_bytes",
    "usableBytes": "bookie_directory_usable_bytes",
    "writable": "bookie_directory_writable",
}


@dataclass(frozen=True, slots=True)
class ScrapedBookie:
    """The facts about a bookie from its admin port. ``not_ready`` and ``read_only`` are the reasons why it is not ready
    or read-only, or empty."""

    numbers: Numbers
    not_ready: str = ""
    read_only: str = ""


class Sample(NamedTuple):
    """The counters of a bookie at one time. ``commits`` is the histogram of commit times, with the count up to each
    bound in seconds. A counter that the bookie did not report is None."""

    at_s: float
    added: float | None = None
    written: float | None = None
    read: float | None = None
    commits: dict[float, float] | None = None


def sample_of(numbers: Numbers, at_s: float) -> Sample:
    return Sample(
        at_s,
        numbers.total("bookkeeper_server_ADD_ENTRY_REQUEST_count", success="true"),
        numbers.total("bookie_WRITE_BYTES"),
        numbers.total("bookie_READ_BYTES"),
        numbers.buckets("bookie_commit_seconds"),
    )


def facts_of(numbers: Numbers) -> dict[str, Any]:
    """Return the numbers that are shown unchanged, and not as rates."""
    by_directory: dict[str, dict[str, object]] = {}
    for key, name in DIRECTORY.items():
        for labels, value in numbers.samples.get(name, ()):
            found = by_directory.setdefault(labels.get("directory", ""), {})
            found[key] = bool(value) if key == "writable" else value
    return {
        "damage": int(sum(numbers.total(name) or 0 for name in DAMAGE)),
        "ledgers": numbers.total("bookie_ledgers_count"),
        "limboLedgers": numbers.total("bookie_ledgers_in_limbo"),
        "damagedLedgers": numbers.total("bookie_ledgers_damaged"),
        "sessions": numbers.total("bookie_sessions"),
        "memoryBytes": numbers.total("process_resident_memory_bytes"),
        "startedS": numbers.total("process_start_time_seconds"),
        "directories": [{"path": path, **each} for path, each in sorted(by_directory.items())],
    }


class History:
    """The last samples of one bookie."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._samples: deque[Sample] = deque(maxlen=samples_max + 1)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def series(self) -> dict[str, object]:
        """Return the rates and quantiles between consecutive samples. They are None where the bookie did not answer or
        was restarted."""
        steps = list(pairwise(self._samples))
        return {
            "seconds": [round(after.at_s - before.at_s, 1) for before, after in steps],
            "added": [_rate(before, after, before.added, after.added) for before, after in steps],
            "written": [_rate(before, after, before.written, after.written) for before, after in steps],
            "read": [_rate(before, after, before.read, after.read) for before, after in steps],
            "p50Ms": [_quantile_ms(before, after, 0.5) for before, after in steps],
            "p99Ms": [_quantile_ms(before, after, 0.99) for before, after in steps],
        }


def _rate(before: Sample, after: Sample, was: float | None, is_now: float | None) -> float | None:
    took_s = after.at_s - before.at_s
    if was is None or is_now is None or is_now < was or took_s <= 0:
        return None
    return round((is_now - was) / took_s, 1)


def _quantile_ms(before: Sample, after: Sample, share: float) -> float | None:
    """Return the quantile of the commits between two samples, in milliseconds. Return None if there were no commits or
    the bookie was restarted. A quantile above the last finite bound of the histogram becomes that bound."""
    was, is_now = before.commits or {}, after.commits or {}
    counts = {bound: count - was.get(bound, 0) for bound, count in is_now.items()}
    if was.keys() != is_now.keys() or min(counts.values(), default=0) < 0:
        return None
    found = quantile(counts, share)
    if found == float("inf"):
        found = max((bound for bound in counts if bound != found), default=None)
    return None if found is None else round(found * 1000, 3)
