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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from tests.sim.exhaustive.scopes import scope
from tests.sim.exhaustive.search import explore
from tests.sim.log_fan_out import run_fan_out_schedule
from tests.sim.logs import run_log_schedule
from tests.sim.mutants import apache, exhaustive, fan_out, heal, logs, protocol, quorum_end
from tests.sim.mutants.admission import ADMISSION_MUTANTS
from tests.sim.mutants.checkpoints import CHECKPOINT_MUTANTS
from tests.sim.mutants.collector import COLLECTOR_MUTANTS
from tests.sim.mutants.compaction import COMPACTION_MUTANTS
from tests.sim.mutants.damage import DAMAGE_MUTANTS
from tests.sim.mutants.maintenance import MAINTENANCE_MUTANTS
from tests.sim.mutants.marks import MARK_MUTANTS
from tests.sim.mutants.spread import SPREAD_MUTANTS
from tests.sim.mutants.storage import STORAGE_MUTANTS
from tests.sim.schedule import ENGINES, run_schedule
from tests.sim.scripts import SCRIPTS

Planted = Callable[[], AbstractContextManager[None]]

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
    """One mutant, and the attempts to find it. ``attempts`` yields calls that raise an error on a violation. A report
    names an attempt by its ``engine`` and ``name`` if it has them (``attempts.Attempt``)."""

    name: str
    rule: str
    engine: str
    planted: Planted
    attempts: Callable[[], Iterator[Callable[[], object]]]
    unit: str = "schedules"

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
    """Every mutant, grouped by engine."""
    return [*_exhaustive(), *_protocol(), *_heal(), *_quorum(), *_bookie(), *_logs()]


def _exhaustive() -> Iterator[Case]:
    for m in exhaustive.MUTANTS:

        def search(m: exhaustive.Mutant = m) -> Iterator[Callable[[], None]]:
            def look() -> None:
                found = explore(scope(m.scope), seconds=120)
                if found.violation is not None:
                    error = AssertionError(found.violation.problem)
                    error.states = found.states
                    raise error

            yield look

        yield Case(m.name, m.rule, f"exhaustive {m.scope}", m.planted, search, "states")


def _protocol() -> Iterator[Case]:
    for engine, mutants, tries in (
        ("random", protocol.MUTANTS, _random),
        ("apache", apache.MUTANTS, lambda: _random("apache")),
    ):
        for m in mutants:
            if m.script:
                yield Case(m.name, m.rule, f"script: {m.script}", m.planted, lambda s=m.script: iter([SCRIPTS[s]]))
            else:
                yield Case(m.name, m.rule, engine, m.planted, tries)


def _heal() -> Iterator[Case]:
    from tests.protocol import test_recovery
    from tests.protocol.replication import test_replication

    stories = vars(test_recovery) | vars(test_replication)
    for name, rule, planted in heal.MUTANTS:
        story = heal.STORIES.get(name)
        if story is None:
            yield Case(name, rule, "heal", planted, lambda: _random("heal"))
        else:
            yield Case(name, rule, "heal", planted, lambda run=stories[story]: iter([run]), "stories")


def _quorum() -> Iterator[Case]:
    for name, rule, planted in quorum_end.MUTANTS:
        yield Case(name, rule, "quorum", planted, lambda: _random("quorum"))


def _random(profile: str = "protocol") -> Iterator[Callable[[], None]]:
    seed = 0
    while True:

        def run(seed: int = seed) -> None:
            outcome = run_schedule(seed, ENGINES[seed % len(ENGINES)], profile)
            assert outcome.violation is None, f"{outcome.engine} seed {seed}: {outcome.violation}"

        yield run
        seed += 1


def _bookie() -> Iterator[Case]:
    from tests.sim import attempts  # which imports many tests
    from tests.sim.collector_schedule import CollectorWorld
    from tests.sim.spread_schedule import run_spread_schedule

    of_storage = (*STORAGE_MUTANTS, *MARK_MUTANTS, *CHECKPOINT_MUTANTS, *MAINTENANCE_MUTANTS)
    engines: list[tuple[str, Sequence[tuple[str, str, Planted]], Callable[[], Iterator[Callable[[], object]]]]] = [
        ("disk", of_storage, attempts.of_storage),
        ("disk", COMPACTION_MUTANTS, lambda: iter(attempts.COMPACTION)),
        ("disk", DAMAGE_MUTANTS, lambda: iter(attempts.DAMAGE)),
        ("stories", ADMISSION_MUTANTS, lambda: iter(attempts.ADMISSION)),
        ("collector", COLLECTOR_MUTANTS, lambda: _seeds(lambda seed: CollectorWorld(seed).run())),
        ("directories", SPREAD_MUTANTS, lambda: _seeds(run_spread_schedule)),
    ]
    for engine, mutants, tries in engines:
        for name, rule, planted in mutants:
            yield Case(name, rule, engine, planted, tries, "attempts")


def _seeds(run: Callable[[int], object]) -> Iterator[Callable[[], object]]:
    for seed in itertools.count():
        yield partial(run, seed)


def _logs() -> Iterator[Case]:
    for name, rule, planted in logs.MUTANTS:
        yield Case(name, rule, "logs", planted, lambda: _seeds(run_log_schedule))
    for name, rule, planted in fan_out.MUTANTS:
        yield Case(name, rule, "logs", planted, lambda: _seeds(run_fan_out_schedule))


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
    case = next(found for found in cases() if found.name == name)
    began, count, killed, engine = time.process_time(), 0, "", case.engine
    with case.planted():
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
        _check_clean(attempt, case.name)
    return Verdict(case.name, case.rule, engine, count, case.unit, time.process_time() - began, killed)
