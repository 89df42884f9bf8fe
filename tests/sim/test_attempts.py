# SPDX-License-Identifier: Apache-2.0
"""What kills mutants of the bookie finds nothing without one (the mutants themselves: ``scripts/sim --mutants``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.sim.attempts import ADMISSION, COMPACTION, DAMAGE, SCHEDULES, STORAGE, Attempt
from tests.sim.storage_schedule import run_storage_schedule
from tests.sim.wanted import WANTED

pytestmark = pytest.mark.long  # minutes together: in scripts/test, not in scripts/check


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "attempts", [STORAGE, COMPACTION, DAMAGE, ADMISSION], ids=["storage", "compaction", "damage", "admission"]
)
def test_without_a_defect_nothing_is_found(attempts: list[Attempt]) -> None:
    """What fails on the product as it is, or fails to run at all, would count as a kill of every mutant."""
    for attempt in attempts:
        attempt()


def test_without_a_defect_every_schedule_is_clean() -> None:
    outcomes = [run_storage_schedule(seed) for seed in range(SCHEDULES)]
    reached = {what for outcome in outcomes for what in outcome.counts}
    assert set(WANTED["disk"]) <= reached


def test_a_seed_decides_everything() -> None:
    for seed in range(12):
        assert run_storage_schedule(seed) == run_storage_schedule(seed)
