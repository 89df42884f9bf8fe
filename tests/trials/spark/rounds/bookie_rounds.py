# SPDX-License-Identifier: Apache-2.0
"""Rounds in which a bookie is lost in the middle of a write. The write's tasks wait after their first rows until the
bookie is lost. In every second round they then go on slowly, and writers give the bookie up soon, so that they end with
another ensemble. In the others the remaining ack quorum suffices. Some blocks are jobs and some are micro-batches. The
bookie comes back after the round."""

from __future__ import annotations

import time

from tests.kit.waiting import comes_true
from tests.trials.kit.cluster import Bookie
from tests.trials.spark.checker import Write
from tests.trials.spark.plan import PARTITIONS
from tests.trials.spark.rig import ROWS, BlockReport, Rig, Space, tagged
from tests.trials.spark.rounds.checkpoint_rounds import batches_of

WRITING_S = 120.0
FAULTS = ("SIGKILL", "SIGKILL", "refuse", "cut", "SIGSTOP", "answers stall")
GIVEN_UP = {"bookkeeper.reconnectBudgetMs": 200}
DRIP_S = 0.4
STOPPED_S = 1.5
"""After how many seconds a bookie that only hangs comes back."""


class BookieRounds:
    """Rounds with ensemble changes and lost bookies."""

    def __init__(self, long: int) -> None:
        self.name, self.title, self.long, self.block = "bookies", "a bookie lost during a batch", long, 10
        self.wanted = ("ensemble changes", "jobs", "micro-batches", *(f"bookie {fault}" for fault in set(FAULTS)))

    def run(self, rig: Rig, first: int, count: int) -> BlockReport:
        report = BlockReport()
        with rig.workspace(self.name) as space:
            streams = first // self.block % 2 == 1
            source, sink, writes = space.log("source"), space.log("sink"), list[Write]()
            for number in range(first, first + count):
                writes.append(Write(tagged(f"{number}")))
                if streams:
                    space.feed(source, writes[-1].rows, pieces=2)
                report.broken(number, self._round(space, report, number, source if streams else None, sink))
                report.broken(number, space.check(sink, writes))
                report.rounds += 1
                report.counts["micro-batches" if streams else "jobs"] += 1
            report.counts["ensemble changes"] += space.ensemble_changes(sink)
            report.broken(first, space.check_without_orphans(sink, writes))
        return report

    def _round(self, space: Space, report: BlockReport, number: int, source: str | None, sink: str) -> list[str]:
        """Start the write, disturb a bookie when the write's tasks have begun, and let them go on. Then the bookie
        comes back."""
        driver = space.rig.drivers.get()
        slowly = number % 2 == 0
        first = number if source is None else number - self._batches(space)
        plan = space.plan("pause", first, drip_s=DRIP_S if slowly else 0.0)
        how = GIVEN_UP if slowly else {}
        if source is None:
            space.begin_write(driver, plan, sink, f"{number}", **how)
        else:
            limit = {"maxEntriesPerTrigger": ROWS}
            space.begin_stream(driver, plan, source, sink, checkpoint=space.checkpoint("0"), read=limit, write=how)
        comes_true(lambda: any(space.marks.has(f"writing-{number}-{part}") for part in range(PARTITIONS)), WRITING_S)
        rng = plan.rng(number)
        fault, bookie = rng.choice(FAULTS), rng.choice(space.rig.cluster.bookies)
        harm(bookie, fault)
        report.counts[f"bookie {fault}"] += 1
        report.counts["faults"] += 1
        space.marks.set(f"go-on-{number}")
        if fault in ("SIGSTOP", "answers stall"):
            time.sleep(STOPPED_S)
            bookie.resume()
            bookie.proxy.heal()
        error = driver.answer().get("error")
        space.rig.cluster.heal()
        for each in space.rig.cluster.bookies:
            each.wait_ready()
        return [] if error is None else [f"the write failed: {error[:1500]}"]

    def _batches(self, space: Space) -> int:
        """Return the number of micro-batches that the query has done."""
        return len(batches_of(space.checkpoint("0") / "commits"))


def harm(bookie: Bookie, fault: str) -> None:
    """Begin a fault that :meth:`TrialCluster.heal` ends."""
    if fault == "SIGKILL":
        bookie.kill()
    elif fault == "SIGSTOP":
        bookie.stop()
    elif fault == "refuse":
        bookie.proxy.refuse()
    elif fault == "cut":
        bookie.proxy.cut()
    else:
        bookie.proxy.stall(requests=False, answers=True)
