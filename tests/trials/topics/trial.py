# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial topics``: a Spark stream and a tail follow a topic of a broker while everything around them fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.trials.harness import Figures, Trial
from tests.trials.topics.place import Place
from tests.trials.topics.rounds import HAPPENINGS, Round

ROUND_S = 18.0


class TopicsWorld:
    def __init__(self, place: Place, seed: int) -> None:
        self._place, self._seed = place, seed

    def round(self, number: int) -> Figures:
        what = list(HAPPENINGS)[number % len(HAPPENINGS)]
        return Round(self._place, self._seed, number, ROUND_S).run(what)

    def finish(self) -> Figures:
        return Figures(problems=self._place.finish())


class TopicsTrial(Trial):
    name = "topics"
    about = (
        "A Pulsar broker keeps a topic on four of our bookies. A Spark stream and a tail in Python follow it while "
        "producers write, ledgers roll, bookies and the broker are killed, the query is stopped and killed, and the "
        "topic gains partitions and is trimmed behind its readers. Both must see every acknowledged message once, in "
        "order in its partition and key."
    )
    unit = "round"
    rounds = 32
    """The rounds take ten minutes and more."""
    world_rounds = 64
    wanted = (
        "bookies killed", "brokers killed", "queries stopped", "queries killed", "partitions added", "ledgers trimmed",
    )  # fmt: skip

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[TopicsWorld]:
        with Place(path) as place:
            yield TopicsWorld(place, self.ask.seed)

    def missing(self, figures: Figures) -> list[str]:
        """Return what did not happen, although there were rounds enough for it."""
        return super().missing(figures) if figures.rounds >= len(HAPPENINGS) else []
