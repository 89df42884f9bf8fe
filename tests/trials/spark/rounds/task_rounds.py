# SPDX-License-Identifier: Apache-2.0
"""Rounds in which tasks end too early, by exceptions on random rows, or by SIGKILL of Python workers.

Each round is a job in half of the blocks, and a micro-batch of one streaming query in the others.
:mod:`tests.trials.spark.plan` decides the faults of a round. In some rounds all attempts of a task fail, so that the
write fails and is tried again.
"""

from __future__ import annotations

from collections import Counter

from tests.trials.spark.checker import Outcome, Write
from tests.trials.spark.plan import Plan
from tests.trials.spark.rig import ROWS, BlockReport, Rig, Space, tagged

RUNS_MAX = 12
"""How often a query is started again. It ends with each doomed batch."""


class TaskRounds:
    """Rounds of one of the two kinds. ``verb`` is its name in a plan."""

    def __init__(self, name: str, title: str, verb: str, long: int) -> None:
        self.name, self.title, self._verb, self.long, self.block = name, title, verb, long, 10
        self.wanted: tuple[str, ...]
        self.wanted = (f"{verb} row", f"{verb} end", f"{verb} closed", "jobs", "micro-batches")
        if verb == "kill":
            self.wanted += ("kill closing", "kill sent")
        else:
            self.wanted += ("writes that failed",)

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        with rig.workspace(self.name) as space:
            if first // self.block % 2:
                self._stream(space, report, first, count)
            else:
                self._jobs(space, report, first, count)
            notes = Counter(" ".join(note.split()[:2]) for note in space.marks.notes())
        report.counts += notes
        report.counts["faults"] += notes.total()
        if not notes:
            report.broken(first, ["no task met its fault: these rounds prove nothing"])
        return report

    def _jobs(self, space: Space, report: BlockReport, first: int, count: int) -> None:
        log, driver = space.log("jobs"), space.rig.drivers.get()
        writes: list[Write] = []
        for number in range(first, first + count):
            plan, tag = space.plan(self._verb, number), f"{number}"
            space.begin_write(driver, plan, log, tag)
            error = driver.answer().get("error")
            writes.append(Write(tagged(tag), Outcome.DONE if error is None else Outcome.FAILED))
            if (error is not None) != plan.is_doomed(number):
                report.broken(number, [f"the job should have {'failed' if error is None else f'worked: {error}'}"])
            if error is not None:
                report.counts["writes that failed"] += 1
            report.broken(number, space.check(log, writes))
            report.rounds += 1
            report.counts["jobs"] += 1
        report.broken(first, space.check_without_orphans(log, writes))
        report.counts["rows"] += sum(len(write.rows) for write in writes if write.outcome is Outcome.DONE)

    def _stream(self, space: Space, report: BlockReport, first: int, count: int) -> None:
        source, sink, driver = space.log("source"), space.log("sink"), space.rig.drivers.get()
        rows = tagged(f"{first}", ROWS * count)
        space.feed(source, rows, pieces=3)
        for run in range(RUNS_MAX):
            plan = space.plan(self._verb, first, run=run)
            space.begin_stream(
                driver, plan, source, sink, checkpoint=space.checkpoint("0"), read={"maxEntriesPerTrigger": ROWS}
            )
            answer = driver.answer()
            if "error" not in answer:
                break
            if not self._expected(answer["error"], plan):
                report.broken(first, [f"the query ended: {answer['error'][:1500]}"])
                break
            report.counts["writes that failed"] += 1
        else:
            report.broken(first, ["the query ended again and again"])
        writes = [Write(rows)]
        report.broken(first, space.check(sink, writes) + space.check_without_orphans(sink, writes))
        report.rounds += count
        report.counts["micro-batches"] += count
        report.counts["rows"] += len(rows)

    def _expected(self, error: str, plan: Plan) -> bool:
        return plan.kind == "raise" and plan.run == 0 and "planned: " in error
