# SPDX-License-Identifier: Apache-2.0
"""Breadth-first search of every world of a scope, nearest first, for the shortest path to a violation."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from tests.sim.exhaustive.model import Model, Successor, World
from tests.sim.exhaustive.scope import Scope
from tests.sim.exhaustive.words import Words

STATES_MAX = 5_000_000


@dataclass(frozen=True, slots=True)
class Trace:
    """A shortest path to a violation, with one line for each step."""

    problem: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3} {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([*lines, f"  → {self.problem}"])


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a search. ``exhausted`` says that the scope has no other world. ``part_states`` counts the states
    of all machines."""

    scope: str
    states: int
    transitions: int
    depth: int
    seconds: float
    exhausted: bool
    part_states: int
    violation: Trace | None


def explore(scope: Scope, *, seconds: float | None = None, checks: Collection[str] | None = None) -> Result:
    """Visit the worlds of a scope, nearest first, until all are seen, a check fails, or a bound is reached.

    ``checks`` has the codes of the checks that count (:mod:`checks`); by default all count.
    """
    return _Search(Model(scope, checks), seconds or scope.seconds).run()


class _Search:
    def __init__(self, model: Model, seconds: float) -> None:
        self.model, self.seconds = model, seconds
        self.parents = array("q", [-1])
        self.transitions = 0
        self.depth = 0

    def run(self) -> Result:
        began = time.monotonic()
        first = self.model.first()
        self.first = first
        seen: dict[World, int] = {first: 0}
        level: list[World] = [first]
        violation: Trace | None = None
        bounded = False
        while level and violation is None and not bounded:
            following: list[World] = []
            for world in level:
                violation = self._expand(world, seen, following)
                bounded = len(seen) >= STATES_MAX or time.monotonic() - began > self.seconds
                if violation is not None or bounded:
                    break
            level = following
            self.depth += bool(following)
        return Result(
            self.model.scope.name,
            len(seen),
            self.transitions,
            self.depth,
            time.monotonic() - began,
            not bounded and violation is None,
            sum(len(parts) for parts in self.model.parts),
            violation,
        )

    def _expand(self, world: World, seen: dict[World, int], following: list[World]) -> Trace | None:
        here, nowhere = seen[world], True
        for successor in self.model.successors(world):
            nowhere = False
            self.transitions += 1
            if successor.problem is not None:
                return self._trace(world, successor, seen, successor.problem)
            found = successor.world
            if found not in seen:
                seen[found] = len(seen)
                self.parents.append(here)
                following.append(found)
        problem = self.model.stuck(world) if nowhere else None
        return self._trace(world, None, seen, problem) if problem else None

    def _trace(self, world: World, last: Successor | None, seen: dict[World, int], problem: str) -> Trace:
        """Walk the chain of parents again, and describe each step in words."""
        chain, here = [], seen[world]
        while here >= 0:
            chain.append(here)
            here = self.parents[here]
        numbers = dict.fromkeys(chain)
        worlds = {number: found for found, number in seen.items() if number in numbers}
        path = [worlds[number] for number in reversed(chain)]
        words, steps = Words(self.model), []
        for before, after in pairwise(path):
            taken = next(s for s in self.model.successors(before) if s.world == after)
            steps.append(words.step(before, taken))
        if last is not None:
            steps.append(words.step(world, last))
        return Trace(problem, tuple(steps))
