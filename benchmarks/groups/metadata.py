# SPDX-License-Identifier: Apache-2.0
"""Group ``metadata``: what a ledger costs beside its entries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from benchmarks.measurement import Measurement, Peer, Prepare, Run
from benchmarks.peers import apache
from benchmarks.world import World
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
    return lambda world: partial(world.apache.client().cycle, world.scaled(CYCLES, 2 * at_once), at_once)


NOTE = "ledgers of 3/3/2 created, given one entry of 100 B, and closed, by asyncio"
MEASUREMENTS = tuple(
    Measurement(
        (name,), "ledgers/s", cycles(at_once), note=f"{NOTE}, {how}",
        peers=(Peer("apache", java_cycles(at_once), (3,), note=f"{apache.NOTE}; {at_once} threads"),),
    )
    for name, at_once, how in (
        ("ledger_cycle", 1, "one by one"),
        ("ledger_cycle_8", AT_ONCE, f"{AT_ONCE} at a time"),
    )
)  # fmt: skip
