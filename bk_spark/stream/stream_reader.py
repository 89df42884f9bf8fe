# SPDX-License-Identifier: Apache-2.0
"""The stream source. It follows ledgers and logs without fencing, and a replayed batch has exactly the same rows.

One instance lives in a process on the driver for the whole run and answers offsets from memory
(:mod:`bk_spark.stream.watch`). Another is pickled into tasks and only reads, so partitions carry everything. These
traps of Spark shape it: offsets are compared as text; ``initialOffset`` is called again when batch 0 is replayed; a
replayed batch calls ``partitions`` before ``latestOffset``; start may lie behind end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bk_core.errors import NoSuchEntryError
from bk_spark import codecs, compat
from bk_spark.options import offsets
from bk_spark.options.offsets import LATEST
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import Source
from bk_spark.plan.resolve import log_schemas
from bk_spark.read import tasks
from bk_spark.read.ledger_reader import read_rows
from bk_spark.read.task_plan import TaskPlan
from bk_spark.stream import follow, positions, stream_plan
from bk_spark.stream.admission import Backlog, HoldBack, TriggerLimits, admit_all
from bk_spark.stream.positions import Seen, Standing
from bk_spark.stream.watch import Watch, WatchTimes
from bk_spark.workers import clients

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper

Json = dict[str, Any]

BEHIND_MAX_S = 30.0
"""The number of seconds for which a source may end before the stream's position. A metadata server may be behind for a
while."""


class StreamReader(compat.StreamReaderBase):
    """The source of one streaming query. It can be pickled until the first call that needs the cluster."""

    def __init__(self, options: BkOptions, schema: Any) -> None:
        self.options = options
        self.codec = codecs.row_codec(options, schema, log_schemas(options))
        self._hold = HoldBack(options.min_entries_per_trigger, options.max_trigger_delay_ms / 1000)
        self._watch: Watch | None = None
        self._reading = positions.Reading()
        self._initial: Json | None = None
        self._last: Json | None = None
        self._told: Json | None = None  # the offset that ``_reading`` was made from
        self._asked: tuple[Json, int, bool] | None = None  # the arguments for which ``_last`` was returned
        self._let_go: Json | None = None  # the start of the batch that has waited long enough
        self._served_first: Source | None = None
        self._target: Mapping[Source, int] | None = None
        self._available_now = False
        self._behind_since: float | None = None

    # --- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        """Return where a new query begins. Spark calls it again to replay batch 0; ``latest`` may have moved by
        then."""
        seen = self._seen()
        dated = None
        if self.options.starting_timestamp is not None:
            dated = clients.patiently(
                self.options, lambda bookkeeper: stream_plan.dated_starts(bookkeeper, self.options, seen)
            )
        ends = positions.initial_ends(self.options, seen, dated)
        self._reading.positions = ends
        self._initial = self._last = offsets.to_json(positions.offset_at(seen, ends))
        return self._initial

    def latestOffset(self, start: Json | None = None, limit: Any = None) -> Json:
        """Return the end of the next micro-batch, from memory. pyspark before 4.2 passes neither start nor limit.

        A new query that begins at ``latest`` first gets its start, so that the empty batch 0 makes the start durable.
        Raises what :func:`bk_spark.stream.positions.standings` raises, and the error that ended following the sources.
        """
        start = start if start is not None else self._last if self._last is not None else self.initialOffset()
        seen = self._seen(start)
        asked = (start, seen.version, compat.is_unlimited(limit))
        if asked == self._asked and self._last is not None:
            return self._last
        offset = offsets.from_json(start)
        standings = positions.standings(offset, seen, self.options)
        self._check_behind(standings, seen)
        if self._initial is not None and self.options.starting.has(LATEST) and start == self._initial:
            self._initial = None
            return start
        ends = self._ends(start, standings, seen, limit)
        if ends is None:
            return start
        self._last = offsets.to_json(positions.offset_at(seen, ends, offset))
        self._asked = asked if self._behind_since is None else None
        return self._last

    def getDefaultReadLimit(self) -> Any:
        return compat.default_read_limit(self.options.max_entries_per_trigger, self.options.max_bytes_per_trigger)

    def reportLatestOffset(self) -> Json:
        """Return where the sources end now, for the progress report, which shows the lag."""
        seen = self._seen()
        return offsets.to_json(positions.offset_at(seen, {source: each.next for source, each in seen.sources.items()}))

    def prepareForTriggerAvailableNow(self) -> None:
        """Note that the next ``latestOffset`` fixes the target. It is not fixed here, because Spark may replay a batch
        first."""
        self._available_now, self._target = True, None

    # --- reading ---------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch. Its entries were confirmed when ``end`` was returned, so they are only
        looked up."""
        first, stop = offsets.from_json(start), offsets.from_json(end)
        seen = self._seen(start)
        parts = positions.parts(first, stop, seen, self.options)

        def planned(bookkeeper: BookKeeper) -> list[TaskPlan]:
            resolved = stream_plan.plan_parts(bookkeeper, self.options, parts, seen)
            return tasks.task_plans(bookkeeper, self.options, resolved, self.codec, stream=True)

        return [InputPartition(plan) for plan in clients.patiently(self.options, planned)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition.value, self.codec, self.options)

    def commit(self, end: Json) -> None:
        """Do nothing. BookKeeper keeps no cursor, and Spark calls this one batch late."""

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _seen(self, at: Json | None = None) -> Seen:
        """Return the state of all sources. ``at`` is the offset to read next; the followers look up sizes there."""
        if at is not None and at != self._told:
            offset = offsets.from_json(at)
            held = offsets.sources_in(offset)
            positions.check_sources(held, self.options)
            self._reading.positions = {source: positions.next_of(offset, source) for source in held}
            self._told = at
        if self._watch is None:
            times = WatchTimes(give_up_s=self.options.metadata_timeout_ms / 1000)
            self._watch = Watch(follow.begin_following(self.options, self._reading), times)
        return self._watch.seen()

    def _check_behind(self, standings: Mapping[Source, Standing], seen: Seen) -> None:
        """Check that no source has ended before the stream's position for BEHIND_MAX_S. Raises NoSuchEntryError."""
        behind = positions.ended_before(standings, seen) if self.options.fail_on_data_loss else []
        if not behind:
            self._behind_since = None
            return
        now = time.monotonic()
        self._behind_since = self._behind_since or now
        if now - self._behind_since > BEHIND_MAX_S:
            raise NoSuchEntryError(
                f"{behind[0]} ends before the stream's position: entries that were read are not there any more",
                value=f"{behind[0]} ends at {seen.sources[behind[0]].next}, the stream is at "
                f"{standings[behind[0]].begin}",
                remedy="if the metadata store was restored from a backup, use another checkpointLocation",
            )

    def _ends(
        self, start: Json, standings: Mapping[Source, Standing], seen: Seen, limit: Any
    ) -> Mapping[Source, int] | None:
        """Return where the next micro-batch ends in each source, or None while it must wait for more entries."""
        options, unlimited = self.options, compat.is_unlimited(limit)
        if self._available_now:
            if self._target is None:
                self._target = {source: each.next for source, each in seen.sources.items()}
            target = self._target
            standings = {source: each for source, each in standings.items() if not each.is_fresh or source in target}
        backlogs = {source: self._backlog(source, each, seen) for source, each in standings.items()}
        if unlimited:
            return admit_all(backlogs, TriggerLimits(None, None)).ends
        waiting = sum(each.entries for each in backlogs.values())
        if not self._available_now and start != self._let_go:
            if self._hold.holds(waiting, time.monotonic()):
                return None
            self._let_go = start if waiting else None
        limits = TriggerLimits(options.max_entries_per_trigger, options.max_bytes_per_trigger)
        admission = admit_all(backlogs, limits, self._served_first)
        self._served_first = admission.first
        return admission.ends

    def _backlog(self, source: Source, standing: Standing, seen: Seen) -> Backlog:
        known = seen.sources.get(source)
        if standing.is_fresh or known is None:
            return Backlog(standing.begin, standing.begin)
        end = known.next
        if self._target is not None:
            end = min(end, self._target.get(source, standing.begin))
        return Backlog(standing.begin, end, known.spans)
