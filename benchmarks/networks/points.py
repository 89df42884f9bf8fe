# SPDX-License-Identifier: Apache-2.0
"""Points: so many ledgers, clients and bookies, and a load. What each costs is measured, and what it consists of."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.groups.memory import resident_bytes
from benchmarks.groups.read import into_page_cache
from benchmarks.measurement import Run
from benchmarks.networks.bookies import Bookies, Place
from benchmarks.networks.model import CYCLE_BYTES
from benchmarks.processes import BOOKIES, CLIENT
from benchmarks.world import World
from bk_core.entries.digest import FEW_ENTRIES

ANSWER_S = 600.0
READS = 4
"""How often a run reads a ledger: one read takes too short for the clock of processes."""
ACK_QUORUMS = {1: 1, 2: 2, 3: 2}


@dataclass(frozen=True, slots=True)
class Point:
    """``write_quorum`` is the size of the ensembles, too. A run moves ``total`` bytes in batches of ``rows`` entries of
    ``size`` bytes, each of which becomes one frame, ``in_flight`` at a time over all clients and ledgers."""

    name: str
    clients: int = 1
    ledgers: int = 1
    bookies: int = 3
    write_quorum: int = 3
    rows: int = 10
    size: int = 1_000
    in_flight: int = 200
    total: float = 100e6
    reads: bool = False

    @property
    def batch_bytes(self) -> int:
        return self.rows * self.size

    def __call__(self, world: World) -> Callable[[], Run]:
        """Prepares it: bookies of its own, and a process with its clients."""
        bookies = bookies_of(world, self.bookies)
        program, count = started(world), world.scaled(self.total / self.batch_bytes, self.in_flight)
        program.call("connect", uri=bookies.uri, lane=world.lane, clients=0, frame_bytes=0)  # imports
        before = _memory(bookies, program)
        program.call(
            "connect", uri=bookies.uri, lane=world.lane, clients=self.clients, frame_bytes=self.frame_bytes,
            within_s=ANSWER_S,
        )  # fmt: skip
        quorums = [self.write_quorum, self.write_quorum, ACK_QUORUMS[self.write_quorum]]
        ledgers = world.scaled(self.ledgers, min(self.ledgers, 100))
        program.call("open", ledgers=ledgers, quorums=quorums, within_s=ANSWER_S)
        after = _memory(bookies, program)
        constant: dict[str, float] = {
            "clients": self.clients, "ledgers": ledgers, "bookies": self.bookies,
            "write_quorum": self.write_quorum, "client_memory": after[0] - before[0],
            "bookies_memory": after[1] - before[1],
        }  # fmt: skip
        append = {"count": count, "rows": self.rows, "size": self.size, "in_flight": self.in_flight}
        if self.reads:
            program.call("append", **append, within_s=ANSWER_S)
            (ledger_id,) = program.call("close")["ledgers"]
            into_page_cache(bookies.folder)
            return lambda: self._read(program, ledger_id, constant)
        return lambda: self._append(program, bookies, append, constant)

    @property
    def frame_bytes(self) -> int:
        """A batch is one frame."""
        return min(self.batch_bytes + 100 * self.rows, 1 << 20)

    def _append(self, program: Any, bookies: Bookies, append: dict[str, int], constant: dict[str, float]) -> Run:
        def counted() -> dict[str, float]:
            return {**bookies.counted(), **program.call("counted")}

        before, total = counted(), append["count"] * self.batch_bytes
        seconds = program.call("append", **append, within_s=ANSWER_S)["seconds"]
        counts = {name: count - before[name] for name, count in counted().items()}
        counts |= {"appends": append["count"], "entries": append["count"] * self.rows, "bytes": total}
        counts |= {"seconds": seconds, "wide": counts["made"] * (self.rows > FEW_ENTRIES)}
        return Run((total / seconds,), total, constant | counts)

    def _read(self, program: Any, ledger_id: int, constant: dict[str, float]) -> Run:
        done = program.call("read", ledger_id=ledger_id, times=READS, within_s=ANSWER_S)
        total = done["bytes"]
        counts = {"entries": total / self.size, "bytes": total, "seconds": done["seconds"]}
        return Run((total / done["seconds"],), total, constant | counts)


def cycles(count: int, at_once: int) -> Callable[[World], Callable[[], Run]]:
    """Ledgers that are created, given an entry and closed."""

    def prepare(world: World) -> Callable[[], Run]:
        bookies, program, ledgers = bookies_of(world, 3), started(world), world.scaled(count, 2 * at_once)
        program.call("connect", uri=bookies.uri, lane=world.lane, clients=1, frame_bytes=1 << 20)

        def run() -> Run:
            done = program.call("cycle", count=ledgers, at_once=at_once, within_s=ANSWER_S)
            total = ledgers * CYCLE_BYTES
            return Run((ledgers / done["seconds"],), total, {"ledgers": ledgers, "bytes": total})

        return run

    return prepare


def bookies_of(world: World, count: int) -> Bookies:
    """New ones, for this measurement: a bookie keeps a gigabyte of segments ready, so they do not stay."""
    name = f"growing-{time.monotonic_ns()}"
    made = Bookies(world.folder / name, f"zk://{world.zookeeper}/{name}/ledgers", [Place()] * count)
    world.during.callback(shutil.rmtree, made.folder)
    with world.processes.born(BOOKIES):
        return world.during.enter_context(made)


def started(world: World, place: Place | None = None) -> Any:
    """A process of clients, for this measurement."""
    from tests.interop.java_process import Program

    log_path = world.folder / f"clients-{time.monotonic_ns()}.log"
    with world.processes.born(CLIENT), (place or Place()).entered():
        program = Program("clients", [sys.executable, "-m", "benchmarks.networks.clients"], log_path)
    world.during.enter_context(program)
    program.wait_started()
    return program


def _memory(bookies: Bookies, program: Any) -> tuple[int, int]:
    return resident_bytes(program.pid), bookies.memory_bytes()
