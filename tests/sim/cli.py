# SPDX-License-Identifier: Apache-2.0
"""``scripts/sim``: run the simulator, try mutants, repeat a seed."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.sim import corpus
from tests.sim.campaign import Totals, campaign, engine_of
from tests.sim.exhaustive.scopes import SCOPES
from tests.sim.exhaustive.search import explore
from tests.sim.schedule import ENGINES
from tests.sim.shrink import shrink
from tests.sim.wanted import WANTED

SHORT = (
    ("protocol", 1200),
    ("apache", 400),
    ("heal", 500),
    ("quorum", 400),
    ("storage", 400),
    ("disk", 150),
    ("logs", 300),
    ("threads", 150),
)
"""The profiles of the short form, with their numbers of schedules. It has no time limit, so that a slow machine reaches
the same states."""

SHORT_SCOPES = ("pair", "one-recovery", "pair-crash", "change", "change-lost", "close-and-recovery")


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return the exit code, which is 0 only if everything requested ran without a violation."""
    ask = _parser().parse_args(arguments)
    if ask.seed is not None:
        return _repeat(ask)
    if ask.mutants is not None:
        return _mutants(ask)
    if ask.crash_points is not None:
        return _crash_points(ask)
    if ask.schedules is not None or ask.minutes is not None:
        return _long(ask)
    return _short(ask)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/sim", description=__doc__)
    names = [name for name, _ in SHORT]
    parser.add_argument("--profile", choices=names, help="only this one, or its mutants")
    parser.add_argument("--minutes", type=float, help="run so long, the time shared by the profiles")
    parser.add_argument("--schedules", type=int, help="run so many in all, counting those of --resume")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from this file, and keep it up to date")
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        metavar="SEED",
        help="the seed to begin with, else the short form takes new ones",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="repeat one schedule and print its last steps")
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--omit", default="", help="leave out these disturbances of the seed: 3,7")
    parser.add_argument("--shrink", action="store_true", help="find which disturbances a failing seed needs")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="put known defects back: all, or these")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every n-th of the mutants: a sample")
    parser.add_argument(
        "--crash-points", nargs="*", metavar="WORKLOAD", help="stop the machine at every operation of all, or these"
    )
    parser.add_argument("--restarts", action="store_true", help="and at every operation of each restart after it")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long a mutant is tried, of a processor")
    return parser


# --- one seed --------------------------------------------------------------------------------------------------------


def _repeat(ask: argparse.Namespace) -> int:
    profile, engine = ask.profile or "protocol", ask.engine or engine_of(ask.seed)
    omit = frozenset(int(number) for number in ask.omit.split(",") if number)
    outcome = corpus.run(profile, engine, ask.seed, omit, trace=True)
    print("\n".join(outcome.trace))
    print(f"seed {ask.seed}, {engine}, {profile}: {outcome.steps} steps, digest {outcome.digest:08x}")
    print(outcome.violation or "every invariant holds")
    if outcome.violation and ask.shrink:
        _print_shrunk(profile, engine, ask.seed)
    return 1 if outcome.violation else 0


def _print_shrunk(profile: str, engine: str, seed: int) -> None:
    if corpus.run(profile, engine, seed).violation is None:
        print("This seed fails no more: it failed on another tree, whose figures the file of --resume has.")
        return
    omitted, outcome = shrink(profile, engine, seed)
    print("\n".join(outcome.trace[-50:]))
    print(f"still: {outcome.violation}")
    print("repeat: " + corpus.command(profile, engine, seed, omitted))


# --- many ------------------------------------------------------------------------------------------------------------


def _tell(totals: Totals) -> None:
    print(
        f"  {totals.profile}: {totals.schedules:,} schedules, {len(totals.violations)} violations, "
        f"{totals.wall_s:,.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _long(ask: argparse.Namespace) -> int:
    profiles = [ask.profile] if ask.profile else [name for name, _ in SHORT]
    each = ask.minutes * 60 / len(profiles) if ask.minutes is not None else None
    done = []
    for profile in profiles:
        done.append(
            campaign(
                profile,
                jobs=ask.jobs,
                schedules=ask.schedules,
                seconds=each,
                first_seed=ask.first,
                state=ask.resume,
                tell=_tell,
            )
        )
    return _report(done)


def _report(done: list[Totals]) -> int:
    print(f"{'profile':10}{'schedules':>12}{'states':>14}{'histories':>12}{'/s/core':>9}{'wall s':>8}  violations")
    for t in done:
        print(
            f"{t.profile:10}{t.schedules:>12,}{t.steps:>14,}{t.histories:>12,}{t.per_second:>9.0f}{t.wall_s:>8.0f}"
            f"  {len(t.violations)}"
        )
    failed = False
    for t in done:
        failed |= _report_sometimes(t) | _report_violations(t) | (t.schedules == 0)
    return 1 if failed else 0


def _report_sometimes(totals: Totals) -> bool:
    print(f"\nsometimes, {totals.profile}:")
    for what, count in sorted(totals.sometimes.items()):
        print(f"  {count:>12,}  {what}")
    missing = [what for what in WANTED.get(totals.profile, ()) if not totals.sometimes.get(what)]
    for what in missing:
        print(f"  {'NEVER':>12}  {what}")
    return bool(missing)


def _report_violations(totals: Totals) -> bool:
    for engine, seed, what in totals.violations[:10]:
        print(f"\nVIOLATION {what}\n  {corpus.command(totals.profile, str(engine), int(str(seed)), ())}")
    for engine, seed, what in totals.violations:
        corpus.remember(totals.profile, str(engine), int(str(seed)), str(what))
    if totals.violations and totals.profile in ("protocol", "apache", "heal", "quorum", "storage"):
        engine, seed, _ = totals.violations[0]
        _print_shrunk(totals.profile, str(engine), int(str(seed)))
    return bool(totals.violations)


# --- the short form --------------------------------------------------------------------------------------------------


def _short(ask: argparse.Namespace) -> int:
    began = time.monotonic()
    failed = _search() | _replay()
    wanted = [(profile, count) for profile, count in SHORT if ask.profile in (None, profile)]
    first = ask.first or int(time.time()) % 1_000_000 * 1_000  # each call runs other seeds
    done = [
        campaign(profile, jobs=ask.jobs, schedules=count, first_seed=first, tell=_tell) for profile, count in wanted
    ]
    failed |= bool(_report(done))
    print(f"\nsim: {'FAILED' if failed else 'everything held'} in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _search() -> bool:
    """Search the small scopes exhaustively."""
    print(f"{'scope':22}{'states':>10}{'transitions':>13}{'depth':>7}{'states/s':>10}  result")
    failed = False
    for found in (explore(scope) for scope in SCOPES if scope.name in SHORT_SCOPES):
        result = "exhausted, clean" if found.exhausted and not found.violation else str(found.violation or "cut off")
        failed |= found.violation is not None or not found.exhausted
        rate = found.states / max(found.seconds, 1e-9)
        print(f"{found.scope:22}{found.states:>10,}{found.transitions:>13,}{found.depth:>7}{rate:>10,.0f}  {result}")
    return failed


def _replay() -> bool:
    """Replay every seed that ever failed."""
    failed = False
    seeds = corpus.read()
    for profile, engine, seed, why in seeds:
        outcome = corpus.run(profile, engine, seed)
        if outcome.violation:
            failed = True
            print(f"corpus: {corpus.command(profile, engine, seed, ())} fails again ({why}): {outcome.violation}")
    print(f"\ncorpus: {len(seeds)} seeds replayed, {'FAILED' if failed else 'clean'}")
    return failed


# --- crash points ----------------------------------------------------------------------------------------------------


def _crash_points(ask: argparse.Namespace) -> int:
    from tests.sim.crash_points import EVERY_RESTART, VARIANTS, explore, report, workloads

    unknown = sorted(set(ask.crash_points) - set(workloads()))
    if unknown:
        print(f"no such workloads: {', '.join(unknown)}", file=sys.stderr)
        return 2
    logging.disable(logging.CRITICAL)
    began, names = time.monotonic(), ask.crash_points or list(workloads())
    ways = [*VARIANTS, EVERY_RESTART] if ask.restarts else list(VARIANTS)
    with ProcessPoolExecutor(ask.jobs) as pool:
        done = list(pool.map(explore, names, [ways] * len(names)))
    print(report(done))
    print(f"crash points: {sum(one.starts for one in done):,} in {time.monotonic() - began:.0f} s")
    return 1 if not done or any(one.violations for one in done) else 0


# --- mutants ---------------------------------------------------------------------------------------------------------


def _mutants(ask: argparse.Namespace) -> int:
    from tests.sim.mutants.table import EQUIVALENT, Verdict, cases, try_case

    known = [case.mutant.name for case in cases() if ask.profile in (None, case.profile)]
    names = [name for name in known if not ask.mutants or name in ask.mutants][:: ask.every]
    unknown = sorted(set(ask.mutants) - set(known))
    if unknown:
        print(f"no such mutants: {', '.join(unknown)}", file=sys.stderr)
        return 2
    print(f"{'mutant':46}{'rule':44}{'engine':34}{'after':>18}{'s':>7}  killed by")
    done: list[Verdict] = []
    loaded = get_context("forkserver")  # each mutant has its own process, without the seconds that imports take
    loaded.set_forkserver_preload([module for module in sys.modules if module.startswith(("bk_", "bookie_", "tests."))])
    with ProcessPoolExecutor(ask.jobs, loaded, max_tasks_per_child=1) as pool:
        for v in pool.map(try_case, names, [ask.seconds] * len(names)):
            done.append(v)
            after = f"{v.count:,} {v.unit}"
            print(
                f"{v.name[:45]:46}{v.rule[:43]:44}{v.engine[:33]:34}{after:>18}{v.seconds:>7.1f}"
                f"  {v.killed_by[:100] or 'SURVIVED'}",
                flush=True,
            )
    if not ask.mutants and ask.profile is None:
        print("\nnot expressible here, or equivalent:")
        for name, what, why in EQUIVALENT:
            print(f"  {name}: {what} — {why}")
    print(f"\nmutants: {sum(bool(v.killed_by) for v in done)} of {len(done)} killed")
    return 0 if done and all(v.killed_by for v in done) else 1


if __name__ == "__main__":
    sys.exit(main())
