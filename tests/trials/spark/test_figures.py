# SPDX-License-Identifier: Apache-2.0
"""What the Spark trial plans for each round, and how it keeps its figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.trials.spark.__main__ import Figures, again, rounds_wanted
from tests.trials.spark.plan import FAILURES_MAX, PARTITIONS, Plan
from tests.trials.spark.rig import BlockReport
from tests.trials.spark.rounds.kinds import KINDS

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


def test_the_figures_of_a_run_can_be_gone_on_from(tmp_path: Path) -> None:
    wanted = rounds_wanted(["answers", "drivers"], 15)
    assert wanted == {"answers": 5, "drivers": 10}
    figures = Figures(7)
    assert not figures.passed(wanted), "nothing ran"
    figures.add("answers", BlockReport(rounds=5, seconds=2.5, counts=Counter({"faults": 3})))
    figures.save(tmp_path / "state")
    resumed = Figures.load(tmp_path / "state", 7)
    assert resumed.text(wanted) == figures.text(wanted)
    assert "NOT DONE: drivers: 0 of 10" in resumed.text(wanted)
    resumed.add("drivers", BlockReport(rounds=10))
    assert resumed.passed(wanted)
    assert not resumed.passed({"answers": 50}), "fewer than asked for"
    resumed.add("drivers", BlockReport(problems=[(23, "LOST: row 7")]))
    assert not resumed.passed(wanted)
    assert "drivers 23: LOST: row 7\n  again: scripts/spark-trial --seed 7 --only drivers:23" in resumed.text(wanted)
    assert again(7, "drivers", 23) in resumed.text(wanted)
    with pytest.raises(ValueError, match="seed 7"):
        Figures.load(tmp_path / "state", 8)


def test_what_never_happened_in_the_long_form_is_no_proof() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "answers")
    figures, wanted = Figures(1), {"answers": kind.long}
    figures.add("answers", BlockReport(rounds=kind.long, counts=Counter(dict.fromkeys(kind.wanted[1:], 1))))
    assert figures.missing(wanted) == [f"answers: {kind.wanted[0]}"]
    assert not figures.passed(wanted)
    figures.add("answers", BlockReport(counts=Counter({kind.wanted[0]: 1})))
    assert figures.passed(wanted)
