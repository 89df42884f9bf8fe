# SPDX-License-Identifier: Apache-2.0
"""A few rounds of the trial of storage; ``scripts/storage-trial`` runs hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_core.wire.lane.reasons import Reason
from tests.trials.storage.oracle import Oracle, payload_of
from tests.trials.storage.trial import WANTED, Figures, run_rounds

ROUNDS = 4


@pytest.mark.e2e
@pytest.mark.zookeeper
@pytest.mark.timeout(180)
@pytest.mark.rule("S6")
@pytest.mark.rule("MUST2")
@pytest.mark.parametrize("power", [False, True])
def test_a_bookie_that_is_killed_or_loses_power_keeps_its_promises(tmp_path: Path, power: bool) -> None:
    figures = Figures(3, power)
    run_rounds(figures, ROUNDS, tmp_path, lambda so_far: None)
    assert figures.problems == []
    assert figures.rounds == ROUNDS
    assert figures.counts["acked"] > 200 * ROUNDS, "the rounds hardly wrote anything: they prove nothing"
    assert figures.counts["read"] >= figures.counts["acked"]
    never = set(figures.missing) - {"found deleted", "read beside writers"}  # which so few rounds may not come to
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


def test_the_figures_of_a_trial_can_be_gone_on_from(tmp_path: Path) -> None:
    figures = Figures(7, True, rounds=3)
    figures.counts.update(acked=5, lost=0)
    assert not figures.passed, "what never happened is not proven"
    figures.counts.update(WANTED)
    figures.save(tmp_path / "state")
    again = Figures.load(tmp_path / "state", 7, True)
    assert (again, again.passed) == (figures, True)
    again.problems.append("round 3: LOST: entry 1")
    assert not again.passed
    assert "- round 3: LOST: entry 1" in again.text()
    with pytest.raises(ValueError, match="power True"):
        Figures.load(tmp_path / "state", 7, False)
