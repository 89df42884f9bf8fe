# SPDX-License-Identifier: Apache-2.0
"""What an entry of 100 B costs that is appended by itself, with ``append_nowait``, through the blocking client.

``python -m benchmarks.append_each [ENTRIES] [RUNS]`` starts ZooKeeper and three bookies, and prints for two digest
types the rates of the runs, and nanoseconds of CPU an entry of the client and of the bookies together.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import VariedBytes, elapsed
from benchmarks.ledger_cycle import BOOKIES, cpu_s
from bk_cli.cluster import LocalCluster
from bk_core.blocking import LedgerWriter, connect
from bk_core.errors import WindowFullError
from bk_core.model import DigestType

ENTRIES, RUNS, ENTRY_BYTES = 1_000_000, 5, 100
DIGESTS = (DigestType.CRC32C, DigestType.MAC)


def append_each(ledger: LedgerWriter, payloads: list[bytes], entries: int) -> None:
    """Where the window is full, wait until half of it is confirmed."""
    for payload in itertools.islice(itertools.cycle(payloads), entries):
        try:
            ledger.append_nowait(payload)
        except WindowFullError:
            ledger.wait_confirmed((ledger.last_add_confirmed + ledger.last_add_pushed) // 2)
            ledger.append_nowait(payload)
    ledger.flush()


def main(entries: int, runs: int) -> None:
    payloads = [bytes(each) for each in VariedBytes(16 << 20).chunks(10_000 * ENTRY_BYTES, ENTRY_BYTES)]
    folder = Path(".cache/bench")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="each-", dir=folder) as path,
        LocalCluster(path, bookies=BOOKIES, port=0, zookeeper_port=0) as cluster,
        connect(cluster.uri) as bookkeeper,
    ):
        bookies = [bookie.pid for bookie in cluster.bookies if bookie.pid]
        print(f"{'M entries a second:':24}{'least':>8}{'median':>8}{'client':>10}{'bookies':>10}   ns of CPU an entry")
        for digest_type in DIGESTS:
            rates, client_s, bookies_s = [], 0.0, 0.0
            for run in range(-1, runs):
                with bookkeeper.create_ledger(digest_type=digest_type) as ledger:
                    before, theirs = cpu_s(os.getpid()), sum(map(cpu_s, bookies))
                    seconds = elapsed(lambda ledger=ledger: append_each(ledger, payloads, entries))  # type: ignore[misc]
                if run >= 0:  # the first one warms up
                    rates.append(entries / seconds / 1e6)
                    client_s += cpu_s(os.getpid()) - before
                    bookies_s += sum(map(cpu_s, bookies)) - theirs
            costs = "".join(f"{spent * 1e9 / entries / runs:>10.0f}" for spent in (client_s, bookies_s))
            print(f"{digest_type.name:24}{min(rates):>8.2f}{statistics.median(rates):>8.2f}{costs}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (ENTRIES, RUNS)))
