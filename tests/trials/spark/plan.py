# SPDX-License-Identifier: Apache-2.0
"""What is to go wrong in which task: a pure function of seed, kind and round, asked in Spark's workers.

A plan travels as one option of the trial's data source (:mod:`tests.trials.spark.source`). A round is one write: a job,
or one micro-batch of a streaming query, whose round is the first of its query plus the batch's id.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass

PARTITIONS = 4
"""Tasks of each write."""
FAILURES_MAX = 8
"""``local[2,8]``: so often Spark tries a task."""
BATCHES_MAX = 4
"""About so many batches of rows come to each task."""

RAISE_AT = ("begin", "row", "row", "end", "closed")
KILL_AT = ("begin", "row", "row", "end", "closing", "closed", "sent")
"""Before the first row; after a batch; after the last; while the ledger is closed; before and after its message."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One attempt's end. ``after`` batches of rows, ``delay_s`` later."""

    point: str
    after: int
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a write is to suffer. ``kind``: "raise", "kill", "late", "pause", "none" or "driver"; ``run``: which try of
    the same write it is, from 0; ``commit``: where ``commit`` stops for ever, "before" or "after" the publish, and in
    which round; ``drip_s``: how long a task waits after each batch that comes when the harm of a "pause" is done."""

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
        """The chances of a round."""
        return random.Random(f"{self.seed}/{self.kind}/{number}")

    def small_task_bytes(self) -> str:
        """The tasks' rows are few. In about half of the writes they go to the driver in messages; in the others, and in
        all whose bookies are disturbed meanwhile, each task makes a ledger."""
        is_held = random.Random(f"{self.seed}/small/{self.kind}/{self.first_round}").random() < 0.5
        return "32k" if is_held and self.kind != "pause" else "0"

    def is_doomed(self, number: int) -> bool:
        """Whether all attempts of a task fail in the first run of the round, so that the write fails."""
        return self.kind == "raise" and self.run == 0 and self.rng(number).random() < 0.08

    def fault(self, number: int, partition: int, attempt: int) -> Fault | None:
        """How the attempt of a task ends in this round; None: nothing is in its way."""
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
        """How long after the commit the late attempt of a round goes on."""
        return self.rng(number).choice((0.0, 0.2, 1.0, 3.0))
