# SPDX-License-Identifier: Apache-2.0
"""Lasting watches under orders of the threads that write, that begin to listen, and that are told."""

from __future__ import annotations

from random import Random

import pytest

from bk_core.metadata import worker
from bk_core.metadata.tree import watches
from bk_core.metadata.tree.watches import Watches, read_data
from bk_core.metadata.worker import Worker
from tests.kit.amount import some
from tests.kit.memory_store import MemoryCluster, MemoryTree
from tests.sim.threads.baton import Turns
from tests.sim.threads.engines import PriorityEngine, RandomEngine
from tests.sim.threads.stand_ins import Event, Thread, replaced

LINES_OF = (watches, worker)
CHANGES = 4


def listening(turns: Turns) -> None:
    """Everybody who listens ends at the last state, and is never told an older one after a newer one."""
    tree, worker = MemoryTree(MemoryCluster(), timeout_s=1, session_timeout_s=1), Worker("tells")
    watches = Watches(tree, worker)
    tree.create("/a", b"0")
    heard: dict[int, list[int]] = {}

    def listen(number: int) -> None:
        told: list[int] = []
        present, _ = watches.add("/a", read_data, lambda found: told.append(int(found[0])))
        heard[number] = told
        told.insert(0, int(present[0]))

    def change() -> None:
        for version in range(CHANGES):
            tree.set("/a", b"%d" % (version + 1), version)

    threads = [Thread(turns, change, "changes"), *(Thread(turns, listen, f"listens {n}", (n,)) for n in range(2))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    Event(turns).wait(5)  # until nobody has anything to do
    worker.stop()
    tree.close()
    for told in heard.values():
        assert told == sorted(told), f"an older state came after a newer one: {told}"
        assert told[-1] == CHANGES, f"the last state was not told: {told}"


@pytest.mark.parametrize("first", range(0, some(400, few=100), 100))
def test_who_listens_is_told_the_last_state_whatever_the_order(first: int) -> None:
    for seed in range(first, first + 100):
        random = Random(seed)
        engine = RandomEngine(random) if seed % 2 else PriorityEngine(random, horizon=200)
        turns = Turns(engine, lines_of=LINES_OF if seed % 3 == 0 else ())
        with replaced(turns):
            turns.run(lambda turns=turns: listening(turns))
        assert turns.failures == [], f"seed {seed}"
