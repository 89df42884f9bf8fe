# SPDX-License-Identifier: Apache-2.0
"""``scripts/prove fuzz``: mutated frames of Apache's wire through the readers, and some of them through the whole
connection of a bookie and of a client; mutated tokens, hellos and requests to an admin port. With ``--doors`` the last
three alone: what a bookie makes of a client that is not let in.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.trials.harness import Figures, Trial
from tests.wire.bookie_rpc.fuzz import Tally, run_round
from tests.wire.bookie_rpc.fuzz_doors import admin_round, hello_round
from tests.wire.bookie_rpc.fuzz_ends import bookie_round, client_round
from tests.wire.bookie_rpc.fuzz_tokens import token_round

ROUNDS_A_CHUNK = 24
DOORS = (token_round, hello_round, admin_round)
KINDS = (*(run_round,) * 10, bookie_round, client_round, *DOORS)
"""Rounds take turns: those of whole connections take longer."""


def run_chunk(numbers: range, kinds: tuple[Callable[[int], Tally], ...]) -> tuple[Tally, int]:
    """Try some rounds. Also returns the most memory that this process had, in MiB."""
    logging.disable(logging.WARNING)  # bookies warn of each client that is not let in
    tally = Tally()
    for number in numbers:
        tally.add(kinds[number % len(kinds)](number))
    return tally, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class FuzzWorld:
    def __init__(self, pool: ProcessPoolExecutor, ask: argparse.Namespace) -> None:
        self._pool, self._ask, self._peak_mib = pool, ask, 0

    def round(self, number: int) -> Figures:
        """A chunk for each process."""
        begun = self._ask.seed + number * self._ask.jobs * ROUNDS_A_CHUNK
        chunks = [range(begun + at * ROUNDS_A_CHUNK, begun + (at + 1) * ROUNDS_A_CHUNK) for at in range(self._ask.jobs)]
        tally = Tally()
        kinds = DOORS if self._ask.doors else KINDS
        for part, peak_mib in self._pool.map(functools.partial(run_chunk, kinds=kinds), chunks):
            tally.add(part)
            self._peak_mib = max(self._peak_mib, peak_mib)
        counts = {name: count for name, count in vars(tally).items() if isinstance(count, int)}
        return Figures(1, counts=Counter(counts), problems=tally.problems)

    def finish(self) -> Figures:
        return Figures(note=f"at most {self._peak_mib} MiB a process")


class FuzzProof(Trial):
    name = "fuzz"
    about = "Mutated frames, tokens and hellos. Each is read as it would be by itself, or refused, and opens nothing."
    rounds = None
    world_rounds = 1_000_000

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--frames", type=int, default=1_000_000, metavar="N", help="so many mutated frames in all")
        parser.add_argument("--doors", action="store_true", help="only AUTH, tokens, hello and the admin port")
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)

    @property
    def options(self) -> str:
        return f" --jobs {self.ask.jobs}{' --doors' if self.ask.doors else ''}"  # a round is a chunk for each process

    def next(self, figures: Figures) -> int | None:
        return figures.rounds if figures.counts["mutated"] < self.ask.frames else None

    @contextmanager
    def world(self, path: Path, figures: Figures) -> Iterator[FuzzWorld]:
        with ProcessPoolExecutor(self.ask.jobs) as pool:
            yield FuzzWorld(pool, self.ask)
