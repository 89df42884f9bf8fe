# SPDX-License-Identifier: Apache-2.0
"""Keeps the clients running: writers, some of which it kills, a reader, a leader of a log, and recoverers of ledgers
that were left open, and sometimes of others."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.trials.bookie.journal import Journal
from tests.trials.heal.nodes import HealCluster
from tests.trials.heal.oracle import Journals
from tests.trials.kit.nursery import Child
from tests.trials.kit.process import END_S

WRITERS = 2
UNENDED = "clients that did not end"
PACE_S = 0.12
RECOVER_EVERY_S = 4.0
KILL_EVERY_S = (8.0, 25.0)
RECOVERER_S = 120.0
"""The limit of a recoverer in seconds. After it the recoverer is ended, and another one tries."""
_STEP_S = 0.2


class Traffic:
    """Threads and processes from :meth:`start` to :meth:`stop`."""

    def __init__(self, cluster: HealCluster, folder: Path, rng: random.Random, lanes: tuple[str, ...]) -> None:
        self._cluster, self._folder, self._rng, self._lanes = cluster, folder, rng, lanes
        self._children: dict[str, Child] = {}
        self._stopping, self._rolling = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic")
        folder.mkdir(parents=True, exist_ok=True)
        self._journals, self._journal = Journals(folder), Journal(str(folder / "traffic.journal"))
        self._names = 0
        self._recoverers: dict[str, tuple[set[int], float]] = {}
        self.counts: Counter[str] = Counter()
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all clients in order, unless that was done. :meth:`recover_rest` closes the ledgers that are left
        open."""
        self._stopping.set()
        self._thread.join()
        for name, child in self._children.items():
            child.signal(signal.SIGTERM)
            if child.wait(2 * END_S) is None:
                self.counts[UNENDED] += 1
                child.signal(signal.SIGKILL)
                child.wait(END_S)
            child.release()
            self._journal.say("died", client=name)
        self._children.clear()

    def roll_log(self) -> None:
        """Kill the leader of the log soon, so that the next leader closes the ledger that is open now. A copy about
        which a bookie is unsure is checked only when its ledger is closed."""
        self._rolling.set()

    def recover_rest(self) -> None:
        """Take over the ledgers that the writers left at their end."""
        self._journals.read()
        if left := self._journals.unsettled():
            child = self._begin("recover", "recoverer", ledgers=left)
            if child.wait(RECOVERER_S) is None:
                child.signal(signal.SIGKILL)
                child.wait(END_S)
            self._reap()

    # --- its thread ---

    def _run(self) -> None:
        try:
            self._go_on()
        except Exception as error:  # Stage.finish reports it
            self.error = error

    def _go_on(self) -> None:
        kill_at = time.monotonic() + self._rng.uniform(*KILL_EVERY_S)
        recover_at = time.monotonic() + RECOVER_EVERY_S
        while not self._stopping.wait(_STEP_S):
            self._reap()
            self._keep("writer", WRITERS, "write", pace_s=PACE_S)
            self._keep("reader", 1, "read")
            self._keep("leader", 1, "lead", epoch=self._names + 1)
            if self._rolling.is_set():
                self._rolling.clear()
                self._kill_one(("leader",))
            if time.monotonic() > kill_at:
                self._kill_one()
                kill_at = time.monotonic() + self._rng.uniform(*KILL_EVERY_S)
            if time.monotonic() > recover_at:
                self._recover_some()
                recover_at = time.monotonic() + RECOVER_EVERY_S

    def _keep(self, kind: str, count: int, target: str, **arguments: Any) -> None:
        for _ in range(count - sum(name.startswith(kind) for name in self._children)):
            self._begin(target, kind, **arguments)

    def _begin(self, target: str, kind: str, **arguments: Any) -> Child:
        self._names += 1
        name = f"{kind}-{self._names}"
        self._children[name] = self._cluster.nursery.start(
            f"tests.trials.heal.clients:{target}",
            self._folder / f"{name}.log",
            journal=str(self._folder / f"{name}.journal"),
            uri=self._cluster.uri,
            seed=str(self._rng.random()),
            lanes=self._rng.choice(self._lanes),
            **arguments,
        )
        return self._children[name]

    def _reap(self) -> None:
        for name, child in list(self._children.items()):
            if not child.is_running:
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._children.pop(name).release()
        self._recoverers.pop(name, None)
        self._journal.say("died", client=name)

    def _kill_one(self, kinds: tuple[str, ...] = ("writer", "leader", "recoverer")) -> None:
        """Kill one client of these kinds, if any runs."""
        among = [name for name in self._children if name.startswith(kinds)]
        if among:
            name = self._rng.choice(among)
            self._children[name].signal(signal.SIGKILL)
            self._children[name].wait(END_S)
            self.counts[f"{name.split('-')[0]}s killed"] += 1
            self._forget(name)

    def _recover_some(self) -> None:
        self._journals.read()
        for name, (_, since) in list(self._recoverers.items()):
            if time.monotonic() - since > RECOVERER_S:
                self._children[name].signal(signal.SIGKILL)
        busy = {ledger_id for ledgers, _ in self._recoverers.values() for ledger_id in ledgers}
        wanted = [ledger_id for ledger_id in self._journals.unsettled() if ledger_id not in busy]
        alive = [known.ledger_id for known in self._journals.alive() if not known.is_settled]
        if alive and self._rng.random() < 0.15:  # while its writer runs, or beside another recoverer
            wanted.append(self._rng.choice(alive))
        if wanted:
            child = self._begin("recover", "recoverer", ledgers=sorted(set(wanted)))
            name = next(name for name, each in self._children.items() if each is child)
            self._recoverers[name] = set(wanted), time.monotonic()
            self.counts["recoverers"] += 1
