# SPDX-License-Identifier: Apache-2.0
"""The rounds of the trial: a producer writes, and meanwhile one thing happens to the topic or to what it runs on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from tests.trials.harness import Figures
from tests.trials.topics.place import PARTITIONS_MAX, Place
from tests.trials.topics.readers import wait_for

KINDS = ("plain", "batched", "lz4")
PER_SECOND = (50, 150, 400)
SIZES = (20, 400, 3000)
STARTED_S = 120.0


class Round:
    """A round of at least ``round_s`` seconds. ``number`` and the place's seed decide all that is random."""

    def __init__(self, place: Place, number: int, round_s: float) -> None:
        self._place, self._number, self._round_s = place, number, round_s
        self._figures = Figures(rounds=1)

    def run(self, what: str) -> Figures:
        """Produce, do ``what``, wait for the readers and judge."""
        place, figures, dice = self._place, self._figures, self._place.dice
        kind, began, rows = dice.choice(KINDS), time.monotonic(), len(place.stream.seen)
        session = place.begin(kind, dice.choice(PER_SECOND), dice.choice(SIZES))
        self._wait(self._round_s * dice.uniform(0.1, 0.3))
        HAPPENINGS[what](self, dice)
        self._wait(self._round_s - (time.monotonic() - began))
        figures.problems += place.end(session)
        acked = time.monotonic()
        figures.problems += place.judge(session)
        figures.times_s["from the last acknowledgement to both readers"] = [time.monotonic() - acked]
        figures.table("what happened")[what] += 1
        figures.table("messages")[kind] += len(session.acked())
        figures.counts["messages"] = len(place.stream.seen) - rows
        figures.note = f"{what}; {figures.counts['messages']:,} messages, {kind}"
        return figures

    def _wait(self, seconds: float) -> None:
        """Let time pass, and judge what comes meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._place.take()
            time.sleep(0.1)

    def nothing(self, dice: random.Random) -> None:
        """Only ledgers roll."""

    def bookie(self, dice: random.Random) -> None:
        """A bookie is killed, and starts again."""
        victim = dice.choice(self._place.cluster.bookies)
        victim.kill()
        self._wait(dice.uniform(0, 4))
        victim.start()
        self._place.cluster.wait_ready([victim])
        self._figures.counts["bookies killed"] = 1

    def broker(self, dice: random.Random) -> None:
        """The broker is killed, and starts again."""
        self._place.broker.kill()
        self._wait(dice.uniform(0, 3))
        self._place.broker.start()
        self._figures.counts["brokers killed"] = 1

    def stop(self, dice: random.Random) -> None:
        """The query is stopped, and goes on from its checkpoint."""
        self._has_begun()
        self._place.stream.stop()
        self._again(dice)
        self._figures.counts["queries stopped"] = 1

    def kill(self, dice: random.Random) -> None:
        """The query's driver is killed, and another one goes on from the checkpoint."""
        self._has_begun()
        if dice.random() < 0.7:
            self._place.stream.wait_for_batch(self._round_s)
        self._place.stream.kill()
        self._again(dice)
        self._figures.counts["queries killed"] = 1

    def _has_begun(self) -> None:
        """The query has begun to read since its last start: else its checkpoint would be old."""
        rows = len(self._place.stream.seen)
        wait_for(lambda: self._place.take() is None and len(self._place.stream.seen) > rows, STARTED_S)

    def _again(self, dice: random.Random) -> None:
        self._wait(dice.uniform(0, 2))
        self._place.take()
        before = self._place.stream.replayed
        self._place.stream.start()
        self._has_begun()
        self._figures.counts["micro-batches replayed"] = self._place.stream.replayed - before

    def partitions(self, dice: random.Random) -> None:
        """The topic gains a partition. The next session's producer knows it."""
        if self._place.partitions < PARTITIONS_MAX:
            self._place.add_partition()
            self._figures.counts["partitions added"] = 1

    def trim(self, dice: random.Random) -> None:
        """Ledgers that both readers have read are trimmed."""
        self._figures.counts["ledgers trimmed"] = self._place.trim()


Happening = Callable[[Round, random.Random], None]
HAPPENINGS: Mapping[str, Happening] = {
    "bookie killed": Round.bookie,
    "partition added": Round.partitions,
    "broker killed": Round.broker,
    "query stopped": Round.stop,
    "trimmed": Round.trim,
    "query killed": Round.kill,
    "nothing": Round.nothing,
}
