# SPDX-License-Identifier: Apache-2.0
"""Worlds made of the product's machines, and the next worlds of each.

A part is deterministic: the same state and the same events give the same next state. So states of parts are numbered,
and every step of a part is taken once and remembered. A world is a short tuple of numbers: one for each part, the rest
of each budget, and the items of the network. Almost every transition is then a few look-ups, although it stands for
product code that decoded, checked and encoded real frames.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from bk_core.protocol import events as ev
from bk_core.protocol.writer import WriterState
from tests.sim.exhaustive.bookie import BookiePart, CommitAll, CommitNext, Crash
from tests.sim.exhaustive.canonical import clone, fingerprint
from tests.sim.exhaustive.checks import Judge
from tests.sim.exhaustive.items import FREE, NOTHING, Items
from tests.sim.exhaustive.parts import WRITER, Client, RecoveryPart, StorePart, WriterPart
from tests.sim.exhaustive.post import Parcel, PostOffice
from tests.sim.exhaustive.scope import BUDGETS, Scope

CRASH, TIMER, APPEND, CLOSE = (BUDGETS.index(name) for name in ("crash", "timer", "append", "close"))
BUDGET_OF_TIMER = {"linger": FREE, "again": FREE, "metadata": FREE}

World = tuple[Any, ...]  # numbers of the parts' states, then the budgets left, then the items
Problem = str | None


class Step(NamedTuple):
    """A remembered step of a part: its next state, its emissions, and its problem."""

    after: int
    parcels: tuple[Parcel, ...]
    problem: Problem


class Successor(NamedTuple):
    """One transition of a world."""

    slot: int
    events: int
    world: World
    problem: Problem


class Model:
    """All worlds of one scope."""

    def __init__(self, scope: Scope, checks: Collection[str] | None = None) -> None:
        self.scope = scope
        self.items = Items(scope)
        self.first_bookie, self.store_slot = self.items.first_bookie, self.items.store_slot
        self.slots = self.store_slot + 1
        self.parts: list[list[Any]] = [[] for _ in range(self.slots)]
        self._numbers: list[dict[bytes, int]] = [{} for _ in range(self.slots)]
        self._steps: list[dict[tuple[int, int], Step]] = [{} for _ in range(self.slots)]
        self._own: list[list[tuple[tuple[int, int], ...]]] = [[] for _ in range(self.slots)]  # (events, budget)
        self._over: list[list[bool]] = [[] for _ in range(self.slots)]
        self._commits: list[list[bool]] = [[] for _ in range(self.slots)]
        self._judge = Judge(self)
        self._post = PostOffice(self.items, lambda slot, state: self._over[slot][state])
        self._checks = None if checks is None else frozenset(checks)
        self._spent: dict[tuple[tuple[int, ...], int], tuple[int, ...] | None] = {}
        self._commit_all = self.items.event(CommitAll())
        self._commit_next = self.items.event(CommitNext())
        self._crash = self.items.event(Crash())
        self._problem: Problem = None

    # --- the first world ---

    def first(self) -> World:
        """Return the first world. One entry is appended, every recovery has started, and nothing has arrived
        anywhere."""
        scope = self.scope
        writer = WriterPart(scope)
        emissions = writer.start() + (writer.step((writer.append(0),)) if scope.entries else [])
        parts: list[Any] = [writer]
        for number in range(scope.recoverers):
            recovery = RecoveryPart(scope, WRITER + 1 + number)
            emissions += recovery.start()
            parts.append(recovery)
        parts += [BookiePart(slot) for slot in range(scope.bookies)]
        parts.append(StorePart(scope))
        slots = [self._number(slot, part) for slot, part in enumerate(parts)]
        net: list[int] = []
        self._post.send(self._post.packed(emissions), slots, net)
        self._settle(slots, net, scope.budget)
        return (*slots, scope.budget, tuple(net))

    # --- parts ---

    def _number(self, slot: int, part: Any) -> int:
        key = fingerprint(part.core()) if isinstance(part, Client) and part.over else fingerprint(part)
        number = self._numbers[slot].get(key)
        if number is None:
            number = self._numbers[slot][key] = len(self.parts[slot])
            self.parts[slot].append(part)
            self._own[slot].append(tuple(self._own_moves(slot, part)))
            self._over[slot].append(isinstance(part, Client) and part.over)
            self._commits[slot].append(isinstance(part, BookiePart) and bool(part.uncommitted))
            self._judge.note(slot, part)
        return number

    def _own_moves(self, slot: int, part: Any) -> Iterator[tuple[int, int]]:
        """Yield the moves of a part that need no message: timers, the application's calls, commits and crashes."""
        event = self.items.event
        if isinstance(part, Client) and not part.over:
            for name in part.timers:
                if name not in ("adds", "lac"):  # the writer sends no explicit LACs
                    yield event(ev.TimerFired(name)), BUDGET_OF_TIMER.get(name, TIMER)
            if isinstance(part, WriterPart) and part.machine.state is WriterState.OPEN:
                yield event(part.append(part.machine.lap + 1)), APPEND
                yield event(ev.Close()), CLOSE
        elif isinstance(part, BookiePart) and part.slot in self.scope.crashable:
            if part.uncommitted:
                yield self._commit_next, FREE
            yield self._crash, CRASH

    def _step(self, slot: int, state: int, events: int) -> Step:
        known = self._steps[slot].get((state, events))
        if known is not None:
            return known
        part = clone(self.parts[slot][state])
        try:
            emissions = part.step(self.items.events[events])
        except AssertionError as error:
            emissions, part.problem = [], f"assertion: {error}"
        problem, part.problem = part.problem, None
        made = Step(self._number(slot, part), self._post.packed(emissions), problem)
        self._steps[slot][state, events] = made
        return made

    # --- transitions ---

    def successors(self, world: World) -> Iterator[Successor]:
        """Yield every next world, always in the same order."""
        net, budget = world[-1], world[-2]
        last = NOTHING
        for at, item in enumerate(net):
            if item == last:
                continue
            last = item
            for move in self.items.moves[item]:
                left = budget if move.budget == FREE else self._spend(budget, move.budget)
                if left is not None:
                    rest = list(net)
                    del rest[at]
                    if move.left != NOTHING:
                        insort(rest, move.left)
                    yield self._transition(world, move.slot, move.events, rest, left)
        for slot in range(self.store_slot):
            for events, price in self._own[slot][world[slot]]:
                left = budget if price == FREE else self._spend(budget, price)
                if left is not None:
                    yield self._transition(world, slot, events, list(net), left)

    def _spend(self, budget: tuple[int, ...], price: int) -> tuple[int, ...] | None:
        key = (budget, price)
        if key not in self._spent:
            left = None
            if budget[price] > 0:
                left = (*budget[:price], budget[price] - 1, *budget[price + 1 :])
            self._spent[key] = left
        return self._spent[key]

    def _transition(self, world: World, slot: int, events: int, net: list[int], budget: tuple[int, ...]) -> Successor:
        slots = list(world[:-2])
        self._problem = None
        self._apply(slot, events, slots, net)
        self._settle(slots, net, budget)
        problem = self._problem or self._wanted(self._judge.problem(slots))
        return Successor(slot, events, (*slots, budget, tuple(net)), problem)

    def _apply(self, slot: int, events: int, slots: list[int], net: list[int]) -> None:
        step = self._steps[slot].get((slots[slot], events)) or self._step(slot, slots[slot], events)
        slots[slot] = step.after
        if step.problem is not None and self._problem is None:
            self._problem = self._wanted(step.problem)
        if step.parcels:
            self._post.send(step.parcels, slots, net)

    def _wanted(self, problem: Problem) -> Problem:
        if problem is None or self._checks is None or problem.partition(":")[0] in self._checks:
            return problem
        return None

    def _settle(self, slots: list[int], net: list[int], budget: tuple[int, ...]) -> None:
        """Make the moves that are made without a choice."""
        moved = True
        while moved:
            moved = False
            for at, item in enumerate(net):
                move = self.items.at_once[item]
                if move is not None:
                    del net[at]
                    if move.left != NOTHING:
                        insort(net, move.left)
                    self._apply(move.slot, move.events, slots, net)
                    moved = True
                    break
            for slot in range(self.first_bookie, self.store_slot):
                if self._commits[slot][slots[slot]]:
                    if budget[CRASH] and slot - self.first_bookie in self.scope.crashable:
                        continue
                    self._apply(slot, self._commit_all, slots, net)
                    moved = True

    def stuck(self, world: World) -> Problem:
        """Return the problem of a world in which nothing can happen."""
        return self._wanted(self._judge.stuck(world))
