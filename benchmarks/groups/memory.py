# SPDX-License-Identifier: Apache-2.0
"""Group ``memory``: the memory that a bookie holds while many bytes stream through it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.groups.append import append_all
from benchmarks.measurement import Measurement
from benchmarks.report.figures import Run
from benchmarks.running.world import World
from bk_cli.local.cluster import BookieProcess

BYTES = 10e9
NEEDED_BYTES = 12e9


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class MemoryWatch(threading.Thread):
    """Samples the resident memory of bookies until :meth:`finish`."""

    def __init__(self, bookies: list[BookieProcess]) -> None:
        super().__init__(daemon=True)
        self._pids = [bookie.pid for bookie in bookies if bookie.pid is not None]
        self._stop_asked = threading.Event()
        self.peak = 0

    def run(self) -> None:
        while not self._stop_asked.wait(0.1):
            self.peak = max(self.peak, *(resident_bytes(pid) for pid in self._pids))

    def finish(self) -> int:
        self._stop_asked.set()
        self.join()
        return self.peak


def streaming(world: World) -> Callable[[], Run]:
    def run() -> Run:
        watch, total = MemoryWatch(world.cluster.bookies), world.scaled(BYTES)
        watch.start()
        with world.bookkeeper.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
            append_all(ledger, world.data, 1_000, total)
        return Run.of(watch.finish(), total)

    return run


MEASUREMENTS = (
    Measurement(
        ("bookie_memory",), "MB", streaming, per=1e6, wanted=(400,), less_is_better=True, once=True,
        note=f"peak resident memory of a bookie while {BYTES / 1e9:.0f} GB stream through it, one run",
    ),
)  # fmt: skip
