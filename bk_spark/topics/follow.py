# SPDX-License-Identifier: Apache-2.0
"""Finds out what a stream of topics can read, and plans its micro-batches. It runs on the client's loop and never
fences.

The ranges of a micro-batch depend on its two offsets alone. Its entries were confirmed when the second offset was
chosen, so no broker is asked for them again. A repeated micro-batch has exactly the same rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

import pyarrow as pa

from bk_core.client import BookKeeper
from bk_core.errors import BookKeeperError, NoSuchEntryError, NoSuchTopicError
from bk_core.pulsar.cluster import PulsarCluster
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.model.managed_ledger import ManagedLedger
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds, PartitionPlan, TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId
from bk_core.pulsar.planning import PartitionPlanner, settle
from bk_core.pulsar.reading import PartitionReading
from bk_spark.options.offsets import EARLIEST, LATEST
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import TopicSelection
from bk_spark.topics import bounds as bounds_of
from bk_spark.topics.batch_plan import at_once, start_of
from bk_spark.topics.offsets import BEGIN, PartSeen, TopicOffset, end_of
from bk_spark.topics.part_of_batch import PartOfBatch
from bk_spark.topics.schemas import SchemaLookup
from bk_spark.topics.selecting import selected_parts

logger = logging.getLogger("bk_spark.stream")

LIST_S = 2.0
"""The seconds between two times that a stream looks for new topics and partitions."""


class TopicsFollower:
    """Follows the topics of one stream. ``columns`` are the columns that values become, if values are decoded."""

    def __init__(self, bookkeeper: BookKeeper, options: BkOptions, columns: Mapping[str, pa.DataType]) -> None:
        assert options.topics is not None
        assert isinstance(options.selection, TopicSelection)
        self._options, self._how, self._selection = options, options.topics, options.selection
        self._bookkeeper = bookkeeper
        self._cluster = PulsarCluster(bookkeeper, self._how.access(options.ledger_password))
        self._planners = dict[tuple[TopicName, bool], PartitionPlanner]()
        self._outcomes = dict[TopicName, tuple[EntryPosition, PartitionReading]]()
        self._schemas = SchemaLookup.for_query(bookkeeper, options, columns)
        self._listed: list[TopicName] = []
        self._listed_at = float("-inf")

    # --- where a query begins ----------------------------------------------------------------------------------------

    async def initial(self) -> dict[TopicName, MessageId]:
        """Return the position at which a new query begins in each topic. Raises NoSuchTopicError, InvalidArgumentError
        for impossible positions, and NoSuchEntryError for a start that was trimmed (``failOnDataLoss``)."""
        nodes = await self._cluster.nodes()
        topics = await self._topics(nodes, fail=True)
        self._how.starting.check("startingOffsets", topics)
        starts = await at_once([partial(self._initial_of, nodes, topic) for topic in topics])
        return dict(zip(topics, starts, strict=True))

    async def _initial_of(self, nodes: PulsarNodes, topic: TopicName) -> MessageId:
        record = await asyncio.to_thread(nodes.managed_ledger, topic) or ManagedLedger(())
        if not record.ledgers:
            return BEGIN
        planner = self._cluster.planner(nodes, topic)  # a new query needs the broker's answer
        try:
            return await self._start_in(planner, record)
        finally:
            await planner.close()

    async def _start_in(self, planner: PartitionPlanner, record: ManagedLedger) -> MessageId:
        topic = planner.topic
        place, first = self._how.starting.at(topic), MessageId(record.ledgers[0].ledger_id, 0)
        if place == EARLIEST:
            return await start_of(planner, record, self._how) or first
        last = MessageId(record.ledgers[-1].ledger_id, 0)
        end = end_of(await planner.ranges(Bounds(start=last)), last)
        if place == LATEST:
            return end
        assert isinstance(place, MessageId)
        if place.ledger_id < first.ledger_id:
            trimmed = NoSuchEntryError("", value=f"{place}, {topic} begins at {first}")
            if self._options.fail_on_data_loss:
                raise bounds_of.trimmed(topic, trimmed, self._how)
            return first
        bounds_of.check_within(topic, place, None, EntryPosition(end.ledger_id, end.entry_id - 1))
        begin = Bounds(start=place).first_entry
        assert begin is not None
        return MessageId(*begin, -1, place.batch_index if begin == place.entry else -1)

    # --- what there is -----------------------------------------------------------------------------------------------

    async def look(self, offset: TopicOffset, *, settles: bool = False) -> dict[TopicName, PartSeen]:
        """Return, for each topic and partition of an offset and each new one, the ranges that can be read. With
        ``readMode=quorum``, the ends above the LAC are those that were found in the background. With ``settles``, the
        call waits for them. Raises NoSuchTopicError for a topic that was deleted, and NoSuchEntryError for messages
        that were trimmed (``failOnDataLoss``)."""
        nodes = await self._cluster.nodes()
        topics = sorted({*await self._topics(nodes, fail=False), *offset.topics})
        if settles:
            await settle([self._planner(nodes, topic) for topic in topics])
        seen = await at_once([partial(self._look_at, nodes, topic, offset.topics.get(topic)) for topic in topics])
        return {topic: each for topic, each in zip(topics, seen, strict=True) if each is not None}

    async def _look_at(self, nodes: PulsarNodes, topic: TopicName, at: MessageId | None) -> PartSeen | None:
        record = await asyncio.to_thread(nodes.managed_ledger, topic)
        if record is None and at not in (None, BEGIN):
            return self._deleted(topic, at)
        first = MessageId(record.ledgers[0].ledger_id, 0) if record is not None and record.ledgers else BEGIN
        if first == BEGIN:
            begin = BEGIN if at is None else at
            return PartSeen(begin, (), begin, is_fresh=at is None)
        begin = first if at in (None, BEGIN) else self._not_trimmed(topic, at, first)
        planner = self._planner(nodes, topic)
        ranges = await planner.ranges(Bounds(start=begin))
        if await self._wants_outcomes(nodes, topic):
            ranges, _ = await self._decided(planner, begin, ranges)
        end = planner.following(end_of(ranges, begin).entry)
        moved = begin if end == begin.entry else MessageId(*end)
        return PartSeen(begin, tuple(ranges), moved, is_fresh=at is None)

    def _deleted(self, topic: TopicName, at: MessageId | None) -> PartSeen | None:
        if self._options.fail_on_data_loss:
            raise NoSuchTopicError(
                f"{topic} was deleted, and the stream may not have read all of it",
                value=str(self._selection),
                remedy="set failOnDataLoss=false to go on without it, or use another checkpointLocation",
            )
        if self._selection.pattern is not None:
            return None
        assert at is not None
        return PartSeen(at, (), at)

    def _not_trimmed(self, topic: TopicName, at: MessageId, first: MessageId) -> MessageId:
        """Return the position at which the stream continues. ``at`` is its offset, and ``first`` the begin of the
        topic. The offset may be in a ledger that was read to its end and then trimmed while no query ran, or at the
        begin of an empty ledger that a broker replaced. Both look like a loss of messages, so they are errors, too."""
        if at.ledger_id >= first.ledger_id:
            return at
        if not self._options.fail_on_data_loss:
            logger.warning("messages of %s from %s on were trimmed: skipped (failOnDataLoss=false)", topic, at.entry)
            return first
        raise NoSuchEntryError(
            f"the next messages of {topic} were trimmed, or the ledger that the stream had read to its end",
            value=f"the topic begins at {first.entry}, the stream is at {at.entry}",
            remedy="set failOnDataLoss=false to go on with what is left",
        )

    async def _topics(self, nodes: PulsarNodes, *, fail: bool) -> list[TopicName]:
        """Return the selected topics and partitions. With ``fail``, a topic that does not exist is an error."""
        now = asyncio.get_running_loop().time()
        if fail or now - self._listed_at >= LIST_S:
            try:
                self._listed = await asyncio.to_thread(selected_parts, nodes, self._selection)
            except NoSuchTopicError:
                if fail or self._options.fail_on_data_loss:
                    raise
            self._listed_at = now
        return self._listed

    # --- transactions ------------------------------------------------------------------------------------------------

    async def _wants_outcomes(self, nodes: PulsarNodes, topic: TopicName) -> bool:
        """Return whether the outcomes of transactions must be found. Call it after the end of the topic is known."""
        wants = self._how.isolation == "read_committed"
        return wants and await self._cluster.may_have_transactions(nodes, topic)

    async def _decided(
        self, planner: PartitionPlanner, begin: MessageId, ranges: list[TopicRange]
    ) -> tuple[list[TopicRange], frozenset[TxnId]]:
        """Return the ranges up to the first message of an undecided transaction, and the aborted transactions. The
        heads of an entry are read only once for all calls."""
        topic = planner.topic
        since, reading = self._outcomes.get(topic, (begin.entry, None))
        if reading is None or begin.entry < since:
            reading = self._cluster.outcomes(planner)
            self._outcomes[topic] = begin.entry, reading
        try:
            return await reading.decide(ranges)
        except BaseException:
            del self._outcomes[topic]  # what it knows may lack entries
            raise

    # --- micro-batches -----------------------------------------------------------------------------------------------

    async def plan(self, start: TopicOffset, end: TopicOffset) -> list[PartitionPlan]:
        """Return the plans of a micro-batch. Raises the errors of :meth:`look`. Raises MetadataUnavailableError while
        the metadata store or the bookies show fewer entries than when the batch was made."""
        nodes = await self._cluster.nodes()
        topics = [topic for topic, at in sorted(end.topics.items()) if start.topics.get(topic, at) != at]
        plans = await at_once([partial(self._planned, nodes, topic, start, end) for topic in topics])
        return plans if self._schemas is None else await self._schemas.completed(nodes, plans, end.schemas)

    async def versions(self, topics: Iterable[TopicName], known: Mapping[TopicName, int]) -> Mapping[TopicName, int]:
        """Return, by topic, the schema version whose columns the query has. For topics in ``known`` it is that version,
        and for the others it is looked up. Raises the errors of :meth:`SchemaLookup.of`."""
        missing = {topic.whole for topic in topics} - known.keys()
        if self._schemas is None or not missing:
            return known
        nodes = await self._cluster.nodes()
        return {**known, **{topic: (await self._schemas.of(nodes, topic)).version for topic in sorted(missing)}}

    async def _planned(
        self, nodes: PulsarNodes, topic: TopicName, start: TopicOffset, end: TopicOffset
    ) -> PartitionPlan:
        record = await asyncio.to_thread(nodes.managed_ledger, topic)
        if record is None or not record.ledgers:
            self._deleted(topic, end.topics[topic])
            return PartitionPlan(topic, (), None)
        first, at = MessageId(record.ledgers[0].ledger_id, 0), start.topics[topic]
        begin = first if at == BEGIN else self._not_trimmed(topic, at, first)
        if begin >= end.topics[topic]:  # all of it was trimmed
            return PartitionPlan(topic, (), None)
        planner = self._planner(nodes, topic, asks_broker=False)
        part = PartOfBatch(self._bookkeeper, planner, begin, end.topics[topic])
        ranges = await part.ranges(lossless=self._options.fail_on_data_loss)
        aborted, decided = frozenset[TxnId](), False
        if ranges and await self._wants_outcomes(nodes, topic):
            following = self._planner(nodes, topic)
            known = await following.ranges(Bounds(start=begin))
            if end_of(known, begin) < end_of(ranges, begin):  # after a restart, of entries above the LAC
                known = ranges
            left, aborted = await self._decided(following, begin, known)
            decided = True
            part.check_decided(left)
        bounds = Bounds(begin if begin.batch_index >= 0 else None, published_from_ms=start.published_from_ms)
        history = tuple(await planner.history(begin.entry)) if ranges else ()
        return PartitionPlan(topic, tuple(ranges), None, bounds, aborted, decided, history=history)

    def _planner(self, nodes: PulsarNodes, topic: TopicName, *, asks_broker: bool = True) -> PartitionPlanner:
        """Return the planner that follows a topic. While no broker answers, it follows the topic to its LAC."""
        key = topic, asks_broker
        if key not in self._planners:
            self._planners[key] = self._cluster.planner(
                nodes,
                topic,
                asks_broker=asks_broker,
                broker_may_fail=True,
                quorum="follow" if asks_broker else "ignore",
            )
        return self._planners[key]

    async def close(self) -> None:
        """Close all readers and the session with Pulsar's own metadata store. Never raises."""
        for planner in self._planners.values():
            with suppress(BookKeeperError):
                await planner.close()
        self._planners.clear()
        with suppress(BookKeeperError):
            await self._cluster.close()
