# SPDX-License-Identifier: Apache-2.0
"""What a ledger costs: create it, append one entry of 100 B, close it.

``python -m benchmarks.ledger_cycle [CYCLES] [RUNS]`` starts ZooKeeper and three bookies, and prints for each way of
running cycles the least and the median of the rates, and milliseconds of CPU a cycle of each process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bk_cli.cluster import LocalCluster
from bk_core import client
from bk_core.blocking import BookKeeper, connect

CYCLES, RUNS, BOOKIES = 300, 5, 3
PAYLOAD = bytes(100)
AT_ONCE = (8, 32)
Way = Callable[[int], None]


def cycle(bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger() as ledger:
        ledger.append(PAYLOAD)


async def cycle_async(bookkeeper: client.BookKeeper) -> None:
    async with await bookkeeper.create_ledger() as ledger:
        await ledger.append(PAYLOAD)


def blocking(bookkeeper: BookKeeper, threads: int) -> Way:
    """Cycles on as many threads as are given, all through one client."""

    def run(cycles: int) -> None:
        if threads == 1:
            for _ in range(cycles):
                cycle(bookkeeper)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: cycle(bookkeeper), range(cycles)))

    return run


def on_one_loop(bookkeeper: BookKeeper, tasks: int) -> Way:
    """Cycles of the asyncio client: so many tasks, each one cycle after another."""

    async def work(inner: client.BookKeeper, cycles: int) -> None:
        async def some(count: int) -> None:
            for _ in range(count):
                await cycle_async(inner)

        await asyncio.gather(*(some(cycles // tasks) for _ in range(tasks)))

    return lambda cycles: bookkeeper.begin(lambda inner: work(inner, cycles)).result()


def cpu_s(pid: int) -> float:
    """Seconds of CPU of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def java_of(configuration: str) -> int:
    """The server that was started with this file."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if b"java" in words[0] and words[-1].decode().endswith(configuration):
                return int(folder.name)
    raise LookupError(configuration)


def measure(way: Way, cycles: int, runs: int, pids: dict[str, int]) -> str:
    way(min(cycles, 64))
    rates, spent = [], dict.fromkeys(pids, 0.0)
    for _ in range(runs):
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        began = time.perf_counter()
        way(cycles)
        rates.append(cycles / (time.perf_counter() - began))
        for name, pid in pids.items():
            spent[name] += cpu_s(pid) - before[name]
    costs = {name: seconds * 1e3 / cycles / runs for name, seconds in spent.items()}
    each = " ".join(f"{cost:>9.2f}" for cost in costs.values())
    return f"{min(rates):>8.0f}{statistics.median(rates):>8.0f}   {each} {sum(costs.values()):>9.2f}"


def main(cycles: int, runs: int) -> None:
    folder = Path(".cache/bench")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="cycle-", dir=folder) as path,
        LocalCluster(path, bookies=BOOKIES, port=0, zookeeper_port=0) as cluster,
        connect(cluster.uri) as bookkeeper,
    ):
        pids = {"client": os.getpid(), "zookeeper": java_of(f"{path}/zookeeper/zoo.cfg")}
        pids |= {f"bookie {bookie.number}": bookie.pid for bookie in cluster.bookies if bookie.pid}
        ways = {"one by one, blocking": blocking(bookkeeper, 1), "one by one, asyncio": on_one_loop(bookkeeper, 1)}
        for count in AT_ONCE:
            ways[f"{count} threads"] = blocking(bookkeeper, count)
            ways[f"{count} tasks"] = on_one_loop(bookkeeper, count)
        names = " ".join(f"{name:>9}" for name in (*pids, "all"))
        print(f"{'cycles a second:':24}{'least':>8}{'median':>8}   {names}   ms of CPU a cycle")
        for name, way in ways.items():
            print(f"{name:24}{measure(way, cycles, runs, pids)}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (CYCLES, RUNS)))
