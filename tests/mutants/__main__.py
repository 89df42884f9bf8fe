# SPDX-License-Identifier: Apache-2.0
"""``scripts/mutants``: plants each known defect of the glue in a copy of the checkout and runs the tests for it.

The same tests run first without the defect, because a test that fails anyway finds nothing. A hang counts as found,
because the test's own deadline ends it. With ``--random`` it plants generated mutants instead (``generated/``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.generated import run as generated
from tests.mutants.generated.checkouts import copy_of_checkout, run_tests
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ALL_TESTS_DEADLINE_S = 1800


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a mutant. ``noticed_by`` is the first test that failed, empty if the mutant survived. ``trouble``
    says why the mutant could not be tried."""

    mutant: Mutant
    noticed_by: str
    seconds: float
    trouble: str = ""

    @property
    def is_killed(self) -> bool:
        return bool(self.noticed_by)


def attempt(mutant: Mutant, checkout: Path) -> Verdict:
    """Plant the mutant in this copy, run its tests, and take it out again."""
    path, started = checkout / mutant.path, time.monotonic()
    text = path.read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, (
        f"{mutant.name}: its text stands {text.count(mutant.old)} times in {mutant.path}"
    )
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, failed = run_tests(mutant.tests, checkout)
    finally:
        path.write_text(text, encoding="utf-8")
    seconds = time.monotonic() - started
    if code in (0, 1, -1):
        return Verdict(mutant, failed if code else "", seconds)
    # The test session itself broke, because of the mutant (pytest's time limit ends the whole process with 1) or of us.
    return Verdict(mutant, "", seconds, f"pytest ended with {code}: {failed}")


def try_all(mutants: list[Mutant], jobs: int, kept: Path | None) -> list[Verdict]:
    """Return the verdict of each mutant, in order. Mutants with a verdict in ``kept`` are not tried again; new verdicts
    are added to it."""
    known = read_verdicts(kept, mutants)
    mutants = [mutant for mutant in mutants if mutant.name not in known]
    if not mutants:
        return list(known.values())
    with tempfile.TemporaryDirectory(prefix="mutants-") as top, ThreadPoolExecutor(jobs) as pool:
        copies = [Path(top) / str(number) for number in range(jobs)]
        for each in copies:
            copy_of_checkout(each)
        tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
        code, failed = run_tests(tests, copies[0], ALL_TESTS_DEADLINE_S)
        if code:
            sys.exit(f"mutants: without any mutant pytest ends with {code}: {failed}")
        free = list(copies)

        def one(mutant: Mutant) -> Verdict:
            checkout = free.pop()
            try:
                verdict = attempt(mutant, checkout)
            finally:
                free.append(checkout)
            print(line(verdict), flush=True)
            if kept and not verdict.trouble:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([verdict.mutant.name, verdict.noticed_by, verdict.seconds]) + "\n")
            return verdict

        return [*known.values(), *pool.map(one, mutants)]


def read_verdicts(kept: Path | None, mutants: list[Mutant]) -> dict[str, Verdict]:
    """Return the verdicts of an earlier run about these mutants, by their names."""
    if kept is None or not kept.exists():
        return {}
    by_name = {mutant.name: mutant for mutant in mutants}
    rows = [json.loads(row) for row in kept.read_text(encoding="utf-8").splitlines()]
    return {name: Verdict(by_name[name], noticed_by, seconds) for name, noticed_by, seconds in rows if name in by_name}


def line(verdict: Verdict) -> str:
    word = verdict.trouble or (f"killed by {verdict.noticed_by}" if verdict.is_killed else "LIVES")
    return f"{verdict.mutant.path:45} {verdict.mutant.name:60} {verdict.seconds:5.1f} s  {word}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument(
        "words",
        nargs="*",
        help="only mutants whose file or name contains one of these; with --random files and folders",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only every n-th: a sample")
    parser.add_argument("--resume", type=Path, help="keep the verdicts in this file and continue from them")
    parser.add_argument("--list", action="store_true", help="name them and try nothing")
    parser.add_argument("--random", type=int, metavar="N", help="try N generated mutants")
    parser.add_argument("--seed", default="1", help="chooses the generated mutants")
    parser.add_argument("--since", metavar="COMMIT", help="generate them only in lines that this commit does not have")
    parser.add_argument("--minutes", type=float, help="begin no generated mutant after this time")
    parser.add_argument("--no-servers", action="store_true", help="leave out the stage with real servers")
    parser.add_argument("--near", action="store_true", help="only the few test files that name the mutated module")
    args = parser.parse_args()
    if args.random:
        return generated.main(
            args.random, args.seed, args.since, args.words, args.jobs, args.resume, args.minutes,
            not args.no_servers, args.list, args.near,
        )  # fmt: skip
    chosen = [m for m in MUTANTS if not args.words or any(word in m.path or word in m.name for word in args.words)]
    chosen = chosen[:: args.every]
    if args.list:
        for mutant in chosen:
            print(f"{mutant.path:45} {mutant.name}")
        return 0
    if not chosen:
        sys.exit("mutants: none has such a name; --list shows them")
    verdicts = try_all(chosen, args.jobs, args.resume)
    living = [v for v in verdicts if not v.is_killed]
    print(f"mutants: {len(verdicts) - len(living)} of {len(verdicts)} were noticed")
    return 1 if living else 0


if __name__ == "__main__":
    sys.exit(main())
