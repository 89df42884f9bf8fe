# SPDX-License-Identifier: Apache-2.0
"""Runs one schedule. A seed and a profile determine a world, its work and its faults; the result is a verdict."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from bk_core.model import BookieId, LedgerId
from bookie_server.machine import events as ev
from tests.sim.apache import ApacheSimBookie
from tests.sim.bookie import SimBookie
from tests.sim.checkers import Violation
from tests.sim.clients import RecoveryHost, WriterHost
from tests.sim.host import Host
from tests.sim.knobs import swarm, uniform
from tests.sim.readers import TailHost
from tests.sim.world import World

ENGINES = ("uniform", "swarm", "pct")
DEFERRED = {"protocol": 0.1, "apache": 0.4}
"""The share of schedules whose writer has deferred syncs. Our own bookies sync before they ack all the same."""


@dataclass(slots=True)
class Outcome:
    """The result of one schedule. ``violation`` is None if every invariant held."""

    seed: int
    engine: str
    profile: str
    digest: int
    steps: int
    virtual_ms: float
    acks: int
    violation: str | None = None
    planned: int = 0  # the number of items of the plan, each of which may be omitted
    trace: list[str] = field(default_factory=list)
    sometimes: dict[str, int] = field(default_factory=dict)


def build(seed: int, engine: str, profile: str, omit: frozenset[int]) -> tuple[World, Plan]:
    """Return the world of a seed, with its work and faults planned."""
    random = Random(f"{seed}:{engine}:{profile}:knobs")
    knobs = uniform(random) if engine == "uniform" else swarm(random)
    change_points = random.randint(1, 5) if engine == "pct" else 0
    kind = World
    if profile == "storage":
        from tests.sim.storage import StorageWorld

        kind, knobs = StorageWorld, replace(knobs, entry_bytes=random.choice((900, 400, 0)))
    if profile == "apache":
        knobs = replace(knobs, apache=random.choice((1.0, 1.0, 0.5)), busy=random.choice((0.0, 0.0, 0.05)))
    if profile in DEFERRED:
        # a source of its own, so that other seeds keep their schedules
        draw = Random(f"{seed}:{engine}:{profile}:deferred")
        if draw.random() < DEFERRED[profile]:
            knobs = replace(knobs, deferred=draw.choice((0.2, 0.6, 1.0)))
    if profile == "heal":
        from tests.sim.heal import HealWorld, heal_knobs

        kind, knobs = HealWorld, heal_knobs(Random(f"{seed}:{engine}:heal"), knobs)
    plan_of = Plan
    if profile == "quorum":
        from tests.sim.quorum_end import QuorumPlan, QuorumWorld, quorum_knobs

        kind, plan_of = QuorumWorld, QuorumPlan
        knobs = quorum_knobs(Random(f"{seed}:{engine}:quorum"), knobs)
    world = kind(f"{seed}:{engine}:{profile}", knobs, change_points=change_points)
    plan = plan_of(world, omit)
    plan.lay()
    world.begin()
    return world, plan


def _place(error: Exception) -> str:
    """Return the place at which the error was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}, line {frame.lineno}, {frame.line}"


def run_schedule(
    seed: int,
    engine: str,
    profile: str = "protocol",
    *,
    omit: frozenset[int] = frozenset(),
    trace: bool = False,
) -> Outcome:
    """Run one schedule to its end. The same arguments give the same digest."""
    world, plan = build(seed, engine, profile, omit)
    violation = None
    try:
        world.run(world.chaos_ms)
        world.heal()
        world.settle()
    except Violation as error:
        violation = str(error)
    except AssertionError as error:
        violation = f"assertion: {error} at {_place(error)}"
    except Exception as error:
        violation = f"exception: {error!r} at {_place(error)}"
    scheduler = world.scheduler
    return Outcome(
        seed,
        engine,
        profile,
        scheduler.digest,
        scheduler.steps,
        scheduler.now,
        world.checker.acks,
        violation,
        plan.items,
        list(scheduler.trace) if violation or trace else [],
        scheduler.sometimes,
    )


class Plan:
    """Plans the work and the disturbances of a run in virtual time."""

    def __init__(self, world: World, omit: frozenset[int] = frozenset()) -> None:
        self.world, self.knobs, self.random, self.omit = world, world.knobs, world.faults, omit
        self.items = 0
        self._laid = False
        self.scheduler = world.scheduler

    def lay(self) -> None:
        knobs = self.knobs
        writer = self.world.writer("w")
        self._work(writer)
        for number in range(knobs.tails):
            name = f"t{number}"
            self._at(self._moment() / 4, f"tail {name} begins", self._tail, writer, name)
            if self.random.random() < 0.3:
                self._at(self._moment(), f"{name} refreshes", self._refresh, name)
            if self.random.random() < 0.1:
                self._at(0, f"{name} has no store", self.world.store.away, name, True)
                self._at(60, f"{name} has the store again", self.world.store.away, name, False)
        if self.random.random() < knobs.early_recovery:
            self._at(self._moment(), "somebody recovers", self._recover, writer, "r1")
            if self.random.random() < knobs.second_recoverer:
                self._at(self._moment(), "another recovers", self._recover, writer, "r2")
        if self.random.random() < knobs.deletes:
            self._at(self._moment(), "the ledger is deleted", self._delete, writer)
        self._disturb()
        if knobs.dead_at_the_end:
            self._at(self.world.chaos_ms - 1, "some die for good", self._bury)
        self._laid = True

    def _disturb(self) -> None:
        """Plan the disturbances that the knobs ask for."""
        knobs = self.knobs
        for count, disturb in (
            (knobs.cuts, self._cut),
            (knobs.partitions, self._partition),
            (knobs.crashes, self._crash),
            (knobs.pauses, self._pause),
            (knobs.store_away, self._store_away),
            (knobs.wipes, self._wipe),
            (knobs.no_space, self._fill),
            (knobs.flipped_bits, self._flip),
            (knobs.read_only, self._read_only),
        ):
            for _ in range(count):
                self._at(self._moment(), disturb.__name__, disturb)

    def _moment(self) -> float:
        """Return the time of an event. Early times are more likely than late ones."""
        return min(self.random.expovariate(1 / 40.0), self.world.chaos_ms - 2)

    def _at(self, delay_ms: float, label: str, call: Callable[..., Any], *args: Any) -> None:
        if not self._laid:
            self.items += 1
            if self.items - 1 in self.omit:
                return
        self.scheduler.at(delay_ms, "plan", label, call, *args)

    def _tail(self, writer: WriterHost, name: str) -> None:
        self.world.tail(writer.ledger_id, name)

    def _refresh(self, name: str) -> None:
        for host in self.world.hosts:
            if isinstance(host, TailHost) and host.name == name:
                host.refresh()

    # --- work ---

    def _work(self, writer: WriterHost) -> None:
        knobs, at = self.knobs, 0.0
        for _ in range(knobs.batches):
            at += self.random.expovariate(1.0) * knobs.think_ms if knobs.think_ms else 0.0
            self._at(at, "append", writer.append, self.random.randint(1, knobs.entries_max))
            if knobs.deferred is not None and self.random.random() < knobs.deferred:
                self._at(at + self.random.expovariate(1 / 3.0), "force", writer.force)
        if self.random.random() < knobs.writer_dies:
            self._at(self.random.uniform(0, at + 60), "the writer dies", self._die, writer)
        elif self.random.random() < 0.6:
            self._at(at + self.random.expovariate(1 / 20.0), "close", writer.close)

    def _die(self, host: Host) -> None:
        host.die()
        self.world.network.leave(host.name)

    def _recover(self, writer: WriterHost, name: str) -> None:
        recoverer = self.world.recover(writer.ledger_id, name, tries=self.random.randint(1, 3))
        others = [h for h in self.world.hosts if isinstance(h, RecoveryHost) and h is not recoverer and not h.over]
        if others:
            self.scheduler.reached("two recoverers at once")
        if self.random.random() < 0.25:
            self._at(self.random.expovariate(1 / 10.0), f"{name} dies", self._die, recoverer)

    def _delete(self, writer: WriterHost) -> None:
        """Let an operator delete the ledger. Some bookies learn this while it is written, others never (D18).
        :mod:`tests.sim.collector_schedule` covers how they learn it."""
        self.world.store.delete(writer.ledger_id)
        for name, bookie in self.world.bookies.items():
            if self.random.random() < 0.4:
                delay_ms = self.random.choice((0.0, self.random.expovariate(1 / 20.0)))
                self._at(delay_ms, f"{name} finds the ledger deleted", self._forget, bookie, writer.ledger_id)

    def _forget(self, bookie: SimBookie | ApacheSimBookie, ledger_id: LedgerId) -> None:
        if bookie.alive:
            self.scheduler.reached("a bookie forgot a deleted ledger")
            bookie.feed(ev.LedgersDeleted((ledger_id,)))

    # --- disturbances ---

    def _some_bookie(self) -> BookieId:
        """Return a bookie, mostly one of the last ensemble, and one with frames that are not durable if there is
        one."""
        bookies = self.world.bookies
        busy = [name for name, bookie in bookies.items() if bookie.alive and bookie._group]
        if busy and self.random.random() < 0.5:
            return self.random.choice(busy)
        record = next((t.record for t in self.world.checker.ledgers.values() if t.record), None)
        if record is not None and self.random.random() < 0.7:
            return self.random.choice(record.value.last_fragment.ensemble)
        return self.random.choice(tuple(bookies))

    def _some_host(self) -> Host | None:
        alive = [host for host in self.world.hosts if not host.dead]
        return self.random.choice(alive) if alive else None

    def _crash(self) -> None:
        name = self._some_bookie()
        self.world.crash(name)
        self._at(self.random.expovariate(1 / 60.0), f"{name} comes back", self.world.restart, name)

    def _cut(self) -> None:
        connections = list(self.world.network.connections.values())
        if connections:
            connection = self.random.choice(connections)
            self.scheduler.note(f"{connection.up} is cut")
            connection.cut("cut")

    def _partition(self) -> None:
        host, name = self._some_host(), self._some_bookie()
        if host is None:
            return
        there, back = self.world.links(host.name, name)
        lanes = self.random.choice((there, back, there + back))
        self.scheduler.note(f"partition of {lanes}")
        self.world.hold(*lanes)
        if self.random.random() < 0.5:
            for lane in lanes:
                self.scheduler.drop_held(lane) if "?" in lane else None
        self._at(self.random.expovariate(1 / 80.0), "a partition ends", self.world.release, *lanes)

    def _pause(self) -> None:
        host = self._some_host()
        if host is not None and host.paused is None:
            self.scheduler.note(f"{host.name} is paused")
            host.pause()
            self._at(self.random.expovariate(1 / 100.0), f"{host.name} goes on", self._resume, host)

    def _resume(self, host: Host) -> None:
        if host.paused is not None:
            host.resume()

    def _store_away(self) -> None:
        host = self._some_host()
        if host is not None:
            self.world.store.away(host.name, True)
            self._at(
                self.random.expovariate(1 / 60.0),
                f"{host.name} has the store again",
                self.world.store.away,
                host.name,
                False,
            )

    def _wipe(self) -> None:
        name = self._some_bookie()
        self.world.wipe(name)
        self._at(self.random.expovariate(1 / 60.0), f"{name} comes back empty", self.world.restart, name)

    def _fill(self) -> None:
        back_end = self.world.bookies[self._some_bookie()].back_end
        back_end.full = True
        self._at(self.random.expovariate(1 / 40.0), "space again", setattr, back_end, "full", False)

    def _flip(self) -> None:
        self.world.flip_bit(self._some_bookie())

    def _read_only(self) -> None:
        name = self._some_bookie()
        bookie = self.world.bookies[name]
        bookie.feed(ev.ReadOnlyChanged(True))
        self.world.store.registered.pop(name, None)
        self._at(self.random.expovariate(1 / 40.0), f"{name} is writable again", self._writable, name)

    def _writable(self, name: BookieId) -> None:
        bookie = self.world.bookies[name]
        bookie.feed(ev.ReadOnlyChanged(False))
        if bookie.alive:
            self.world.store.registered[name] = None

    def _bury(self) -> None:
        """Keep Qa − 1 bookies dead in the liveness phase, in which as many spares replace them."""
        knobs = self.knobs
        for name in self.random.sample(tuple(self.world.bookies), min(knobs.ack_quorum - 1, knobs.spares)):
            if self.world.may_cripple(name):
                self.scheduler.reached("a bookie dead for good")
                self.world.crash(name)
                self.world.bookies[name].dead_for_good = True
