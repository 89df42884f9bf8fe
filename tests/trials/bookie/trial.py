# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial bookie``: rounds of faults on a cluster of real processes, after which every entry is checked."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.trials.bookie.rounds import Round
from tests.trials.harness import Figures, Rounds, Trial
from tests.trials.kit.cluster import TrialCluster

BOOKIES = 7


class BookieTrial(Trial):
    name = "bookie"
    about = (
        "ZooKeeper and seven bookies as processes behind proxies that fail; writers, tails and recoverers as processes "
        "that are killed and stopped. Every history is checked by tests/sim/history.py."
    )
    isolates = True
    wanted = ("acknowledged",)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--zookeepers", type=int, choices=(1, 3), default=3, help="servers of the metadata store")
        parser.add_argument("--secure", action="store_true", help="bookies and clients of mode secure")

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Rounds]:
        ask = self.ask
        with TrialCluster(
            path, bookies=BOOKIES, network=ask.networks, zookeepers=ask.zookeepers, secure=ask.secure
        ) as cluster:

            def one(number: int) -> Figures:
                journals = path / f"round-{number}"
                figures = Round(cluster, journals, ask.seed, number).run()
                if not figures.problems:
                    shutil.rmtree(journals)
                return figures

            yield Rounds(one)
