# SPDX-License-Identifier: Apache-2.0
"""Rounds of a query that follows a log while processes outside Spark lead it. They roll, are killed and are deposed.

Every acked entry must arrive once, in order. The query writes to another log, which must have the same rows.
"""

from __future__ import annotations

import random

from tests.trials.spark.checker import Violation, Write, check_acked
from tests.trials.spark.leaders import Leader
from tests.trials.spark.rig import BlockReport, Rig, Space

LEADERS = 4


class LeaderRounds:
    """Rounds in which a log's leaders change under a stream."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "leaders", "a log's leaders change under a stream", long, 1
        self.wanted = ("leaders", "leaders killed", "leaders deposed", "ledgers")

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        for number in range(first, first + count):
            with rig.workspace(self.name) as space:
                self._round(space, report, number)
            report.rounds += 1
        return report

    def _round(self, space: Space, report: BlockReport, number: int) -> None:
        rng = random.Random(f"{space.rig.seed}/leaders/{number}")
        source, sink, driver = space.log("source"), space.log("sink"), space.rig.drivers.get()
        leaders = [Leader(space, source, "leader-0", 100_000)]
        leaders[0].wait_acked(1)
        plan, limit = space.plan("none", 0), {"maxEntriesPerTrigger": rng.choice((50, 500))}
        space.begin_stream(
            driver, plan, source, sink, checkpoint=space.checkpoint("0"), read=limit, until="the leaders are done"
        )
        try:
            for turn in range(1, LEADERS):
                leaders[-1].wait_acked(rng.randrange(20, 160))
                is_killed = rng.random() < 0.5
                if is_killed:
                    leaders[-1].kill()
                report.counts["leaders killed" if is_killed else "leaders deposed"] += 1
                report.counts["faults"] += 1
                is_last = turn == LEADERS - 1
                leaders.append(Leader(space, source, f"leader-{turn}", 100 if is_last else 100_000))
                leaders[-1].wait_acked(1)
            for leader in leaders:
                leader.wait_ended()
        finally:
            for leader in leaders:
                leader.end()
            space.marks.set("the leaders are done")
        error = driver.answer().get("error")
        report.broken(number, [] if error is None else [f"the query failed: {error[:1500]}"])
        report.counts["leaders"] += LEADERS
        report.counts["ledgers"] += len(space.extents(source))
        report.broken(number, self._judge(space, source, sink, leaders))

    def _judge(self, space: Space, source: str, sink: str, leaders: list[Leader]) -> list[Violation]:
        found = space.rows(source)
        problems: list[Violation] = []
        for leader in leaders:
            own = [row for row in found if row.startswith(f"{leader.tag}:".encode())]
            problems += check_acked(leader.rows(), own)
        return problems + space.check(sink, [Write(found)]) + space.check_without_orphans(sink, [Write(found)])
