# SPDX-License-Identifier: Apache-2.0
"""Every known defect of storage, put back, is found by the crash tests or by random schedules."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from bk_core.errors import BookKeeperError
from tests.sim.mutants.checkpoints import CHECKPOINT_MUTANTS
from tests.sim.mutants.maintenance import MAINTENANCE_MUTANTS
from tests.sim.mutants.marks import MARK_MUTANTS
from tests.sim.mutants.storage import STORAGE_MUTANTS, Planted
from tests.sim.storage_attempts import SCHEDULES, SCRIPTS, attempts
from tests.sim.storage_schedule import run_storage_schedule
from tests.sim.wanted import WANTED

pytestmark = pytest.mark.sim  # minutes together: in scripts/test, not in scripts/check


def kill(planted: Planted) -> str | None:
    """What a mutant dies of; None if it lives."""
    with planted():
        for attempt in attempts():
            try:
                attempt()
            except (AssertionError, BookKeeperError, pytest.fail.Exception) as error:
                return str(error) or type(error).__name__
    return None


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


MUTANTS = [*STORAGE_MUTANTS, *MARK_MUTANTS, *CHECKPOINT_MUTANTS, *MAINTENANCE_MUTANTS]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("name", "rule", "planted"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_a_defect_put_back_is_found(name: str, rule: str, planted: Planted) -> None:
    assert kill(planted), f"{name} ({rule}) lives"


@pytest.mark.timeout(300)
def test_without_a_defect_nothing_is_found() -> None:
    """What fails on the product as it is would count as a kill of every mutant."""
    for attempt in SCRIPTS:
        attempt()


def test_without_a_defect_every_schedule_is_clean() -> None:
    outcomes = [run_storage_schedule(seed) for seed in range(SCHEDULES)]
    reached = {what for outcome in outcomes for what in outcome.counts}
    assert set(WANTED["disk"]) <= reached


def test_a_seed_decides_everything() -> None:
    for seed in range(12):
        assert run_storage_schedule(seed) == run_storage_schedule(seed)
