# SPDX-License-Identifier: Apache-2.0
"""Measures what the processes of a job spend: processor time of Spark's Python workers, of its Java and of the servers.
It covers all descendants of the process that began the benchmark, which it tells apart by
their command lines."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.running.processes import table, with_descendants

WORKERS, JAVA, BOOKIES, BROKER = "workers", "Java", "bookies", "broker"
_SIGNS = {WORKERS: "pyspark.daemon", JAVA: "SparkSubmit", BOOKIES: "bookie\0run", BROKER: "kafka.Kafka"}


@dataclass(frozen=True, slots=True)
class Spent:
    """The processor seconds that a job took, by the kind of process."""

    cpu_s: dict[str, float]

    def cpu_a_gb(self, payload_bytes: int) -> dict[str, float]:
        """Return the processor seconds of each kind per gigabyte of payload."""
        return {kind: seconds / payload_bytes * 1e9 for kind, seconds in self.cpu_s.items() if seconds}


def measured(work: Callable[[], float]) -> tuple[float, Spent]:
    """Return what ``work`` returns, and what was spent on it. The time of processes that ended meanwhile is lost."""
    before = _of_each()
    value = work()
    cpu_s = dict.fromkeys(_SIGNS, 0.0)
    for pid, (kind, seconds) in _of_each().items():
        cpu_s[kind] += seconds - before.get(pid, (kind, 0.0))[1]
    return value, Spent(cpu_s)


def _of_each() -> dict[int, tuple[str, float]]:
    """Return the kind and the seconds so far of each process that has a kind. Empty without ``/proc``."""
    found, root = table(), os.getppid()
    return {
        pid: (kind, found[pid][1])
        for pid in with_descendants(found, root)
        if pid != root and pid in found and (kind := _kind_of(pid)) is not None
    }


def _kind_of(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None  # it has just ended
    return next((kind for kind, sign in _SIGNS.items() if sign in command), None)
