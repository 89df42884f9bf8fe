# SPDX-License-Identifier: Apache-2.0
"""What the Spark trial plans for each round, and which rounds it runs."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.trials.spark.plan import FAILURES_MAX, PARTITIONS, Plan

SEED = 1


@pytest.mark.parametrize("kind", ["raise", "kill"])
def test_each_round_has_a_fault_and_no_job_fails_but_the_doomed(kind: str) -> None:
    points: Counter[str] = Counter()
    for number in range(200):
        plan = Plan(kind=kind, seed=SEED)
        failing = []
        for partition in range(PARTITIONS):
            faults = [plan.fault(number, partition, attempt) for attempt in range(FAILURES_MAX)]
            failing.append(sum(fault is not None for fault in faults))
            points.update(fault.point for fault in faults if fault is not None)
            assert faults == [plan.fault(number, partition, attempt) for attempt in range(FAILURES_MAX)]
        assert sum(failing) > 0
        assert (max(failing) == FAILURES_MAX) == plan.is_doomed(number)
        assert max(failing) < 3 or plan.is_doomed(number)
        assert not Plan(kind=kind, seed=SEED, run=1).is_doomed(number)
    assert len(points) == (4 if kind == "raise" else 6)
    assert min(points.values()) > 10
