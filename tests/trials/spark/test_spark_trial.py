# SPDX-License-Identifier: Apache-2.0
"""A few rounds of each kind of the Spark trial; ``scripts/trial spark`` runs hundreds. Late zombies of speculation have
a test of their own, tests/spark/modes/test_speculation.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.amount import thorough
from tests.trials.spark.rig import Rig
from tests.trials.spark.rounds.kinds import KINDS

SEED = 1
HAPPENED = {  # (kind, first round, number of rounds): the counts that must not be zero
    ("exceptions", 0, 1): ("faults", "jobs"),
    ("kills", 10, 2): ("faults", "micro-batches"),
    ("answers", 3, 1): ("head multi answer lost",),
    ("answers", 5, 1): ("ledger close request lost",),
    ("outages", 0, 2): ("away at a commit", "away at planning"),
    ("commit-files", 0, 2): ("batches replayed",),
    ("old-checkpoints", 1, 1): ("other cut: BK_TXN_REPLAY_DIFFERS",),
    ("bookies", 0, 2): ("faults", "jobs"),
    ("reads", 2, 2): ("compaction", "bookie loss", "partitions read twice"),
    ("leaders", 0, 1): ("leaders",),
    ("drivers", 1, 1): ("killed sent",),
}
IN_CI = {("kills", 10, 2), ("answers", 5, 1), ("reads", 2, 2), ("leaders", 0, 1)}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("spark-trial"), SEED) as rig:
        yield rig


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.zookeeper
@pytest.mark.timeout(300)
@pytest.mark.rule("N4", "N5")
@pytest.mark.parametrize(
    "rounds",
    thorough(HAPPENED, HAPPENED.keys() - IN_CI),
    ids=lambda rounds: f"{rounds[0]}-{rounds[1]}",
)
def test_every_row_arrives_once_whatever_fails_around_it(rig: Rig, rounds: tuple[str, int, int]) -> None:
    name, first, count = rounds
    kind = next(kind for kind in KINDS if kind.name == name)
    report = kind.run(rig, first, count)
    assert report.problems == []
    assert report.rounds == count
    assert [what for what in HAPPENED[rounds] if not report.counts[what]] == [], (
        "without these counts the rounds prove nothing"
    )
