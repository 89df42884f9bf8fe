# SPDX-License-Identifier: Apache-2.0
"""The fewest requests to ZooKeeper with which a Python client can make a ledger: the ceiling of ``ledger_cycle``.

It makes three writes with kazoo, one after the other, on as many threads as ledgers are made at a time: the node of the
id, the record in its place, the record once more. There are no bookies and no entries, and nothing is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from kazoo.client import KazooClient

from benchmarks.report.figures import Run
from benchmarks.running.world import World

RECORD = bytes(300)


def bare_cycles(world: World, count: int, at_once: int) -> Callable[[], Run]:
    """Measure the ledgers per second of one session."""
    client, root = KazooClient(world.zookeeper), f"/bare-{uuid4().hex[:8]}"
    client.start()
    world.during.callback(client.close)
    world.during.callback(client.stop)
    client.ensure_path(f"{root}/ids")

    def cycle(times: int) -> None:
        for _ in range(times):
            node = client.create(f"{root}/ids/id-", ephemeral=True, sequence=True)
            record = f"{root}/{node.rpartition('-')[2]}"
            both = client.transaction()
            both.delete(node)
            both.create(record, RECORD)
            both.commit()
            client.set(record, RECORD, version=0)

    def run() -> Run:
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(cycle, [count // at_once] * at_once))
        return Run.of(count // at_once * at_once / (time.perf_counter() - began))

    return run
