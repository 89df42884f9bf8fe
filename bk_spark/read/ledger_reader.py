# SPDX-License-Identifier: Apache-2.0
"""Batch reads: the driver plans and tasks read, in columns throughout. A retried task starts afresh, and Spark drops
the rows of the failed attempt. Within a task nothing is read twice."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from bk_core import __version__
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch
from bk_core.errors import IntegrityError, InvalidArgumentError, NoSuchLedgerError
from bk_core.observe import traces
from bk_spark import codecs, compat
from bk_spark.errors import package_mismatch
from bk_spark.options.options import BkOptions
from bk_spark.plan import resolve
from bk_spark.plan.packing import LedgerRange
from bk_spark.plan.resolve import log_schemas
from bk_spark.plan.resolved import warn_of_lost
from bk_spark.read import tasks
from bk_spark.read.task_plan import TaskPlan
from bk_spark.workers import clients, task_log, worker_reuse

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.client.reading.read_ahead import WantedRange
    from bk_core.entries.parts import ColumnsWanted

ROWS_MIN = 10_000
BYTES_MIN = 1 << 20
ID_ROWS = 100_000
"""The number of rows in a batch without values."""


class LedgerReader(DataSourceReader):
    """The reader of one ``load()``. It holds only options and columns; every partition carries what its task needs."""

    def __init__(self, options: BkOptions, schema: Any) -> None:
        self.options = options
        self.codec = codecs.row_codec(options, schema, log_schemas(options))

    def partitions(self) -> list[InputPartition]:
        """Resolve the selection once, as it is now. ``readMode=fence`` has a side effect: it closes the ledgers. So it
        is refused if Spark plans more often than it reads (RULES K2)."""
        if self.options.read_mode == "fence" and compat.plans_by_pushdown():
            raise InvalidArgumentError(
                "readMode=fence does not go with filter push-down, by which explain() alone would fence",
                value=str(self.options.selection),
                remedy='spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")',
            )
        return clients.patiently(self.options, self._planned)

    def _planned(self, bookkeeper: BookKeeper) -> list[InputPartition]:
        worker_reuse.settle()
        resolved = resolve.resolve_batch(bookkeeper, self.options)
        return [InputPartition(plan) for plan in tasks.task_plans(bookkeeper, self.options, resolved, self.codec)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition.value, self.codec, self.options)


def read_rows(plan: TaskPlan | None, codec: codecs.RowCodec, options: BkOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in order, in batches of at least 10,000 rows or 1 MiB; only the last batch may be
    smaller. ``plan`` is None if Spark made a task for nothing to read. Raises NoSuchEntryError or EntryUnreadableError
    if no replica has an entry, and PackageMismatchError on a worker with another version."""
    if plan is None:
        return
    begin_task(plan)
    line = task_log.Reading(plan.ranges)
    rows = value_rows(plan, codec, options, line) if codec.reads_values else id_rows(plan, codec)
    logs = sorted({each.log for each in plan.ranges if each.log is not None})
    with traces.operation("spark.read", ranges=len(plan.ranges), logs=logs):
        yield from task_log.reading(line, joined(rows))


def begin_task(plan: TaskPlan) -> None:
    """Prepare this process for a task. Raises PackageMismatchError if the driver has another version."""
    if plan.version != __version__:
        raise package_mismatch(plan.version, __version__)
    worker_reuse.settle()


def value_rows(
    plan: TaskPlan, codec: codecs.RowCodec, options: BkOptions, line: task_log.Reading
) -> Iterator[pa.RecordBatch]:
    """Yield rows with values, in whole batches as the bookies sent them. Small ledgers are requested ahead."""

    def columns_of(wanted: LedgerRange) -> ColumnsWanted | None:
        return codec.columns_wanted(place_of(wanted, plan))

    with closing(planned_entries(plan, options, line, columns_of)) as entries:
        for wanted, batch in entries:
            yield from codec.rows(batch, batch.entry_ids(), place_of(wanted, plan))


def planned_entries(
    plan: TaskPlan,
    options: BkOptions,
    line: task_log.Reading,
    columns_of: Callable[[LedgerRange], ColumnsWanted | None] = lambda _: None,
) -> Generator[tuple[LedgerRange, EntryBatch | ColumnBatch], None, None]:
    """Yield all entries of a plan, in order, each batch with its range. With ``failOnDataLoss=false`` the rest of a
    range whose ledger was deleted is skipped. Raises what :func:`read_rows` raises."""
    reader = clients.detached_reader(options, plan.instance_id, plan.bookies)
    ranges = plan.ranges
    while ranges:
        progress = Progress(ranges)
        asked = (wanted_range(each, columns_of(each)) for each in ranges)
        try:
            with closing(reader.read_all(asked, prefer=plan.prefer)) as batches:
                for number, batch in batches:
                    wanted = progress.take(number, batch.parts if isinstance(batch, ColumnBatch) else batch)
                    line.bytes += batch.payload_bytes
                    yield wanted, batch
            progress.check_end()
        except NoSuchLedgerError:
            if options.fail_on_data_loss:
                raise
            ranges = progress.without_lost()
        else:
            return


class Progress:
    """Checks that all planned entries arrive, in order. A gap must never look like a complete result."""

    def __init__(self, ranges: Sequence[LedgerRange]) -> None:
        self._ranges, self._number = ranges, 0
        self._expected = ranges[0].first if ranges else 0

    def take(self, number: int, batch: EntryBatch) -> LedgerRange:
        """Return the range that a batch belongs to. The batch must continue the batch before it. Raises
        IntegrityError."""
        while self._number < number:
            self._end_range()
        wanted = self._ranges[number]
        if (
            number != self._number
            or batch.ids is not None
            or batch.first_entry_id != self._expected
            or batch.last_entry_id > wanted.last
        ):
            raise self._out_of_order(f"entries {batch.first_entry_id} to {batch.last_entry_id}")
        self._expected = batch.last_entry_id + 1
        return wanted

    def without_lost(self) -> tuple[LedgerRange, ...]:
        """Return the ranges after the one whose ledger was deleted. Log a warning about the entries that are
        skipped."""
        if self._expected == self._ranges[self._number].last + 1:
            self._end_range()
        lost = self._ranges[self._number]
        warn_of_lost(lost.log, lost.ledger_id, lost.last + 1 - self._expected)
        return tuple(self._ranges[self._number + 1 :])

    def check_end(self) -> None:
        """Check that nothing is missing. Raises IntegrityError."""
        while self._number < len(self._ranges):
            self._end_range()

    def _end_range(self) -> None:
        if self._expected != self._ranges[self._number].last + 1:
            raise self._out_of_order("the end")
        self._number += 1
        if self._number < len(self._ranges):
            self._expected = self._ranges[self._number].first

    def _out_of_order(self, got: str) -> IntegrityError:
        wanted = self._ranges[self._number]
        return IntegrityError(
            f"entries of ledger {wanted.ledger_id} arrived out of order",
            value=f"expected entry {self._expected} of {wanted.first} to {wanted.last}, got {got}",
            remedy="report this with the ledger's metadata (bk ledger show)",
        )


def wanted_range(planned: LedgerRange, columns: ColumnsWanted | None = None) -> WantedRange:
    """Return the range in the form that the client takes."""
    from bk_core.client.reading.read_ahead import WantedRange

    assert planned.layout is not None, planned
    metadata = planned.layout.metadata()
    return WantedRange(planned.ledger_id, metadata, planned.first, planned.last, planned.bytes, columns)


def id_rows(plan: TaskPlan, codec: codecs.RowCodec) -> Iterator[pa.RecordBatch]:
    """Yield rows without values. The plan has every entry id, so no bookie is asked."""
    for wanted in plan.ranges:
        at = place_of(wanted, plan)
        for first in range(wanted.first, wanted.last + 1, ID_ROWS):
            ids = np.arange(first, min(first + ID_ROWS, wanted.last + 1), dtype=np.int64)
            yield from codec.rows(None, ids, at)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in larger batches, because a small batch costs Spark as much as a large one. Large batches
    are not copied."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        of_batch = 0 if batch.num_rows >= ROWS_MIN else batch.nbytes
        if not small and (batch.num_rows >= ROWS_MIN or of_batch >= BYTES_MIN):
            yield batch
            continue
        small.append(batch)
        rows, size = rows + batch.num_rows, size + of_batch
        if rows >= ROWS_MIN or size >= BYTES_MIN:
            yield _join(small)
            small, rows, size = [], 0, 0
    if small:
        yield _join(small)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def place_of(wanted: LedgerRange, plan: TaskPlan) -> codecs.LedgerAt:
    """Return where the rows of a range come from."""
    return codecs.LedgerAt(
        ledger_id=wanted.ledger_id,
        log=wanted.log,
        offset_shift=None if wanted.offset is None else wanted.offset - wanted.first,
        ctime_ms=wanted.created_ms,
        closed=wanted.closed,
        schema=plan.schemas.get((wanted.log or "", wanted.schema_number)),
    )
