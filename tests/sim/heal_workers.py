# SPDX-License-Identifier: Apache-2.0
"""The repairs of profile *heal*: workers, which take one mark after the other, and the machine of each repair."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.client.repairing import repair
from bk_core.errors import BookKeeperError, NoSuchLedgerError
from bk_core.metadata.records import UnderreplicationMark
from bk_core.model import BookieId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol import events as pe
from bk_core.protocol.replication import events as re
from bk_core.protocol.replication.machine import LedgerReplication, Phase
from bk_core.protocol.replication.requests import ReplicationConfig
from tests.kit.memory_store import MemoryStore
from tests.sim.clients import RecoveryHost
from tests.sim.heal_marks import CheckedPresence, new_session
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.heal import HealWorld
    from tests.sim.leaving import SimMover

CONFIG = ReplicationConfig(
    grace_ms=60,
    read_bytes_max=60,  # so small that answers end before the requested end
    copy_bytes_max=100,
    check_window_entries=4,
    speculative_ms=60,
    reconnect_budget_ms=200,
    retry_delay_ms=20,
    add_timeout_ms=1_000,
    metadata_retry_ms=50,
)
TICK_MS = 20.0


class SimWorker:
    """Takes one mark after the other. Its calls to the store go over the bad line of its client."""

    def __init__(self, world: HealWorld, name: str) -> None:
        self.world, self.name, self.lives = world, name, 0
        self.store = MemoryStore(world.store.cluster)
        self.reasons: dict[LedgerId, str] = {}
        self.busy = self.kept = False
        self._not_before: dict[LedgerId, tuple[float, int]] = {}
        self._begin_process()

    def _begin_process(self) -> None:
        self.presence = CheckedPresence(self.world, self.world.registrations)

    def wait(self, delay_ms: float) -> None:
        self.busy = False
        self.world.scheduler.at(delay_ms, f"{self.name} clock", f"{self.name} looks for work", self._look)

    def _look(self) -> None:
        world, now = self.world, self.world.scheduler.now
        if self.kept and not world.store.is_away(self.name):
            self.kept = False
            repair.locked_ledgers(self.store, self.name, ())
        ready = [i for i in world.store.marks() if self._not_before.get(i, (0.0, 0))[0] <= now]
        if not ready or world.store.is_away(self.name) or not self.store.replication_enabled():
            self.wait(TICK_MS)
            return
        self.presence.look()  # as the auditor of its process does
        ledger_id = world.random.choice(ready)
        self.lives += 1
        self.busy = True
        client = f"{self.name}.{self.lives}"

        def locked(found: Any) -> None:
            if found is True:
                world.store._call(client, f"{client} reads the mark", self._mark_of(ledger_id), read)
            else:
                self.kept = self.kept or found is not False
                self.wait(TICK_MS)

        def read(mark: Any) -> None:
            if isinstance(mark, Versioned):
                self._begin(client, ledger_id, mark)
            else:
                self.give_back(client, ledger_id)

        world.store._call(
            client, f"{client} locks", lambda: self.store.lock_underreplicated(ledger_id, self.name), locked
        )

    def _mark_of(self, ledger_id: LedgerId) -> Callable[[], Any]:
        return lambda: self.store.read_underreplicated(ledger_id)

    def _begin(self, client: str, ledger_id: LedgerId, mark: Versioned[UnderreplicationMark]) -> None:
        host = ReplicationHost(self.world, client, ledger_id, mark, self)
        self.world.repairs[client] = host
        self.world.hosts.append(host)
        host.carry(host.machine.start())

    def ended(self, host: ReplicationHost, why: str | None) -> None:
        """End a repair. ``why`` is the reason why it was put off. If it is None, the mark may go, in the version that
        was read."""
        world, ledger_id = self.world, host.ledger_id
        world.hosts.remove(host)
        if why is not None:
            tries = self._not_before.get(ledger_id, (0.0, 0))[1]
            self._not_before[ledger_id] = (world.scheduler.now + min(20.0 * 2**tries, 1_000.0), tries + 1)
            self.reasons[ledger_id] = why
            world.scheduler.note(f"{host.name} puts ledger {ledger_id} off: {why}")
            self.give_back(host.name, ledger_id)
            return
        self._not_before.pop(ledger_id, None)
        self.reasons.pop(ledger_id, None)

        def remove() -> Any:
            removed = self.store.remove_underreplicated(ledger_id, host.mark.version)
            world.scheduler.reached("a mark was removed" if removed else "a ledger was marked again during its repair")
            return removed

        def done(_: Any) -> None:
            self.give_back(host.name, ledger_id)

        def go_on() -> None:
            world.store._call(host.name, f"{host.name} removes the mark", remove, done)

        if world.lock_lost and world.random.random() < 3 * world.lock_lost:
            world.scheduler.reached("a worker lost its lock, and was to remove the mark")
            new_session(self.store)
            world.scheduler.at(world.random.expovariate(1 / 60.0), f"{self.name} clock", f"{host.name} goes on", go_on)
        else:
            go_on()

    def give_back(self, client: str, ledger_id: LedgerId) -> None:
        """Give back the lock. While the store is away the lock stays."""

        def done(said: Any) -> None:
            self.kept = self.kept or said is not None
            self.wait(TICK_MS)

        self.world.may_go_away()
        label = f"{client} gives its lock back"
        self.world.store._call(client, label, lambda: self.store.unlock_underreplicated(ledger_id), done)

    def died(self, host: ReplicationHost) -> None:
        """End the worker's process. Its session ends a while later, and with it the lock. Another process takes its
        place."""
        self.world.scheduler.reached("a worker died at work")
        self.world.hosts.remove(host)
        self.world.scheduler.at(100, f"{self.name} clock", f"{self.name} starts again", self._start_again)

    def _start_again(self) -> None:
        new_session(self.store)
        self._begin_process()
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
            re.ReadRecord: lambda _: self.store.read_synced(name, ledger_id, self.feed, self._newest),
            re.ReadCluster: lambda _: self.store._call(self.name, f"{name} reads bookies", self._cluster, self.feed),
            re.RecoverLedger: self._recover,
            re.SpendBudget: self._spend,
            re.FinishReplication: self._finish,
            re.PostponeReplication: lambda effect: self._end(effect.why),
        }

    def _newest(self, store: MemoryStore, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Return the newest record. A repair must use it even if the server lags."""
        newest = self.store.newest(ledger_id)
        try:
            found = repair.newest_record(store, ledger_id)
        except NoSuchLedgerError:
            if newest is not None:
                self.world.checker.fail("stale", f"{self.name} takes ledger {ledger_id} for deleted, which is there")
            raise
        if newest is not None and found.version < newest.version:
            read = f"version {found.version} of ledger {ledger_id}"
            self.world.checker.fail("stale", f"{self.name} goes by {read}, and {newest.version} was written before")
        return found

    def _write_metadata(self, effect: pe.WriteMetadata) -> None:
        self.store.write_repaired(
            self.name, self.ledger_id, effect.metadata, effect.version, self.feed, self.worker.store
        )

    def feed(self, event: Any) -> None:
        before = self.machine.phase
        super().feed(event)
        phase = self.machine.phase
        if self.dead or self.over:
            return
        world, draw = self.world, self.world.random
        if phase is not before:
            self.scheduler.reached(f"repair: {phase.value}")
            if world.lock_lost and draw.random() < world.lock_lost / 2:
                self._lose_lock()
            if world.deletes_at_work and draw.random() < world.deletes_at_work:
                self.scheduler.reached("a ledger was deleted during its repair")
                world.delete(self.ledger_id)
        if world.lock_lost and phase is Phase.COPY and draw.random() < world.lock_lost:
            self._lose_lock()
        if world.worker_dies and phase is not Phase.GRACE and draw.random() < world.worker_dies:
            self.die()

    def _lose_lock(self) -> None:
        self.scheduler.reached("a lock was lost at work")
        new_session(self.worker.store)

    def die(self) -> None:
        if not self.dead:
            super().die()
            self.network.leave(self.name)
            if not self.over:
                self.worker.died(self)

    def _cluster(self) -> re.ClusterRead:
        self.seen = self.worker.presence.look(self.machine.missing).for_repair()
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
    """One move of a copy to ``target``, made as the client's mover does."""

    target: BookieId = ""

    def _cluster(self) -> re.ClusterRead:
        world = self.world
        alive = tuple(world.present())
        is_there = self.target in world.store.registered and self.target not in world.operators.leaving
        takes = (self.target,) if is_there else ()
        lives = {name: str(world.incarnations.get(name, 0)) for name in alive}
        others = tuple(name for name in alive if name not in takes)
        self.seen = re.ClusterRead(takes, others, incarnations=lives, leaving=self.mark.value.missing)
        return self.seen


class _Recovery(RecoveryHost):
    """A recovery for which a worker waits."""

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
        """End the recovery and its process. A worker that waits for it starts again."""
        was_dead = self.dead
        super().die()
        if not was_dead and not self.over:
            self._done(BookKeeperError("the recoverer died", remedy="try again"))
