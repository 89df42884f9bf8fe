# SPDX-License-Identifier: Apache-2.0
"""The simulator in everyone's daily run: some seeds of every profile, and proof that it would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.amount import some
from tests.sim import corpus
from tests.sim.campaign import run_chunk, runner_of
from tests.sim.mutants import heal, protocol, table
from tests.sim.scripts import SCRIPTS
from tests.sim.wanted import WANTED

ROOT = Path(__file__).parents[2]
QUICK = ("D10", "P8")
"""Mutants that random schedules kill within a second or so; scripts/sim --mutants tries all."""


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    import gc
    import logging

    threshold = gc.get_threshold()
    yield
    logging.disable(logging.NOTSET)
    gc.set_threshold(*threshold)


@pytest.mark.rule("MUST13")
def test_seeds_of_the_protocol_are_clean() -> None:
    found = run_chunk("protocol", 0, some(200, few=60))

    assert found.violations == []
    assert found.histories == found.schedules >= 60
    assert found.acks > 1.5 * found.schedules


@pytest.mark.long
@pytest.mark.rule("MUST3")
def test_seeds_with_bookies_that_answer_as_apaches_do_are_clean() -> None:
    found = run_chunk("apache", 0, some(150, few=45))

    assert found.violations == []
    assert found.acks > found.schedules
    assert found.sometimes["writer ended by LedgerFencedError"] > 0


@pytest.mark.long
@pytest.mark.rule("D23")
def test_seeds_in_which_ledgers_are_repaired_are_clean() -> None:
    found = run_chunk("heal", 0, some(200, few=36))

    assert found.violations == []
    assert found.sometimes["everything was healed"] >= found.schedules
    assert found.sometimes["a bookie took another's place"] > 0


@pytest.mark.rule("P15")
def test_seeds_in_which_readers_show_entries_above_the_lac_are_clean() -> None:
    found = run_chunk("quorum", 0, some(300, few=60))

    assert found.violations == []
    assert found.sometimes["an entry above the LAC was shown"] > 0


@pytest.mark.long
def test_seeds_with_the_production_storage_in_the_loop_are_clean() -> None:
    found = run_chunk("storage", 0, some(60, few=20))

    assert found.violations == []
    assert found.sometimes["crash in a commit"] > 0


def test_seeds_that_failed_once_are_clean() -> None:
    again = {line: corpus.run(*line[:3]).violation for line in corpus.read()}
    assert [line for line, violation in again.items() if violation] == []


PRINT_DIGESTS = """
import logging
from tests.sim.campaign import runner_of
logging.disable(logging.CRITICAL)
for profile in ("protocol", "storage"):
    for seed in range(6):
        print(profile, seed, runner_of(profile)(seed).digest)
"""
PRINT_COUNTS = """
from tests.sim.exhaustive.scopes import scope
from tests.sim.exhaustive.search import explore
for name in ("pair", "change"):
    found = explore(scope(name))
    print(found.scope, found.states, found.transitions, found.depth, found.part_states, found.violation)
"""


@pytest.mark.long
@pytest.mark.rule("P11")
@pytest.mark.parametrize(("program", "lines"), [(PRINT_DIGESTS, 12), (PRINT_COUNTS, 2)], ids=["seeds", "searches"])
def test_results_are_the_same_under_every_hash_seed(program: str, lines: int) -> None:
    printed = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        printed.add(done.stdout)

    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == lines


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_product_passes_every_script(name: str) -> None:
    SCRIPTS[name]()


@pytest.mark.parametrize("name", [next(m.name for m in protocol.MUTANTS if m.shown_by), heal.MUTANTS[0].name, *QUICK])
def test_a_defect_that_is_put_back_is_found(name: str) -> None:
    verdict = table.try_case(name, seconds=40)

    assert verdict.killed_by, f"{name} survives {verdict.count} {verdict.unit}"


@pytest.mark.rule("P15")
@pytest.mark.parametrize("name", ["the settle time is left out", "the record's version is not checked after the wait"])
def test_without_the_wait_or_the_check_of_the_version_a_row_is_shown_that_vanishes(name: str) -> None:
    assert " I8: " in table.try_case(name, seconds=40).killed_by


def test_every_mutant_has_a_name_of_its_own_and_can_be_planted() -> None:
    mutants = [case.mutant for case in table.cases()]
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    for mutant in mutants:
        with mutant.planted():
            pass


def test_every_profile_runs_by_name_and_has_states_it_must_reach() -> None:
    assert set(WANTED) == {"protocol", "apache", "heal", "storage", "disk", "logs", "quorum", "threads"}
    for profile in WANTED:
        assert runner_of(profile)(1).violation is None
