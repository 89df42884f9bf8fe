# SPDX-License-Identifier: Apache-2.0
"""The acts of operators in profile *heal*. A bookie is drained, copies are moved to even out disks, and bookies give up
copies that no record names any more. All this happens beside writers, recoverers, repairs, losses and deletions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.metadata.records import BookieOrder, Order, UnderreplicationMark
from bk_core.model import BookieId, LedgerId, LedgerMetadata, LedgerState, Versioned
from bk_core.placement import FLAT
from bk_core.protocol.replication import events as re
from bk_core.protocol.replication.balance import can_take_over
from bk_core.protocol.replication.copies import Blocked, copies_left
from bookie_server.machine import events as ev
from tests.kit.memory_store import MemoryStore
from tests.sim.checkers import Violation
from tests.sim.heal_marks import new_session

if TYPE_CHECKING:
    from tests.sim.heal import HealWorld
    from tests.sim.heal_workers import ReplicationHost

TICK_MS = 15.0
COLLECT_MS = 40.0


class Leaving:
    """Draws the operators' acts in one world. ``drained`` has the bookies that are leaving, and since when."""

    def __init__(self, world: HealWorld, draw: Random) -> None:
        self.world, self._draw = world, draw
        self._drains = draw.choice((0, 0, 0, 1, 1, 2))
        self.fences = draw.random() < 0.3
        self._removes = draw.random() < 0.5
        self._read_only = draw.choice((0, 0, 0, 1))
        self._pauses = draw.random() < 0.1
        self._gives_up = draw.choice((0.0, 0.3, 1.0))
        self._begins_ms = draw.uniform(0, 150)
        self.drained: dict[BookieId, float] = {}
        self.refusing: dict[BookieId, None] = {}  # read-only by order
        self.removed: dict[BookieId, None] = {}
        self.paused = False
        self._calm = self.stopped = False
        self.mover = SimMover(world, "mover", draw.choice((0.0, 0.0, 0.3)), draw)
        self._collectors: dict[BookieId, MemoryStore] = {}

    def begin(self) -> None:
        at, world = self.world.scheduler.at, self.world
        for number in range(self._drains):
            at(self._begins_ms * (1 + number), "operator clock", "a bookie is drained", self._drain)
        if self._read_only:
            at(self._draw.uniform(0, 200), "operator clock", "a bookie is made read-only", self._refuse)
        if self._pauses:
            at(self._draw.uniform(0, 100), "operator clock", "repairs are paused", self._pause, False)
        if self._gives_up:
            at(COLLECT_MS, "collector clock", "bookies look what they hold", self._collect)
        if self.mover.how_often:
            world.scheduler.reached("a mover was at work")
            self.mover.wait(TICK_MS)

    def calm(self) -> None:
        """End orders to be read-only, and a pause of repairs. A drain goes on."""
        self._calm, self.paused = True, False
        self.world.store.store.enable_replication(True)
        for name in list(self.refusing):
            if name not in self.drained:
                self._obey(name, False)
        for name in self.drained:
            self._obey(name, True)

    def stop(self) -> None:
        self.stopped = True

    @property
    def orders(self) -> dict[BookieId, BookieOrder]:
        """The orders that the store holds."""
        drains = {name: BookieOrder(Order.DRAIN, 0, self.fences) for name in self.drained}
        return {**{name: BookieOrder(Order.READ_ONLY, 0) for name in self.refusing}, **drains}

    def _pause(self, ends: bool) -> None:
        """Pause or resume repairs, as ``bk replication pause`` and ``resume`` do."""
        if self._calm:
            return
        self.paused = not ends
        self.world.store.store.enable_replication(ends)
        self.world.scheduler.reached("repairs were paused")
        if not ends:
            self.world.scheduler.at(self._draw.uniform(0, 200), "operator clock", "repairs go on", self._pause, True)

    # --- read-only ---

    def _refuse(self) -> None:
        names = [name for name, bookie in self.world.bookies.items() if bookie.alive and name not in self.drained]
        if names and not self._calm:
            name = self._draw.choice(names)
            self._obey(name, True)
            self.world.scheduler.reached("a bookie was made read-only by order")
            self.world.scheduler.at(
                self._draw.uniform(10, 300), "operator clock", f"{name} may write", self._take, name
            )

    def _take(self, name: BookieId) -> None:
        if name in self.refusing and name not in self.drained:
            self._obey(name, False)

    def _obey(self, name: BookieId, refuses: bool) -> None:
        """Let the bookie refuse or accept normal adds, and register so. A bookie that starts with an order does the
        same."""
        world, bookie = self.world, self.world.bookies[name]
        if refuses:
            self.refusing[name] = None
        else:
            self.refusing.pop(name, None)
        if bookie.alive:
            bookie.feed(ev.ReadOnlyChanged(refuses))
            if refuses:
                world.store.registered.pop(name, None)
            elif name not in world.unregistered:
                world.store.registered[name] = None

    def restarted(self, name: BookieId) -> None:
        """Apply an order to a bookie that starts, before its first registration."""
        if name in self.refusing:
            self._obey(name, True)

    # --- a drain ---

    @property
    def patient(self) -> tuple[BookieId, ...]:
        return () if self.fences else tuple(self.drained)

    @property
    def leaving(self) -> tuple[BookieId, ...]:
        return tuple(self.drained)

    def _drain(self) -> None:
        """Drain a bookie as the command does. It is refused if a ledger would find no other bookie, or lose its last
        copy."""
        world = self.world
        names = [name for name, bookie in world.bookies.items() if bookie.alive and name not in self.drained]
        others = len(names) - 1
        if not names or others < world.knobs.ensemble_size or self.stopped:
            return
        name = self._draw.choice(names)
        seen = world.workers[0].presence.look().for_repair()
        for ledger_id in world._naming(name):
            record = world.store.newest(ledger_id)
            left = record and copies_left(ledger_id, record.value, name, seen, self._draw)
            if left and left.blocked in (Blocked.NO_BOOKIE, Blocked.LAST_COPY):
                world.scheduler.reached("a drain was refused")
                return
        self.drained[name] = world.scheduler.now
        world.scheduler.reached("a bookie was drained")
        delay_ms = self._draw.choice((0.0, 10.0, 60.0))  # the bookie looks at its order now and then
        world.scheduler.at(delay_ms, "operator clock", f"{name} obeys", self._obey_drain, name)

    def _obey_drain(self, name: BookieId) -> None:
        if name in self.drained:
            self._obey(name, True)

    def cancel_if_hopeless(self) -> None:
        """Cancel, in peace, a drain for which bookies that died for good leave too few others. The command refuses such
        a drain, but here they died after it began."""
        world = self.world
        others = [name for name, bookie in world.bookies.items() if bookie.alive and name not in self.drained]
        if self.drained and len(others) < world.knobs.ensemble_size:
            world.scheduler.reached("a drain was cancelled")
            self._end_drains()

    def _end_drains(self) -> None:
        drained, self.drained = tuple(self.drained), {}
        for name in drained:
            self._obey(name, False)

    def is_over(self) -> None:
        """Check in peace, once nothing is marked, that no record names the drained bookies. Then one of them may be
        removed, and the others come back."""
        for name in self.drained:
            left = self.world._naming(name)
            if left:
                raise Violation("drain", f"{name} is drained, and these name it: {left}")
            self.world.scheduler.reached("a drain ended")
        drained = tuple(self.drained)
        self._end_drains()
        for name in drained[: self._removes]:
            self._remove(name)

    def _remove(self, name: BookieId) -> None:
        """Stop a bookie and delete its cookie, so that it is no bookie of the cluster any more."""
        world = self.world
        others = [other for other, bookie in world.bookies.items() if bookie.alive and other != name]
        if len(others) > world.knobs.ensemble_size:
            world.crash(name)
            world.bookies[name].dead_for_good = True
            self.removed[name] = None
            world.scheduler.reached("a bookie was removed")

    def check_fence(self, host: ReplicationHost, value: LedgerMetadata, seen: re.ClusterRead) -> None:
        """Check that no writer was fenced for a running bookie that leaves without haste."""
        lost = [bookie for bookie in value.last_fragment.ensemble if bookie in host.mark.value.missing]
        waits = all(bookie in seen.patient and seen.life_of(bookie) is not None for bookie in lost)
        if lost and waits and value.state is LedgerState.OPEN:
            self.world.checker.fail("drain", f"{host.name} fences a writer, and {lost} are only drained")

    def check_target(self, host: ReplicationHost, bookie: BookieId) -> None:
        if self.drained.get(bookie, host.began) < host.began:
            self.world.checker.fail("drain", f"{host.name} copies to {bookie}, which is drained")
        if bookie in self.removed:
            self.world.checker.fail("drain", f"{host.name} copies to {bookie}, which was removed")

    # --- copies that are given up ---

    def _collect(self) -> None:
        world = self.world
        for name, bookie in world.bookies.items():
            if bookie.alive and self._draw.random() < self._gives_up:
                held = bookie.back_end.holdings.ledgers
                for ledger_id in [found for found, ledger in held.items() if ledger.frames]:
                    self._look_at(name, ledger_id)
        world.scheduler.at(COLLECT_MS, "collector clock", "bookies look what they hold", self._collect)

    def _look_at(self, name: BookieId, ledger_id: LedgerId) -> None:
        """Look at one copy as the product does: under the lock of the repairs, by the newest record."""
        record = self.world.store.newest(ledger_id) if ledger_id in self.world.checker.ledgers else None
        if record is None or not record.value.is_closed or self.world._names(record.value, name):
            return
        if self.world.store.is_away(name):
            return
        store = self._collectors.get(name)
        if store is None:
            store = self._collectors[name] = MemoryStore(self.world.store.cluster)
        if store.lock_underreplicated(ledger_id, name):
            self.world.scheduler.reached("a bookie gave up a copy")
            self.world.bookies[name].feed(ev.CopiesUnwanted((ledger_id,)))
            store.unlock_underreplicated(ledger_id)


class SimMover:
    """Moves a copy now and then, as ``bk rebalance`` does, one after the other, under the ledger's lock."""

    def __init__(self, world: HealWorld, name: str, how_often: float, draw: Random) -> None:
        self.world, self.name, self.how_often, self._draw = world, name, how_often, draw
        self.store = MemoryStore(world.store.cluster)
        self.busy = False
        self._lives = 0

    def wait(self, delay_ms: float) -> None:
        self.busy = False
        if not self.world.operators.stopped:
            self.world.scheduler.at(delay_ms, f"{self.name} clock", f"{self.name} looks for a move", self._look)

    def _look(self) -> None:
        world = self.world
        moves = [] if self._draw.random() > self.how_often else list(self._moves())
        if not moves or world.store.is_away(self.name):
            self.wait(TICK_MS)
            return
        ledger_id, source, target = self._draw.choice(moves)
        self._lives += 1
        self.busy = True
        client = f"{self.name}.{self._lives}"

        def lock() -> Any:
            if not self.store.lock_underreplicated(ledger_id, self.name):
                return None
            marked = self.store.read_underreplicated(ledger_id) is not None
            return None if marked or world.store.newest(ledger_id) is None else "locked"

        def locked(found: Any) -> None:
            if found == "locked":
                self._begin(client, ledger_id, source, target)
            else:
                self._give_back(client, ledger_id)

        world.store._call(client, f"{client} locks", lock, locked)

    def _moves(self) -> Any:
        world = self.world
        for ledger_id in world.checker.ledgers:
            record = world.store.newest(ledger_id)
            if record is None or not record.value.is_closed:
                continue
            for source in dict.fromkeys(bookie for f in record.value.fragments for bookie in f.ensemble):
                for target in world.store.registered:
                    if can_take_over(record.value, source, target, FLAT):
                        yield ledger_id, source, target

    def _begin(self, client: str, ledger_id: LedgerId, source: BookieId, target: BookieId) -> None:
        from tests.sim.heal_workers import MoveHost

        self.world.scheduler.reached("a copy was to be moved")
        host = MoveHost(self.world, client, ledger_id, Versioned(UnderreplicationMark((source,)), 0), self)
        host.target = target
        self.world.repairs[client] = host
        self.world.hosts.append(host)
        host.carry(host.machine.start())

    def _give_back(self, client: str, ledger_id: LedgerId) -> None:
        def done(said: Any) -> None:
            if said is not None:  # the command ends, and its session with the lock
                new_session(self.store)
            self.wait(TICK_MS)

        label = f"{client} gives its lock back"
        self.world.store._call(client, label, lambda: self.store.unlock_underreplicated(ledger_id), done)

    def ended(self, host: ReplicationHost, why: str | None) -> None:
        self.world.hosts.remove(host)
        self.world.scheduler.reached("a move was not made" if why else "a copy was moved")
        self._give_back(host.name, host.ledger_id)

    def died(self, host: ReplicationHost) -> None:
        self.world.hosts.remove(host)
        self.world.scheduler.at(100, f"{self.name} clock", f"{self.name} starts again", self._start_again)

    def _start_again(self) -> None:
        new_session(self.store)
        self.wait(TICK_MS)
