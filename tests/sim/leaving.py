# SPDX-License-Identifier: Apache-2.0
"""What operators do to the bookies of profile *heal*: one is drained, copies are moved to even out disks, and bookies
give up copies that no record names any more. All of that beside writers, recoverers, repairs, losses and deletions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.metadata.records import UnderreplicationMark
from bk_core.model import BookieId, LedgerId, LedgerMetadata, LedgerState, Versioned
from bk_core.placement import FLAT
from bk_core.protocol.replication import events as re
from bk_core.protocol.replication.balance import can_take_over
from bookie_server.machine.events import CopiesUnwanted
from tests.kit.memory_store import MemoryStore
from tests.sim.checkers import Violation

if TYPE_CHECKING:
    from tests.sim.heal import HealWorld, ReplicationHost

TICK_MS = 15.0


class Leaving:
    """Draws what is done in one world. ``drained``: the bookie that leaves now, if there is one."""

    def __init__(self, world: HealWorld, draw: Random) -> None:
        self.world, self._draw = world, draw
        self._drains = draw.random() < 0.5
        self.fences = draw.random() < 0.3
        self._gives_up = draw.choice((0.0, 0.3, 1.0))
        self._begins_ms = draw.uniform(0, 150)
        self.drained: BookieId | None = None
        self.since = 0.0
        self.mover = SimMover(world, "mover", draw.choice((0.0, 0.0, 0.3)), draw)
        self._collectors = {name: MemoryStore(world.store.cluster) for name in world.bookies}

    def begin(self) -> None:
        world = self.world
        if self._drains:
            world.scheduler.at(self._begins_ms, "operator clock", "a bookie is drained", self._drain)
        if self._gives_up:
            world.scheduler.at(TICK_MS, "collector clock", "bookies look what they hold", self._collect)
        self.mover.wait(TICK_MS)

    # --- a drain ---

    @property
    def patient(self) -> tuple[BookieId, ...]:
        return (self.drained,) if self.drained is not None and not self.fences else ()

    @property
    def leaving(self) -> tuple[BookieId, ...]:
        return (self.drained,) if self.drained is not None else ()

    def _drain(self) -> None:
        world = self.world
        alive = [name for name, bookie in world.bookies.items() if bookie.alive]
        if len(alive) > world.knobs.ensemble_size:
            self.drained, self.since = self._draw.choice(alive), world.scheduler.now
            world.scheduler.reached("a bookie was drained")

    def cancel_if_hopeless(self) -> None:
        """In peace: bookies that died for good leave too few to take over. (The command refuses such a drain; here they
        died after it began.)"""
        world = self.world
        others = [name for name, bookie in world.bookies.items() if bookie.alive and name != self.drained]
        if self.drained is not None and len(others) < world.knobs.ensemble_size:
            world.scheduler.reached("a drain was cancelled")
            self.drained = None

    def is_over(self) -> None:
        """In peace, once nothing is marked: no record names the bookie. Then it is no longer one that leaves."""
        if self.drained is None:
            return
        left = self.world._naming(self.drained)
        if left:
            raise Violation("drain", f"{self.drained} is drained, and these name it: {left}")
        self.world.scheduler.reached("a drain ended")
        self.drained = None

    def check_fence(self, host: ReplicationHost, value: LedgerMetadata, seen: re.ClusterRead) -> None:
        """A writer is not fenced for a bookie that leaves without haste and that is up."""
        lost = [bookie for bookie in value.last_fragment.ensemble if bookie in host.mark.value.missing]
        waits = all(bookie in seen.patient and seen.life_of(bookie) is not None for bookie in lost)
        if lost and waits and value.state is LedgerState.OPEN:
            self.world.checker.fail("drain", f"{host.name} fences a writer, and {lost} are only drained")

    def check_target(self, host: ReplicationHost, bookie: BookieId) -> None:
        if bookie == self.drained and self.since < host.began:
            self.world.checker.fail("drain", f"{host.name} copies to {bookie}, which is drained")

    # --- copies that are given up ---

    def _collect(self) -> None:
        world = self.world
        for name, bookie in world.bookies.items():
            if bookie.alive and self._draw.random() < self._gives_up:
                held = bookie.back_end.holdings.ledgers
                for ledger_id in [found for found, ledger in held.items() if ledger.frames]:
                    self._look_at(name, ledger_id)
        world.scheduler.at(TICK_MS, "collector clock", "bookies look what they hold", self._collect)

    def _look_at(self, name: BookieId, ledger_id: LedgerId) -> None:
        """As production's: under the lock of the repairs, by the newest record."""
        record = self.world.store.newest(ledger_id) if ledger_id in self.world.checker.ledgers else None
        if record is None or not record.value.is_closed or self.world._names(record.value, name):
            return
        store = self._collectors[name]
        if store.lock_underreplicated(ledger_id, name):
            self.world.scheduler.reached("a bookie gave up a copy")
            self.world.bookies[name].feed(CopiesUnwanted((ledger_id,)))
            store.unlock_underreplicated(ledger_id)


class SimMover:
    """Moves a copy now and then, as ``bk rebalance`` does, one after the other, under the ledger's lock."""

    def __init__(self, world: HealWorld, name: str, how_often: float, draw: Random) -> None:
        self.world, self.name, self._how_often, self._draw = world, name, how_often, draw
        self.store = MemoryStore(world.store.cluster)
        self._lives = 0

    def wait(self, delay_ms: float) -> None:
        if self._how_often:
            self.world.scheduler.at(delay_ms, f"{self.name} clock", f"{self.name} looks for a move", self._look)

    def _look(self) -> None:
        world = self.world
        moves = [] if self._draw.random() > self._how_often else list(self._moves())
        if not moves:
            self.wait(TICK_MS)
            return
        ledger_id, source, target = self._draw.choice(moves)
        self._lives += 1
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
                self._give_back(ledger_id)

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
        from tests.sim.heal import MoveHost

        self.world.scheduler.reached("a copy was to be moved")
        host = MoveHost(self.world, client, ledger_id, Versioned(UnderreplicationMark((source,)), 0), self)
        host.target = target
        self.world.repairs[client] = host
        self.world.hosts.append(host)
        host.carry(host.machine.start())

    def _give_back(self, ledger_id: LedgerId) -> None:
        self.store.unlock_underreplicated(ledger_id)
        self.wait(TICK_MS)

    def ended(self, host: ReplicationHost, why: str | None) -> None:
        self.world.hosts.remove(host)
        self.world.scheduler.reached("a move was not made" if why else "a copy was moved")
        self._give_back(host.ledger_id)

    def died(self, host: ReplicationHost) -> None:
        self.world.hosts.remove(host)
        self.world.scheduler.at(100, f"{self.name} clock", f"{self.name} starts again", self._start_again)

    def _start_again(self) -> None:
        self.lose_session()
        self.wait(TICK_MS)

    def lose_session(self) -> None:
        """Its locks are gone; a new session begins."""
        tree = self.store.tree
        tree._cluster.end_session(tree.session_id)
        tree._session_id = tree._cluster.new_session()
