# SPDX-License-Identifier: Apache-2.0
"""The format with a fault: the first attempt of a write's first task is late. Spark's workers import this file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from bk_spark.source import BookKeeperDataSource

BEGUN, ENDED, COMMITTED = "zombie-has-begun", "zombie-has-ended", "committed"
LATE_S = 60.0


def late_source(marks: Path) -> type[BookKeeperDataSource]:
    """``format("bookkeeper_late")``. It leaves files in ``marks`` that tell how far everybody is."""

    class LateSource(BookKeeperDataSource):
        @classmethod
        def name(cls) -> str:
            return "bookkeeper_late"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return LateWriter(super().writer(schema, overwrite), marks)

    return LateSource


class LateWriter(DataSourceArrowWriter):
    """The real writer, whose rows stop coming after the first batch until the job has committed."""

    def __init__(self, writer: Any, marks: Path) -> None:
        self.writer, self.marks = writer, marks

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        message: WriterCommitMessage
        if context.partitionId() or context.attemptNumber():
            if not context.partitionId():
                self._wait_for(BEGUN)  # or it may end before the first one has come to its rows
            message = self.writer.write(iterator)
            return message
        message = self.writer.write(self._late(list(iterator)))
        (self.marks / ENDED).touch()
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.writer.commit(messages)
        (self.marks / COMMITTED).touch()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.writer.abort(messages)

    def _late(self, batches: list[Any]) -> Iterator[Any]:
        yield batches[0]
        (self.marks / BEGUN).touch()
        self._wait_for(COMMITTED)
        yield from batches[1:]

    def _wait_for(self, mark: str) -> None:
        deadline = time.monotonic() + LATE_S
        while not (self.marks / mark).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
