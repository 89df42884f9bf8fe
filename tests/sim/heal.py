# SPDX-License-Identifier: Apache-2.0
"""The profile *heal*: an auditor and workers repair ledgers while writers, recoverers and faults are at
work. A bookie is drained and copies are moved meanwhile (:mod:`tests.sim.leaving`).

Chaos and peace are those of every world; meanwhile bookies that stay away are found by the auditor, and bookies that
lost their disk or find damage mark their ledgers themselves. In peace every mark has to go, and then every copy that a
record names is there, looked at in the bookies themselves. After that come rounds: each loses another bookie, and has
to heal before the next, so that in the end more bookies are lost than any ledger could do without, had a copy been a
lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from bk_core import quorum
from bk_core.errors import BookKeeperError
from bk_core.metadata.records import UnderreplicationMark
from bk_core.model import BookieId, EntryId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol import events as pe
from bk_core.protocol.replication import events as re
from bk_core.protocol.replication.absence import Absences
from bk_core.protocol.replication.machine import LedgerReplication, Phase
from bk_core.protocol.replication.requests import ReplicationConfig
from tests.kit.memory_store import MemoryStore
from tests.sim.checkers import Checker, LedgerTruth, Violation
from tests.sim.clients import RecoveryHost, WriterHost
from tests.sim.frames import contents
from tests.sim.host import Host
from tests.sim.knobs import Knobs
from tests.sim.leaving import Leaving, SimMover
from tests.sim.world import PEACE_MS, World

CONFIG = ReplicationConfig(
    grace_ms=60,
    read_bytes_max=60,  # so small that answers end before what was asked
    copy_bytes_max=100,
    check_window_entries=4,
    speculative_ms=60,
    reconnect_budget_ms=200,
    retry_delay_ms=20,
    add_timeout_ms=1_000,
    metadata_retry_ms=50,
)
TICK_MS = 15.0
ROUNDS_MAX = 3


def heal_knobs(random: Random, knobs: Knobs) -> Knobs:
    """There is always a bookie more than the ensemble needs: without one nothing can be repaired."""
    lossy = knobs.ack_quorum > 1
    return replace(
        knobs,
        spares=max(1, knobs.spares),
        wipes=random.choice((0, 1)) if lossy else 0,
        flipped_bits=random.choice((0, 0, 1)) if lossy else 0,
        deletes=random.choice((0.0, 0.0, 0.0, 0.3)),
    )


class HealChecker(Checker):
    """Knows that repairs write closed records, and what they may change in any record."""

    world: HealWorld

    def _check_succession(self, before: Versioned[LedgerMetadata], after: Versioned[LedgerMetadata], by: str) -> None:
        host = self.world.repairs.get(by)
        if host is None:
            super()._check_succession(before, after, by)
            return
        old, new = before.value, after.value
        firsts = [[f.first_entry_id for f in value.fragments] for value in (old, new)]
        if firsts[0] != firsts[1] or replace(new, fragments=old.fragments) != old:
            self.fail("I4", f"{by} changed more than ensembles: {old} became {new}")
        for was, now in zip(old.fragments, new.fragments, strict=True):
            for index, bookie in enumerate(now.ensemble):
                if bookie != was.ensemble[index]:
                    self.world.placed[host.ledger_id, was.first_entry_id, bookie] = None
                    self.scheduler.reached("a bookie took another's place")
                    self.world.operators.check_target(host, bookie)
                    self._check_present(host, new, was.first_entry_id, index, bookie)

    def _check_present(
        self, host: ReplicationHost, value: LedgerMetadata, first: EntryId, index: int, bookie: BookieId
    ) -> None:
        """I15: a record names a bookie only once its copy is durable there. (Unless it lost its disk meanwhile.)"""
        if self.world.harmed.get(bookie, -1.0) >= host.began:
            return
        missing = self.world.missing_of(host.ledger_id, value, first, index, bookie)
        if missing is None or missing:
            self.fail("I15", f"{host.name} names {bookie} for the fragment at {first}, which lacks {missing}")

    def damaged(self, bookie: BookieId) -> None:
        super().damaged(bookie)
        self.world.harmed[bookie] = self.scheduler.now

    def _check_marked(self, truth: LedgerTruth, metadata: LedgerMetadata, ids: range, by: Host) -> None:
        newest = metadata if truth.record is None else truth.record.value
        super()._check_marked(truth, newest, ids, by)


class HealWorld(World):
    checked_by = HealChecker
    checker: HealChecker

    def __init__(self, seed: int | str, knobs: Knobs, **options: Any) -> None:
        self.incarnations: dict[BookieId, int] = {}
        self.harmed: dict[BookieId, float] = {}  # when it last lost its disk or a part of it
        self.scrubbed_at = -1.0  # when all damage is found
        self.seen: dict[BookieId, float] = {}  # when the auditor last saw it registered
        self.repairs: dict[str, ReplicationHost] = {}  # by client
        self.placed: dict[tuple[LedgerId, EntryId, BookieId], None] = {}  # by a repair
        self._empty: dict[BookieId, None] = {}  # wiped, not started since
        super().__init__(seed, knobs, **options)
        self.checker.world = self
        draw = Random(f"{seed}:heal")
        self.delay_ms = draw.choice((20.0, 100.0, 300.0))
        self.worker_dies = draw.choice((0.0, 0.0, 0.05))
        self.lock_lost = draw.choice((0.0, 0.1))
        self.rounds = draw.choice((0, 1, ROUNDS_MAX))
        self.absences = Absences()
        self.workers = [SimWorker(self, f"heal{number}") for number in range(draw.choice((1, 2)))]
        self.operators = Leaving(self, Random(f"{seed}:operators"))

    def begin(self) -> None:
        self.scheduler.at(TICK_MS, "auditor clock", "the auditor looks", self._audit)
        for worker in self.workers:
            worker.wait(TICK_MS)
        self.operators.begin()

    # --- who marks ---

    def _audit(self) -> None:
        """Marks what bookies hold that stay away, where it is not marked yet."""
        now, registered = self.scheduler.now, [name for name, bookie in self.bookies.items() if bookie.alive]
        lost = self.absences.lost(tuple(self.bookies), registered, now, self.delay_ms)
        self.seen.update(dict.fromkeys(registered, now))
        for bookie in lost:
            away_ms = now - self.seen.get(bookie, 0.0)
            if away_ms < self.delay_ms:
                raise Violation("delay", f"{bookie} counts as lost after {away_ms} ms")
            for ledger_id in self._naming(bookie):
                if bookie not in self.store.marked(ledger_id):
                    self.scheduler.reached("a lost bookie was marked")
                    self.store.store.mark_underreplicated(ledger_id, (bookie,))
        for bookie in self.operators.leaving:
            for ledger_id in self._naming(bookie):
                if bookie not in self.store.marked(ledger_id):
                    self.store.store.mark_underreplicated(ledger_id, (bookie,))
        self.scheduler.at(TICK_MS, "auditor clock", "the auditor looks", self._audit)

    def _naming(self, bookie: BookieId) -> list[LedgerId]:
        records = [(i, self.store.newest(i)) for i in self.checker.ledgers]
        return [ledger_id for ledger_id, record in records if record and self._names(record.value, bookie)]

    def wipe(self, name: BookieId) -> None:
        before = self.harmed.get(name)
        super().wipe(name)
        if self.harmed.get(name) != before:
            self._empty[name] = None
            self.incarnations[name] = self.incarnations.get(name, 0) + 1

    def restart(self, name: BookieId) -> None:
        """A bookie that lost its disk finds out at its start which ledgers name it, is in limbo for them, and marks
        them (RULES S8)."""
        bookie, was_empty = self.bookies[name], name in self._empty
        if bookie.alive or bookie.dead_for_good:
            super().restart(name)
            return
        if was_empty:
            bookie.back_end.wipe(self._naming(name))
        super().restart(name)
        if bookie.alive and self._empty.pop(name, "") is None:
            for ledger_id in self._naming(name):
                self.store.store.mark_underreplicated(ledger_id, (name,))

    def flip_bit(self, name: BookieId) -> None:
        """The scrubber finds it after a while."""
        before = self.harmed.get(name)
        super().flip_bit(name)
        if self.harmed.get(name) != before:
            delay_ms = self.faults.uniform(0, 200)
            self.scrubbed_at = max(self.scrubbed_at, self.scheduler.now + delay_ms)
            self.scheduler.at(delay_ms, "scrub clock", f"{name} finds damage", self._scrubbed, name)

    def _scrubbed(self, name: BookieId) -> None:
        for ledger_id in self._naming(name):
            self.store.store.mark_underreplicated(ledger_id, (name,))

    # --- what is there ---

    def missing_of(
        self, ledger_id: LedgerId, value: LedgerMetadata, first: EntryId, index: int, bookie: BookieId
    ) -> list[EntryId] | None:
        """The ids of a fragment that a member lacks, by its disk; None if the fragment has no end."""
        at = value.fragment_index_of(first) + 1
        end = value.last_entry_id if value.is_closed else None
        if at < len(value.fragments):
            following = value.fragments[at].first_entry_id - 1
            end = following if end is None else min(end, following)
        if end is None:
            return None
        stored = self.bookies[bookie].back_end.holdings.ledgers.get(ledger_id)
        here = set()
        for frame in stored.frames if stored else ():
            if not frame.damaged:
                here.update(contents(frame.data).ids)
        sizes = value.ensemble_size, value.write_quorum_size
        wanted = (entry for entry in range(first, end + 1) if index in quorum.write_set(entry, *sizes))
        return [entry for entry in wanted if entry not in here]

    def _check_whole(self, *, audited: bool) -> None:
        """No record names a bookie that is gone, or one that lacks an entry. What nobody can know before somebody
        looks: what a writer did not deliver that died, below what its recoverer wrote back."""
        for ledger_id, truth in self.checker.ledgers.items():
            record = self.store.newest(ledger_id)
            if record is None or truth.deleted:
                continue
            for fragment in record.value.fragments:
                for index, bookie in enumerate(fragment.ensemble):
                    where = f"ledger {ledger_id}, fragment {fragment.first_entry_id}, {bookie}"
                    if not self.bookies[bookie].alive:
                        raise Violation("healed", f"{where} is gone")
                    missing = self.missing_of(ledger_id, record.value, fragment.first_entry_id, index, bookie)
                    if missing and not audited and self._is_excused(ledger_id, fragment.first_entry_id, bookie):
                        self.scheduler.reached("a copy was missing that nobody knew of")
                    elif missing is None or missing:
                        raise Violation("healed", f"{where} lacks {missing}, and no mark says so")

    def _is_excused(self, ledger_id: LedgerId, first: EntryId, bookie: BookieId) -> bool:
        writers = [host.name for host in self.hosts if isinstance(host, WriterHost)]
        by_writer = self.store.closed_by.get(ledger_id) in writers
        return not by_writer and bookie not in self.harmed and (ledger_id, first, bookie) not in self.placed

    # --- peace, and rounds of loss ---

    def heal(self) -> None:
        super().heal()
        self.worker_dies, self.lock_lost = self.worker_dies / 5, self.lock_lost / 5  # rounds are long

    def settle(self) -> None:
        super().settle()
        self.operators.cancel_if_hopeless()
        self._wait_unmarked("the faults ended, which is time for a drain")
        self.operators.is_over()
        self._wait_healed("the faults ended")
        for number in range(self.rounds):
            self._round(number)

    def _wait_healed(self, since: str) -> None:
        self._wait_unmarked(since)
        self._check_whole(audited=False)
        for ledger_id, truth in self.checker.ledgers.items():  # the auditor's look at all ledgers
            record = self.store.newest(ledger_id)
            if record is not None and not truth.deleted:
                members = dict.fromkeys(bookie for f in record.value.fragments for bookie in f.ensemble)
                self.store.store.mark_underreplicated(ledger_id, tuple(members))
        self._wait_unmarked(f"the audit after {since}")
        self._check_whole(audited=True)
        self.scheduler.reached("everything was healed")
        self.crippled.clear()
        for truth in self.checker.ledgers.values():
            truth.damaged.clear()

    def _wait_unmarked(self, since: str) -> None:
        deadline = self.scheduler.now + PEACE_MS
        while self._is_marked() and self.scheduler.now < deadline:
            self.run_for(2 * TICK_MS)
        if self._is_marked():
            marks = dict(self.store.store.list_underreplicated())
            why = {ledger: reason for worker in self.workers for ledger, reason in worker.reasons.items()}
            raise Violation("liveness", f"{PEACE_MS} ms after {since} these are still marked: {marks}; {why}")

    def _is_marked(self) -> bool:
        """Whether there is a mark, or something that will be marked: a bookie away, damage that is not found yet."""
        away = [name for name, bookie in self.bookies.items() if not bookie.alive]
        away += self.operators.leaving
        pending = any(self._naming(name) for name in away)
        return (
            pending
            or self.scheduler.now <= self.scrubbed_at
            or next(iter(self.store.store.list_underreplicated()), None) is not None
        )

    def _round(self, number: int) -> None:
        """Loses a bookie for good, or its disk; another is away for a moment; meanwhile a ledger is written."""
        knobs, alive = self.knobs, [name for name, bookie in self.bookies.items() if bookie.alive]
        writer = self.writer(f"round{number}")
        self.network.knobs = self.knobs
        for _ in range(3):
            writer.append(self.random.randint(1, 4))
            self.run_for(self.random.uniform(0, 10))
        victim = self.random.choice(alive)
        if len(alive) > knobs.ensemble_size and self.random.random() < 0.6 and knobs.ack_quorum > 1:
            self.scheduler.reached("a round lost a bookie for good")
            self.crash(victim)
            self.bookies[victim].dead_for_good = True
        elif knobs.ack_quorum > 1:
            self.scheduler.reached("a round lost a disk")
            self.wipe(victim)
            self._restart_in(victim, self.random.choice((5.0, 50.0, 500.0)))
        other = self.random.choice([name for name in alive if name != victim] or alive)
        if self.random.random() < 0.5:
            self.run_for(self.random.uniform(0, 400))
            self.crash(other)
            self._restart_in(other, self.random.choice((5.0, 50.0, 500.0)))
        if self.random.random() < 0.7:
            writer.close()
        self.run_for(600)
        if writer.error is None and writer.closed is None:
            writer.die()
            self.network.leave(writer.name)
        self._settle_ledger(writer.ledger_id, self.scheduler.now + PEACE_MS)
        self._wait_healed(f"round {number}")
        for ledger_id, truth in self.checker.ledgers.items():
            if not truth.deleted:
                self._read_all(ledger_id, f"after{number}.{ledger_id}")

    def _restart_in(self, name: BookieId, delay_ms: float) -> None:
        self.scheduler.at(delay_ms, "plan", f"{name} comes back", self.restart, name)


class SimWorker:
    """Takes one mark after the other; what it asks of the store goes over the bad line of its client."""

    def __init__(self, world: HealWorld, name: str) -> None:
        self.world, self.name, self.lives = world, name, 0
        self.store = MemoryStore(world.store.cluster)
        self.reasons: dict[LedgerId, str] = {}
        self._not_before: dict[LedgerId, tuple[float, int]] = {}
        self._number = 0

    def wait(self, delay_ms: float) -> None:
        self.world.scheduler.at(delay_ms, f"{self.name} clock", f"{self.name} looks for work", self._look)

    def _look(self) -> None:
        world, now = self.world, self.world.scheduler.now
        marked = [ledger_id for ledger_id, _ in world.store.store.list_underreplicated()]
        ready = [i for i in marked if self._not_before.get(i, (0.0, 0))[0] <= now]
        if not ready:
            self.wait(TICK_MS)
            return
        ledger_id = world.random.choice(ready)
        self.lives += 1
        client = f"{self.name}.{self.lives}"

        def locked(mark: Any) -> None:
            if isinstance(mark, Versioned):
                self._begin(client, ledger_id, mark)
            else:
                self._give_back(ledger_id)

        world.store._call(client, f"{client} locks and reads the mark", lambda: self._lock(ledger_id), locked)

    def _lock(self, ledger_id: LedgerId) -> Any:
        return self.store.lock_underreplicated(ledger_id, self.name) and self.store.read_underreplicated(ledger_id)

    def lose_session(self) -> None:
        """Its locks are gone; a new session begins."""
        tree = self.store.tree
        tree._cluster.end_session(tree.session_id)
        tree._session_id = tree._cluster.new_session()

    def _begin(self, client: str, ledger_id: LedgerId, mark: Versioned[UnderreplicationMark]) -> None:
        host = ReplicationHost(self.world, client, ledger_id, mark, self)
        self.world.repairs[client] = host
        self.world.hosts.append(host)
        host.carry(host.machine.start())

    def ended(self, host: ReplicationHost, why: str | None) -> None:
        """The repair is over; ``why`` it was put off, or None: then the mark may go, in the version that was read."""
        world, ledger_id = self.world, host.ledger_id
        world.hosts.remove(host)
        if why is not None:
            tries = self._not_before.get(ledger_id, (0.0, 0))[1]
            self._not_before[ledger_id] = (world.scheduler.now + min(20.0 * 2**tries, 1_000.0), tries + 1)
            self.reasons[ledger_id] = why
            world.scheduler.note(f"{host.name} puts ledger {ledger_id} off: {why}")
            self._give_back(ledger_id)
            return
        self._not_before.pop(ledger_id, None)
        self.reasons.pop(ledger_id, None)

        def remove() -> Any:
            removed = self.store.remove_underreplicated(ledger_id, host.mark.version)
            world.scheduler.reached("a mark was removed" if removed else "a ledger was marked again during its repair")
            return removed

        def done(_: Any) -> None:
            self._give_back(ledger_id)

        world.store._call(host.name, f"{host.name} removes the mark", remove, done)

    def _give_back(self, ledger_id: LedgerId) -> None:
        self.store.unlock_underreplicated(ledger_id)
        self.wait(TICK_MS)

    def died(self, host: ReplicationHost) -> None:
        """Its session ends a while later, and with it the lock; another process takes its place."""
        self.world.scheduler.reached("a worker died at work")
        self.world.hosts.remove(host)
        self.world.scheduler.at(100, f"{self.name} clock", f"{self.name} starts again", self._start_again)

    def _start_again(self) -> None:
        self.lose_session()
        self.wait(TICK_MS)


class ReplicationHost(Host):
    """One repair by a worker."""

    machine: LedgerReplication
    world: HealWorld

    def __init__(
        self,
        world: HealWorld,
        name: str,
        ledger_id: LedgerId,
        mark: Versioned[UnderreplicationMark],
        worker: SimWorker | SimMover,
    ) -> None:
        super().__init__(world, name, ledger_id)
        self.mark, self.worker, self.began = mark, worker, world.scheduler.now
        self.seen = re.ClusterRead(())
        self.machine = LedgerReplication(
            ledger_id,
            mark.value.missing,
            config=CONFIG,
            new_session=world.session_numbers(),
            random=Random(world.random.random()),
        )
        self._handlers |= {
            re.ReadRecord: lambda _: self.store.read_synced(name, ledger_id, self.feed),
            re.ReadCluster: lambda _: self.store._call(self.name, f"{name} reads bookies", self._cluster, self.feed),
            re.RecoverLedger: self._recover,
            re.SpendBudget: self._spend,
            re.FinishReplication: self._finish,
            re.PostponeReplication: lambda effect: self._end(effect.why),
        }

    def _write_metadata(self, effect: pe.WriteMetadata) -> None:
        self.store.write_repaired(
            self.name, self.ledger_id, effect.metadata, effect.version, self.feed, self.worker.store
        )

    def feed(self, event: Any) -> None:
        before = self.machine.phase
        super().feed(event)
        phase = self.machine.phase
        if phase is not before:
            self.scheduler.reached(f"repair: {phase.value}")
        if self.world.lock_lost and phase is Phase.COPY and self.world.random.random() < self.world.lock_lost:
            self.scheduler.reached("a lock was lost at work")
            self.worker.lose_session()
        busy = phase in (Phase.COPY, Phase.WRITE) and not self.dead and not self.over
        if busy and self.world.worker_dies and self.world.random.random() < self.world.worker_dies:
            self.die()

    def die(self) -> None:
        if not self.dead:
            super().die()
            self.network.leave(self.name)
            if not self.over:
                self.worker.died(self)

    def _cluster(self) -> re.ClusterRead:
        world = self.world
        writable = tuple(world.store.registered)
        alive = [name for name, bookie in world.bookies.items() if bookie.alive]
        lives = {name: str(world.incarnations.get(name, 0)) for name in alive}
        read_only = tuple(name for name in alive if name not in writable)
        lost = world.absences.lost(tuple(world.bookies), alive, world.scheduler.now, world.delay_ms)
        away = tuple(name for name in world.bookies if name not in alive and name not in lost)
        operators = world.operators
        self.seen = re.ClusterRead(
            writable, read_only, away, incarnations=lives, leaving=operators.leaving, patient=operators.patient
        )
        return self.seen

    def _spend(self, effect: re.SpendBudget) -> None:
        self.scheduler.at(effect.size * 0.01, f"{self.name} clock", "the budget", self.feed, re.BudgetGranted())

    def _recover(self, _: re.RecoverLedger) -> None:
        if self.scheduler.now - self.began < CONFIG.grace_ms:
            self.world.checker.fail("grace", f"{self.name} fences {self.scheduler.now - self.began} ms after it began")
        assert self.machine.metadata is not None
        self.world.operators.check_fence(self, self.machine.metadata.value, self.seen)
        self.scheduler.reached("a worker recovered a ledger")
        name = f"{self.name}r"
        self.world.hosts.append(_Recovery(self.world, name, self.ledger_id, self._recovered))

    def _recovered(self, error: BookKeeperError | None) -> None:
        self.feed(re.LedgerRecovered(error))

    def _finish(self, effect: re.FinishReplication) -> None:
        self.scheduler.reached(f"repair ended: {effect.outcome.value}")
        self._end(None)

    def _end(self, why: str | None) -> None:
        self.over = True
        for item in self._timers.values():
            item.cancel()
        self.worker.ended(self, why)


class MoveHost(ReplicationHost):
    """One move, to ``target``, as the mover of the client makes it."""

    target: BookieId = ""

    def _cluster(self) -> re.ClusterRead:
        world = self.world
        alive = tuple(name for name, bookie in world.bookies.items() if bookie.alive)
        is_there = self.target in world.store.registered and self.target not in world.operators.leaving
        takes = (self.target,) if is_there else ()
        lives = {name: str(world.incarnations.get(name, 0)) for name in alive}
        others = tuple(name for name in alive if name not in takes)
        return re.ClusterRead(takes, others, incarnations=lives, leaving=self.mark.value.missing)


class _Recovery(RecoveryHost):
    """A recovery that a worker waits for."""

    def __init__(
        self, world: HealWorld, name: str, ledger_id: LedgerId, done: Callable[[BookKeeperError | None], None]
    ) -> None:
        self._done = done
        super().__init__(world, name, ledger_id)

    def _fail(self, effect: pe.Fail) -> None:
        super()._fail(effect)
        self._done(effect.error)

    def _finish(self, effect: pe.FinishRecovery) -> None:
        super()._finish(effect)
        self._done(None)

    def die(self) -> None:
        """Its process dies with it: whoever waits starts again."""
        was_dead = self.dead
        super().die()
        if not was_dead and not self.over:
            self._done(BookKeeperError("the recoverer died", remedy="try again"))
