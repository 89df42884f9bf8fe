# SPDX-License-Identifier: Apache-2.0
"""Seeds that once failed, and functions that run one seed again. ``seeds.txt`` has a line for each: profile, engine,
seed, why."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.sim.schedule import ENGINES, Outcome, run_schedule

SEEDS = Path(__file__).with_name("seeds.txt")


def read() -> list[tuple[str, str, int, str]]:
    """Return profile, engine, seed and reason of each line."""
    found = []
    for line in SEEDS.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            profile, engine, seed, *why = line.split(maxsplit=3)
            found.append((profile, engine, int(seed), why[0] if why else ""))
    return found


def remember(profile: str, engine: str, seed: int, why: str) -> None:
    """Add a seed that failed, so that all later runs replay it."""
    if (profile, engine, seed) not in {entry[:3] for entry in read()}:
        with SEEDS.open("a") as file:
            file.write(f"{profile} {engine} {seed} {why.splitlines()[0][:100]}\n")


def command(profile: str, engine: str, seed: int, omit: Iterable[int]) -> str:
    """Return the command that repeats a schedule."""
    text = ",".join(str(number) for number in sorted(omit))
    explored = f" --engine {engine}" if engine in ENGINES else ""  # the other profiles have no choice of engine
    return f"scripts/sim --profile {profile}{explored} --seed {seed}" + (f" --omit {text}" if text else "")


def run(profile: str, engine: str, seed: int, omit: frozenset[int] = frozenset(), *, trace: bool = False) -> Outcome:
    """Run one schedule again, without the disturbances in ``omit``."""
    if profile in ("logs", "disk", "threads"):
        from tests.sim.campaign import runner_of

        return runner_of(profile)(seed)
    return run_schedule(seed, engine, profile, omit=omit, trace=trace)
