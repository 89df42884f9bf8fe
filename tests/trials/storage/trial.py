# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial storage``: a bookie process is killed, or loses power, again and again. After each time all its
entries are read."""

from __future__ import annotations

import argparse
import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.metadata import open_store
from tests.trials.harness import Figures, Rounds, Trial
from tests.trials.kit.nursery import Nursery
from tests.trials.storage.counts import NAMES
from tests.trials.storage.oracle import Oracle
from tests.trials.storage.rounds import Process, StorageRound

BROKEN = ("lost", "resurrected", "changed", "unknown")


class StorageTrial(Trial):
    name = "storage"
    about = (
        "A bookie process under mixed load is killed, or with --power loses what was not synced, and starts again; "
        "after each start every ledger is read in full."
    )
    world_rounds = 8  # reading everything takes longer each time
    wanted = (
        "acked",
        "read beside writers",
        "fenced",
        "found deleted",
        *(n for n in NAMES if n != "segments unlinked"),
    )

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--power", action="store_true", help="lose what was not synced, instead of only the process"
        )

    @property
    def options(self) -> str:
        return " --power" if self.ask.power else ""

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Rounds]:
        """One data directory."""
        seed, oracle = f"{self.ask.seed}/{figures.rounds}", Oracle()
        zookeeper = ZooKeeperServer(tick_ms=100, durable=False)
        with ExitStack() as stack:
            nursery = stack.enter_context(closing(Nursery()))
            stack.callback(zookeeper.stop)
            zookeeper.start(path / "zookeeper")
            uri = f"zk://127.0.0.1:{zookeeper.port}/{uuid.uuid4().hex}"
            store = stack.enter_context(closing(open_store(uri)))
            store.initialize_cluster()
            process = Process(nursery, path, uri, self.ask.power, seed)
            stack.callback(process.kill)
            process.start()
            process.wait_ready()
            runner = stack.enter_context(asyncio.Runner())

            def one(number: int) -> Figures:
                rng = random.Random(f"{self.ask.seed}/{number}")
                took_s = StorageRound(process, store, oracle, rng).run(runner)
                counts = Counter(dict.fromkeys(BROKEN, 0))
                counts.update(oracle.counts + process.take_counts())
                oracle.counts.clear()
                return Figures(1, counts=counts, times_s={"start": [took_s]}, problems=oracle.problems)

            yield Rounds(one)
