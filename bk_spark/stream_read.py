# SPDX-License-Identifier: Apache-2.0
"""The stream source: follows a ledger or a log without fencing, exactly the same rows when a batch is replayed.

One instance lives in a process on the driver for the whole run and answers offsets from memory (:mod:`bk_spark.watch`);
another is pickled into tasks and only reads, so partitions carry everything. Traps of Spark that shape this (facts:
spark.md §3.4, §3.5): offsets are compared as text; ``initialOffset`` is asked again when batch 0 is replayed; a
replayed batch asks ``partitions`` before ``latestOffset``; start may lie behind end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bk_core.errors import InvalidArgumentError, NoSuchEntryError
from bk_core.logs.position import LogPosition, StreamOffset, check_position
from bk_spark import clients, codecs, compat, follow, offsets, resolve
from bk_spark.errors import not_built
from bk_spark.offsets import LATEST
from bk_spark.options import BkOptions
from bk_spark.plan import admit
from bk_spark.read import read_rows
from bk_spark.selection import LedgerSource, Source
from bk_spark.watch import Seen, Watch

Json = dict[str, Any]


class StreamReader(compat.StreamReaderBase):
    """One streaming query's source. Picklable until the first call that needs the cluster."""

    def __init__(self, options: BkOptions, schema: Any) -> None:
        sources: tuple[Source, ...] = getattr(options.selection, "sources", ())
        if len(sources) != 1:
            raise not_built("a stream over several ledgers or logs", str(options.selection), "one query for each")
        if options.starting_timestamp is not None:
            raise not_built("startingTimestamp of a stream", str(options.starting_timestamp), "use startingOffsets")
        self.options = options
        self.source = sources[0]
        self.codec = codecs.row_codec(options, schema)
        self._watch: Watch | None = None
        self._initial: Json | None = None
        self._last: Json | None = None
        self._target: int | None = None
        self._available_now = False

    # --- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        """Where a new query begins. Asked again when batch 0 is replayed, so ``latest`` may have moved (§3.5)."""
        seen = self._seen()
        start = offsets.resolve_bound(self.options.starting.at(self.source), seen.start, seen.next)
        if start < seen.start and self.options.fail_on_data_loss:
            raise self._trimmed(start, seen)
        if start > seen.next:
            raise InvalidArgumentError(
                "startingOffsets is beyond the end", value=f"{start}, {self.source} ends at {seen.next}"
            )
        self._initial = self._last = self._offset(max(start, seen.start), seen)
        return self._initial

    def latestOffset(self, start: Json | None = None, limit: Any = None) -> Json:
        """The end of the next micro-batch, from memory. pyspark before 4.2 gives neither start nor limit.

        The first answer to a new query that begins at ``latest`` is its start: the empty batch 0 makes that durable.
        """
        start = start if start is not None else self._last if self._last is not None else self.initialOffset()
        seen = self._seen()
        begin = self._position(start, seen)
        if self._initial is not None and self.options.starting.at(self.source) == LATEST and start == self._initial:
            self._initial = None
            return start
        self._last = self._offset(self._end(begin, seen, limit), seen)
        return self._last

    def getDefaultReadLimit(self) -> Any:
        return compat.default_read_limit(self.options.max_entries_per_trigger, self.options.max_bytes_per_trigger)

    def reportLatestOffset(self) -> Json:
        """Where the source ends now, for the progress report: the lag is visible there."""
        seen = self._seen()
        return self._offset(seen.next, seen)

    def prepareForTriggerAvailableNow(self) -> None:
        """The target is fixed by the first ``latestOffset``, not here: a replayed batch comes before it."""
        self._available_now, self._target = True, None

    # --- reading ---------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of one micro-batch. The range was confirmed when ``end`` was given out, so it is only looked up."""
        bookkeeper = clients.client(self.options)
        source, cluster = self.source, bookkeeper.instance_id
        first = offsets.next_of(offsets.from_json(start), source, cluster)
        stop = offsets.next_of(offsets.from_json(end), source, cluster)
        if first >= stop:
            return []
        seen = self._seen()
        self._position(end, seen)
        if first < seen.start:
            if self.options.fail_on_data_loss:
                raise self._trimmed(first, seen)
            first = min(seen.start, stop)
        resolved = resolve.resolve_part(bookkeeper, self.options, source, first, stop, seen.spans)
        return [InputPartition(plan) for plan in resolve.task_plans(bookkeeper, self.options, resolved)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition.value, self.codec, self.options)

    def commit(self, end: Json) -> None:
        """Nothing: BookKeeper keeps no cursor, and Spark calls this one batch late."""

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _seen(self) -> Seen:
        if self._watch is None:
            options = self.options
            self._watch = Watch(lambda: follow.follower_for(clients.client(options), options))
        return self._watch.seen()

    def _end(self, begin: int, seen: Seen, limit: Any) -> int:
        end = seen.next
        if self._available_now:
            self._target = end if self._target is None else self._target
            end = min(end, self._target)
        if compat.is_unlimited(limit):
            return max(begin, end)
        options = self.options
        return admit(begin, end, seen.spans, options.max_entries_per_trigger, options.max_bytes_per_trigger)

    def _offset(self, position: int, seen: Seen) -> Json:
        source = self.source
        if isinstance(source, LedgerSource):
            return offsets.to_json(StreamOffset(seen.cluster, ledgers={source.ledger_id: position}))
        assert seen.head is not None
        at = LogPosition(seen.head.uuid, seen.head.epoch, position)
        return offsets.to_json(StreamOffset(seen.cluster, logs={source.name: at}))

    def _position(self, data: Mapping[str, Any], seen: Seen) -> int:
        """The next to read of a checkpoint offset, after checking that it is of this very log (RULES N7)."""
        offset = offsets.from_json(data)
        position = offsets.next_of(offset, self.source, seen.cluster)
        for name, at in offset.logs.items():
            assert seen.head is not None
            check_position(at, seen.head, name=name)
        return position

    def _trimmed(self, wanted: int, seen: Seen) -> NoSuchEntryError:
        return NoSuchEntryError(
            "the next entries of the stream were trimmed",
            value=f"{self.source} begins at {seen.start}, the stream needs {wanted}",
            remedy="set failOnDataLoss=false to go on with what is left",
        )
