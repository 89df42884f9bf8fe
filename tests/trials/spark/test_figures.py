# SPDX-License-Identifier: Apache-2.0
"""What the Spark trial plans for each round, and which rounds it runs."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter

import pytest

from tests.trials.harness import Figures
from tests.trials.spark.plan import FAILURES_MAX, PARTITIONS, Plan
from tests.trials.spark.rounds.kinds import KINDS
from tests.trials.spark.trial import SparkTrial

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


def test_a_run_goes_through_the_kinds_in_blocks() -> None:
    trial, figures = SparkTrial(Namespace(kind=["answers", "drivers"], rounds=15)), Figures()
    assert trial.wanted_rounds == {"answers": 5, "drivers": 10}
    block = trial.next(figures)
    assert str(block) == "answers 0 to 4"
    figures.add(block.named(Figures(counts=Counter(faults=3))))
    assert figures.counts == {"answers: faults": 3}
    assert str(trial.next(figures)) == "drivers 0 to 9"
    figures.add(trial.failed(trial.next(figures)))
    assert (trial.next(figures), figures.rounds) == (None, 15)
    assert [str(each) for each in trial.only(["drivers:23"])] == ["drivers 20 to 39"]
    assert trial.again(block) == "--only answers:0"


def test_what_never_happened_in_the_long_form_is_no_proof() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "answers")
    trial = SparkTrial(Namespace(kind=["answers"], rounds=None))
    figures = Figures(counts=Counter(f"answers: {what}" for what in kind.wanted[1:]))
    assert trial.missing(figures) == [f"answers: {kind.wanted[0]}"]
    figures.counts[f"answers: {kind.wanted[0]}"] = 1
    assert trial.missing(figures) == []
    assert SparkTrial(Namespace(kind=["answers"], rounds=3)).missing(Figures()) == []
