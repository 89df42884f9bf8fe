# SPDX-License-Identifier: Apache-2.0
"""Finds the few disturbances that a failing seed needs. It omits one after the other as long as the violation stays."""

from __future__ import annotations

from tests.sim import corpus
from tests.sim.schedule import Outcome


def shrink(profile: str, engine: str, seed: int) -> tuple[frozenset[int], Outcome]:
    """Return the largest set found of plan items that can be omitted, and the outcome of the schedule without them."""
    best = corpus.run(profile, engine, seed, trace=True)
    assert best.violation is not None, "only a failing seed can be shrunk"
    kind = best.violation.partition(":")[0]
    omitted: frozenset[int] = frozenset()
    number = 0
    while number < best.planned:
        tried = corpus.run(profile, engine, seed, omitted | {number}, trace=True)
        if tried.violation and tried.violation.partition(":")[0] == kind:
            omitted, best = omitted | {number}, tried
        number += 1
    return omitted, best
