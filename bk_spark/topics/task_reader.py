# SPDX-License-Identifier: Apache-2.0
"""Reads the rows of one task. It makes messages of the entries of topics, always in columns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby

import numpy as np
import pyarrow as pa

from bk_core.columns.row_origins import LedgerAt, Rows
from bk_core.entries.batch import EntryBatch
from bk_core.errors import NoSuchEntryError, NoSuchLedgerError, OffloadMissingError
from bk_core.observe import traces
from bk_core.pulsar.gathering import JOINED_BYTES_MAX, follows
from bk_core.pulsar.gathering import joined as joined_entries
from bk_core.pulsar.messages.decoder import DecodeOptions
from bk_core.pulsar.messages.encryption import Decryptor
from bk_core.pulsar.messages.heads import Heads
from bk_core.pulsar.messages.row_maker import LookBack, RowMaker, committed, without
from bk_core.pulsar.messages.rows import schema_of
from bk_core.pulsar.messages.scan import Mask
from bk_core.pulsar.offloaded.access import OffloadStorage
from bk_core.pulsar.offloaded.source import CopyRange, OffloadedReads
from bk_core.pulsar.reading import COPY_PIECE_BYTES
from bk_core.pulsar.values.topic_values import TopicValues
from bk_spark.codecs.read_columns import ReadColumns
from bk_spark.options.options import BkOptions
from bk_spark.options.topic_options import TopicOptions
from bk_spark.plan.packing import LedgerRange
from bk_spark.read.ledger_reader import Progress, begin_task, joined, planned_entries, wanted_range
from bk_spark.topics.tasks import TopicPart, TopicTask
from bk_spark.workers import clients, task_log

logger = logging.getLogger("bk_spark.task")

LOOK_BACK_STEP_BYTES = 2 << 20
"""The size, in bytes, of the pieces in which a task reads earlier entries when it looks for chunks."""
NO_ROWS = Rows(np.zeros(0, dtype=np.int64))


def read_topics(task: TopicTask | None, columns: ReadColumns, options: BkOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in order, in batches as :func:`bk_spark.read.ledger_reader.read_rows` makes them.
    ``task`` is None if Spark made a task although there is nothing to read. Raises the errors of reading entries. For
    an entry that cannot be read as a message, raises CorruptMessageError, MessageChecksumError, MessageEncryptedError
    or UnsupportedTopicError."""
    if task is None:
        return
    begin_task(task.plan)
    line = task_log.Reading(task.plan.ranges)
    rows = TaskRows(task, columns, options).rows(line)
    with traces.operation("spark.read", ranges=len(task.plan.ranges), logs=sorted(task.parts)):
        yield from task_log.reading(line, joined(rows))


class TaskRows:
    """Makes the rows of one task. For each topic or partition it keeps the chunks of messages that are not complete
    yet."""

    def __init__(self, task: TopicTask, columns: ReadColumns, options: BkOptions) -> None:
        assert options.topics is not None
        self._task, self._columns, self._options = task, columns, options
        self._how: TopicOptions = options.topics
        self._makers = dict[str, RowMaker]()
        keys = self._how.private_keys
        self._decode = DecodeOptions(
            corrupt=self._how.corrupt,
            encrypted=self._how.encrypted,
            decryptor=None if keys is None else Decryptor(keys),
        )

    def rows(self, line: task_log.Reading) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the task."""
        for wanted, batch in gathered(self._entries(line)):
            yield from self._made(wanted, batch)

    def _entries(self, line: task_log.Reading) -> Iterator[tuple[LedgerRange, EntryBatch]]:
        """Yield all entries in order, from bookies and from object storage."""
        for is_copied, run in groupby(self._task.plan.ranges, self._is_copied):
            ranges = tuple(run)
            if is_copied:
                for each in ranges:
                    yield from self._copied_entries(each, line)
                continue
            with closing(planned_entries(replace(self._task.plan, ranges=ranges), self._options, line)) as entries:
                yield from entries  # type: ignore[misc]  # without columns, entries come whole

    def _is_copied(self, wanted: LedgerRange) -> bool:
        return wanted.ledger_id in self._task.parts[wanted.log or ""].copies

    def _copied_entries(self, wanted: LedgerRange, line: task_log.Reading) -> Iterator[tuple[LedgerRange, EntryBatch]]:
        """Yield the entries of a range in object storage. If an object does not exist, ``failOnDataLoss=false`` skips
        the rest of the range, as for a ledger that was deleted."""
        progress = Progress((wanted,))
        try:
            for batch in self._copy(self._task.parts[wanted.log or ""], wanted):
                progress.take(0, batch)
                line.bytes += batch.payload_bytes
                yield wanted, batch
            progress.check_end()
        except OffloadMissingError as error:
            if self._options.fail_on_data_loss:
                raise
            logger.warning("%s", error)
            progress.without_lost()  # logs how many entries are skipped

    def _copy(self, part: TopicPart, wanted: LedgerRange) -> Iterator[EntryBatch]:
        copy = part.copies[wanted.ledger_id]
        return offloaded_reads(self._how.storage).batches(
            CopyRange(part.topic, wanted.ledger_id, wanted.first, wanted.last, copy)
        )

    def _made(self, wanted: LedgerRange, batch: EntryBatch) -> Iterator[pa.RecordBatch]:
        part = self._task.parts[wanted.log or ""]
        maker = self._maker(part)
        is_compacted = wanted.ledger_id in part.compacted
        heads = maker.heads(batch, compacted=is_compacted)
        if not is_compacted and (look_back := maker.missing(heads)) is not None:
            self._look_back(part, maker, look_back)
        at = LedgerAt(ledger_id=wanted.ledger_id, log=wanted.log)
        for made in maker.rows(heads, part.bounds, self._kept(part, heads, is_compacted=is_compacted)):
            yield self._columns.assemble(partial(self._column, made), NO_ROWS, at)
        for error in maker.take_reports():
            logger.warning("%s: left out (corruptEntries=skip)", error)

    def _column(self, made: pa.RecordBatch, name: str) -> pa.Array:
        """Return a column in the type that Spark gets. Timestamps in nanoseconds are cut to microseconds."""
        column, kind = made.column(name), self._columns.kind(name)
        return column if column.type == kind else column.cast(kind, safe=False)

    def _maker(self, part: TopicPart) -> RowMaker:
        name = str(part.topic)
        if name not in self._makers:
            values = None if part.schemas is None else TopicValues(part.schemas)
            schema = schema_of(self._columns.data, None if values is None else values.columns)
            self._makers[name] = RowMaker(part.topic, schema, self._decode, values)
        return self._makers[name]

    def _kept(self, part: TopicPart, heads: Heads, *, is_compacted: bool) -> Mask | None:
        """Return a mask of the entries to show, or None for all. Entries of a compacted ledger need no outcomes,
        because only committed messages are compacted."""
        if self._how.isolation == "read_uncommitted":
            return None
        if is_compacted:
            return without(heads, part.aborted) if part.aborted else None
        return committed(heads, part.aborted, decided=part.decided)

    def _look_back(self, part: TopicPart, maker: RowMaker, wanted: LookBack) -> None:
        """Pass the earlier chunks of these messages to the row maker, if they still exist."""
        steps = (
            step
            for each in reversed(part.before)
            for step in backwards([each], COPY_PIECE_BYTES if each.ledger_id in part.copies else LOOK_BACK_STEP_BYTES)
        )
        for step in steps:
            earlier = list(self._heads(part, maker, step))
            if not all(wanted.add(heads) for heads in reversed(earlier)):
                break
        wanted.finish()

    def _heads(self, part: TopicPart, maker: RowMaker, step: LedgerRange) -> Iterator[Heads]:
        """Yield the heads of earlier entries. Yield no more of them if they were trimmed."""
        try:
            for batch in self._earlier(part, step):
                yield maker.heads(batch, compacted=step.ledger_id in part.compacted)
        except (NoSuchLedgerError, NoSuchEntryError, OffloadMissingError) as error:
            logger.warning("%s: chunks of messages of %s before it are not there", error, part.topic)

    def _earlier(self, part: TopicPart, step: LedgerRange) -> Iterator[EntryBatch]:
        if step.ledger_id in part.copies:
            return self._copy(part, step)
        plan, wanted = self._task.plan, wanted_range(step)
        reader = clients.detached_reader(self._options, plan.instance_id, plan.bookies)
        return reader.read(wanted.ledger_id, wanted.metadata, wanted.first, wanted.last, prefer=plan.prefer)


@lru_cache(maxsize=4)
def offloaded_reads(how: OffloadStorage) -> OffloadedReads:
    """Return the reader of copies for these settings. Tasks of this process with the same settings share it."""
    return OffloadedReads(how)


def gathered(entries: Iterable[tuple[LedgerRange, EntryBatch]]) -> Iterator[tuple[LedgerRange, EntryBatch]]:
    """Yield the same entries in batches of about JOINED_BYTES_MAX bytes. A batch has entries of one ledger."""
    held, size = list[EntryBatch](), 0
    at: LedgerRange | None = None
    for wanted, batch in entries:
        if at is not None and (size >= JOINED_BYTES_MAX or wanted.log != at.log or not follows(held[-1], batch)):
            yield at, joined_entries(held)
            held, size = [], 0
        at = wanted
        held.append(batch)
        size += batch.payload_bytes
    if at is not None:
        yield at, joined_entries(held)


def backwards(ranges: Iterable[LedgerRange], bytes_max: int) -> Iterator[LedgerRange]:
    """Yield these ranges in parts of about ``bytes_max`` bytes, beginning with the last part of the last range."""
    for each in reversed(list(ranges)):
        rest = each
        step = max(1, bytes_max * each.entries // max(1, each.bytes))
        while rest.entries > step:
            rest, part = rest.split(rest.entries - step)
            yield part
        yield rest
