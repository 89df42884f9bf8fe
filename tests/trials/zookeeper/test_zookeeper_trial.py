# SPDX-License-Identifier: Apache-2.0
"""A few restarts of the trial of ZooKeeper; ``scripts/zookeeper-trial`` makes hundreds."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trials.zookeeper.rounds import Call, Round, RoundReport
from tests.trials.zookeeper.trial import Figures, run_restarts

RESTARTS = 3
"""Killed, stopped, and one after which the server is mute for a while."""


@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.zookeeper
@pytest.mark.timeout(180)
@pytest.mark.rule("M5")
def test_no_call_fails_that_has_time_left_when_zookeeper_is_back(tmp_path: Path) -> None:
    figures = Figures(seed=1)
    run_restarts(figures, RESTARTS, tmp_path, lambda report: None)
    assert figures.problems == []
    assert figures.restarts == RESTARTS
    assert figures.counts["mute for a while when back"] == 1
    assert figures.counts["bookies that lost their session"] == 0
    assert len(figures.calls_s["ledger read, after"]) == RESTARTS


@pytest.mark.parametrize(
    ("call", "is_problem"),
    [
        (Call("read", 90, 104, "lost"), True),  # it had the whole of its deadline left, or more
        (Call("read", 99, 104.5, "lost"), True),
        (Call("read", 99, 103, "lost"), False),  # less than half of it
        (Call("read", 95, 98, "lost"), False),
        (Call("read", 100.1, 100.2, "lost"), True),
        (Call("read", 80, 89, "lost"), True),  # nothing was wrong then
        (Call("read", 99, 120, ""), False),
    ],
)
def test_a_call_fails_for_good_reason_only_while_the_server_is_away(call: Call, is_problem: bool) -> None:
    world: Any = SimpleNamespace(deadline_s=7.0)
    judging = Round(world, None, random.Random(1), 0)  # type: ignore[arg-type]  # judging asks for nothing else
    judging._judge(call, 90.0, 100.0)
    assert bool(judging._report.problems) == is_problem
    assert judging._report.calls_s == ({} if call.error else {"read": [20.0]})


def test_the_figures_of_a_trial_can_be_gone_on_from(tmp_path: Path) -> None:
    figures = Figures(seed=7)
    assert not figures.passed, "nothing was restarted"
    figures.add(RoundReport(0, calls_s={"metadata read, after": [0.5, 1.25]}))
    figures.save(tmp_path / "state")
    again = Figures.load(tmp_path / "state", 7)
    assert (again, again.passed) == (figures, True)
    assert "| metadata read, after | 2 | 0.500 | 0.500 | 1.250 |" in again.text()
    again.problems.append("restart 1: a read failed")
    assert not again.passed
    assert "- restart 1: a read failed" in again.text()
    with pytest.raises(ValueError, match="seed 7"):
        Figures.load(tmp_path / "state", 8)
