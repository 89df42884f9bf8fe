# SPDX-License-Identifier: Apache-2.0
"""Every mutant of every engine, killed or not: the table of ``scripts/sim --mutants``.

A mutant is a known defect put back into the production code while it is tried. It counts as killed by the first
violation; the engine that suits it best tries it.
"""

from __future__ import annotations

import gc
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.sim.campaign import runner_of
from tests.sim.exhaustive.scopes import scope
from tests.sim.exhaustive.search import explore
from tests.sim.log_fan_out import run_fan_out_schedule
from tests.sim.logs import run_log_schedule
from tests.sim.mutants import (
    admission,
    apache,
    checkpoints,
    collector,
    compaction,
    damage,
    exhaustive,
    heal,
    logs,
    maintenance,
    protocol,
    quorum_end,
    spread,
    storage,
)
from tests.sim.mutants.mutant import Mutant
from tests.sim.scripts import SCRIPTS

EQUIVALENT = (
    ("D18", "a ledger that is deleted is forgotten and comes back by a late add",
     "the tombstone lost by replay is a storage mutant; a machine that takes adds after it: test_machine_deletions"),
    ("D21", "the journal's mark passes data that is not flushed",
     "there is no journal beside the data; the nearest, a group that calls itself durable, is a storage mutant"),
    ("D24", "old ledgers opened without recovery, ends assumed",
     "an API's defect: recover=True is asked for by name, close returns the authoritative end"),
    ("D25", "messages counted instead of bookies",
     "acks raise one watermark a bookie, answers are kept by index: a second message has nothing to count in"),
    ("S1", "an id is denied although an add of it is on its way",
     "fencing reads wait for the fence record, which stands behind every add accepted before it, and later adds are "
     "refused: what is denied stays denied; readers stop at the LAC, which is durable. tests/bookie_server keeps S1"),
    ("P7", "a recoverer does not rewrite a record that is IN_RECOVERY already",
     "the close compares with the version both read: the first ends it, the other adopts; the rewrite saves work"),
    ("LAC reads fence", "fences ask without fencing", "fencing reads do it again before a denial counts (facts §1.7)"),
    ("errors are coverage", "a failed fence counts as coverage", "the same"),
)  # fmt: skip
"""Defects that cannot be expressed here, or change nothing that anybody could see: name, what, why."""


@dataclass(frozen=True, slots=True)
class Case:
    """A mutant, and the attempts to find it. ``attempts`` returns calls that raise an error on a violation. A report
    names an attempt by its ``engine`` and ``name`` if it has them (``attempts.Attempt``)."""

    mutant: Mutant
    engine: str
    attempts: Callable[[], Iterable[Callable[[], object]]]
    unit: str

    @property
    def profile(self) -> str:
        """Return the part of the simulator that tries the mutant: ``apache``, ``disk``, ``heal``, ``logs``, ``quorum``
        or ``protocol``."""
        return self.engine if self.engine in ("apache", "disk", "heal", "logs", "quorum") else "protocol"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one mutant. ``killed_by`` is the violation that found it, or empty if none did. ``count`` attempts
    were made, counted in ``unit``; ``engine`` made the last one."""

    name: str
    rule: str
    engine: str
    count: int
    unit: str
    seconds: float
    killed_by: str


def cases() -> list[Case]:
    """Return every mutant with its attempts, grouped by engine."""
    from tests.protocol import test_recovery
    from tests.protocol.replication import test_replication
    from tests.sim import attempts  # which imports many tests
    from tests.sim.collector_schedule import CollectorWorld
    from tests.sim.spread_schedule import run_spread_schedule

    stories = vars(test_recovery) | vars(test_replication)
    of_storage = (*storage.MUTANTS, *checkpoints.MUTANTS, *maintenance.MUTANTS)
    engines: list[tuple[str, str, Iterable[Mutant], Callable[[], Iterable[Callable[[], object]]]]] = [
        ("exhaustive", "states", exhaustive.MUTANTS, tuple),
        ("random", "schedules", protocol.MUTANTS, partial(_random, "protocol")),
        ("apache", "schedules", apache.MUTANTS, partial(_random, "apache")),
        ("heal", "schedules", heal.MUTANTS, partial(_random, "heal")),
        ("quorum", "schedules", quorum_end.MUTANTS, partial(_random, "quorum")),
        ("disk", "attempts", of_storage, attempts.of_storage),
        ("disk", "attempts", compaction.MUTANTS, lambda: attempts.COMPACTION),
        ("disk", "attempts", damage.MUTANTS, lambda: attempts.DAMAGE),
        ("stories", "attempts", admission.MUTANTS, lambda: attempts.ADMISSION),
        ("collector", "attempts", collector.MUTANTS, partial(_seeds, lambda seed: CollectorWorld(seed).run())),
        ("directories", "attempts", spread.MUTANTS, partial(_seeds, run_spread_schedule)),
        ("logs", "schedules", logs.MUTANTS, partial(_seeds, run_log_schedule)),
        ("logs", "schedules", logs.FAN_OUT, partial(_seeds, run_fan_out_schedule)),
    ]

    def case(mutant: Mutant, engine: str, tries: Callable[[], Iterable[Callable[[], object]]], unit: str) -> Case:
        shown_by = mutant.shown_by
        if shown_by in SCRIPTS:
            return Case(mutant, f"script: {shown_by}", lambda: [SCRIPTS[shown_by]], unit)
        if shown_by in stories:
            return Case(mutant, engine, lambda: [stories[shown_by]], "stories")
        if shown_by:
            return Case(mutant, f"exhaustive {shown_by}", lambda: [partial(_search, shown_by)], unit)
        return Case(mutant, engine, tries, unit)

    return [case(mutant, engine, tries, unit) for engine, unit, mutants, tries in engines for mutant in mutants]


def _search(name: str) -> None:
    """Search a scope. The error for a violation says after how many ``states`` it was found."""
    found = explore(scope(name), seconds=120)
    if found.violation is not None:
        error = AssertionError(found.violation.problem)
        error.states = found.states
        raise error


def _random(profile: str) -> Iterator[Callable[[], object]]:
    schedule = runner_of(profile)

    def run(seed: int) -> None:
        outcome = schedule(seed)
        assert outcome.violation is None, f"{outcome.engine} seed {seed}: {outcome.violation}"

    return _seeds(run)


def _seeds(run: Callable[[int], object]) -> Iterator[Callable[[], object]]:
    for seed in itertools.count():
        yield partial(run, seed)


def _check_clean(attempt: Callable[[], object], mutant: str) -> None:
    """What finds a defect in the product as it is kills every mutant, and tells nothing."""
    try:
        attempt()
    except Exception as error:
        raise RuntimeError(f"what killed the mutant {mutant!r} fails without it, too: {error}") from error


def try_case(name: str, seconds: float) -> Verdict:
    """Plant the mutant and run its attempts until one kills it, or it had so many seconds of a processor. Then the same
    attempt must find nothing without the mutant. Raises RuntimeError if it does, or if the mutant cannot be planted."""
    import pytest

    logging.disable(logging.CRITICAL)
    gc.set_threshold(20_000, 5, 1_000)
    case = next(found for found in cases() if found.mutant.name == name)
    began, count, killed, engine = time.process_time(), 0, "", case.engine
    with case.mutant.planted():
        for attempt in case.attempts():
            count += 1
            engine = getattr(attempt, "engine", case.engine)
            try:
                attempt()
            except (TypeError, AttributeError, NameError) as error:
                raise RuntimeError(f"the mutant {name!r} does not fit the product any more: {error}") from error
            except (Exception, pytest.fail.Exception) as error:
                what = str(error).splitlines()[0] if str(error) else type(error).__name__
                of = getattr(attempt, "name", "")
                killed = what if not of or what.startswith(of) else f"{of}: {what}"
                count = getattr(error, "states", count)
            if killed or time.process_time() - began > seconds:
                break
    if killed and case.unit != "states":  # scopes without a defect: tests/sim/test_exhaustive.py
        _check_clean(attempt, name)
    return Verdict(name, case.mutant.rule, engine, count, case.unit, time.process_time() - began, killed)
