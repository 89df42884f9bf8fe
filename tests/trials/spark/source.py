# SPDX-License-Identifier: Apache-2.0
"""``format("bookkeeper_trial")``: the product's own data source, with the faults of a plan in its tasks and commits.

Spark's workers import this file. The product has no code for it: rows are held up, attempts killed and commits stopped
around calls of the product, never inside a call.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from bk_spark.source import BookKeeperDataSource
from tests.trials.spark.marks import Marks
from tests.trials.spark.plan import Fault, Plan

FORMAT = "bookkeeper_trial"
OPTION = "trial"
HELD_S = 120.0
"""For how many seconds a held commit or task waits until it is released or killed."""
BATCH_ID = "streaming.sql.batchId"

Messages = Sequence[WriterCommitMessage | None]


class TrialFaultError(RuntimeError):
    """The exception with which a plan ends a task."""


class TrialSource(BookKeeperDataSource):
    """The data source with faults."""

    def __init__(self, options: Any) -> None:
        without = options.copy()
        self.plan = Plan.of(without.pop(OPTION, ""))
        super().__init__(without)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return TrialWriter(super().writer(schema, overwrite), self.plan)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return TrialStreamWriter(super().streamWriter(schema, overwrite), self.plan)


class TrialWriter(DataSourceArrowWriter):
    """The writer of a job."""

    def __init__(self, writer: Any, plan: Plan) -> None:
        self.writer, self.plan = writer, plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_task(self.writer, self.plan, self.plan.first_round, iterator)

    def commit(self, messages: Messages) -> None:
        held = HeldCommit(self.plan, self.plan.first_round)
        held.before()
        self.writer.commit(messages)
        held.after()

    def abort(self, messages: Messages) -> None:
        self.writer.abort(messages)


class TrialStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a micro-batch."""

    def __init__(self, writer: Any, plan: Plan) -> None:
        self.writer, self.plan = writer, plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty(BATCH_ID))
        return write_task(self.writer, self.plan, self.plan.first_round + batch, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        held = HeldCommit(self.plan, self.plan.first_round + batchId)
        held.before()
        self.writer.commit(messages, batchId)
        held.after()

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.writer.abort(messages, batchId)


class HeldCommit:
    """A commit that stops where the plan says, until it is released or its process is killed."""

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan, self._number, self._marks = plan, number, Marks(plan.marks)

    def before(self) -> None:
        if self._plan.marks:
            self._marks.set(f"commit-{self._number}-{self._plan.run}")
        self._hold("before")

    def after(self) -> None:
        if self._plan.marks:
            self._marks.set(f"committed-{self._number}")
        self._hold("after")

    def _hold(self, where: str) -> None:
        if (self._plan.commit, self._plan.commit_round) == (where, self._number):
            self._marks.set(f"held-{self._number}-{self._plan.run}")
            self._marks.wait(f"go-on-{self._number}", HELD_S)


def write_task(writer: Any, plan: Plan, number: int, iterator: Iterator[Any]) -> WriterCommitMessage:
    """Run one attempt of a task in round ``number``, and end it as planned."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition, attempt = context.partitionId(), context.attemptNumber()
    task = f"{number} {partition} {attempt} {plan.run}"
    if plan.kind == "late" and (partition, attempt) == (number % 2, 0):
        return _late(writer, plan, number, task, iterator)
    if plan.kind == "pause":
        return _message(writer.write(_paused(plan, number, partition, iterator)))
    if plan.marks:
        Marks(plan.marks).set(f"writing-{number}-{plan.run}")
    fault = plan.fault(number, partition, attempt)
    if fault is None:
        return _message(writer.write(iterator))
    strike = Strike(plan, fault, task)
    strike.at("begin")
    message = _message(writer.write(strike.rows(iterator)))
    strike.at("closed")
    strike.at("sent")
    return message


def _message(message: WriterCommitMessage) -> WriterCommitMessage:
    return message


class Strike:
    """Ends one attempt, by an exception or by SIGKILL of this worker."""

    def __init__(self, plan: Plan, fault: Fault, task: str) -> None:
        self._plan, self._fault, self._task = plan, fault, task

    def at(self, point: str) -> None:
        """End the attempt if the plan says so for this point."""
        if self._fault.point != point:
            return
        Marks(self._plan.marks).note(f"{self._plan.kind} {point} {self._task}")
        if point in ("closing", "sent"):  # the attempt goes on until it is killed
            threading.Thread(target=self._kill, daemon=True).start()
            return
        if self._plan.kind == "raise":
            raise TrialFaultError(f"planned: {point}, task {self._task}")
        self._kill()

    def rows(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows until the planned end."""
        for number, batch in enumerate(iterator, 1):
            yield batch
            if self._fault.after == number:
                self.at("row")
        self.at("row")  # there were fewer batches
        self.at("end")
        self.at("closing")

    def _kill(self) -> None:
        time.sleep(self._fault.delay_s)
        os.kill(os.getpid(), signal.SIGKILL)


def _late(writer: Any, plan: Plan, number: int, task: str, iterator: Iterator[Any]) -> WriterCommitMessage:
    """Run a late attempt. Its rows after the first batch come only when another attempt's job has been committed, or
    later."""
    marks, batches = Marks(plan.marks), list(iterator)

    def rows() -> Iterator[Any]:
        yield from batches[:1]
        marks.set(f"late-begun-{number}")
        marks.wait(f"committed-{number}", HELD_S)
        time.sleep(plan.late_s(number))
        yield from batches[1:]

    message = _message(writer.write(rows()))
    marks.note(f"late ended {task}")
    return message


def _paused(plan: Plan, number: int, partition: int, iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the first batch, wait until the trial has disturbed a bookie, and yield the rest, perhaps slowly."""
    marks = Marks(plan.marks)
    for count, batch in enumerate(iterator):
        yield batch
        if count == 0:
            marks.set(f"writing-{number}-{partition}")
            marks.wait(f"go-on-{number}", HELD_S)
        else:
            time.sleep(plan.drip_s)
