# SPDX-License-Identifier: Apache-2.0
"""A few restarts of the trial of ZooKeeper; ``scripts/trial zookeeper`` makes hundreds."""

from __future__ import annotations

import random
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trials.harness import Figures
from tests.trials.zookeeper.rounds import Call, Round
from tests.trials.zookeeper.trial import ZooKeeperTrial

RESTARTS = 3
"""A restart after a kill, one after a stop, and one after which the server is mute for a while."""


@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.zookeeper
@pytest.mark.timeout(180)
@pytest.mark.rule("M5")
def test_no_call_fails_that_has_time_left_when_zookeeper_is_back(tmp_path: Path) -> None:
    trial, figures = ZooKeeperTrial(Namespace(seed=1, rounds=RESTARTS)), Figures()
    with trial.world(tmp_path / "world", figures) as world:
        for number in range(RESTARTS):
            figures.add(world.round(number))
        figures.add(world.finish())
    assert figures.problems == []
    assert figures.counts["mute for a while when back"] == 1
    assert figures.counts["bookies that lost their session"] == 0
    assert len(figures.times_s["ledger read, after"]) == RESTARTS


@pytest.mark.parametrize(
    ("call", "is_problem"),
    [
        (Call("read", 90, 104, "lost"), True),  # over half of its deadline passed with the server back
        (Call("read", 99, 104.5, "lost"), True),
        (Call("read", 99, 103, "lost"), False),  # less than half of it passed
        (Call("read", 95, 98, "lost"), False),
        (Call("read", 100.1, 100.2, "lost"), True),
        (Call("read", 80, 89, "lost"), True),  # the server was not away yet
        (Call("read", 99, 120, ""), False),
    ],
)
def test_a_call_fails_for_good_reason_only_while_the_server_is_away(call: Call, is_problem: bool) -> None:
    world: Any = SimpleNamespace(deadline_s=7.0)
    judging = Round(world, None, random.Random(1), 0)  # type: ignore[arg-type]  # judging asks for nothing else
    judging._judge(call, 90.0, 100.0)
    assert bool(judging._report.problems) == is_problem
    assert judging._report.times_s == ({} if call.error else {"read": [20.0]})
