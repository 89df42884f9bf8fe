# SPDX-License-Identifier: Apache-2.0
"""Plans which copies to move so that all disks of a cluster have the same used share. Pure (decision 0051).

A plan counts the bytes that the ledgers' records assign to a bookie, not the used space of its disk. A disk holds a
moved copy until garbage collection removes it, so a plan by disk space would move the same copies again and again. By
records, a second plan after the first one is empty.

A move takes a bookie out of all fragments of a closed ledger, because the space is freed only when no fragment names
the bookie. The target must be in none of these fragments. After the move each write set must have as many racks as the
policy wants; if racks are not enforced, as many as before the move are enough. Each move is the largest one that does
not leave the target fuller than the source.
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
"""The maximum number of ledgers that a plan keeps in memory, at about a kilobyte each. The plan keeps the longest
ledgers."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A bookie's disk in a plan: ``total`` is its size in bytes. ``takes`` says whether copies may be moved to the
    bookie; copies may always be moved away from it."""

    bookie: BookieId
    total: int
    takes: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """One move of a plan. ``fragments`` are the first entry ids of the ledger's fragments that name ``source``;
    ``target`` will take its place in them. ``size`` estimates the bytes to copy."""

    ledger_id: LedgerId
    source: BookieId
    target: BookieId
    fragments: tuple[EntryId, ...]
    size: int


class Assigned:
    """Sums up the records of many ledgers. ``used`` counts the bytes that they assign to each bookie. :meth:`ledgers`
    yields the ledgers that may be moved; ``left_out`` counts those for which there was no space."""

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
    """Moves in the order in which to make them, and the assigned bytes of each bookie before and after them."""

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
    """Plan moves until the used shares of all disks differ by no more than ``tolerance``, until a limit is reached, or
    until no further move helps."""
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
    """Chooses the moves of one plan. ``used`` holds the assigned bytes of each bookie and changes with each move."""

    def __init__(
        self, disks: Sequence[Disk], used: dict[BookieId, int], assigned: Assigned, landscape: Landscape
    ) -> None:
        self._total = {disk.bookie: disk.total for disk in disks}
        self._takes = [disk.bookie for disk in disks if disk.takes]
        self._used, self._landscape = used, landscape
        self._values = dict(assigned.ledgers())
        self._done: dict[LedgerId, None] = {}  # moved ledgers; each moves once, as a move changes its record
        of: dict[BookieId, list[tuple[int, LedgerId]]] = {bookie: [] for bookie in self._total}
        for ledger_id, value in self._values.items():
            for bookie in dict.fromkeys(b for fragment in value.fragments for b in fragment.ensemble):
                if bookie in of and (size := size_of(value, bookie)):
                    of[bookie].append((-size, ledger_id))
        self._of = {bookie: sorted(held) for bookie, held in of.items()}  # the largest first

    def share(self, bookie: BookieId) -> float:
        return self._used[bookie] / self._total[bookie]

    def spread(self) -> float:
        """Return the used share of the fullest bookie minus that of the emptiest bookie that takes copies."""
        if not self._takes:
            return 0.0
        return max(map(self.share, self._total)) - min(map(self.share, self._takes))

    def best(self, room: int | None) -> Move | None:
        """Return the next move, or None if no move helps. The source is the fullest bookie that has a useful move, the
        target the emptiest bookie that can take one, and the ledger the largest that fits."""
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
        most = int(gap / (1 / self._total[source] + 1 / self._total[target]))  # a move of this size makes both alike
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
    """Return whether ``target`` may take the place of ``source`` in all fragments that name ``source``."""
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
