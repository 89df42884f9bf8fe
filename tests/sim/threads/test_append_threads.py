# SPDX-License-Identifier: Apache-2.0
"""Threads and tasks that append to a ledger or a log, in many orders: told id = found entry (RULES P1, N7)."""

from __future__ import annotations

import pytest

from tests.kit.amount import some
from tests.sim.threads.client_worlds import AppenderWorld, WriterWorld
from tests.sim.threads.profile import first_violation, run_threads_schedule

pytestmark = pytest.mark.long


@pytest.mark.rule("P1")
@pytest.mark.parametrize("first", range(1000, some(1100, few=1040), 20))
def test_many_orders_of_threads_that_append_to_a_ledger(first: int) -> None:
    assert first_violation(range(first, first + 20), WriterWorld) == ""


@pytest.mark.rule("MUST15")
@pytest.mark.parametrize("first", range(0, some(240, few=80), 20))
def test_many_orders_of_threads_that_append_to_a_log_that_rolls(first: int) -> None:
    assert first_violation(range(first, first + 20), AppenderWorld) == ""


def test_a_seed_has_the_same_order_whatever_ran_before_it_in_the_process() -> None:
    first = [run_threads_schedule(seed).digest for seed in (2, 3, 11)]
    assert [run_threads_schedule(seed).digest for seed in (11, 3, 2)] == first[::-1]
