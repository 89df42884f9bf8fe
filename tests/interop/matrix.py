# SPDX-License-Identifier: Apache-2.0
"""``scripts/trial interop matrix``: runs every cell on real processes. It begins with a selection of cells that has all
pairs of values, so that a run that ends early has covered them."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from tests.interop.cells import Cell, pairwise, possible
from tests.interop.stories import Matrix
from tests.interop.worlds import mixed_cluster
from tests.trials.harness import Figures, Rounds, Trial


def played(matrix: Matrix, cell: Cell) -> Figures:
    matrix.play(cell)
    row = f"{cell.client}, {cell.wire}, {cell.bookies}"
    tables = {"client, wire, bookies": Counter({row: 1}), "operation": Counter({cell.operation: 1})}
    return Figures(1, counts=Counter(passed=1), tables=tables)


class MatrixTrial(Trial):
    name = "interop matrix"
    about = "Every client on every kind of bookies, by every wire and digest; what it does, both kinds of client read."
    unit = "cell"
    rounds = None
    world_rounds = 100  # then a new cluster follows, so that disk and JVMs stay small
    wanted = ("passed",)

    def __init__(self, ask: argparse.Namespace) -> None:
        super().__init__(ask)
        self.cells = pairwise() if ask.pairwise else list(possible())
        first = set(pairwise())
        random.Random(0).shuffle(self.cells)
        self.cells.sort(key=lambda cell: cell not in first)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--pairwise", action="store_true", help="the selection that CI runs")

    @property
    def options(self) -> str:
        return " --pairwise" if self.ask.pairwise else ""

    def next(self, figures: Figures) -> Cell | None:
        end = len(self.cells) if self.ask.rounds is None else min(self.ask.rounds, len(self.cells))
        return self.cells[figures.rounds] if figures.rounds < end else None

    def only(self, words: Sequence[str]) -> list[Cell]:
        """Return the cells whose name has one of the words, for example ``java-4.18.0/mixed/v2``."""
        return [cell for cell in self.cells if any(word in str(cell) for word in words)]

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[Rounds]:
        with (
            mixed_cluster(path, ours=Matrix.OURS, apache=Matrix.APACHE) as cluster,
            closing(Matrix(cluster)) as matrix,
        ):
            yield Rounds(partial(played, matrix))
