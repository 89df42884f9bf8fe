# SPDX-License-Identifier: Apache-2.0
"""Defines the stream source of topics. Its offsets are positions in each topic and partition
(:mod:`bk_spark.topics.offsets`).

Spark asks for the latest offset many times a second. So an answer is reused for LOOK_S and, while errors that may pass
occur, for the metadata timeout. A new topic or partition enters the offset with a micro-batch that reads no row of it,
so its begin is durable before its first row is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bk_core.errors import BookKeeperError
from bk_core.pulsar.model.message_id import MessageId
from bk_core.pulsar.model.topic_name import TopicName
from bk_spark import compat
from bk_spark.options.offsets import LATEST
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import TopicSelection
from bk_spark.stream.admission import Backlog, HoldBack, TriggerLimits, admit_all
from bk_spark.stream.positions import check_same_cluster
from bk_spark.stream.watch import TRANSIENT
from bk_spark.topics import offsets, tasks
from bk_spark.topics.columns import columns_of, decoded
from bk_spark.topics.follow import TopicsFollower
from bk_spark.topics.offsets import PartSeen, TopicOffset
from bk_spark.topics.task_reader import read_topics
from bk_spark.workers import clients

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bk_core.blocking import BookKeeper

Json = dict[str, Any]
Seen = Mapping[TopicName, PartSeen]
T = TypeVar("T")

LOOK_S = 0.25
"""The number of seconds for which an answer is reused."""


class TopicStreamReader(compat.StreamReaderBase):
    """The source of one streaming query. It can be pickled until the first call that connects to the cluster."""

    def __init__(self, options: BkOptions, schema: Any) -> None:
        assert options.topics is not None
        assert isinstance(options.selection, TopicSelection)
        self.options, self._how, self._selection = options, options.topics, options.selection
        self.columns = columns_of(options, schema)
        self._hold = HoldBack(options.min_entries_per_trigger, options.max_trigger_delay_ms / 1000)
        self._follower: tuple[BookKeeper, TopicsFollower] | None = None
        self._initial: Json | None = None
        self._last: Json | None = None
        self._seen: tuple[Json, float, Seen] | None = None  # the start, when it was looked at, what was there
        self._trouble_since: float | None = None
        self._let_go: Json | None = None  # the start of the batch that has waited long enough
        self._served_first: TopicName | None = None
        self._target: Mapping[TopicName, MessageId] | None = None
        self._available_now = False

    # --- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        """Return the offset at which a new query begins. Spark calls this again to replay batch 0, and ``latest`` may
        have moved by then."""
        cluster, starts = self._with_cluster(lambda follower: follower.initial())
        self._initial = self._last = offsets.to_json(TopicOffset(cluster, starts, self._how.published_from_ms))
        return self._initial

    def latestOffset(self, start: Json | None = None, limit: Any = None) -> Json:
        """Return the end of the next micro-batch. pyspark before 4.2 passes neither start nor limit.

        For a new query that begins at ``latest``, the first call returns the start, so that the empty batch 0 makes the
        start durable. Raises the errors of :meth:`TopicsFollower.look`. Raises InvalidArgumentError for an offset of
        another source, and ClusterMismatchError for an offset of another cluster.
        """
        start = start if start is not None else self._last if self._last is not None else self.initialOffset()
        if self._initial is not None and self._how.starting.has(LATEST) and start == self._initial:
            self._initial = None
            return start
        offset, seen = offsets.from_json(start), self._look(start)
        ends = self._ends(start, seen, limit)
        if ends is None:
            return start
        schemas = self._versions(offset, ends)
        self._last = offsets.to_json(TopicOffset(offset.cluster, ends, offset.published_from_ms, schemas))
        return self._last

    def getDefaultReadLimit(self) -> Any:
        return compat.default_read_limit(self.options.max_entries_per_trigger, self.options.max_bytes_per_trigger)

    def reportLatestOffset(self) -> Json:
        """Return the current ends of the topics. Spark's progress report shows the lag by them."""
        start = self._last if self._last is not None else self.initialOffset()
        offset, seen = offsets.from_json(start), self._look(start)
        return offsets.to_json(TopicOffset(offset.cluster, {topic: each.end for topic, each in seen.items()}))

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the next ``latestOffset`` fix the end of the query. This call does not fix it, because Spark may replay a
        batch before."""
        self._available_now, self._target = True, None

    # --- reading ---------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch."""
        first, stop = offsets.from_json(start), offsets.from_json(end)
        for offset in (first, stop):
            offsets.check_topics(offset, self._selection)

        def planned(bookkeeper: BookKeeper) -> list[tasks.TopicTask]:
            for offset in (first, stop):
                check_same_cluster(offset.cluster, bookkeeper.instance_id)
            plans = self._call(bookkeeper, lambda follower: follower.plan(first, stop)).result()
            return tasks.task_plans(bookkeeper, self.options, plans)

        return [InputPartition(task) for task in clients.patiently(self.options, planned)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_topics(partition.value, self.columns, self.options)

    def commit(self, end: Json) -> None:
        """Do nothing. A read moves no subscription, and Spark calls this one batch late."""

    def stop(self) -> None:
        if self._follower is not None:
            (bookkeeper, follower), self._follower = self._follower, None
            bookkeeper.begin(lambda _: follower.close())

    # --- inside ----------------------------------------------------------------------------------------------------

    def _look(self, start: Json) -> Seen:
        """Return the ranges of each topic that can be read from an offset on. The answer may be LOOK_S old or, while
        errors that may pass occur, as old as the metadata timeout."""
        now, kept = time.monotonic(), self._seen
        settles = self._available_now and self._target is None
        if kept is not None and kept[0] == start and now - kept[1] < LOOK_S and not settles:
            return kept[2]
        offset = offsets.from_json(start)
        offsets.check_topics(offset, self._selection)
        found: Seen

        def look(follower: TopicsFollower) -> Coroutine[Any, Any, Seen]:
            return follower.look(offset, settles=settles)

        try:
            if kept is not None and kept[0] == start:
                bookkeeper = clients.client(self.options)
                found = self._call(bookkeeper, look).result()
            else:
                cluster, found = self._with_cluster(look)
                check_same_cluster(offset.cluster, cluster)
        except TRANSIENT:
            self._trouble_since = self._trouble_since or now
            lasts_s = time.monotonic() - self._trouble_since
            if kept is None or kept[0] != start or lasts_s > self.options.metadata_timeout_ms / 1000:
                raise
            found = kept[2]
        else:
            self._trouble_since = None
        self._seen = start, time.monotonic(), found
        return found

    def _with_cluster(self, work: Callable[[TopicsFollower], Coroutine[Any, Any, T]]) -> tuple[str, T]:
        """Return the cluster's id and the result of ``work``. Tries again while the metadata service is away."""
        return clients.patiently(
            self.options, lambda bookkeeper: (bookkeeper.instance_id, self._call(bookkeeper, work).result())
        )

    def _call(self, bookkeeper: BookKeeper, work: Callable[[TopicsFollower], Coroutine[Any, Any, T]]) -> Future[T]:
        if self._follower is None or self._follower[0] is not bookkeeper:
            self._forget_follower()
            self._follower = bookkeeper, TopicsFollower(bookkeeper._inner, self.options, decoded(self.columns))
        follower = self._follower[1]
        return bookkeeper.begin(lambda _: work(follower))

    def _forget_follower(self) -> None:
        try:
            self.stop()
        except BookKeeperError:
            return  # its client was closed, and everything of it

    def _ends(self, start: Json, seen: Seen, limit: Any) -> Mapping[TopicName, MessageId] | None:
        """Return the end of the next micro-batch in each topic, or None if the batch must wait for more entries."""
        options, unlimited = self.options, compat.is_unlimited(limit)
        if self._available_now:
            if self._target is None:
                self._target = {topic: each.end for topic, each in seen.items()}
            seen = {topic: each for topic, each in seen.items() if not each.is_fresh or topic in self._target}
        backlogs = {topic: self._backlog(topic, each) for topic, each in seen.items()}
        if not unlimited and not self._available_now and start != self._let_go:
            waiting = sum(each.entries for each in backlogs.values())
            if self._hold.holds(waiting, time.monotonic()):
                return None
            self._let_go = start if waiting else None
        bounded = TriggerLimits(options.max_entries_per_trigger, options.max_bytes_per_trigger)
        admission = admit_all(backlogs, TriggerLimits(None, None) if unlimited else bounded, self._served_first)
        self._served_first = admission.first
        return {topic: self._end(seen[topic], count, backlogs[topic]) for topic, count in admission.ends.items()}

    def _versions(self, offset: TopicOffset, ends: Mapping[TopicName, MessageId]) -> Mapping[TopicName, int]:
        """Return the versions of the schemas whose columns the query has. For topics that are read for the first time
        they are chosen now, so that the checkpoint has them before a row is read."""
        read = [topic for topic, end in ends.items() if offset.topics.get(topic, end) != end]
        if not self._how.decodes or {topic.whole for topic in read} <= offset.schemas.keys():
            return offset.schemas
        return self._with_cluster(lambda follower: follower.versions(read, offset.schemas))[1]

    def _backlog(self, topic: TopicName, seen: PartSeen) -> Backlog:
        known = seen.backlog
        if seen.is_fresh:
            return Backlog(0, 0)
        if self._target is None:
            return known
        stop = self._target.get(topic)
        return Backlog(0, 0 if stop is None else min(known.end, seen.entries_before(stop)), known.spans)

    def _end(self, seen: PartSeen, count: int, backlog: Backlog) -> MessageId:
        """Return the position behind the first ``count`` entries. If the batch takes all entries, this may be the begin
        of the next ledger, so that the ledger that was read may be trimmed."""
        if seen.is_fresh:
            return seen.begin
        is_all = count == seen.backlog.entries and count == backlog.entries
        return seen.end if is_all else seen.position_after(count)
