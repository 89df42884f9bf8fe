# SPDX-License-Identifier: Apache-2.0
"""Runs one seed of the profile *threads*: the threads of a bookie, or threads that append to a ledger or to a log."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from tests.sim.schedule import Outcome
from tests.sim.threads.bookie_world import BookieWorld
from tests.sim.threads.client_worlds import AppenderWorld, WriterWorld

WORLDS: tuple[type[Any], ...] = (BookieWorld, BookieWorld, WriterWorld, AppenderWorld)
"""The worlds, at which seeds take turns."""


def run_threads_schedule(seed: int) -> Outcome:
    """Run one seed, and return its outcome."""
    world: Any = WORLDS[seed % len(WORLDS)](seed)
    with _quiet():
        world.run()
    turns = world.turns
    violation = turns.failures[0] if turns.failures else None
    return Outcome(
        seed, world.kind, "threads", turns.digest, turns.points, turns.now * 1000, world.acked, violation,
        sometimes=dict(world.sometimes),
    )  # fmt: skip


def first_violation(seeds: range, world: type[Any]) -> str:
    """Return the first of these seeds that fails, with its failure, or an empty text if none does."""
    with _quiet():
        for seed in seeds:
            made = world(seed)
            made.run()
            if made.turns.failures:
                return f"seed {seed} of {world.__name__}: " + "\n".join(made.turns.failures)
    return ""


@contextlib.contextmanager
def _quiet() -> Any:
    """Disable logging in this block, because thousands of refusals of disks would be logged."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
