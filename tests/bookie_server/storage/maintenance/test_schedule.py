# SPDX-License-Identifier: Apache-2.0
"""Budgets of bytes and the times of checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage.maintenance.schedule import (
    SEGMENTS_PER_CHECKPOINT,
    STEP_BYTES,
    URGENT_CHECKPOINT_S,
    ByteBudget,
    Load,
    MajorRuns,
    checkpoint_wait_s,
)


def wait_s(since: float | None, waiting: int, sealed: int = 0, *, low: bool = False) -> float | None:
    return checkpoint_wait_s(since_last_s=since, interval_s=60, waiting=waiting, sealed_since=sealed, space_is_low=low)


def test_a_checkpoint_is_made_when_something_waits_for_it() -> None:
    assert wait_s(None, 0) is None
    assert wait_s(1000, 0, SEGMENTS_PER_CHECKPOINT - 1) is None
    assert wait_s(None, 1) == 0
    assert wait_s(None, 0, SEGMENTS_PER_CHECKPOINT) == 0


def test_checkpoints_keep_their_interval() -> None:
    assert wait_s(0, 1) == 60
    assert wait_s(59, 0, SEGMENTS_PER_CHECKPOINT) == 1
    assert wait_s(60, 1) == 0
    assert wait_s(61, 1) == 0


def test_a_disk_short_of_space_shortens_the_interval_only_if_space_would_come_back() -> None:
    assert wait_s(0, 1, low=True) == URGENT_CHECKPOINT_S
    assert wait_s(URGENT_CHECKPOINT_S, 1, low=True) == 0
    assert wait_s(0, 0, SEGMENTS_PER_CHECKPOINT, low=True) == 60


@given(
    rate=st.integers(1 << 10, 1 << 30),
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 8 * STEP_BYTES)), max_size=60),
)
def test_a_budget_is_never_exceeded_by_more_than_a_burst_and_a_step(rate: int, steps: list[tuple[float, int]]) -> None:
    now = used = 0.0
    budget = ByteBudget(rate, now)
    largest = 0
    for pause_s, size in steps:
        now += pause_s
        if budget.wait_s(now) == 0:
            budget.use(size, now)
            used, largest = used + size, max(largest, size)
    assert used <= rate * now + max(rate, STEP_BYTES) + largest + rate * 0.01


def test_after_the_wait_that_it_names_a_budget_has_room() -> None:
    budget = ByteBudget(1 << 20, 5.0)
    now = 5.0
    for _ in range(100):
        budget.use(STEP_BYTES, now)
        now += budget.wait_s(now)
        assert budget.wait_s(now) == 0
    assert now == pytest.approx(5 + 100, abs=1.1)


def test_an_idle_budget_saves_up_one_burst_at_most() -> None:
    budget = ByteBudget(4 * STEP_BYTES, 0.0)
    taken = 0
    while budget.wait_s(1e6) == 0:
        budget.use(STEP_BYTES, 1e6)
        taken += 1
    assert taken == 4


def test_a_clock_that_stands_still_gives_nothing() -> None:
    budget = ByteBudget(1 << 20, 10.0)
    budget.use(STEP_BYTES, 10.0)
    assert budget.wait_s(10.0) == budget.wait_s(9.0) == pytest.approx(1.0)


def test_a_major_run_goes_on_until_it_has_done_what_it_can() -> None:
    runs = MajorRuns(100, 0)
    assert not runs.is_on(99)
    assert runs.is_on(100)
    assert runs.is_on(150)
    runs.end(150)
    assert not runs.is_on(249)
    assert runs.is_on(250)


def test_load_is_high_while_commits_take_more_than_half_of_the_time() -> None:
    load = Load(10.0)
    assert not load.look(0.4, 10.5), "it looks once a second"
    assert load.look(0.9, 11.0)
    assert load.look(0.9, 11.9)
    assert not load.look(0.9 + 0.5, 12.0)
    assert not load.look(2.0, 14.0)
    assert load.look(4.1, 17.0)
