# SPDX-License-Identifier: Apache-2.0
"""The actors of the log of tests/sim/logs.py: jobs that publish and overwrite, trims, compactions, vacuums, leaders."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from bk_core.errors import (
    BookKeeperError,
    Outcome,
    TransactionReplayDiffersError,
    TransactionVersionRegressedError,
)
from bk_core.logs.machines.change import HeadChange, Intent
from bk_core.logs.machines.publication import FORGOTTEN_OFFSET, Publish, PublishOptions, Transaction
from bk_core.logs.machines.upkeep import Compact, Trim, Vacuum
from bk_core.logs.model.head import NewExtent, PublishId
from bk_core.logs.model.paging import ledgers_listed, page_names, sealed_extents
from bk_core.logs.model.schemas import encode
from bk_core.model import LedgerId
from tests.sim.log_compactor import Compactor
from tests.sim.log_leader import QUORUM, Leader
from tests.sim.log_runner import Runner
from tests.sim.log_unlinking import DELAYS
from tests.sim.logs import TXN_RETENTION, UUID, Actor, LogWorld, require

KINDS = ("job", "job", "job", "again", "older", "trim", "compact", "compaction", "vacuum", "vacuum", "leader", "leader")


COLUMNS = [{"name": name, "nullable": True, "type": {"name": "utf8"}, "children": []} for name in "abcx"]
SCHEMAS = (
    *[None] * 12,
    *[encode(COLUMNS[:1])] * 4,
    *[encode(COLUMNS[:2])] * 2,
    encode(COLUMNS[:3]),
    encode(COLUMNS[3:]),
)
"""The schemas of jobs: mostly none, some that grow longer and longer, rarely one that no other can follow."""


def new_extent(ledger_id: LedgerId, count: int, made: int, schema_number: int = 0) -> NewExtent:
    return NewExtent(
        ledger_id=ledger_id,
        entry_count=count,
        size_bytes=count,
        created_ms=made,
        schema_number=schema_number,
        **QUORUM,
    )


def vacuum_of(world: LogWorld, before: int) -> Runner:
    vacuum = Vacuum(world.name, UUID, before, world.nonce, txns_before_ms=world.time - TXN_RETENTION)
    return Runner([world], vacuum.run(), "vacuum")


class Changer(Runner):
    """Changes the head of one log."""

    def __init__(self, world: LogWorld, intent: Intent[Any], **limits: int) -> None:
        change = HeadChange({world.name: intent}, **limits)
        super().__init__([world], change.run(), type(intent).__name__.lower())


@dataclass
class Job:
    """A publish under one id, with any number of attempts, and what is known about it."""

    publish_id: PublishId
    values: list[str]
    transaction: Transaction | None = None
    overwrite: bool = False
    takeover: bool = False
    schema: bytes | None = None
    is_published: bool = False  # an attempt reported this
    is_doubtful: bool = False  # an attempt crashed, or its outcome is unknown
    attempts: int = 0


class Publisher(Changer):
    """One attempt. The tasks write ledgers of their own, and the driver publishes them."""

    def __init__(self, world: LogWorld, job: Job) -> None:
        self.job = job
        job.attempts += 1
        half = len(job.values) // 2
        halves = (job.values[:half], job.values[half:])
        ledgers = [world.make_ledger(part, schema=job.schema) for part in halves if part]
        extents = [new_extent(each, len(world.ledgers[each].values), world.time) for each in ledgers]
        intent = Publish(
            tuple(extents),
            job.publish_id,
            world.time,
            world.nonce,
            PublishOptions(
                takeover=job.takeover,
                overwrite=job.overwrite,
                transaction=job.transaction,
                schema=job.schema,
                merge_schema=True,
            ),
        )
        super().__init__(world, intent, failures_max=world.random.choice((2, 5)))

    def ended(self, result: Any) -> None:
        """Check that everything reported as published is there."""
        super().ended(result)
        result = result[self.world.name]
        self.job.is_published = True
        if result.base_offset == FORGOTTEN_OFFSET:
            self.world.reached["replayed by its transaction alone"] += 1
        else:
            found = self.world.history[result.base_offset : result.base_offset + result.rows]
            require(found == self.job.values, f"{self.job.publish_id} published {found}")

    def failed(self, error: BookKeeperError) -> None:
        """Note whether the publish is in doubt, so that it is tried again."""
        super().failed(error)
        self.world.reached["version regressed"] += isinstance(error, TransactionVersionRegressedError)
        self.world.reached["replay differs"] += isinstance(error, TransactionReplayDiffersError)
        self.job.is_doubtful = self.job.is_doubtful or error.outcome is Outcome.UNKNOWN


class Compacter(Changer):
    """Copies a run of sealed extents into a ledger of its own, and lists that ledger."""

    def __init__(self, world: LogWorld) -> None:
        head = world.head.value
        extents = sealed_extents(head, world.pages, head.start_offset, head.next_offset)
        first = world.random.randrange(len(extents))
        run = extents[first : first + world.random.randint(1, 3)]
        schema, number = world.ledgers[run[0].ledger_id].schema, run[0].schema_number
        run = list(takewhile(lambda extent: extent.schema_number == number, run))
        values = [value for extent in run for value in world.ledgers[extent.ledger_id].values]
        new = new_extent(world.make_ledger(values, schema=schema), len(values), world.time, number)
        super().__init__(world, Compact(tuple(run), new, world.nonce), failures_max=world.random.choice((2, 5)))


@dataclass
class Stage:
    """The actors, and what is known about their work."""

    world: LogWorld
    actors: list[Actor] = field(default_factory=list)
    stalled: list[Actor] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    acked: list[tuple[int, str]] = field(default_factory=list)
    values: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)  # each schedule draws some kinds (swarm)
    actors_max: int = 0
    favoured: Actor | None = None
    turns: int = 0  # how many turns the favoured actor still has alone

    def __post_init__(self) -> None:
        random = self.world.random
        self.kinds = ["job", *random.sample(KINDS, random.choice((2, 4, len(KINDS), len(KINDS))))]
        self.actors_max = random.choice((2, 4, 6))
        self.foreign = self.world.make_ledger(["not of this log"], is_ours=False)

    def next_value(self) -> int:
        self.values += 1
        return self.values

    def step(self) -> None:
        """Make one request, arrival, crash or late write."""
        world, draw = self.world, self.world.random.random()
        world.time += 1
        if world.late and draw < 0.06:
            world.reached["late write applied"] += bool(world.late.pop(world.random.randrange(len(world.late)))())
        elif not self.actors or (draw < 0.2 and len(self.actors) < self.actors_max):
            self._arrive()
        elif draw < 0.23:
            self._crash(self.actors.pop(world.random.randrange(len(self.actors))))
        elif draw < 0.25:
            self._stall()
        elif self.stalled and draw < 0.26:
            world.reached["old actor came back"] += 1
            self.actors.append(self.stalled.pop(world.random.randrange(len(self.stalled))))
        else:
            actor = self._whose_turn()
            actor.act()
            if actor.is_done:
                self.actors.remove(actor)

    def _whose_turn(self) -> Actor:
        """Return any actor. Sometimes one that is not on the edge goes on alone for a while."""
        random = self.world.random
        if self.turns and self.favoured in self.actors:
            self.turns -= 1
            return self.favoured
        if random.random() < 0.05:
            calm = [actor for actor in self.actors if not getattr(actor, "is_on_the_edge", False)]
            self.favoured, self.turns = random.choice(calm or self.actors), 20
            return self.favoured
        return random.choice(self.actors)

    def _stall(self) -> None:
        """Stall an actor, preferably one on the edge, to which the acts of others matter."""
        edgy = [actor for actor in self.actors if getattr(actor, "is_on_the_edge", False)]
        actor = self.world.random.choice(edgy or self.actors)
        self.actors.remove(actor)
        self.stalled.append(actor)

    def _arrive(self) -> None:
        world = self.world
        kind = world.random.choice(self.kinds)
        is_edgy = any(getattr(actor, "is_on_the_edge", False) for actor in self.stalled)
        if (world.late or is_edgy) and world.random.random() < 0.25:
            kind = "vacuum"  # a late write may name what the vacuum deletes
        if kind == "again" and self.jobs:
            self.actors.append(Publisher(world, world.random.choice(self.jobs[-4:])))
        elif kind == "older":
            self.actors.append(Publisher(world, self._older()))
        elif kind == "trim":
            offset = world.random.randint(0, world.head.value.next_offset + 2)
            self.actors.append(Changer(world, Trim(offset, world.nonce)))
        elif kind == "compact" and world.head.value.next_offset > world.head.value.start_offset:
            self.actors.append(Compacter(world))
        elif kind == "compaction":
            self.actors.append(Compactor(world))
        elif kind == "vacuum":
            self._vacuum()
        elif kind == "leader":
            self.actors.append(Leader(world, self))
        else:
            self.jobs.append(self._job())
            self.actors.append(Publisher(world, self.jobs[-1]))

    def _vacuum(self) -> None:
        """Begin a vacuum, which gets turns while another actor is on the edge."""
        world = self.world
        before = world.time - world.random.choice([d for d in DELAYS if d >= world.unlinkings.delay])
        self.actors.append(vacuum_of(world, before))
        if any(getattr(actor, "is_on_the_edge", False) for actor in (*self.actors, *self.stalled)):
            self.favoured, self.turns = self.actors[-1], 20

    def _job(self) -> Job:
        random, number = self.world.random, len(self.jobs)
        values = [f"job {number}.{n}" for n in range(random.choice((0, 1, 2, 2, 3)))]
        job = Job(PublishId.job(str(number)), values, None, random.random() < 0.1, random.random() < 0.5)
        job.schema = random.choice(SCHEMAS)
        if random.random() < 0.4:
            app = random.choice("ab")
            self.versions[app] = version = self.versions.get(app, -1) + random.choice((1, 1, 2))
            job = replace(job, transaction=Transaction(app, version), publish_id=PublishId.txn(app, version))
        return job

    def _older(self) -> Job:
        """Return a job from an older checkpoint: an earlier job, a job of the same version with other rows, or a job of
        a version that was never used and is lower than the last."""
        random = self.world.random
        before = [job for job in self.jobs if job.transaction]
        if not before:
            self.jobs.append(self._job())
            return self.jobs[-1]
        job, draw = random.choice(before), random.random()
        if draw < 0.4:
            return job
        assert job.transaction is not None
        app, version = job.transaction.app_id, job.transaction.version
        same = [each for each in before if each.transaction == job.transaction]
        if draw < 0.8:
            used = {each.transaction.version for each in before if each.transaction and each.transaction.app_id == app}
            version = random.choice(sorted(set(range(self.versions[app])) - used) or [version])
        rows = 1 if version != job.transaction.version else max(len(each.values) for each in same) + 1
        values = [f"job {len(self.jobs)}.{n}" for n in range(rows)]
        self.jobs.append(Job(PublishId.txn(app, version), values, Transaction(app, version)))
        return self.jobs[-1]

    def _crash(self, actor: Actor) -> None:
        self.world.reached["crash"] += 1
        if isinstance(actor, Publisher):
            actor.job.is_doubtful = True

    # --- the end ---

    def settle(self, steps: int) -> None:
        """End all faults and all actors. Then a last leader seals what is open, and a vacuum cleans up."""
        world = self.world
        world.is_faulty = False
        for late in world.late:
            late()
        self.actors += self.stalled
        self._run_all(steps)
        self.actors = [Leader(world, self)]
        self._run_all(steps)
        require(not world.head.value.open_extents, "the last leader left the log open")
        world.unlinkings.delay = -steps  # everything that happens from now on is old enough then
        self.actors = [vacuum_of(world, world.time + steps)]
        self._run_all(steps)

    def _run_all(self, steps: int) -> None:
        world = self.world
        for _ in range(steps):
            if not self.actors:
                return
            world.time += 1
            actor = world.random.choice(self.actors)
            actor.act()
            if actor.is_done:
                self.actors.remove(actor)
        require(False, f"nobody disturbs {self.actors}, and they do not come to an end")

    def check(self) -> None:
        """Compare the records with the log."""
        world, head = self.world, self.world.head.value
        listed = ledgers_listed(head, world.pages)
        require(listed | {self.foreign} == world.ledgers.keys(), f"listed {listed}, there are {sorted(world.ledgers)}")
        require(not head.condemned, f"condemned for ever: {head.condemned}")
        require(page_names(head, world.pages) == world.pages.keys(), "pages are left over")
        require(not world.unlinkings.records, "records of what was unlinked are left over")
        count = {value: world.history.count(value) for value in world.history}
        for offset, value in self.acked:
            require(world.history[offset : offset + 1] == [value], f"{value} was confirmed at offset {offset}")
        for job in self.jobs:
            found = [count.get(value, 0) for value in job.values]
            require(len(set(found)) <= 1, f"{job} is there {found} times")
            if job.values and job.is_published:
                require(found[0] > 0, f"{job} was published and is not there")
            if job.values and not job.is_published and not job.is_doubtful:
                require(found[0] == 0, f"{job} was not published and is there")
        self._check_versions()

    def _check_versions(self) -> None:
        """Check that between two vacuums of an application's transactions each of its versions is there once, and that
        the versions ascend. Every write checks that no publish is there twice while the head remembers it."""
        version_of = {job.values[0]: job.transaction for job in self.jobs if job.transaction and job.values}
        last: dict[tuple[str, int], int] = {}
        for offset, value in enumerate(self.world.history):
            if (found := version_of.get(value)) is not None:
                vacuums = sum(end <= offset for end in self.world.forgotten.get(found.app_id, ()))
                before = last.get((found.app_id, vacuums), -1)
                require(before < found.version, f"version {found.version} of {found.app_id} comes after {before}")
                last[found.app_id, vacuums] = found.version
