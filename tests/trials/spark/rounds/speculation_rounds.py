# SPDX-License-Identifier: Apache-2.0
"""Rounds with speculation: the first attempt of a task is late, another host runs it again, the job is committed, and
then the late attempt ends too. The cluster is a standalone one with two workers on 127.0.0.2 and 127.0.0.3."""

from __future__ import annotations

import contextlib

from tests.kit.waiting import comes_true
from tests.spark.modes.servers import standalone_cluster
from tests.trials.spark.checker import Write
from tests.trials.spark.drivers import SparkDriver
from tests.trials.spark.rig import ROWS, BlockReport, Rig, Space, tagged

CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.task.maxFailures": "4",
    "spark.python.task.killTimeout": "60s",  # an attempt that loses is late, and not killed while it writes
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.quantile": "0.5",
}
ZOMBIES_S = 120.0


class SpeculationRounds:
    """Rounds that each have a late attempt, a zombie."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "speculation", "speculation with a late zombie", long, 25
        self.wanted = ("zombies that ended late", "jobs", "micro-batches")

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        with rig.workspace(self.name) as space, contextlib.ExitStack() as stack:
            servers = space.path / "servers"
            servers.mkdir(parents=True)
            master = stack.enter_context(standalone_cluster(servers))
            driver = SparkDriver(space.path / "driver", 0, master, CONF)
            stack.callback(driver.close)
            jobs = (count + 1) // 2
            self._jobs(space, report, driver, first, jobs)
            if count > jobs:
                self._stream(space, report, driver, first + jobs, count - jobs)
            self._judge_at_the_end(space, report, first, count, jobs)
        report.counts["faults"] = report.counts["zombies that began"]
        return report

    def _jobs(self, space: Space, report: BlockReport, driver: SparkDriver, first: int, count: int) -> None:
        log, writes = space.log("jobs"), list[Write]()
        for number in range(first, first + count):
            space.begin_write(driver, space.plan("late", number), log, f"{number}")
            error = driver.answer().get("error")
            writes.append(Write(tagged(f"{number}")))
            report.broken(number, [] if error is None else [f"the job failed: {error[:1500]}"])
            report.broken(number, space.check(log, writes))
            report.rounds += 1
            report.counts["jobs"] += 1

    def _stream(self, space: Space, report: BlockReport, driver: SparkDriver, first: int, count: int) -> None:
        source, sink = space.log("source"), space.log("sink")
        rows = tagged(f"{first}", ROWS * count)
        space.feed(source, rows, pieces=3)
        limit = {"maxEntriesPerTrigger": ROWS}
        plan = space.plan("late", first)
        space.begin_stream(driver, plan, source, sink, checkpoint=space.checkpoint("0"), read=limit)
        error = driver.answer().get("error")
        report.broken(first, [] if error is None else [f"the query failed: {error[:1500]}"])
        report.broken(first, space.check(sink, [Write(rows)]))
        report.rounds += count
        report.counts["micro-batches"] += count

    def _judge_at_the_end(self, space: Space, report: BlockReport, first: int, count: int, jobs: int) -> None:
        """Wait until the last zombie has ended. Then nothing may have changed, and a vacuum may delete only ledgers
        that no reader sees."""
        begun = sum(space.marks.has(f"late-begun-{number}") for number in range(first, first + count))
        comes_true(lambda: len(space.marks.notes()) >= begun, ZOMBIES_S)
        ended = len(space.marks.notes())
        report.counts["zombies that began"] += begun
        report.counts["zombies that ended late"] += ended
        if not begun:
            report.broken(first, ["no task was late: these rounds prove nothing"])
        writes = [Write(tagged(f"{number}")) for number in range(first, first + jobs)]
        report.broken(first, space.check_without_orphans(space.log("jobs"), writes))
        if count > jobs:
            rows = tagged(f"{first + jobs}", ROWS * (count - jobs))
            report.broken(first + jobs, space.check_without_orphans(space.log("sink"), [Write(rows)]))
