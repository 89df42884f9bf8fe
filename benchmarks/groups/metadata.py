# SPDX-License-Identifier: Apache-2.0
"""Group ``metadata``: the cost of a ledger apart from its entries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from benchmarks.measurement import Measurement, Peer, Prepare
from benchmarks.peers import apache
from benchmarks.peers.apache import Apache
from benchmarks.peers.bare_zookeeper import bare_cycles
from benchmarks.report.figures import Run, percentile
from benchmarks.running.world import World
from bk_core import client

CYCLES = 400
AT_ONCE = 8


def cycles(at_once: int) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        count = world.scaled(CYCLES, 2 * at_once)

        async def cycle(bookkeeper: client.BookKeeper, times: int) -> None:
            for _ in range(times):
                async with await bookkeeper.create_ledger() as writer:
                    await writer.append(bytes(100))

        async def all_cycles(bookkeeper: client.BookKeeper) -> Run:
            began = time.perf_counter()
            await asyncio.gather(*(cycle(bookkeeper, count // at_once) for _ in range(at_once)))
            return Run.of(count // at_once * at_once / (time.perf_counter() - began))

        return lambda: world.bookkeeper.begin(all_cycles).result()

    return prepare


def java_cycles(at_once: int) -> Prepare:
    return lambda world: partial(world.of(Apache).client().cycle, world.scaled(CYCLES, 2 * at_once), at_once)


def kazoo_cycles(at_once: int) -> Prepare:
    return lambda world: bare_cycles(world, world.scaled(CYCLES, 2 * at_once), at_once)


def creating(world: World) -> Callable[[], Run]:
    """Measure the median time of creating a ledger, one after the other."""
    count = world.scaled(CYCLES, 20)

    async def create(bookkeeper: client.BookKeeper) -> Run:
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            ledger = await bookkeeper.create_ledger()
            await ledger.abandon()
            samples.append((time.perf_counter() - began) * 1e3)
        return Run.of(percentile(samples, 0.5))

    return lambda: world.bookkeeper.begin(create).result()


KAZOO = "raw: the ceiling: the three writes of ZooKeeper that a ledger takes, by kazoo alone; no bookies, no entry"
NOTE = "ledgers of 3/3/2 created, given one entry of 100 B, and closed, by asyncio"
MEASUREMENTS = (
    *(
        Measurement(
            (name,), "ledgers/s", cycles(at_once), note=f"{NOTE}, {how}",
            peers=(
                Peer("apache", java_cycles(at_once), (3,), note=f"{apache.NOTE}; {at_once} threads"),
                Peer("raw", kazoo_cycles(at_once), (None,), "kazoo", note=KAZOO),
            ),
        )
        for name, at_once, how in (
            ("ledger_cycle", 1, "one by one"),
            ("ledger_cycle_8", AT_ONCE, f"{AT_ONCE} at a time"),
        )
    ),
    Measurement(
        ("ledger_create",), "ms", creating, less_is_better=True, note="median of create_ledger, one by one",
    ),
)  # fmt: skip
