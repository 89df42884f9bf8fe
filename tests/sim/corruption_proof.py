# SPDX-License-Identifier: Apache-2.0
"""``scripts/prove corrupt``: damages a small data directory in every way, and judges each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sim.corruption_matrix import DONE, KINDS, run
from tests.trials.harness import Figures, Trial

CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some cases of one kind of damage."""

    kind: str
    first: int

    def __str__(self) -> str:
        return f"{self.kind} from {self.first}"


class CorruptWorld:
    def __init__(self, pool: ProcessPoolExecutor, jobs: int) -> None:
        self._pool, self._jobs = pool, jobs

    def round(self, chunk: Chunk) -> Figures:
        figures = Figures()
        starts = [chunk.first + number * CHUNK for number in range(self._jobs)]
        for part in self._pool.map(run, [chunk.kind] * self._jobs, starts, [CHUNK] * self._jobs):
            figures.add(part)
        return figures

    def finish(self) -> Figures:
        return Figures()


class CorruptProof(Trial):
    name = "corrupt"
    about = "Every bit, cut, sector and splice of a small data directory: damage is noticed, nothing is denied."
    unit = "case"
    rounds = None
    world_rounds = 1_000_000

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)

    def next(self, figures: Figures) -> Chunk | None:
        """Return the next chunk. ``--only KIND…`` returns all chunks of these kinds at once; otherwise the kinds come
        one after the other."""
        done = figures.table(DONE)
        return next((Chunk(name, done[name]) for name, kind in KINDS.items() if done[name] < kind.total()), None)

    def only(self, words: Sequence[str]) -> list[Chunk]:
        step = CHUNK * self.ask.jobs
        return [Chunk(name, first) for name in words for first in range(0, KINDS[name].total(), step)]

    def again(self, what: Chunk) -> str:
        return f"--only '{what.kind}'"

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[CorruptWorld]:
        with ProcessPoolExecutor(self.ask.jobs) as pool:
            yield CorruptWorld(pool, self.ask.jobs)
