# SPDX-License-Identifier: Apache-2.0
"""One round: processes of writers, tails and recoverers, faults among them, and the check of the results that they
got."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

from tests.sim.history import check_ledger, counts
from tests.trials.bookie.clients import CALL_LIMIT_S, PATIENCE_S
from tests.trials.bookie.faults import Undo, choose_faults
from tests.trials.bookie.journal import Told, lines_of, read_journals
from tests.trials.harness import Figures
from tests.trials.kit.cluster import TrialCluster
from tests.trials.kit.nursery import Child

SHAPES = [(3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2)]
CREATE_S = 3.0
END_LIMIT_S = 2 * CALL_LIMIT_S
_STEP_S = 0.01


class Round:
    """One round on a running cluster. All random choices follow from ``seed`` and ``number``."""

    def __init__(self, cluster: TrialCluster, path: Path, seed: int, number: int) -> None:
        self._cluster, self._path, self._number = cluster, path, number
        self._rng = random.Random(f"{seed}/{number}")
        self._report = Figures(rounds=1)
        self._children: dict[str, Child] = {}
        self._agenda: list[tuple[float, int, Any]] = []  # (time, number, action)
        self._undo: list[Undo] = []
        path.mkdir(parents=True)

    def run(self) -> Figures:
        writers = self._start_writers()
        ledgers = self._wait_created(writers)
        self._report.counts["ledgers"] = len(ledgers)
        self._plan(writers, ledgers)
        self._carry_out()
        self._cluster.heal()
        self._end_writers(writers)
        self._finish(ledgers)
        self._wait_ended(list(self._children))  # also waits for the tail, because every ledger is closed
        self._judge(ledgers)
        for child in self._children.values():
            child.release()
        return self._report

    # --- clients ---

    def _start(self, name: str, target: str, /, **arguments: Any) -> None:
        self._children[name] = self._cluster.nursery.start(
            f"tests.trials.bookie.clients:{target}",
            self._path / f"{name}.log",
            journal=str(self._path / f"{name}.journal"),
            uri=self._cluster.clients_uri,
            seed=str(self._rng.random()),
            **arguments,
        )

    def _start_writers(self) -> list[str]:
        names = [f"writer-{index}" for index in range(self._rng.randint(2, 3))]
        for name in names:
            shape, seconds = self._rng.choice(SHAPES), self._rng.uniform(0.5, 2.5)
            self._start(name, "write", name=f"{self._number}.{name}", shape=shape, seconds=seconds)
        return names

    def _wait_created(self, writers: list[str]) -> list[int]:
        """Wait until the writers have made their ledgers, and return the ids. A writer may fail to make one while
        bookies still start after the last round."""
        deadline = time.monotonic() + CREATE_S
        while time.monotonic() < deadline:
            ledgers = [ledger for name in writers if (ledger := self._ledger_of(name)) is not None]
            running = [name for name in writers if self._children[name].is_running]
            if len(ledgers) == len(writers) or len(ledgers) + len(running) == 0:
                break
            time.sleep(_STEP_S)
        return ledgers

    def _ledger_of(self, writer: str) -> int | None:
        made = (line["ledger"] for line in lines_of(self._path / f"{writer}.journal") if line["what"] == "ledger")
        return next(made, None)

    # --- what happens when ---

    def _plan(self, writers: list[str], ledgers: list[int]) -> None:
        rng = self._rng
        if not ledgers:
            return
        self._at(0, lambda: self._start("tail", "tail", ledgers=ledgers))
        for fault in choose_faults(rng, self._cluster):
            self._at(fault.after_s, lambda fault=fault: self._begin(fault))
        hits = []
        for name in writers:
            fate = rng.choice(["lives", "lives", "SIGKILL", "SIGSTOP", "SIGSTOP"])
            if fate != "lives":
                hits.append(rng.uniform(0.1, 1.2))
                number = getattr(signal, fate)
                self._at(hits[-1], lambda name=name, number=number: self._hit(name, number))
        at_once = hits and rng.random() < 0.5  # entries are in flight then, and no LAC covers them yet
        first = rng.choice(hits) + rng.uniform(0, 0.05) if at_once else rng.uniform(0.3, 1.3)
        self._at(first, lambda: self._recover("recoverer-0", ledgers))
        if rng.random() < 0.6:
            some = rng.sample(ledgers, rng.randint(1, len(ledgers)))
            self._at(first + rng.uniform(0, 0.4), lambda: self._recover("recoverer-1", some))
        if rng.random() < 0.25:
            self._at(first + rng.uniform(0.05, 0.4), lambda: self._hit("recoverer-0", signal.SIGKILL))

    def _at(self, when_s: float, act: Any) -> None:
        self._agenda.append((when_s, len(self._agenda), act))

    def _recover(self, name: str, ledgers: list[int]) -> None:
        self._start(name, "recover", ledgers=ledgers, final=False)

    def _hit(self, name: str, number: int) -> None:
        child = self._children[name]
        if child.is_running:
            self._report.table("fault")[f"{name.split('-')[0]} {signal.Signals(number).name}"] += 1
            child.signal(number)

    def _begin(self, fault: Any) -> None:
        self._report.table("fault")[fault.kind] += 1
        undo = fault.begin()
        self._at(fault.after_s + fault.lasts_s, undo)

    def _carry_out(self) -> None:
        """Carry out the planned actions at their times. A fault adds its end to them."""
        began = time.monotonic()
        while self._agenda:
            self._agenda.sort(key=lambda item: item[:2])
            when, _, act = self._agenda.pop(0)
            time.sleep(max(0.0, began + when - time.monotonic()))
            act()

    # --- the end ---

    def _end_writers(self, writers: list[str]) -> None:
        """Continue stopped writers, which then find their ledgers taken over, and end all writers."""
        recoverers = [name for name in self._children if name.startswith("recoverer")]
        self._wait_ended(recoverers)
        for name in writers:
            self._children[name].signal(signal.SIGCONT)
        time.sleep(self._rng.uniform(0, 0.4))
        for name in writers:
            self._children[name].signal(signal.SIGTERM)
        self._wait_ended(writers)

    def _wait_ended(self, names: list[str]) -> None:
        deadline = time.monotonic() + END_LIMIT_S + PATIENCE_S * any(name.startswith("recover") for name in names)
        for name in names:
            child = self._children[name]
            if child.wait(max(0.0, deadline - time.monotonic())) is None:
                self._report.counts["hangs"] += 1
                self._report.problems.append(f"HANG: {name} did not end in time")
                child.signal(signal.SIGKILL)
                child.wait(END_LIMIT_S)

    def _finish(self, ledgers: list[int]) -> None:
        """Wait for the bookies. Then a new client closes every open ledger and reads everything."""
        for bookie in self._cluster.bookies:
            try:
                bookie.wait_ready()
            except RuntimeError as error:
                self._report.problems.append(f"BOOKIE: {error}")
                bookie.kill()
                bookie.start()  # for the next round
        if ledgers:
            self._start("final", "recover", ledgers=ledgers, final=True)
            self._wait_ended(["final"])

    def _judge(self, ledgers: list[int]) -> None:
        report = self._report
        told = read_journals(sorted(self._path.glob("*.journal")))
        for ledger in ledgers:
            final = told.finals.get(ledger)
            if final is None:
                report.problems.append(f"UNREAD: ledger {ledger} could not be closed and read after all faults ended")
            for violation in check_ledger(told.operations.get(ledger, []), final):
                report.problems.append(f"ledger {ledger}: {violation}")
                report.counts["lost" if violation.broken.name in ("LOST", "DENIED") else "changed or out of order"] += 1
        self._sum_up(told)

    def _sum_up(self, told: Told) -> None:
        report = self._report
        report.problems += [f"HANG: {hang}" for hang in told.hangs] + [f"BUG: {bug}" for bug in told.bugs]
        report.counts.update({"lost": 0, "changed or out of order": 0, "hangs": len(told.hangs)})
        report.counts.update(counts(told.operations.values()))
        report.tables["error that a client was given"] = told.errors
        report.times_s["takeover, faults among them"] = told.takeovers_s
