# SPDX-License-Identifier: Apache-2.0
"""Decides what goes wrong in which task. This is a pure function of seed, kind and round, and Spark's workers call it.

A plan travels as one option of the trial's data source (:mod:`tests.trials.spark.source`). A round is one write: a job,
or one micro-batch of a streaming query. The round of a micro-batch is the first round of its query plus the batch's id.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass

PARTITIONS = 4
"""The number of tasks of each write."""
FAILURES_MAX = 8
"""How often Spark tries a task with ``local[2,8]``."""
BATCHES_MAX = 4
"""About how many batches of rows each task gets."""

RAISE_AT = ("begin", "row", "row", "end", "closed")
KILL_AT = ("begin", "row", "row", "end", "closing", "closed", "sent")
"""The moments of a kill: before the first row, after a batch, after the last one, while the ledger is closed, and
before and after the task sends its message."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The end of one attempt: ``delay_s`` seconds after ``after`` batches of rows."""

    point: str
    after: int
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The faults of a write. ``kind`` is "raise", "kill", "late", "pause", "none" or "driver". ``run`` counts the tries
    of the same write from 0. ``commit`` says whether a commit stops "before" or "after" the publish until it is
    released, and ``commit_round`` in which round. ``drip_s`` is how long a task of a "pause" waits after each later
    batch."""

    kind: str = "none"
    seed: int = 1
    first_round: int = 0
    marks: str = ""
    run: int = 0
    commit: str = ""
    commit_round: int = -1
    drip_s: float = 0.0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        return cls(**json.loads(text)) if text else cls()

    def rng(self, number: int) -> random.Random:
        """Return the source of a round's random choices."""
        return random.Random(f"{self.seed}/{self.kind}/{number}")

    def small_task_bytes(self) -> str:
        """Return the option ``smallTaskBytes``. The tasks have few rows. In about half of the writes the rows go to the
        driver in messages. In the others, and in all whose bookies are disturbed, each task makes a ledger."""
        is_held = random.Random(f"{self.seed}/small/{self.kind}/{self.first_round}").random() < 0.5
        return "32k" if is_held and self.kind != "pause" else "0"

    def is_doomed(self, number: int) -> bool:
        """Return whether all attempts of a task fail in the first run of the round, so that the write fails."""
        return self.kind == "raise" and self.run == 0 and self.rng(number).random() < 0.08

    def fault(self, number: int, partition: int, attempt: int) -> Fault | None:
        """Return how the attempt of a task ends in this round, or None if the attempt is not disturbed."""
        if self.kind not in ("raise", "kill"):
            return None
        rng = self.rng(number)
        doomed = rng.random() < 0.08 and self.is_doomed(number)
        victims = rng.sample(range(PARTITIONS), rng.choice((1, 1, 2)))
        failing = {victim: rng.choice((1, 1, 1, 2)) for victim in victims}
        if doomed:
            failing[victims[0]] = FAILURES_MAX
        if attempt >= failing.get(partition, 0):
            return None
        own = random.Random(f"{self.seed}/{self.kind}/{number}/{partition}/{attempt}")
        point = own.choice(RAISE_AT if self.kind == "raise" else KILL_AT)
        return Fault(point, own.randrange(1, BATCHES_MAX), own.choice((0.0, 0.005, 0.02, 0.05)) * own.random())

    def late_s(self, number: int) -> float:
        """Return how many seconds after the commit the late attempt of a round goes on."""
        return self.rng(number).choice((0.0, 0.2, 1.0, 3.0))
