# SPDX-License-Identifier: Apache-2.0
"""Rounds in which the whole driver is killed around a publish, and another one goes on from the checkpoint.

The kill comes, in turn: before the compare-and-set; when it is under way or done and its answer has not come; when it
is answered, but Spark has not noted the batch; and again in the restart after one of these. Most rounds are
micro-batches of a query that copies a log. Every fourth round is a job with a transaction, which its user runs again.
"""

from __future__ import annotations

import random
import time

from tests.kit.waiting import comes_true
from tests.kit.zookeeper_proxy import Stop
from tests.trials.spark.checker import Write
from tests.trials.spark.drivers import SparkDriver
from tests.trials.spark.rig import ROWS, BlockReport, Rig, Space, tagged
from tests.trials.spark.rounds.checkpoint_rounds import batches_of
from tests.trials.spark.steps import head_multi_of

POINTS = ("before", "sent", "answered", "restart")
REACHED_S = 240.0


class DriverRounds:
    """Rounds in which the driver is killed."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "drivers", "drivers killed", long, 20
        self.wanted = (*(f"killed {point}" for point in POINTS), "late compare-and-sets", "jobs", "micro-batches")

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        with rig.workspace(self.name) as space:
            rows: list[bytes] = []
            jobs: list[Write] = []
            for number in range(first, first + count):
                self._round(space, report, number, rows, jobs, is_last=number == first + count - 1)
                report.rounds += 1
                rig.spares.reap()
            report.broken(first, space.check_without_orphans(space.log("sink"), [Write(rows)]))
            if jobs:
                report.broken(first, space.check_without_orphans(space.log("jobs"), jobs))
        return report

    def _round(
        self, space: Space, report: BlockReport, number: int, rows: list[bytes], jobs: list[Write], *, is_last: bool
    ) -> None:
        rng = random.Random(f"{space.rig.seed}/drivers/{number}")
        is_job = number // len(POINTS) % 4 == 3
        work = Job(space, number) if is_job else Copying(space, number)
        log = work.prepare()
        kill = Kill(space, report, number, rng)
        kill.run(work, log, is_last)
        if is_job:
            jobs.append(Write(work.rows))
        else:
            rows += work.rows
        report.counts["jobs" if is_job else "micro-batches"] += 1
        report.broken(number, space.check(log, jobs if is_job else [Write(rows)]))


class Copying:
    """A micro-batch of the block's query."""

    def __init__(self, space: Space, number: int) -> None:
        self._space, self._number = space, number
        self.rows = tagged(f"{number}")

    def prepare(self) -> str:
        self._space.feed(self._space.log("source"), self.rows, pieces=2)
        return self._space.log("sink")

    def begin(self, driver: SparkDriver, run: int, commit: str) -> None:
        """Copy the rows that there are. ``commit`` says where this round's commit stops."""
        space, number = self._space, self._number
        checkpoint = space.checkpoint("0")
        batches = batches_of(checkpoint / "commits")
        next_batch = batches[-1] + 1 if batches else 0
        plan = space.plan("driver", number - next_batch, run=run, commit=commit, commit_round=number)
        limit = {"maxEntriesPerTrigger": ROWS}
        space.begin_stream(driver, plan, space.log("source"), space.log("sink"), checkpoint=checkpoint, read=limit)


class Job:
    """A job with a transaction."""

    def __init__(self, space: Space, number: int) -> None:
        self._space, self._number = space, number
        self.rows = tagged(f"job-{number}")

    def prepare(self) -> str:
        return self._space.log("jobs")

    def begin(self, driver: SparkDriver, run: int, commit: str) -> None:
        space, number = self._space, self._number
        plan = space.plan("driver", number, run=run, commit=commit, commit_round=number)
        txn = {"txnAppId": space.name, "txnVersion": number}
        space.begin_write(driver, plan, space.log("jobs"), f"job-{number}", **txn)


class Kill:
    """The kills of one round, and the driver that ends the work after them."""

    def __init__(self, space: Space, report: BlockReport, number: int, rng: random.Random) -> None:
        self._space, self._report, self._number, self._rng = space, report, number, rng
        self._run = 0

    def run(self, work: Copying | Job, log: str, is_last: bool) -> None:
        point = POINTS[self._number % len(POINTS)]
        stop = self._kill_at(point if point != "restart" else self._rng.choice(POINTS[:3]), work, log)
        if point == "restart":
            self._kill_in_restart(work)
        self._report.counts[f"killed {point}"] += 1
        self._report.counts["faults"] += 1
        self._finish(work, stop, is_last)

    def _kill_at(self, point: str, work: Copying | Job, log: str) -> Stop | None:
        """Kill a driver at this point. Return the compare-and-set that is under way, if there is one."""
        driver = self._space.rig.spares.get()
        if point == "sent":
            return self._kill_sent(driver, work, log)
        work.begin(driver, self._run, "before" if point == "before" else "after")
        mark = f"held-{self._number}-{self._run}"
        if not self._space.marks.wait(mark, REACHED_S):
            raise RuntimeError(f"the commit was not reached: {driver.log_path.read_text()[-1500:]}")
        driver.kill()
        self._run += 1
        return None

    def _kill_sent(self, driver: SparkDriver, work: Copying | Job, log: str) -> Stop | None:
        """Kill the driver when the compare-and-set is applied and unanswered, or still under way. In the second case it
        arrives when the next driver is about to publish the same."""
        is_late = self._rng.random() < 0.5
        stop = self._space.rig.cluster.zookeeper_answers.stop_next(head_multi_of(log), answered=not is_late)
        work.begin(driver, self._run, "")
        if not stop.reached.wait(REACHED_S):
            raise RuntimeError(f"no compare-and-set was sent: {driver.log_path.read_text()[-1500:]}")
        driver.kill()
        self._run += 1
        if not is_late:
            stop.let_go.set()
            return None
        self._report.counts["late compare-and-sets"] += 1
        return stop

    def _kill_in_restart(self, work: Copying | Job) -> None:
        """Kill the next driver early, in its tasks, or in its commit."""
        driver = self._space.rig.spares.get()
        work.begin(driver, self._run, "")
        mark = self._rng.choice(("", f"writing-{self._number}-{self._run}", f"commit-{self._number}-{self._run}"))
        if mark:
            comes_true(lambda: self._space.marks.has(mark), 20.0)
        time.sleep(self._rng.uniform(0, 0.3 if mark else 2.0))
        driver.kill()
        self._run += 1

    def _finish(self, work: Copying | Job, stop: Stop | None, is_last: bool) -> None:
        """Let a driver that is not killed finish the work."""
        driver = self._space.rig.spares.get(is_last=is_last)
        work.begin(driver, self._run, "")
        if stop is not None:
            mark = f"commit-{self._number}-{self._run}"
            comes_true(lambda: self._space.marks.has(mark) or driver.has_answered, REACHED_S)
            time.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.05, 0.2)) * self._rng.random())
            stop.let_go.set()
        error = driver.answer().get("error")
        if error is not None:
            self._report.broken(self._number, [f"the write could not be ended: {error[:1500]}"])
