# SPDX-License-Identifier: Apache-2.0
"""Who works on the log of tests/sim/logs.py: jobs that publish and overwrite, trims, compactions, vacuums, leaders."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from bk_core.errors import BookKeeperError, MetadataUnavailableError, NoSuchLedgerError, NotEnoughBookiesError, Outcome
from bk_core.logs import commit
from bk_core.logs.commit import NewOpenExtent
from bk_core.logs.head import LogHead, NewExtent, PublishId
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines import leadership_events as le
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.machines.leadership_states import State as Leading
from bk_core.logs.machines.publication import FORGOTTEN_OFFSET, Publication, Publish
from bk_core.logs.machines.transactions import Transaction
from bk_core.logs.machines.upkeep import Compact, Trim
from bk_core.logs.machines.vacuum import Vacuum
from bk_core.logs.paging import Change, last_ledgers, ledgers_listed, page_names, sealed_extents
from bk_core.model import LedgerId, Versioned
from tests.sim.logs import TXN_RETENTION, UUID, Actor, LogWorld, require

QUORUM = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
KINDS = ("job", "job", "job", "again", "trim", "compact", "vacuum", "vacuum", "leader", "leader")


def new_extent(ledger_id: LedgerId, count: int, made: int) -> NewExtent:
    return NewExtent(ledger_id=ledger_id, entry_count=count, size_bytes=count, created_ms=made, **QUORUM)


def vacuum_of(world: LogWorld, before: int) -> Vacuum:
    return Vacuum(UUID, before, world.nonce, txns_before_ms=world.time - TXN_RETENTION)


class Runner:
    """A driver in miniature for every machine of change_events: one request at a time."""

    def __init__(self, world: LogWorld, machine: HeadChange[Any] | Vacuum) -> None:
        self.world, self.machine, self.is_done = world, machine, False
        self._request: ev.Effect | None = None
        self._take(ev.Start())

    def act(self) -> None:
        """Carry one request out."""
        assert self._request is not None
        self._take(self.world.answer(self._request))

    def _take(self, event: ev.Event) -> None:
        for effect in self.machine.step(event):
            match effect:
                case ev.DropPages(names):
                    for name in names:
                        self.world.delete_page(name)
                case ev.DropLedgers(ledgers):
                    self.world.reached["aborted before an attempt"] += 1
                    for ledger in ledgers:
                        self.world.delete_ledger(ledger)
                case ev.Finish(result):
                    self.is_done = True
                    self.ended(result)
                case ev.Fail(error):
                    self.is_done = True
                    self.failed(error)
                case _:
                    self._request = effect

    def ended(self, result: Any) -> None:
        """It is done."""
        self.world.reached[type(getattr(self.machine, "intent", self.machine)).__name__.lower() + " done"] += 1

    def failed(self, error: BookKeeperError) -> None:
        """It is not."""
        self.world.reached[f"failed {error.code} {error.outcome.value}"] += 1


@dataclass
class Job:
    """What is published under one id, by however many attempts, and what is known of it."""

    publish_id: PublishId
    values: list[str]
    transaction: Transaction | None = None
    overwrite: bool = False
    takeover: bool = False
    is_published: bool = False  # an attempt said so
    is_doubtful: bool = False  # an attempt crashed, or ended with outcome unknown
    attempts: int = 0


class Publisher(Runner):
    """One attempt: the tasks write ledgers of their own, the driver publishes them."""

    def __init__(self, world: LogWorld, job: Job) -> None:
        self.job = job
        job.attempts += 1
        half = len(job.values) // 2
        ledgers = [world.make_ledger(part) for part in (job.values[:half], job.values[half:]) if part]
        extents = [new_extent(each, len(world.ledgers[each].values), world.time) for each in ledgers]
        intent = Publish(
            tuple(extents),
            job.publish_id,
            world.time,
            world.nonce,
            takeover=job.takeover,
            overwrite=job.overwrite,
            transaction=job.transaction,
        )
        super().__init__(world, Publication(intent, failures_max=world.random.choice((2, 5))))

    def act(self) -> None:
        """One request; or the job is cancelled."""
        if self.world.chance(0.02):
            self._take(ev.Abort())
        else:
            super().act()

    def ended(self, result: Any) -> None:
        """What is reported as published is there."""
        super().ended(result)
        self.job.is_published = True
        if result.base_offset != FORGOTTEN_OFFSET:
            found = self.world.history[result.base_offset : result.base_offset + result.rows]
            require(found == self.job.values, f"{self.job.publish_id} published {found}")

    def failed(self, error: BookKeeperError) -> None:
        """Whoever does not know tries again."""
        super().failed(error)
        self.job.is_doubtful = self.job.is_doubtful or error.outcome is Outcome.UNKNOWN


class Compacter(Runner):
    """Copies a run of sealed extents into a ledger of its own and lists that."""

    def __init__(self, world: LogWorld) -> None:
        head = world.head.value
        extents = sealed_extents(head, world.pages, head.start_offset, head.next_offset)
        first = world.random.randrange(len(extents))
        run = extents[first : first + world.random.randint(1, 3)]
        values = [value for extent in run for value in world.ledgers[extent.ledger_id].values]
        new = new_extent(world.make_ledger(values), len(values), world.time)
        super().__init__(world, HeadChange(Compact(tuple(run), new, world.nonce)))


class Leader:
    """A leader's driver in miniature. Its requests are answered in any order; it appends while it serves."""

    def __init__(self, world: LogWorld, stage: Stage) -> None:
        self.world, self.stage, self.is_done = world, stage, False
        self.machine = LogLeadership(attempts_max=3)
        self.pending: list[le.LeadershipEffect] = []
        self.current: LedgerId | None = None
        self.base = 0
        self._take(le.TakeOver())

    def act(self) -> None:
        """An append, a command, or one request."""
        world = self.world
        if self.pending and (self.current is None or world.random.random() < 0.6):
            self._take(self._answer(self.pending.pop(world.random.randrange(len(self.pending)))))
        elif self.current is None:
            self.is_done = self.machine.state in (Leading.LOST, Leading.ENDED)
        elif not world.is_faulty or world.random.random() < 0.2:
            self._take(le.GiveUp() if not world.is_faulty or world.random.random() < 0.2 else le.Roll())
        else:
            self.append()

    def append(self) -> None:
        """One entry; its answer may be lost."""
        world, ledger = self.world, self.current
        assert ledger is not None
        if ledger not in world.ledgers or world.ledgers[ledger].is_closed:
            world.reached["leader fenced"] += 1
            self._take(le.WriterFailed(ledger, BookKeeperError("fenced")))
            return
        values = world.ledgers[ledger].values
        values.append(f"leader {self.stage.next_value()}")
        if not world.chance(0.1):
            self.stage.acked.append((self.base + len(values) - 1, values[-1]))

    def _take(self, event: le.LeadershipEvent) -> None:
        for effect in self.machine.step(event):
            match effect:
                case le.Serve(ledger_id, base_offset):
                    self.world.reached["leader serves"] += 1
                    self.current, self.base = ledger_id, base_offset
                case le.DeleteLedger(ledger_id):
                    self.world.delete_ledger(ledger_id)
                case le.LoseLeadership() | le.FinishLeadership():
                    self.current, self.is_done = None, True
                case le.SwitchLedger(previous_id, ledger_id):
                    self.world.reached["rolled"] += 1
                    self.base += len(self.world.ledgers[previous_id].values)
                    self.current = ledger_id
                    self.pending.append(effect)
                case le.FinishRoll():
                    pass
                case _:
                    if isinstance(effect, le.CloseLedger):
                        self.current = None
                    self.pending.append(effect)

    def _answer(self, effect: le.LeadershipEffect) -> le.LeadershipEvent:
        world = self.world
        if isinstance(effect, le.ReadHead | le.RecoverLedger) and world.chance(0.1):
            return le.RequestFailed(MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED))
        match effect:
            case le.ReadHead():
                found = world.head
                return le.HeadRead(found, last_ledgers(found.value, world.pages))
            case le.RecoverLedger(ledger_id):
                if ledger_id not in world.ledgers:
                    return le.LedgerMissing(ledger_id)
                return le.LedgerRecovered(ledger_id, world.recover(ledger_id))
            case le.CreateLedger():
                if world.chance(0.05):
                    return le.RequestFailed(NotEnoughBookiesError("none"))
                made = NewOpenExtent(ledger_id=world.make_ledger([], is_closed=False), created_ms=world.time, **QUORUM)
                return le.LedgerCreated(made)
            case le.SwitchLedger(ledger_id, _) | le.CloseLedger(ledger_id):
                if ledger_id not in world.ledgers or world.ledgers[ledger_id].is_closed:
                    return le.WriterFailed(ledger_id, BookKeeperError("fenced"))
                return le.LedgerClosed(ledger_id, world.recover(ledger_id))
            case le.AskLeader():
                return le.LeaderAnswered(not world.chance(0.1))
        return self._answer_change(effect)

    def _answer_change(self, effect: le.LeadershipEffect) -> le.LeadershipEvent:
        world = self.world
        match effect:
            case le.SealExtents(expected, ends):
                change = commit.seal(expected.value, dict(ends), nonce=world.nonce, pages=world.pages)
                return self._write(expected, change)
            case le.ListLedger(expected, ledger):
                if ledger.ledger_id not in world.ledgers:
                    return le.RequestFailed(NoSuchLedgerError("vacuumed before it was listed"))
                try:
                    change = commit.add_open_extent(expected.value, ledger, nonce=world.nonce, pages=world.pages)
                except BookKeeperError as error:
                    return le.RequestFailed(error)
                return self._write(expected, change)
        return le.WaitEnded()

    def _write(self, expected: Versioned[LogHead], change: Change) -> le.LeadershipEvent:
        world = self.world
        if world.head.version == expected.version:
            for new in change.new_pages:
                world.pages[new.name], world.page_made[new.name] = new.page, world.time
        match world.compare_and_set(lambda: world.write(change.head, expected.version)):
            case "written":
                return le.HeadWritten(world.head)
            case "unknown":
                return le.HeadWriteUnknown()
        return le.HeadConflicted()


@dataclass
class Stage:
    """Who is at work, and what is known of what they did."""

    world: LogWorld
    actors: list[Actor] = field(default_factory=list)
    stalled: list[Actor] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    acked: list[tuple[int, str]] = field(default_factory=list)
    values: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)  # each schedule draws some (swarm)
    actors_max: int = 0

    def __post_init__(self) -> None:
        random = self.world.random
        self.kinds = ["job", *random.sample(KINDS, random.choice((2, 4, len(KINDS), len(KINDS))))]
        self.actors_max = random.choice((2, 4, 6))
        self.foreign = self.world.make_ledger(["not of this log"], is_ours=False)

    def next_value(self) -> int:
        self.values += 1
        return self.values

    def step(self) -> None:
        """One request, arrival, crash or late write."""
        world, draw = self.world, self.world.random.random()
        world.time += 1
        if world.late and draw < 0.06:
            world.reached["late write applied"] += bool(world.late.pop(world.random.randrange(len(world.late)))())
        elif not self.actors or (draw < 0.2 and len(self.actors) < self.actors_max):
            self._arrive()
        elif draw < 0.23:
            self._crash(self.actors.pop(world.random.randrange(len(self.actors))))
        elif draw < 0.25:
            self.stalled.append(self.actors.pop(world.random.randrange(len(self.actors))))
        elif self.stalled and draw < 0.26:
            world.reached["old actor came back"] += 1
            self.actors.append(self.stalled.pop(world.random.randrange(len(self.stalled))))
        else:
            actor = world.random.choice(self.actors)
            actor.act()
            if actor.is_done:
                self.actors.remove(actor)

    def _arrive(self) -> None:
        world = self.world
        kind = world.random.choice(self.kinds)
        if kind == "again" and self.jobs:
            self.actors.append(Publisher(world, world.random.choice(self.jobs[-4:])))
        elif kind == "trim":
            offset = world.random.randint(0, world.head.value.next_offset + 2)
            self.actors.append(Runner(world, HeadChange(Trim(offset, world.nonce))))
        elif kind == "compact" and world.head.value.next_offset > world.head.value.start_offset:
            self.actors.append(Compacter(world))
        elif kind == "vacuum":
            before = world.time - world.random.choice((-50, 0, 5, 30))
            self.actors.append(Runner(world, vacuum_of(world, before)))
        elif kind == "leader":
            self.actors.append(Leader(world, self))
        else:
            self.jobs.append(self._job())
            self.actors.append(Publisher(world, self.jobs[-1]))

    def _job(self) -> Job:
        random, number = self.world.random, len(self.jobs)
        values = [f"job {number}.{n}" for n in range(random.choice((0, 1, 2, 2, 3)))]
        job = Job(PublishId.job(str(number)), values, None, random.random() < 0.1, random.random() < 0.5)
        if random.random() < 0.4:
            app = random.choice("ab")
            self.versions[app] = version = self.versions.get(app, -1) + random.choice((1, 1, 2))
            job = replace(job, transaction=Transaction(app, version), publish_id=PublishId.txn(app, version))
        return job

    def _crash(self, actor: Actor) -> None:
        self.world.reached["crash"] += 1
        if isinstance(actor, Publisher):
            actor.job.is_doubtful = True

    # --- the end ---

    def settle(self, steps: int) -> None:
        """No more faults: everybody comes to an end, a last leader seals what is open, a vacuum cleans up."""
        world = self.world
        world.is_faulty = False
        for late in world.late:
            late()
        self.actors += self.stalled
        self._run_all(steps)
        self.actors = [Leader(world, self)]
        self._run_all(steps)
        require(not world.head.value.open_extents, "the last leader left the log open")
        self.actors = [Runner(world, vacuum_of(world, world.time + 1))]
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
        """The books are compared."""
        world, head = self.world, self.world.head.value
        listed = ledgers_listed(head, world.pages)
        require(listed | {self.foreign} == world.ledgers.keys(), f"listed {listed}, there are {sorted(world.ledgers)}")
        require(not head.condemned, f"condemned for ever: {head.condemned}")
        require(page_names(head, world.pages) == world.pages.keys(), "pages are left over")
        count = {value: world.history.count(value) for value in world.history}
        for offset, value in self.acked:
            require(world.history[offset : offset + 1] == [value], f"{value} was confirmed at offset {offset}")
        for job in self.jobs:
            found = [count.get(value, 0) for value in job.values]
            require(len(set(found)) <= 1 and max(found, default=0) <= 1, f"{job} is there {found} times")
            if job.values and job.is_published:
                require(found[0] == 1, f"{job} was published and is not there")
            if job.values and not job.is_published and not job.is_doubtful:
                require(found[0] == 0, f"{job} was not published and is there")
        self._check_versions()

    def _check_versions(self) -> None:
        place = {value: offset for offset, value in enumerate(self.world.history)}
        for app in {"a", "b"} - self.world.forgotten:  # of those, an old version may come late
            jobs = [job for job in self.jobs if job.transaction and job.transaction.app_id == app and job.values]
            offsets = [place[job.values[0]] for job in jobs if job.values[0] in place]
            require(offsets == sorted(offsets), f"versions of {app} stand in the log as {offsets}")
