# SPDX-License-Identifier: Apache-2.0
"""Plans a batch read of topics on the driver, on the client's loop. Spark asks for the plan once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from bk_core.client import BookKeeper
from bk_core.errors import NoSuchEntryError
from bk_core.pulsar.cluster import PulsarCluster
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.model.managed_ledger import ManagedLedger
from bk_core.pulsar.model.message_id import MessageId
from bk_core.pulsar.model.plan import Bounds, PartitionPlan, TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId
from bk_core.pulsar.planning import PartitionPlanner, settle
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import TopicSelection
from bk_spark.options.topic_options import TopicOptions
from bk_spark.topics import bounds as bounds_of
from bk_spark.topics.schemas import SchemaLookup
from bk_spark.topics.selecting import some_parts

logger = logging.getLogger("bk_spark.plan")

T = TypeVar("T")
PLANNED_AT_ONCE = 8
"""The maximum number of topics and partitions that are planned at the same time."""


async def plan_batch(
    bookkeeper: BookKeeper, options: BkOptions, columns: Mapping[str, pa.DataType]
) -> list[PartitionPlan]:
    """Return the plan of a ``load()`` for each topic or partition, in reading order. Raises NoSuchTopicError,
    InvalidArgumentError for impossible positions, NoSuchEntryError for a start that was trimmed (``failOnDataLoss``),
    LedgerOffloadedError, the errors of reading heads of messages of transactions and, if values become ``columns``, the
    errors of :meth:`SchemaLookup.of`."""
    assert options.topics is not None
    assert isinstance(options.selection, TopicSelection)
    async with PulsarCluster(bookkeeper, options.topics.access(options.ledger_password)) as cluster:
        nodes = await cluster.nodes()
        parts = await asyncio.to_thread(some_parts, nodes, options.selection)
        options.topics.starting.check("startingOffsets", parts)
        options.topics.ending.check("endingOffsets", parts)
        planners = [cluster.planner(nodes, topic, quorum="settle") for topic in parts]
        try:
            ends = [bounds_of.message_at(options.topics.ending.at(topic)) for topic in parts]
            await settle(planners, [Bounds(end=end) for end in ends])
            plans = await at_once([PartPlan(cluster, nodes, planner, options).plan for planner in planners])
            lookup = SchemaLookup.for_query(bookkeeper, options, columns)
            return plans if lookup is None else await lookup.completed(nodes, plans, {})
        finally:
            for planner in planners:
                await planner.close()


async def at_once(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all calls, at most PLANNED_AT_ONCE at a time, and return their results in order. The first error cancels the
    other calls."""
    gate = asyncio.Semaphore(PLANNED_AT_ONCE)

    async def call(work: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await work()

    tasks = [asyncio.ensure_future(call(each)) for each in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class PartPlan:
    """Plans one topic or partition."""

    cluster: PulsarCluster
    nodes: PulsarNodes
    planner: PartitionPlanner
    options: BkOptions

    @property
    def topic(self) -> TopicName:
        return self.planner.topic

    @property
    def how(self) -> TopicOptions:
        assert self.options.topics is not None
        return self.options.topics

    async def plan(self) -> PartitionPlan:
        """Return the plan, and close the planner."""
        planner = self.planner
        try:
            bounds = await self._bounds(planner)
            bounds, ranges = await self._ranges(planner, bounds)
            ranges, aborted, decided = await self._outcomes(planner, bounds, ranges)
            begin = None if self.how.compacted else bounds.first_entry
            history = () if begin is None else tuple(await planner.history(begin))
        finally:
            await planner.close()
        return PartitionPlan(self.topic, tuple(ranges), None, bounds, aborted, decided, history=history)

    async def _bounds(self, planner: PartitionPlanner) -> Bounds:
        how = self.how
        start, end = bounds_of.message_at(how.starting.at(self.topic)), bounds_of.message_at(how.ending.at(self.topic))
        needs_record = how.published_from_ms is not None or how.published_before_ms is not None
        if needs_record or how.subscription is not None:
            record = await asyncio.to_thread(self.nodes.managed_ledger, self.topic) or ManagedLedger(())
            start = await start_of(planner, record, how) or start
            if how.published_before_ms is not None:
                end = bounds_of.end_by_time(record, how.published_before_ms)
        return Bounds(start, False, end, how.published_from_ms, how.published_before_ms)

    async def _ranges(self, planner: PartitionPlanner, bounds: Bounds) -> tuple[Bounds, list[TopicRange]]:
        try:
            ranges = await planner.ranges(bounds, compacted=self.how.compacted)
        except NoSuchEntryError as error:
            if self.options.fail_on_data_loss:
                raise bounds_of.trimmed(self.topic, error, self.how) from error
            logger.warning("%s: read from the earliest message that is left (failOnDataLoss=false)", error)
            bounds = Bounds(None, False, bounds.end, bounds.published_from_ms, bounds.published_before_ms)
            ranges = await planner.ranges(bounds, compacted=self.how.compacted)
        if self.how.starting.places or self.how.ending.places:
            bounds_of.check_within(self.topic, bounds.start, bounds.end, planner.end.last)
        return bounds, ranges

    async def _outcomes(
        self, planner: PartitionPlanner, bounds: Bounds, ranges: list[TopicRange]
    ) -> tuple[list[TopicRange], frozenset[TxnId], bool]:
        """Return the ranges up to the first message of an undecided transaction, the aborted transactions, and whether
        outcomes were looked for."""
        wants = self.how.isolation == "read_committed"
        if not wants or not await self.cluster.may_have_transactions(self.nodes, self.topic):
            return ranges, frozenset(), False
        beyond = None if bounds.end is None else partial(planner.ranges, Bounds(start=bounds.end))
        return *await self.cluster.outcomes(planner).decide(ranges, beyond), True


async def start_of(planner: PartitionPlanner, record: ManagedLedger, how: TopicOptions) -> MessageId | None:
    """Return the position that ``startingTimestamp`` or ``subscription`` chooses. Return None if neither is given, or
    for the begin of the topic."""
    if how.subscription is not None:
        cursors = await planner.cursors()
        return bounds_of.start_of_subscription(planner.topic, record, cursors, how.subscription)
    return None if how.published_from_ms is None else bounds_of.start_by_time(record, how.published_from_ms)
