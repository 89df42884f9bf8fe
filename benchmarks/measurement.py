# SPDX-License-Identifier: Apache-2.0
"""A measurement: our work, each peer's work, and the wanted results. All sides take turns, so that a disturbance
affects all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.report.figures import Figure, Run
from benchmarks.running.processes import OURS, PEERS, cost

if TYPE_CHECKING:
    from benchmarks.running.world import World


Prepare = Callable[["World"], Callable[[], Run]]
"""Prepares a side, and returns the function that is run again and again."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that does the same work. ``wanted`` has for each name the least ratio, where a ratio above 1 means that
    ours is better."""

    name: str
    prepare: Prepare
    wanted: Sequence[float | None]
    variant: str = ""
    note: str = ""
    kinds: Sequence[str] = ()
    """The kinds of the processes that work for the peer, if they are not the usual ones."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.variant}".strip()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement. Each run returns one value for each of ``names``; divided by ``per``, it is in ``unit``.
    ``wanted`` has a limit for each value, or None."""

    names: Sequence[str]
    unit: str
    ours: Prepare
    peers: Sequence[Peer] = ()
    wanted: Sequence[float | None] = ()
    per: float = 1.0
    """The divisor that turns the values of a run into ``unit``."""
    less_is_better: bool = False
    note: str = ""
    lane: str = ""
    """The lane of our client; empty for the one that the command line names."""
    kinds: Sequence[str] = OURS
    """The kinds of the processes that work for our side."""
    once: bool = False
    """Whether to run it once, without a warm-up, because it takes long."""
    needs: str = ""
    """A peer without which it cannot be measured."""
    disk_bytes: float | None = None
    """The bytes of disk that it needs at the usual scale, if that is less than its group needs."""

    @property
    def name(self) -> str:
        """The name of the whole measurement."""
        return self.names[0] if len(self.names) == 1 else self.names[0].rpartition("_")[0]


@dataclass(slots=True)
class _Side:
    """The runs of one side of a measurement so far: their values, and the processor time that each kind of process
    spent."""

    run: Callable[[], Run]
    per: float
    kinds: Sequence[str]
    values: list[tuple[float, ...]] = field(default_factory=list)
    costs: list[dict[str, float]] = field(default_factory=list)

    def once(self, world: World) -> None:
        before = world.processes.spent_s()
        done = self.run()
        self.costs.append(cost(before, world.processes.spent_s(), self.kinds, done.payload_bytes))
        self.values.append(tuple(value / self.per for value in done.values))

    def of_name(self, index: int) -> list[float]:
        return [values[index] for values in self.values]

    @property
    def median_cost(self) -> dict[str, float]:
        """The median cost of each kind of process."""
        kinds = {kind: None for one in self.costs for kind in one}
        return {kind: statistics.median(one.get(kind, 0.0) for one in self.costs) for kind in kinds}


def measure(one: Measurement, world: World, peers: Collection[str], runs: int) -> list[Figure]:
    """Warm all sides up, then let them take turns. Return a figure for each name beside each of the ``peers``."""
    beside = [peer for peer in one.peers if peer.name in peers]
    with world.measuring():
        ours, theirs = _measured(one, beside, world, runs)
    return _figures(one, beside, world, ours, theirs)


def _measured(one: Measurement, beside: Sequence[Peer], world: World, runs: int) -> tuple[_Side, list[_Side]]:
    ours = _Side(one.ours(world), one.per, one.kinds)
    theirs = [_Side(peer.prepare(world), one.per, peer.kinds or PEERS[peer.name]) for peer in beside]
    for side in () if one.once else (ours, *theirs):
        side.run()
    for _ in range(1 if one.once else runs):
        for side in (ours, *theirs):
            side.once(world)
    if world.profile:
        world.profile(one.name, ours.run)
    return ours, theirs


def _figures(
    one: Measurement, beside: Sequence[Peer], world: World, ours: _Side, theirs: Sequence[_Side]
) -> list[Figure]:
    return [
        Figure(
            name=name,
            unit=one.unit,
            values=ours.of_name(index),
            lane=one.lane or world.lane,
            wanted=one.wanted[index] if one.wanted else None,
            less_is_better=one.less_is_better,
            note=one.note,
            cpu_s_per_gb=ours.median_cost,
            **peers_part,
        )
        for index, name in enumerate(one.names)
        for peers_part in [_part(peer, side, index) for peer, side in zip(beside, theirs, strict=True)] or [{}]
    ]


def _part(peer: Peer, side: _Side, index: int) -> dict[str, Any]:
    """Return the peer's part of a figure."""
    return {
        "peer": peer.label,
        "peer_values": side.of_name(index),
        "wanted_ratio": peer.wanted[index] if peer.wanted else None,
        "peer_note": peer.note,
        "peer_cpu_s_per_gb": side.median_cost,
    }
