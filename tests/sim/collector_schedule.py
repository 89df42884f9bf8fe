# SPDX-License-Identifier: Apache-2.0
"""A bookie's collector with a metadata store that fails, lags, loses sessions, is emptied and is restored.

The product's collector, evidence and machine run on a clock of this file. After each step I12 must hold: the bookie has
forgotten no ledger that the store's persisted records assign to it. At the end, when all faults are over, it must have
forgotten every deleted ledger.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from bk_core.entries.frame import FrameKind
from bk_core.errors import BookKeeperError, MetadataUnavailableError, Outcome
from bk_core.metadata.port import MetadataStore
from bk_core.model import Fragment, LedgerId, LedgerMetadata, Versioned
from bookie_server.garbage import collector as gc
from bookie_server.garbage.garbage_thread import StoreEvidence
from bookie_server.machine import events as ev
from tests.bookie_server.machine.machine_bench import Bench
from tests.kit.memory_store import MemoryCluster, MemoryStore

BOOKIE = "b1:3181"
STEPS = 400
CONFIG = gc.CollectorConfig(
    interval_ms=400, grace_ms=100, pause_ms=5, retry_ms=10, tries_max=3, look_ids_max=4, candidates_max=50
)


class LaggingStore:
    """The store as a bookie sees it, through one server of the ensemble, which may lag, and a line that breaks."""

    def __init__(self, truth: MemoryCluster, chance: random.Random) -> None:
        self._truth, self._chance = truth, chance
        self._seen = MemoryCluster(clock_ms=lambda: 0)
        self._store = MemoryStore(self._seen)
        self.session_id = 1
        self.session_lost = False  # the session is lost, and the bookie does not know it yet
        self.trouble = 0.0  # the probability that a call meets trouble
        self.away = False
        self._past: list[dict[str, Any]] = []
        self.sync_itself()

    def note(self) -> None:
        """Keep a copy of the present state for a server that lags."""
        self._past = [*self._past[-6:], copy.deepcopy(self._truth._nodes)]

    def sync_itself(self) -> None:
        self._seen._nodes = copy.deepcopy(self._truth._nodes)
        self.note()

    def expire(self) -> None:
        """Begin another session, on a server that may lag."""
        self.session_id += 1
        self.session_lost = True
        self._seen._nodes = self._chance.choice(self._past)

    def _meet(self) -> None:
        if self.away or self._chance.random() < self.trouble / 2:
            raise MetadataUnavailableError("made to fail", outcome=Outcome.NOT_APPLIED)
        if self._chance.random() < self.trouble / 2:
            self.expire()

    # --- the part of the port that evidence is made of ---

    def sync(self) -> None:
        self._meet()
        self.sync_itself()

    def confirm_cluster(self) -> None:
        self._meet()
        self._store.confirm_cluster()

    def instance_id(self) -> str:
        return self._store.instance_id()

    def read_bookie_state(self, bookie_id: str) -> Versioned[bytes] | None:
        self._meet()
        return self._store.read_bookie_state(bookie_id)

    def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        self._meet()
        return self._store.read_ledger(ledger_id)

    def list_ledgers(self) -> Iterator[LedgerId]:
        for ledger_id in self._store.list_ledgers():
            self._meet()
            yield ledger_id


class CollectorWorld:
    """One bookie, the true store, and the clients that make and delete ledgers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.truth = MemoryCluster(clock_ms=lambda: 0)
        self.store = MemoryStore(self.truth)
        self.store.initialize_cluster()
        self.store.write_bookie_state(BOOKIE, b'{"boot_count":2,"incarnation":"here"}', None)
        self.line = LaggingStore(self.truth, self.chance)
        self.line.instance_id()
        port: MetadataStore = self.line  # type: ignore[assignment]  # the part of it that is used
        self.evidence = StoreEvidence(port, BOOKIE, "here", 2)
        self.collector = gc.Collector(CONFIG)
        self.bookie = Bench()
        self.now = 0
        self._agenda: list[tuple[int, int, Any]] = []
        self._count = 0
        self.assigned: set[LedgerId] = set()  # by persisted records, also by those that are missing for a moment
        self.deleted: set[LedgerId] = set()
        self.away: dict[str, Any] | None = None  # the true store's nodes while they are missing or replaced
        self.told: list[str] = []
        self._careful_until = 0
        self._next_id = 0
        for _ in range(5):
            self.create()
        self.give(gc.Started(50))

    # --- time ---

    def at(self, delay_ms: int, call: Any) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.now + delay_ms, self._count, call))

    def advance(self, ms: int) -> None:
        until = self.now + ms
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, call = heapq.heappop(self._agenda)
            call()
            self.check()
        self.now = until

    # --- the bookie ---

    def give(self, event: gc.Event) -> None:
        for effect in self.collector.step(event):
            match effect:
                case gc.SetTimer(timer, delay_ms):
                    self.at(delay_ms, lambda timer=timer: self.give(gc.TimerFired(timer)))
                case gc.GarbageLook(look, ledger_ids):
                    self._ask(lambda look=look, ids=ledger_ids: self.evidence.look(ids, look), gc.LookFailed(look))
                case gc.Compare():
                    held = np.array(sorted(self.held()), np.int64)
                    self._ask(lambda held=held: self.evidence.compare(held), gc.CompareFailed())
                case gc.Forget(ledger_ids):
                    self.told.append(f"{self.now}: forgets {ledger_ids}")
                    self.bookie.step(ev.LedgersDeleted(ledger_ids))
                    self.bookie.commit()

    def _ask(self, ask: Any, failed: gc.Event) -> None:
        """Run a call on the collector's thread. The collector does nothing else meanwhile, but the store goes on."""
        self.hear_of_sessions()
        try:
            answer = ask()
        except BookKeeperError as error:
            self.told.append(f"{self.now}: {type(error).__name__}")
            answer = failed
        if self.chance.random() < 0.5:
            self.hear_of_sessions()
        self.give(answer)

    def hear_of_sessions(self) -> None:
        if self.line.session_lost:
            self.line.session_lost = False
            self.give(gc.SessionLost())

    def held(self) -> set[LedgerId]:
        return {i for i, ledger in self.bookie.store.ledgers.items() if not ledger.facts.deleted}

    def check(self) -> None:
        """Check I12."""
        wrong = self.assigned - self.held()
        assert not wrong, f"the bookie forgot {sorted(wrong)}, which the store assigns to it; {self.told[-8:]}"

    # --- what happens ---

    def create(self) -> None:
        if self.away is None:
            self._next_id += 1
            self._make(self._next_id)

    def _make(self, ledger_id: LedgerId) -> None:
        record = LedgerMetadata(
            ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, fragments=(Fragment(0, (BOOKIE,)),)
        )
        self.store.create_ledger(record, ledger_id)
        self.bookie.store.fold(ledger_id, FrameKind.FENCE)
        self.assigned.add(ledger_id)

    def delete(self) -> None:
        if self.away is None and len(self.assigned) > 2:
            ledger_id = self.chance.choice(sorted(self.assigned))
            self.store.delete_ledger(ledger_id)
            self.assigned.discard(ledger_id)
            self.deleted.add(ledger_id)
            if self.chance.random() < 0.5:
                self.give(gc.Hinted((ledger_id,)))

    def hint(self) -> None:
        """Send a hint of a liar, or of a client that is late."""
        known = sorted(self.assigned | self.deleted)
        self.give(gc.Hinted(tuple(self.chance.sample(known, min(3, len(known))))))

    def mishap(self) -> None:
        """Remove records for less than the grace, as an operator does that deletes the wrong ones and restores them.
        This happens only once within a grace, because twice would be too much for two looks."""
        if self.away is None and self.now >= self._careful_until:
            nodes = copy.deepcopy(self.truth._nodes)
            for ledger_id in self.chance.sample(sorted(self.assigned), self.chance.randint(1, len(self.assigned))):
                self.store.delete_ledger(ledger_id)
            self._back(nodes, self.chance.randint(1, CONFIG.grace_ms // 2))
            self.give(gc.Hinted(tuple(sorted(self.assigned))))

    def empty(self) -> None:
        """Remove the root until an operator notices it, or make another cluster there."""
        if self.away is None:
            nodes = copy.deepcopy(self.truth._nodes)
            for path in [path for path in self.truth._nodes if path.startswith("/ledgers")]:
                if not path.startswith("/ledgers-bookies"):
                    del self.truth._nodes[path]
            self.truth._nodes["/"].children.discard("ledgers")
            if self.chance.random() < 0.5:
                MemoryStore(self.truth).initialize_cluster()
            self._back(nodes, self.chance.randint(1, 4 * CONFIG.interval_ms))

    def roll_back(self) -> None:
        """Restore the store from a backup that is older than the bookie's last start, and later restore its newest
        state."""
        if self.away is None:
            nodes = copy.deepcopy(self.truth._nodes)
            for ledger_id in self.chance.sample(sorted(self.assigned), len(self.assigned) - 1):
                self.store.delete_ledger(ledger_id)
            found = self.store.read_bookie_state(BOOKIE)
            assert found is not None
            self.store.write_bookie_state(BOOKIE, b'{"boot_count":1,"incarnation":"here"}', found.version)
            self._back(nodes, self.chance.randint(1, 4 * CONFIG.interval_ms))

    def _back(self, nodes: dict[str, Any], delay_ms: int) -> None:
        self.away = nodes
        self.at(delay_ms, self.restore)

    def restore(self) -> None:
        if self.away is not None:
            self.truth._nodes, self.away = self.away, None
            self._careful_until = self.now + 2 * CONFIG.grace_ms

    def line_changes(self) -> None:
        self.line.trouble = self.chance.choice((0.0, 0.05, 0.3))
        self.line.away = self.chance.random() < 0.1

    def expire(self) -> None:
        self.line.expire()
        if self.chance.random() < 0.5:
            self.hear_of_sessions()

    def note(self) -> None:
        if self.away is None:
            self.line.note()

    # --- a schedule ---

    def run(self) -> None:
        steps = [
            *[self.create] * 8,
            *[self.delete] * 6,
            *[self.hint] * 5,
            *[self.note] * 6,
            *[self.line_changes] * 3,
            *[self.expire] * 2,
            self.mishap,
            self.empty,
            self.roll_back,
        ]
        for _ in range(STEPS):
            self.chance.choice(steps)()
            self.check()
            self.advance(self.chance.choice((0, 1, 5, 20, 60)))
        self.restore()
        self.line.trouble, self.line.away = 0.0, False
        self.advance(12 * CONFIG.interval_ms)
        left = self.deleted & self.held()
        assert not left, f"deleted, and never forgotten: {sorted(left)}"
