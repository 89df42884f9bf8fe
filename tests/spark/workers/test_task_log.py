# SPDX-License-Identifier: Apache-2.0
"""The one line that each task logs: what it read or wrote, also when it stops early or fails."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from bk_spark.plan.packing import LedgerRange
from bk_spark.workers import task_log

RANGES = [LedgerRange(ledger_id=i, first=0, last=9, bytes=100, log="events") for i in range(3, 8)]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="bk_spark.task"):
        yield caplog


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for _ in range(count):
        yield pa.record_batch({"n": pa.array([1, 2], pa.int64())})


def test_a_read_says_what_it_read_and_how_it_ended(logged: pytest.LogCaptureFixture) -> None:
    reading = task_log.Reading(RANGES)
    reading.bytes = 48
    assert len(list(task_log.reading(reading, batches(3)))) == 3
    (line,) = logged.messages
    assert line.startswith("read 6 rows, 48 bytes from ledgers 3:0-9, 4:0-9, 5:0-9 and 2 more of log events in ")
    assert line.endswith(": done")


def test_a_read_that_spark_stops_early_ends_what_is_under_way(logged: pytest.LogCaptureFixture) -> None:
    closed = []

    def source() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches(3)
        finally:
            closed.append(True)

    under_way = source()
    rows = task_log.reading(task_log.Reading(RANGES), under_way)
    next(rows)
    rows.close()
    assert closed == [True]
    assert [line.rsplit(": ", 1)[1] for line in logged.messages] == ["stopped early"]


def test_a_read_that_fails_says_why(logged: pytest.LogCaptureFixture) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield from batches(1)
        raise ValueError("no such entry")

    with pytest.raises(ValueError, match="no such entry"):
        list(task_log.reading(task_log.Reading(RANGES[:1]), source()))
    assert [line.rsplit("Spark: ", 1)[1] for line in logged.messages] == ["failed: no such entry"]


def test_a_write_says_what_it_wrote_into_which_ledgers(logged: pytest.LogCaptureFixture) -> None:
    with task_log.Writing(batches(2), partition=4, attempt=1) as rows:
        assert sum(batch.num_rows for batch in rows) == 4
        rows.ledgers = [17]

    def fail() -> None:
        with task_log.Writing(batches(2), partition=0, attempt=0) as rows:
            next(iter(rows))
            raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        fail()
    done, failed = logged.messages
    assert done.startswith("wrote 4 rows, 32 bytes into ledgers 17 in ")
    assert done.endswith("partition 4, attempt 1: done")
    assert failed.startswith("wrote 2 rows, 16 bytes into no ledger in ")
    assert failed.endswith("attempt 0: failed: too large")


@pytest.mark.parametrize(("collected", "level"), [(True, logging.INFO), (False, logging.WARNING)])
def test_lines_are_written_where_spark_collects_them_and_nowhere_else(collected: bool, level: int) -> None:
    code = "from bk_spark.workers.task_log import logger; print(logger.getEffectiveLevel())"
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_SPARK_SESSION_UUID"}
    if collected:
        environment["PYSPARK_SPARK_SESSION_UUID"] = "x"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) == level
