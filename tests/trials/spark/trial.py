# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial spark``: does the connector lose or double a row when everything around it fails?

The rounds are of eleven kinds, and all rounds of a kind run before the next kind. Rounds of a block share logs and are
repeated together.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit import spark_classes
from tests.trials.harness import Figures, Rounds, Trial
from tests.trials.spark.rig import Rig
from tests.trials.spark.rounds.kinds import KINDS, Kind

DONE = "rounds of kind"
"""The heading of the table of rounds by kind."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rounds of one kind."""

    kind: Kind
    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.kind.name} {self.first} to {self.first + self.count - 1}"

    def named(self, figures: Figures) -> Figures:
        """Return the figures with the name of the kind before each count."""
        name = self.kind.name
        figures.rounds = self.count
        figures.table(DONE)[name] += self.count
        figures.note = ", ".join(f"{what} {count}" for what, count in sorted(figures.counts.items()))
        figures.counts = Counter({f"{name}: {what}": count for what, count in figures.counts.items()})
        return figures


class SparkTrial(Trial):
    name = "spark"
    about = (
        "ZooKeeper and five bookies as processes behind proxies, and Spark. Every row has an id of its own. Another "
        "client reads the log after each round, and again after a vacuum of all that the log does not list."
    )
    unit = "round"
    rounds = sum(kind.long for kind in KINDS)
    world_rounds = 12

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        names = [kind.name for kind in KINDS]
        parser.add_argument("--kind", nargs="+", choices=names, default=names, help="only these kinds")

    @property
    def wanted_rounds(self) -> dict[str, int]:
        """The number of rounds of each kind: those of the long form, or ``--rounds`` in all, at least one each."""
        chosen = [kind for kind in KINDS if kind.name in self.ask.kind]
        total = sum(kind.long for kind in chosen)
        if self.ask.rounds in (None, self.rounds):
            return {kind.name: kind.long for kind in chosen}
        return {kind.name: max(1, kind.long * self.ask.rounds // total) for kind in chosen}

    def next(self, figures: Figures) -> Block | None:
        wanted, ran = self.wanted_rounds, figures.table(DONE)
        for kind in KINDS:
            done, count = ran[kind.name], wanted.get(kind.name, 0)
            if done < count:
                return Block(kind, done, min(kind.block - done % kind.block, count - done))
        return None

    def only(self, words: Sequence[str]) -> list[Block]:
        """Return the blocks of the rounds ``KIND:ROUND``."""
        return [self._block(*word.split(":")) for word in words]

    def _block(self, name: str, number: str) -> Block:
        kind = next(kind for kind in KINDS if kind.name == name)
        return Block(kind, int(number) // kind.block * kind.block, kind.block)

    def again(self, what: Block) -> str:
        return f"--only {what.kind.name}:{what.first}"

    def failed(self, what: Block) -> Figures:
        return what.named(Figures())

    def missing(self, figures: Figures) -> list[str]:
        """Return the counts that are zero although all rounds of their kind ran."""
        wanted = self.wanted_rounds
        full = [kind for kind in KINDS if wanted.get(kind.name, 0) >= kind.long]
        return [
            f"{kind.name}: {what}"
            for kind in full
            for what in kind.wanted
            if not figures.counts[f"{kind.name}: {what}"]
        ]

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Rounds]:
        spark_classes.make()  # a hundred drivers will start
        spark_classes.use()
        with Rig(path, self.ask.seed) as rig:
            yield Rounds(lambda block: block.named(block.kind.run(rig, block.first, block.count)))
