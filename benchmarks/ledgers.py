# SPDX-License-Identifier: Apache-2.0
"""Groups ``append``, ``read`` and ``memory``: one client process, bookies as processes, every ack after fdatasync."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.figures import Figure, VariedBytes, elapsed, percentile, repeat
from bk_cli.cluster import BookieProcess, LocalCluster
from bk_core.blocking import BookKeeper, connect
from bk_core.entries.batch import EntryBatch

ROWS_PER_MB = {100: 10_000, 1_000: 1_000}
QUORUM = "Qw 3, Qa 2, fdatasync before each ack, CRC32C an entry"


def batches(data: VariedBytes, entry_bytes: int, total: int) -> Iterator[EntryBatch]:
    """Batches of about 1 MB of entries of one size."""
    rows = ROWS_PER_MB[entry_bytes]
    lengths = np.full(rows, entry_bytes, dtype=np.uint32)
    for chunk in data.chunks(total, rows * entry_bytes):
        yield EntryBatch(lengths=lengths, payload=chunk)


def write_ledger(bookkeeper: BookKeeper, data: VariedBytes, entry_bytes: int, total: int) -> tuple[int, int]:
    """Write ``total`` bytes and wait for their confirmation; the ledger's id and entries."""
    with bookkeeper.create_ledger() as ledger:
        last = -1
        for batch in batches(data, entry_bytes, total):
            last = ledger.append_batch(batch)
        ledger.wait_confirmed(last)
        return ledger.ledger_id, last + 1


def append_rate(bookkeeper: BookKeeper, data: VariedBytes, entry_bytes: int, total: int) -> float:
    """Entries a second, from the first append to the last confirmation."""
    ledger = bookkeeper.create_ledger()

    def work() -> None:
        for batch in batches(data, entry_bytes, total):
            ledger.append_batch(batch)
        ledger.flush()

    seconds = elapsed(work)
    entries = ledger.last_add_confirmed + 1
    ledger.close()
    return entries / seconds


def append_group(cluster: LocalCluster, runs: int, scale: float) -> list[Figure]:
    data, total = VariedBytes(), int(300e6 * scale)
    folder = Path(cluster.data_dir)
    disk = [raw.disk_rate(folder, total) / 3 for _ in range(runs)]
    figures = []
    with connect(cluster.uri) as bookkeeper:
        small = repeat(runs, lambda: append_rate(bookkeeper, data, 100, total) / 1e6)
        note = f"{QUORUM}; peer: bare pwrite+fdatasync of 3 copies, no network"
        figures.append(
            Figure(
                "append_100b",
                "M entries/s",
                small,
                wanted=1.0,
                peer="raw",
                peer_values=[d / 100 for d in disk],
                note=note,
            )
        )
        large = repeat(runs, lambda: append_rate(bookkeeper, data, 1_000, total) / 1e3)
        figures.append(Figure("append_1kb", "MB/s", large, wanted=150, peer="raw", peer_values=disk, note=note))
        figures += single_appends(bookkeeper, folder, runs)
    return figures


def single_appends(bookkeeper: BookKeeper, folder: Path, runs: int, count: int = 400) -> list[Figure]:
    """One append at a time, each waited for."""
    medians, tails = [], []
    payload = bytes(100)
    with bookkeeper.create_ledger() as ledger:
        for _ in range(50):
            ledger.append(payload)
        for _ in range(runs):
            samples = []
            for _ in range(count):
                samples.append(elapsed(lambda: ledger.append(payload)) * 1e3)
            medians.append(percentile(samples, 0.5))
            tails.append(percentile(samples, 0.99))
    bare = [raw.sync_latencies(folder) for _ in range(runs)]
    note = f"{QUORUM}; peer: one bare 4 KiB write with fdatasync"
    return [
        Figure(
            "append_single_p50",
            "ms",
            medians,
            wanted=2.0,
            less_is_better=True,
            peer="raw",
            peer_values=[percentile(b, 0.5) for b in bare],
            note=note,
        ),
        Figure(
            "append_single_p99",
            "ms",
            tails,
            less_is_better=True,
            peer="raw",
            peer_values=[percentile(b, 0.99) for b in bare],
            note=note,
        ),
    ]


def read_group(cluster: LocalCluster, runs: int, scale: float) -> list[Figure]:
    data, total = VariedBytes(), int(300e6 * scale)
    figures = []
    with connect(cluster.uri) as bookkeeper:
        for name, size, unit, per, wanted in (
            ("read_100b", 100, "M entries/s", 1e6, 2.0),
            ("read_1kb", 1_000, "MB/s", 1e3, None),
        ):
            ledger_id, entries = write_ledger(bookkeeper, data, size, total)
            rates = repeat(runs, partial(read_rate, bookkeeper, ledger_id, entries))
            note = "sequential, frame CRCs verified, from the page cache"
            figures.append(Figure(name, unit, [r / per for r in rates], wanted=wanted, note=note))
    return figures


def read_rate(bookkeeper: BookKeeper, ledger_id: int, entries: int) -> float:
    """Entries a second of one sequential read."""
    return entries / read_all(bookkeeper, ledger_id, entries)


def read_all(bookkeeper: BookKeeper, ledger_id: int, entries: int) -> float:
    """Seconds to read the whole ledger."""
    with bookkeeper.open_ledger(ledger_id, recover=False) as reader:
        began, seen = time.perf_counter(), 0
        for batch in reader.read(0, reader.last_add_confirmed):
            seen += len(batch)
        assert seen == entries, (seen, entries)
        return time.perf_counter() - began


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class MemoryWatch(threading.Thread):
    """Samples the resident memory of bookies until told to stop."""

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


def memory_group(cluster: LocalCluster, runs: int, scale: float) -> list[Figure]:
    """Ten gigabytes through one bookie, in one run: the value is the peak of any bookie."""
    data, total = VariedBytes(), int(10e9 * scale)
    watch = MemoryWatch(cluster.bookies)
    watch.start()
    with (
        connect(cluster.uri) as bookkeeper,
        bookkeeper.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger,
    ):
        for batch in batches(data, 1_000, total):
            ledger.append_batch(batch)
        ledger.flush()
    note = f"peak resident memory of a bookie while {total / 1e9:.0f} GB stream through it, one run"
    return [Figure("bookie_memory", "MB", [watch.finish() / 1e6], wanted=400, less_is_better=True, note=note)]
