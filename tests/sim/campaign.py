# SPDX-License-Identifier: Apache-2.0
"""Runs many schedules. Worker processes take chunks of seeds, the results are added up, and a file remembers the
progress."""

from __future__ import annotations

import gc
import json
import logging
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.schedule import ENGINES, Outcome, run_schedule

CHUNK = 200
WORLDS_KEPT = 4


@dataclass
class Totals:
    """The sums of a campaign. ``steps`` counts the states visited, and ``digests`` the different histories of a
    chunk."""

    profile: str
    next_seed: int = 0
    schedules: int = 0
    steps: int = 0
    histories: int = 0
    acks: int = 0
    virtual_hours: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    sometimes: Counter[str] = field(default_factory=Counter)
    violations: list[list[object]] = field(default_factory=list)  # (engine, seed, violation)

    def add(self, other: Totals) -> None:
        for name in ("schedules", "steps", "histories", "acks", "virtual_hours", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sometimes.update(other.sometimes)
        self.violations += other.violations

    @property
    def per_second(self) -> float:
        """The number of schedules per second and core."""
        return self.schedules / self.cpu_s if self.cpu_s else 0.0


def runner_of(profile: str) -> Callable[[int], Outcome]:
    """Return the function that runs one seed of a profile. The seed determines the engine.

    *protocol*: machines over memory. *apache*: all bookies, or some, answer as Apache's do. *heal*: an auditor and
    workers repair. *quorum*: readers show entries above the LAC. *storage*: the product's storage is in the loop.
    *disk*: one bookie's storage alone. *logs*: the machines of named logs; of every fourth seed several logs at once,
    of every eighth a log that is deleted. *threads*: the threads around machines, in controlled orders.
    """
    if profile == "threads":
        from tests.sim.threads.profile import run_threads_schedule

        return run_threads_schedule
    if profile == "logs":
        from tests.sim.log_deletion import run_deletion_schedule
        from tests.sim.log_fan_out import run_fan_out_schedule
        from tests.sim.logs import LogViolation, run_log_schedule

        schedules = {3: run_fan_out_schedule, 5: run_deletion_schedule, 7: run_fan_out_schedule}

        def run_logs(seed: int) -> Outcome:
            try:
                found = schedules.get(seed % 8, run_log_schedule)(seed)
            except LogViolation as error:
                return Outcome(seed, "logs", profile, 0, 0, 0.0, 0, str(error))
            return Outcome(seed, "logs", profile, found.fingerprint, found.steps, 0.0, 0, sometimes=dict(found.reached))

        return run_logs
    if profile == "disk":
        from tests.sim.storage_schedule import Violation, run_storage_schedule

        def run_disk(seed: int) -> Outcome:
            try:
                done = run_storage_schedule(seed)
            except (Violation, AssertionError) as error:
                return Outcome(seed, "disk", profile, 0, 0, 0.0, 0, str(error))
            return Outcome(
                seed, "disk", profile, zlib.crc32(repr(done).encode()), 120, 0.0, 0, sometimes=dict(done.counts)
            )

        return run_disk
    return lambda seed: run_schedule(seed, engine_of(seed), profile)


def engine_of(seed: int) -> str:
    """Return the engine of a seed. Seeds take turns at the engines."""
    return ENGINES[seed % len(ENGINES)]


def run_chunk(profile: str, first: int, count: int) -> Totals:
    """Run the seeds ``first`` to ``first + count − 1`` in this process."""
    logging.disable(logging.CRITICAL)  # thousands of damages would be reported
    gc.disable()  # worlds have reference cycles; they are collected a few at a time, without the other objects
    gc.freeze()
    run, totals, seen = runner_of(profile), Totals(profile), set[int]()
    began = time.process_time()
    for seed in range(first, first + count):
        outcome = run(seed)
        if seed % WORLDS_KEPT == 0:
            gc.collect(1)
        totals.schedules += 1
        totals.steps += outcome.steps
        totals.acks += outcome.acks
        totals.virtual_hours += outcome.virtual_ms / 3_600_000
        totals.sometimes.update(outcome.sometimes)
        seen.add(outcome.digest)
        if outcome.violation:
            totals.violations.append([outcome.engine, seed, outcome.violation])
    totals.histories = len(seen)
    totals.cpu_s = time.process_time() - began
    return totals


def campaign(
    profile: str,
    *,
    jobs: int,
    schedules: int | None = None,
    seconds: float | None = None,
    first_seed: int = 0,
    state: Path | None = None,
    tell: Callable[[Totals], None] = lambda _: None,
) -> Totals:
    """Run until ``schedules`` are done in all, or ``seconds`` have passed in this call. With ``state``, continue where
    this file ends."""
    totals = load(state, profile) or Totals(profile, next_seed=first_seed)
    began, before = time.monotonic(), totals.wall_s
    told = began
    with ProcessPoolExecutor(jobs) as pool:
        running: dict[Future[Totals], int] = {}
        ended: dict[int, Totals] = {}  # by first seed; added in order, so that each seed counts once even after a kill
        chunks = _chunks(totals, schedules, began, seconds)
        while True:
            while len(running) < jobs + 1 and (chunk := next(chunks, None)) is not None:
                running[pool.submit(run_chunk, profile, *chunk)] = chunk[0]
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ended[running.pop(future)] = future.result()
            while totals.next_seed in ended:
                part = ended.pop(totals.next_seed)
                totals.add(part)
                totals.next_seed += part.schedules
            totals.wall_s = before + time.monotonic() - began
            if time.monotonic() - told > 10:
                told = time.monotonic()
                save(state, totals)
                tell(totals)
    save(state, totals)
    return totals


def _chunks(totals: Totals, schedules: int | None, began: float, seconds: float | None) -> Iterator[tuple[int, int]]:
    given, first = totals.schedules, totals.next_seed
    while schedules is None or given < schedules:
        if seconds is not None and time.monotonic() - began >= seconds:
            return
        count = CHUNK if schedules is None else min(CHUNK, schedules - given)
        yield first, count
        first, given = first + count, given + count


def load(state: Path | None, profile: str) -> Totals | None:
    if state is None or not state.exists():
        return None
    found = json.loads(state.read_text()).get(profile)
    if found is None:
        return None
    found["sometimes"] = Counter(found["sometimes"])
    return Totals(**found)


def save(state: Path | None, totals: Totals) -> None:
    """Save the progress."""
    if state is None:
        return
    everything = json.loads(state.read_text()) if state.exists() else {}
    everything[totals.profile] = {**vars(totals), "sometimes": dict(totals.sometimes)}
    temporary = state.with_suffix(".tmp")
    temporary.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")
    os.replace(temporary, state)
