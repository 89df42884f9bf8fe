# SPDX-License-Identifier: Apache-2.0
"""Plans which copies to move so that the disks of a cluster are filled alike. Pure (decision 0051).

What counts is what records assign to a bookie, not what its disk says: a disk goes on holding what was moved until its
bookie has collected it, so a plan by disks would move the same again and again. A plan by records is made twice, and
the second one is empty.

A move takes a bookie out of all fragments of a closed ledger, because its space comes back only when no fragment names
it. It is made only if the target is in none of these fragments, and if no write set has fewer racks afterwards than the
policy wants, or than it had. The largest move that makes the two bookies more alike, and does not turn them about, goes
first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bk_core.model import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata
from bk_core.placement import FLAT, Landscape
from bk_core.protocol.replication.copies import fragments_of, size_of

LEDGERS_MAX = 100_000
"""Limits the ledgers, the longest ones, that a plan keeps; each takes about a kilobyte of memory."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A bookie as a plan sees it. ``takes``: whether copies may go there; from there they may go anyway."""

    bookie: BookieId
    total: int
    takes: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """The copies of one ledger on ``source``, of the fragments that begin at ``fragments``, are to be on ``target``."""

    ledger_id: LedgerId
    source: BookieId
    target: BookieId
    fragments: tuple[EntryId, ...]
    size: int


class Assigned:
    """What records assign: ``used`` bytes for each bookie, and the ledgers that may be moved."""

    def __init__(self, ledgers_max: int = LEDGERS_MAX) -> None:
        self.used: Counter[BookieId] = Counter()
        self.left_out = 0
        self._max = ledgers_max
        self._longest: list[tuple[int, LedgerId, LedgerMetadata]] = []

    def add(self, ledger_id: LedgerId, value: LedgerMetadata, *, may_move: bool = True) -> None:
        if not value.is_closed or not value.length:
            return
        for bookie in dict.fromkeys(bookie for fragment in value.fragments for bookie in fragment.ensemble):
            self.used[bookie] += size_of(value, bookie)
        if not may_move:
            return
        heapq.heappush(self._longest, (value.length, ledger_id, value))
        if len(self._longest) > self._max:
            heapq.heappop(self._longest)
            self.left_out += 1

    def ledgers(self) -> Iterator[tuple[LedgerId, LedgerMetadata]]:
        yield from ((ledger_id, value) for _, ledger_id, value in self._longest)


@dataclass(slots=True)
class MovePlan:
    """Moves, the largest of the fullest bookie first; ``used`` bytes of each bookie before and after them."""

    moves: list[Move] = field(default_factory=list)
    before: Mapping[BookieId, int] = field(default_factory=dict)
    after: dict[BookieId, int] = field(default_factory=dict)
    is_even: bool = False

    @property
    def size(self) -> int:
        return sum(move.size for move in self.moves)


def plan_moves(
    disks: Sequence[Disk],
    assigned: Assigned,
    *,
    landscape: Landscape = FLAT,
    tolerance: float = 0.05,
    moves_max: int = 10_000,
    bytes_max: int | None = None,
) -> MovePlan:
    """Moves until the used shares of all disks differ by no more than ``tolerance``, or a bound is reached, or nothing
    helps any more."""
    known = sorted((disk for disk in disks if disk.total > 0), key=lambda disk: disk.bookie)
    before = {disk.bookie: assigned.used[disk.bookie] for disk in known}
    plan = MovePlan(before=before, after=dict(before))
    planner = _Planner(known, plan.after, assigned, landscape)
    room = bytes_max
    while len(plan.moves) < moves_max:
        if planner.spread() <= tolerance:
            plan.is_even = True
            break
        move = planner.best(room)
        if move is None:
            break
        plan.moves.append(move)
        room = None if room is None else room - move.size
    return plan


class _Planner:
    """The state of one plan. ``used`` changes with each move."""

    def __init__(
        self, disks: Sequence[Disk], used: dict[BookieId, int], assigned: Assigned, landscape: Landscape
    ) -> None:
        self._total = {disk.bookie: disk.total for disk in disks}
        self._takes = [disk.bookie for disk in disks if disk.takes]
        self._used, self._landscape = used, landscape
        self._values = dict(assigned.ledgers())
        self._done: dict[LedgerId, None] = {}  # moved: its record is another one by then
        of: dict[BookieId, list[tuple[int, LedgerId]]] = {bookie: [] for bookie in self._total}
        for ledger_id, value in self._values.items():
            for bookie in dict.fromkeys(b for fragment in value.fragments for b in fragment.ensemble):
                if bookie in of and (size := size_of(value, bookie)):
                    of[bookie].append((-size, ledger_id))
        self._of = {bookie: sorted(held) for bookie, held in of.items()}  # the largest first

    def share(self, bookie: BookieId) -> float:
        return self._used[bookie] / self._total[bookie]

    def spread(self) -> float:
        """How far the fullest bookie is above the emptiest one that takes copies."""
        if not self._takes:
            return 0.0
        return max(map(self.share, self._total)) - min(map(self.share, self._takes))

    def best(self, room: int | None) -> Move | None:
        """The largest move that helps, from the fullest bookie that has one, to the emptiest that can have it."""
        targets = sorted(self._takes, key=lambda bookie: (self.share(bookie), bookie))
        for source in sorted(self._total, key=lambda bookie: (-self.share(bookie), bookie)):
            for target in targets:
                move = self._largest(source, target, room)
                if move is not None:
                    self._used[source] -= move.size
                    self._used[target] += move.size
                    self._done[move.ledger_id] = None
                    return move
        return None

    def _largest(self, source: BookieId, target: BookieId, room: int | None) -> Move | None:
        gap = self.share(source) - self.share(target)
        most = int(gap / (1 / self._total[source] + 1 / self._total[target]))  # with it both are alike
        most = most if room is None else min(most, room)
        if source == target or most <= 0:
            return None
        held = self._of[source]
        for at in range(bisect_left(held, (-most, -1)), len(held)):
            size, ledger_id = held[at]
            if ledger_id in self._done:
                continue
            value = self._values[ledger_id]
            if can_take_over(value, source, target, self._landscape):
                firsts = tuple(fragment.first_entry_id for fragment, _ in fragments_of(value, source))
                return Move(ledger_id, source, target, firsts, -size)
        return None


def can_take_over(value: LedgerMetadata, source: BookieId, target: BookieId, landscape: Landscape) -> bool:
    """Whether ``target`` may stand where ``source`` does, in all fragments."""
    return all(_fits(value, fragment, source, target, landscape) for fragment, _ in fragments_of(value, source))


def _fits(value: LedgerMetadata, fragment: Fragment, source: BookieId, target: BookieId, landscape: Landscape) -> bool:
    if target in fragment.ensemble:
        return False
    if landscape.is_flat:
        return True
    write_quorum = value.write_quorum_size
    if landscape.left_out((target,), write_quorum):
        return False
    moved = moved_fragment(fragment, source, target).ensemble
    wanted = min(write_quorum, landscape.racks_min)
    has, will_have = (landscape.fewest_racks(each, write_quorum) for each in (fragment.ensemble, moved))
    return will_have >= (wanted if landscape.enforced else min(has, wanted))


def moved_fragment(fragment: Fragment, source: BookieId, target: BookieId) -> Fragment:
    return replace(fragment, ensemble=tuple(target if bookie == source else bookie for bookie in fragment.ensemble))


def shares(used: Mapping[BookieId, int], disks: Collection[Disk]) -> dict[BookieId, float]:
    return {disk.bookie: used[disk.bookie] / disk.total for disk in disks if disk.bookie in used}
