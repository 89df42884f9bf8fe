# SPDX-License-Identifier: Apache-2.0
"""Rounds in which ZooKeeper's answer to one write is lost. A proxy cuts the connection before or after the write.

The rounds take the steps of a publish in turn: a ledger's record, its end, a page of the log, the head's
compare-and-set. A job that gives up raises an error. Then it is run again with the same transaction, as its user would,
until it is done.
"""

from __future__ import annotations

from tests.trials.spark.checker import Outcome, Write
from tests.trials.spark.rig import BlockReport, Rig, Space, tagged
from tests.trials.spark.steps import STEPS

TRIES_MAX = 4
PAGE_JOBS_MAX = 24
"""The maximum number of jobs before a head needs a page for their extents."""


class AnswerRounds:
    """Rounds with lost answers, and with lost requests."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "answers", "ZooKeeper's answers lost", long, 10
        self.wanted = tuple(f"{step} {end}" for step in STEPS for end in ("answer lost", "request lost"))

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        with rig.workspace(self.name) as space:
            log, writes = space.log("jobs"), list[Write]()
            for number in range(first, first + count):
                step = list(STEPS)[number % len(STEPS)]
                applied = number // len(STEPS) % 2 == 0
                self._round(space, report, number, (step, applied, log), writes)
                report.broken(number, space.check(log, writes))
                report.rounds += 1
            report.broken(first, space.check_without_orphans(log, writes))
        return report

    def _round(
        self, space: Space, report: BlockReport, number: int, what: tuple[str, bool, str], writes: list[Write]
    ) -> None:
        """Run jobs until the loss has happened. This takes one job, unless a page must be filled."""
        step, applied, log = what
        proxy = space.rig.cluster.zookeeper_answers
        proxy.lose_next_answer(applied=applied, of=STEPS[step])
        for job in range(PAGE_JOBS_MAX):
            tag = f"{number}.{job}"
            self._job(space, report, log, tag, fills_pages=step == "page create")
            writes.append(Write(tagged(tag), Outcome.DONE))
            if not proxy.losses_to_come:
                report.counts[f"{step} {'answer' if applied else 'request'} lost"] += 1
                report.counts["faults"] += 1
                return
        proxy.forget_losses()
        report.broken(number, [f"no {step} in {PAGE_JOBS_MAX} jobs: the round proves nothing"])

    def _job(self, space: Space, report: BlockReport, log: str, tag: str, *, fills_pages: bool) -> None:
        """Run one job until it is done. After a failure, run it again under its transaction. With ``fills_pages`` each
        task makes a ledger, so that the log soon has a page of them."""
        driver, more = space.rig.drivers.get(), {"smallTaskBytes": 0} if fills_pages else {}
        for _ in range(TRIES_MAX):
            txn = {"txnAppId": f"{space.name}-{tag}", "txnVersion": 1}
            space.begin_write(driver, space.plan("none", 0), log, tag, **txn, **more)
            error = driver.answer().get("error")
            report.counts["jobs"] += 1
            if error is None:
                return
            report.counts["jobs that failed and were run again"] += 1
        raise RuntimeError(f"a job failed {TRIES_MAX} times: {error}")
