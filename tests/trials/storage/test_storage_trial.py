# SPDX-License-Identifier: Apache-2.0
"""A few rounds of the trial of storage; ``scripts/trial storage`` runs hundreds."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from bk_core.wire.lane.reasons import Reason
from tests.trials.harness import Figures
from tests.trials.storage.oracle import Oracle, payload_of
from tests.trials.storage.trial import BROKEN, StorageTrial

ROUNDS = 4


@pytest.mark.e2e
@pytest.mark.zookeeper
@pytest.mark.timeout(180)
@pytest.mark.rule("S6", "MUST2")
@pytest.mark.parametrize("power", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_bookie_that_is_killed_or_loses_power_keeps_its_promises(tmp_path: Path, power: bool) -> None:
    trial, figures = StorageTrial(Namespace(seed=3, power=power, rounds=ROUNDS)), Figures()
    with trial.world(tmp_path, figures) as world:
        for number in range(ROUNDS):
            figures.add(world.round(number))
    assert figures.problems == []
    assert {name: figures.counts[name] for name in BROKEN} == dict.fromkeys(BROKEN, 0)
    assert figures.counts["acked"] > 200 * ROUNDS, "the rounds hardly wrote anything, so they prove nothing"
    assert figures.counts["read"] >= figures.counts["acked"]
    # Few rounds may not reach these two.
    never = set(trial.missing(figures)) - {
        "found deleted",
        "read beside writers",
    }
    assert never == set()
    assert figures.counts["kills"] >= ROUNDS


def test_the_oracle_knows_a_loss_from_a_doubt() -> None:
    oracle = Oracle()
    one = oracle.of(1)
    one.acked, one.maybe, one.next_id = {0, 1}, {2, 3}, 4
    payloads = {k: payload_of(1, k) for k in range(5)}
    oracle.answered(1, {k: payloads[k] for k in (0, 1, 2)}, {3}, set(), settle=True)
    assert oracle.problems == []
    assert (one.acked, one.denied) == ({0, 1, 2}, {3})
    oracle.answered(1, {k: payloads[k] for k in (0, 1, 3)}, {2}, set(), settle=True)
    assert (oracle.counts["lost"], oracle.counts["resurrected"]) == (1, 1)
    oracle.answered(1, {**{k: payloads[k] for k in (0, 1, 2)}, 4: payloads[4]}, set(), {3}, settle=True)
    assert (oracle.counts["changed"], oracle.counts["unknown"]) == (2, 1)
    oracle.refused(1, Reason.DELETED)
    assert oracle.counts["lost"] == 2
    one.hinted = True
    oracle.refused(1, Reason.DELETED)
    oracle.answered(1, {}, set(), set(), settle=True)
    assert oracle.counts["resurrected"] == 2
