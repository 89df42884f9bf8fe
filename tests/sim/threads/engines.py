# SPDX-License-Identifier: Apache-2.0
"""Chooses the thread that goes on: at random, by priorities that change at a few points, or every way in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.sim.threads.baton import Turn

SWITCH_AT_OPERATIONS = (0.05, 0.2, 0.5)
SWITCH_AT_LINES = (0.002, 0.02, 0.1, 0.3)
TIME_PASSES = (0.0, 0.0, 0.002, 0.02)
"""The probabilities that time passes at a point. Each run draws one."""


class RandomEngine:
    """Switches at random. Each thread that can run is equally likely."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._at_operations = random.choice(SWITCH_AT_OPERATIONS)
        self._at_lines = random.choice(SWITCH_AT_LINES)
        self.time_passes = random.choice(TIME_PASSES)

    def goes_on(self, is_line: bool) -> bool:
        return self._random.random() >= (self._at_lines if is_line else self._at_operations)

    def choose(self, me: Turn | None, ready: Sequence[Turn]) -> Turn:
        return self._random.choice(ready)

    def woken(self, thread: Turn) -> None: ...

    def expires(self) -> bool:
        return self.time_passes > 0 and self._random.random() < self.time_passes


class PriorityEngine:
    """Runs the thread with the highest priority. At ``changes`` points, drawn among the first ``horizon``, the running
    thread gets the lowest priority (probabilistic concurrency testing). Sometimes the others get a turn too, because
    otherwise a thread that polls for an act of another would never end."""

    def __init__(self, random: Random, *, changes: int = 3, horizon: int = 20_000) -> None:
        self._random = random
        self._changes = {random.randrange(horizon) for _ in range(changes)}
        self.time_passes = random.choice(TIME_PASSES)
        self._points, self._lowest = 0, 0.0
        self._stale = True

    def goes_on(self, is_line: bool) -> bool:
        self._points += 1
        return not self._stale and self._points not in self._changes and bool(self._points % 1000)

    def choose(self, me: Turn | None, ready: Sequence[Turn]) -> Turn:
        if me is not None and (self._points in self._changes or not self._points % 1000):
            self._lowest -= 1.0
            me.rank = self._lowest
        self._stale = False
        return max(ready, key=lambda each: each.rank)

    def woken(self, thread: Turn) -> None:
        if not thread.rank:
            thread.rank = self._random.random() + 1e-9
        self._stale = True

    def expires(self) -> bool:
        return self.time_passes > 0 and self._random.random() < self.time_passes


class PathEngine:
    """Follows ``path``, and then goes on with the running thread. ``offered`` has the possible choices of each step.

    A choice is offered only while fewer than ``preemptions`` switches were made away from a thread that could have gone
    on.
    """

    def __init__(self, path: Sequence[int], *, preemptions: int) -> None:
        self._path, self._left = path, preemptions
        self.taken: list[int] = []
        self.offered: list[int] = []

    def goes_on(self, is_line: bool) -> bool:
        return self._left == 0

    def choose(self, me: Turn | None, ready: Sequence[Turn]) -> Turn:
        order = ([me] if me is not None else []) + [each for each in ready if each is not me]
        if me is not None and self._left == 0:
            return me
        at = len(self.taken)
        number = self._path[at] if at < len(self._path) else 0
        self.taken.append(number)
        self.offered.append(len(order))
        if me is not None and number:
            self._left -= 1
        return order[number]

    def woken(self, thread: Turn) -> None: ...

    def expires(self) -> bool:
        return False


class EveryPath:
    """Yields engines until every way with ``preemptions`` such switches was taken, or ``limit`` of them."""

    def __init__(self, *, preemptions: int, limit: int) -> None:
        self._preemptions, self._limit = preemptions, limit
        self.count = 0
        self.exhausted = False

    def engines(self) -> Iterator[PathEngine]:
        path: list[int] | None = []
        while path is not None and self.count < self._limit:
            engine = PathEngine(path, preemptions=self._preemptions)
            self.count += 1
            yield engine
            path = _following(engine)
        self.exhausted = path is None


def _following(engine: PathEngine) -> list[int] | None:
    """Return the next path in order, or None after the last one."""
    for at in range(len(engine.taken) - 1, -1, -1):
        if engine.taken[at] + 1 < engine.offered[at]:
            return [*engine.taken[:at], engine.taken[at] + 1]
    return None
