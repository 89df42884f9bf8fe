# SPDX-License-Identifier: Apache-2.0
"""A few rounds of the trial; ``scripts/trial bookie`` runs hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.amount import some
from tests.sim.history import Broken, check_ledger
from tests.trials.bookie.journal import Journal, digest, payload, read_journals
from tests.trials.bookie.rounds import Round
from tests.trials.harness import Figures
from tests.trials.kit.cluster import TrialCluster

SEED = 4


@pytest.mark.e2e
@pytest.mark.zookeeper
@pytest.mark.timeout(180)
@pytest.mark.rule("MUST2", "P7", "L7")
@pytest.mark.parametrize(("rounds", "secure"), [(some(6, 3), False), (some(3, 2), True)], ids=["open", "secure"])
def test_no_promise_is_broken_by_faults_of_real_processes(tmp_path: Path, rounds: int, secure: bool) -> None:
    figures = Figures()
    with TrialCluster(tmp_path / "cluster", zookeepers=1 if secure else 3, secure=secure) as cluster:
        assert bool(cluster.client_settings) is secure
        for number in range(rounds):
            report = Round(cluster, tmp_path / f"round-{number}", SEED, number).run()
            assert report.problems == []
            figures.add(report)
    counts = figures.counts
    assert counts["acknowledged"] > 100 * rounds, (
        f"hardly anything was written, so the rounds prove nothing: {dict(counts)}"
    )
    assert counts["read"] > counts["acknowledged"]
    assert figures.table("fault").total() > 2 * rounds


def test_a_journal_tells_what_was_acknowledged_even_in_part(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "writer-0.journal"))
    journal.say("ledger", name="x", ledger=7, shape=[3, 3, 2])
    journal.say("append", number=0, count=3)
    journal.say("given", number=0, entry=0)
    journal.say("confirmed", confirmed=1)
    journal.say("append", number=3, count=1)
    journal.say("refused", number=3, code="BK_WINDOW_FULL")
    journal.say("append", number=4, count=1)  # the process was killed here
    told = read_journals([tmp_path / "writer-0.journal"])
    digests = [digest(payload("x", number)) for number in range(5)]
    assert check_ledger(told.operations[7], digests[:2]) == []
    assert check_ledger(told.operations[7], [*digests[:3], digests[4]]) == []
    broken = {ids: check_ledger(told.operations[7], [digests[each] for each in ids]) for ids in ((0,), (0, 1, 3))}
    assert [violation.broken for violation in broken[0,]] == [Broken.LOST]
    assert [violation.broken for violation in broken[0, 1, 3]] == [Broken.REFUSED_PRESENT]
