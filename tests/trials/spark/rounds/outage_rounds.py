# SPDX-License-Identifier: Apache-2.0
"""Rounds in which ZooKeeper is killed for 30 s under a query or a job: while a micro-batch waits to be committed, while
the next one is planned, or while tasks write. The query or job must go on by itself, and each row must be there
once."""

from __future__ import annotations

from bk_core.errors import BookKeeperError
from tests.kit.waiting import comes_true
from tests.trials.spark.checker import Write
from tests.trials.spark.plan import PARTITIONS
from tests.trials.spark.rig import ROWS, BlockReport, Rig, Space, tagged

OUTAGE_S = 30.0
REACHED_S, BACK_S = 120.0, 30.0
WHERE = ("a commit", "planning", "tasks", "a job's tasks")
STEP = 10
"""The number of micro-batch ids that belong to a round."""


class OutageRounds:
    """Rounds in which ZooKeeper is away for 30 s."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "outages", "ZooKeeper away for 30 s", long, 4
        self.wanted = tuple(f"away at {where}" for where in WHERE)

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        with rig.workspace(self.name) as space:
            for number in range(first, first + count):
                where = WHERE[number % len(WHERE)]
                sink = space.log(f"sink-{number}")
                rows = tagged(f"{number}", ROWS if "job" in where else 2 * ROWS)
                report.broken(number, self._round(space, number, where, sink, rows))
                report.broken(number, space.check_without_orphans(sink, [Write(rows)]))
                report.rounds += 1
                report.counts[f"away at {where}"] += 1
                report.counts["faults"] += 1
        return report

    def _round(self, space: Space, number: int, where: str, sink: str, rows: list[bytes]) -> list[str]:
        """Start the write, kill ZooKeeper where the write has stopped, and let the write go on. ZooKeeper comes back 30
        s later."""
        driver, first = space.rig.drivers.get(), STEP * number
        if "job" in where:
            plan = space.plan("pause", first)
            space.begin_write(driver, plan, sink, f"{number}", metadataTimeout="2m")
        else:
            source, checkpoint = space.log(f"source-{number}"), space.checkpoint(f"{number}")
            space.feed(source, rows, pieces=4)
            held = {"a commit": "before", "planning": "after"}.get(where, "")
            plan = space.plan("none" if held else "pause", first, commit=held, commit_round=first)
            limit: dict[str, object] = {"maxEntriesPerTrigger": ROWS}
            space.begin_stream(driver, plan, source, sink, checkpoint=checkpoint, read=limit)
        reached = [f"held-{first}-0", *(f"writing-{first}-{part}" for part in range(PARTITIONS))]
        if not comes_true(lambda: any(space.marks.has(mark) for mark in reached), REACHED_S):
            raise RuntimeError("the write did not come to where it was to stop")
        cluster = space.rig.cluster
        cluster.zookeepers.kill_all()
        for batch in range(STEP):
            space.marks.set(f"go-on-{first + batch}")
        # the driver must not answer, because nothing can be published meanwhile
        comes_true(lambda: driver.has_answered, OUTAGE_S)
        early = driver.has_answered
        cluster.zookeepers.launch_all()
        error = driver.answer().get("error")
        if not comes_true(lambda: self._is_back(space), BACK_S):
            raise RuntimeError("ZooKeeper is not back")
        if error is not None:
            return [f"the write failed{' during the outage' if early else ''}: {error[:1500]}"]
        return ["the write ended while ZooKeeper was away: the round proves nothing"] if early else []

    def _is_back(self, space: Space) -> bool:
        try:
            return len(space.rig.client.store.writable_bookies()) == len(space.rig.cluster.bookies)
        except BookKeeperError:
            return False
