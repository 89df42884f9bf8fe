# SPDX-License-Identifier: Apache-2.0
"""``scripts/fuzz``: mutated frames of Apache's wire through the readers, and some of them through the whole connection
of a bookie and of a client, mutated tokens, hellos and requests to an admin port, so many as are asked for. With
``--doors`` the last three alone: what a bookie makes of who is not let in.

With ``--resume FILE`` the figures are kept there, and the next call goes on from them. Exit code 0 only if all frames
were tried and each was read, or refused, as it should be.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from tests.wire.bookie_rpc.fuzz import Tally, run_round
from tests.wire.bookie_rpc.fuzz_doors import admin_round, hello_round
from tests.wire.bookie_rpc.fuzz_ends import bookie_round, client_round
from tests.wire.bookie_rpc.fuzz_tokens import token_round

ROUNDS_A_CHUNK = 24
DOORS = (token_round, hello_round, admin_round)
KINDS = (*(run_round,) * 10, bookie_round, client_round, *DOORS)
"""Rounds take turns: those of whole connections take longer."""


def run_chunk(numbers: range, kinds: tuple[Callable[[int], Tally], ...] = KINDS) -> Tally:
    """Tries some rounds."""
    tally = Tally()
    for number in numbers:
        tally.add(kinds[number % len(kinds)](number))
    return tally


def main(arguments: list[str] | None = None) -> int:
    ask = _parser().parse_args(arguments)
    tally, begun = _load(ask.resume, ask.seed)
    started = time.monotonic()
    before = tally.mutated
    chunk = functools.partial(run_chunk, kinds=DOORS if ask.doors else KINDS)
    with ProcessPoolExecutor(ask.jobs) if ask.jobs > 1 else nullcontext() as pool:
        while tally.mutated < ask.frames and not tally.problems:
            chunks = [range(begun + k * ROUNDS_A_CHUNK, begun + (k + 1) * ROUNDS_A_CHUNK) for k in range(4 * ask.jobs)]
            begun = chunks[-1].stop
            for part in pool.map(chunk, chunks) if pool else map(chunk, chunks):
                tally.add(part)
            if ask.resume is not None:
                _save(ask.resume, tally, begun)
            rate = (tally.mutated - before) / (time.monotonic() - started)
            print(f"  {tally.mutated:,} mutated frames, {rate * 60:,.0f} a minute", file=sys.stderr, flush=True)
    who = resource.RUSAGE_CHILDREN if ask.jobs > 1 else resource.RUSAGE_SELF
    peak = resource.getrusage(who).ru_maxrss // 1024
    print(
        f"{tally.mutated:,} mutated frames and {tally.frames - tally.mutated:,} others, {tally.faults:,} faults, "
        f"{len(tally.problems)} problems; at most {peak} MB a process\n"
        f"of them {tally.bookie:,} through connections of a bookie, {tally.client:,} through those of a client, "
        f"{tally.tokens:,} about tokens, and {tally.doors:,} hellos and requests to an admin port"
    )
    for problem in tally.problems:
        print(problem)
    return 1 if tally.problems else 0


def _load(path: Path | None, seed: int) -> tuple[Tally, int]:
    if path is None or not path.exists():
        return Tally(), seed
    said = json.loads(path.read_text(encoding="utf-8"))
    return Tally(**said["tally"]), said["next"]


def _save(path: Path, tally: Tally, begun: int) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps({"tally": asdict(tally), "next": begun}), encoding="utf-8")
    new.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--frames", type=int, default=1_000_000, metavar="N", help="so many mutated frames in all")
    parser.add_argument("--doors", action="store_true", help="only AUTH, tokens, hello and the admin port")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first round")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the figures there and go on from them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # bookies warn of each client that is not let in
    sys.exit(main())
