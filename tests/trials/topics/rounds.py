# SPDX-License-Identifier: Apache-2.0
"""The rounds of the trial. In each a producer writes, and meanwhile one thing happens to the topic or its processes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from tests.kit.waiting import comes_true
from tests.trials.harness import Figures
from tests.trials.topics.place import ASK_S, PARTITIONS_MAX, Place

KINDS = ("plain", "batched", "lz4")
PER_SECOND = (50, 150, 400)
SIZES = (20, 400, 3000)
STARTED_S = 120.0


class Round:
    """A round of at least ``round_s`` seconds. All random choices follow from ``seed`` and ``number``."""

    def __init__(self, place: Place, seed: int, number: int, round_s: float) -> None:
        self._place, self._dice, self._round_s = place, random.Random(f"{seed}/{number}"), round_s
        self._figures = Figures(rounds=1)

    def run(self, what: str) -> Figures:
        """Produce, do ``what``, wait for the readers and judge."""
        place, figures, dice = self._place, self._figures, self._dice
        kind, began, rows = dice.choice(KINDS), time.monotonic(), len(place.stream.seen)
        session = place.begin(kind, dice.choice(PER_SECOND), dice.choice(SIZES))
        self._wait(self._round_s * dice.uniform(0.1, 0.3))
        HAPPENINGS[what](self)
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
        """Let time pass, and judge the rows that come meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._place.take()
            time.sleep(0.1)

    def nothing(self) -> None:
        """Do nothing. Only ledgers roll."""

    def bookie(self) -> None:
        """Kill a bookie, and start it again."""
        victim = self._dice.choice(self._place.cluster.bookies)
        victim.kill()
        self._wait(self._dice.uniform(0, 4))
        victim.start()
        self._place.cluster.wait_ready([victim])
        self._figures.counts["bookies killed"] = 1

    def broker(self) -> None:
        """Kill the broker, and start it again."""
        self._place.broker.kill()
        self._wait(self._dice.uniform(0, 3))
        self._place.broker.start()
        self._figures.counts["brokers killed"] = 1

    def stop(self) -> None:
        """Stop the query, and let it continue from its checkpoint."""
        self._has_begun()
        self._place.stream.stop()
        self._again()
        self._figures.counts["queries stopped"] = 1

    def kill(self) -> None:
        """Kill the query's driver, and let another one continue from the checkpoint."""
        self._has_begun()
        if self._dice.random() < 0.7:
            self._place.stream.wait_for_batch(self._round_s)
        self._place.stream.kill()
        self._again()
        self._figures.counts["queries killed"] = 1

    def _has_begun(self) -> None:
        """Wait until the query has read something since its last start, so that its checkpoint is not old."""
        rows = len(self._place.stream.seen)

        def has_more() -> bool:
            self._place.take()
            return len(self._place.stream.seen) > rows

        comes_true(has_more, STARTED_S, ASK_S)

    def _again(self) -> None:
        self._wait(self._dice.uniform(0, 2))
        self._place.take()
        before = self._place.stream.replayed
        self._place.stream.start()
        self._has_begun()
        self._figures.counts["micro-batches replayed"] = self._place.stream.replayed - before

    def partitions(self) -> None:
        """Add a partition to the topic. The producer of the next session uses it."""
        if self._place.partitions < PARTITIONS_MAX:
            self._place.add_partition()
            self._figures.counts["partitions added"] = 1

    def trim(self) -> None:
        """Trim ledgers that both readers have read."""
        self._figures.counts["ledgers trimmed"] = self._place.trim()


Happening = Callable[[Round], None]
HAPPENINGS: Mapping[str, Happening] = {
    "bookie killed": Round.bookie,
    "partition added": Round.partitions,
    "broker killed": Round.broker,
    "query stopped": Round.stop,
    "trimmed": Round.trim,
    "query killed": Round.kill,
    "nothing": Round.nothing,
}
