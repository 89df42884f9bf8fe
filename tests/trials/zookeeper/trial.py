# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial zookeeper``: ZooKeeper is restarted again and again under a client and three bookies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.trials.harness import Figures, Rounds, Trial
from tests.trials.zookeeper.rounds import Calls, Place, Round


class ZooKeeperTrial(Trial):
    name = "zookeeper"
    about = (
        "A ZooKeeper server is killed or stopped under a client and three bookies that are connected, is away for up "
        "to twelve seconds, and in some restarts accepts and is mute for a while when it is back. No call may fail "
        "that has half of its deadline left then."
    )
    unit = "restart"
    world_rounds = 50

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Rounds]:
        with Place(path) as place, Calls(place) as calls:
            yield Rounds(
                lambda number: Round(place, calls, random.Random(f"{self.ask.seed}/{number}"), number).run(),
                lambda: Figures(problems=calls.finish()),
            )

    def missing(self, figures: Figures) -> list[str]:
        return [] if figures.times_s else ["a call after a restart"]
