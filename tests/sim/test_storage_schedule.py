# SPDX-License-Identifier: Apache-2.0
"""Random lives of a bookie's storage find nothing without a defect (with one: ``scripts/sim --mutants``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.kit.amount import some
from tests.sim.attempts import SCHEDULES
from tests.sim.storage_schedule import run_storage_schedule
from tests.sim.wanted import WANTED

pytestmark = pytest.mark.long  # minutes together: in scripts/test, not in scripts/check


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_without_a_defect_every_schedule_is_clean() -> None:
    outcomes = [run_storage_schedule(seed) for seed in range(SCHEDULES)]
    reached = {what for outcome in outcomes for what in outcome.counts}
    assert set(WANTED["disk"]) <= reached


def test_a_seed_decides_everything() -> None:
    for seed in range(some(12, few=3)):
        assert run_storage_schedule(seed) == run_storage_schedule(seed)
