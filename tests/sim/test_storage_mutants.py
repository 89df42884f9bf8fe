# SPDX-License-Identifier: Apache-2.0
"""Every known defect of storage, put back, is found by the crash tests or by random schedules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from bk_core.errors import BookKeeperError
from tests.sim import test_storage_crashes as scripts
from tests.sim.mutants.storage import STORAGE_MUTANTS, Planted
from tests.sim.storage_life import crash_everywhere
from tests.sim.storage_schedule import run_storage_schedule

pytestmark = pytest.mark.sim  # minutes together: in scripts/test, not in scripts/check

SCHEDULES = 60
_SCRIPTS: list[Callable[[], object]] = [
    lambda: crash_everywhere(scripts.WORKLOADS["small groups"], "nothing"),
    lambda: crash_everywhere(scripts.WORKLOADS["fences and tombstones around restarts"], "some sectors"),
    lambda: crash_everywhere(scripts.WORKLOADS["fences and tombstones around restarts"], "nothing"),
    scripts.test_a_frame_written_over_another_ledgers_is_damage,
    scripts.test_a_flipped_bit_in_the_last_group_of_an_idle_bookie_is_damage,
    scripts.test_a_group_that_is_missing_between_whole_ones_is_damage,
    scripts.test_what_the_cache_read_ahead_of_a_write_hides_nothing,
    lambda: scripts.test_any_lost_file_is_never_a_denial("segment"),
    lambda: scripts.test_a_start_that_is_cut_off_after_it_found_a_loss_hides_nothing_of_it("nothing"),
    lambda: crash_everywhere(scripts.WORKLOADS["segments fill up"], "nothing"),
    lambda: crash_everywhere(scripts.WORKLOADS["small groups"], None, again=True),
    scripts.test_a_sync_that_fails_and_lies_afterwards_ends_the_log_and_loses_nothing_acked,
]


def attempts() -> Iterator[Callable[[], object]]:
    """Ways to kill, the quick ones first."""
    yield from _SCRIPTS
    for seed in range(SCHEDULES):
        yield lambda seed=seed: run_storage_schedule(seed)  # type: ignore[misc]


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


@pytest.mark.parametrize(("name", "rule", "planted"), STORAGE_MUTANTS, ids=[name for name, _, _ in STORAGE_MUTANTS])
def test_a_defect_put_back_is_found(name: str, rule: str, planted: Planted) -> None:
    assert kill(planted), f"{name} ({rule}) lives"


def test_without_a_defect_every_schedule_is_clean() -> None:
    outcomes = [run_storage_schedule(seed) for seed in range(SCHEDULES)]
    reached = {what for outcome in outcomes for what in outcome.counts}
    wanted = {"crash in a restart", "damage found", "files lost", "sync failed", "no space", "older copy refused"}
    assert wanted <= reached


def test_a_seed_decides_everything() -> None:
    for seed in range(12):
        assert run_storage_schedule(seed) == run_storage_schedule(seed)
