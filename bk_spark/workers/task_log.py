# SPDX-License-Identifier: Apache-2.0
"""One log line for each task: what it read or wrote, and how long that took.

With ``spark.sql.pyspark.worker.logging.enabled`` Spark collects the lines of all workers into a table,
``spark.tvf.python_worker_logs()`` (pyspark 4.1 and later). There a slow task shows which ledgers it read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from bk_spark.options.selection import kind_of

if TYPE_CHECKING:
    import pyarrow as pa

    from bk_spark.plan.packing import LedgerRange

logger = logging.getLogger("bk_spark.task")
_ours = logging.getLogger("bk_spark")
if "PYSPARK_SPARK_SESSION_UUID" in os.environ and not _ours.level:  # Spark sets it in workers whose lines it collects
    _ours.setLevel(logging.INFO)  # else ours would have the root logger's level, WARNING; our lines are INFO
RANGES_SHOWN = 3
"""The maximum number of ranges in a log line of a task."""


def reading(line: Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield ``batches``. When they end, also early (``limit``) or by an error, log a line about them."""
    try:
        while (batch := line.timed(batches)) is not None:
            yield batch
        line.ended = "done"
    except Exception as error:
        line.ended = f"failed: {error}"
        raise
    finally:
        line.log()
        if isinstance(batches, Generator):
            batches.close()  # if Spark closed this generator early, stop the reads under way


class Reading:
    """The line about a reading task. The reader adds payload bytes to ``bytes``."""

    def __init__(self, ranges: Sequence[LedgerRange]) -> None:
        self._ranges = ranges
        self._rows = self.bytes = 0
        self._began, self._waited_s = time.monotonic(), 0.0
        self.ended = "stopped early"

    def timed(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        asked = time.monotonic()
        try:
            batch = next(batches, None)
        finally:
            self._waited_s += time.monotonic() - asked
        if batch is not None:
            self._rows += batch.num_rows
        return batch

    def log(self) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        took_s = time.monotonic() - self._began
        logger.info(
            "read %d rows, %d bytes from %s in %d ms, %d ms of it in Spark: %s",
            self._rows,
            self.bytes,
            shown(self._ranges),
            took_s * 1000,
            (took_s - self._waited_s) * 1000,
            self.ended,
        )


class Writing:
    """The batches of a write. As a context manager it logs its line at the end. ``ledgers`` are the written ledgers;
    ``is_held`` means that the task sends entries to the driver."""

    def __init__(self, batches: Iterator[pa.RecordBatch], partition: int, attempt: int) -> None:
        self._batches, self._partition, self._attempt = batches, partition, attempt
        self._rows = self._bytes = 0
        self._began = time.monotonic()
        self.ledgers: Sequence[int] = ()
        self.is_held = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + batch.nbytes
            yield batch

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        ledgers = [f"ledgers {', '.join(map(str, self.ledgers))}"] if self.ledgers else []
        places = [*ledgers, *(["a message to the driver"] if self.is_held else [])]
        logger.info(
            "wrote %d rows, %d bytes into %s in %d ms, partition %d, attempt %d: %s",
            self._rows,
            self._bytes,
            " and ".join(places) or "no ledger",
            (time.monotonic() - self._began) * 1000,
            self._partition,
            self._attempt,
            "done" if error is None else f"failed: {error}",
        )


def shown(ranges: Sequence[LedgerRange]) -> str:
    """Return text about the first few ranges, and how many more there are."""
    first = [f"{one.ledger_id}:{one.first}-{one.last}" for one in ranges[:RANGES_SHOWN]]
    logs = sorted({one.log for one in ranges if one.log is not None})
    more = f" and {len(ranges) - RANGES_SHOWN} more" if len(ranges) > RANGES_SHOWN else ""
    kind = kind_of(logs[0]) if logs else ""
    of = f" of {kind} {logs[0]}" if len(logs) == 1 else f" of {len(logs)} {kind}s" if logs else ""
    return f"ledgers {', '.join(first)}{more}{of}"
