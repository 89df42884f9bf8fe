# SPDX-License-Identifier: Apache-2.0
"""The kinds of rounds of the Spark trial, in the order in which they run, each with its number in the long form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.trials.spark.rig import BlockReport, Rig
from tests.trials.spark.rounds.answer_rounds import AnswerRounds
from tests.trials.spark.rounds.bookie_rounds import BookieRounds
from tests.trials.spark.rounds.checkpoint_rounds import CommitFileRounds, OlderCheckpointRounds
from tests.trials.spark.rounds.driver_rounds import DriverRounds
from tests.trials.spark.rounds.leader_rounds import LeaderRounds
from tests.trials.spark.rounds.outage_rounds import OutageRounds
from tests.trials.spark.rounds.read_rounds import ReadRounds
from tests.trials.spark.rounds.speculation_rounds import SpeculationRounds
from tests.trials.spark.rounds.task_rounds import TaskRounds


class Kind(Protocol):
    """Rounds of one kind. ``block`` is the number of rounds that share logs and are repeated together."""

    name: str
    title: str
    long: int
    block: int
    wanted: Sequence[str]
    """The counts that must not be zero after the long form."""

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        """Run ``count`` rounds of one block, from ``first`` on."""


KINDS: tuple[Kind, ...] = (
    TaskRounds("exceptions", "task exceptions", "raise", 200),
    TaskRounds("kills", "Python workers killed", "kill", 200),
    AnswerRounds(50),
    OutageRounds(12),
    CommitFileRounds(50),
    OlderCheckpointRounds(10),
    BookieRounds(100),
    ReadRounds(50),
    LeaderRounds(10),
    DriverRounds(100),
    SpeculationRounds(60),  # a late attempt begins in nine rounds of ten
)
