# SPDX-License-Identifier: Apache-2.0
"""Reads a topic of Apache Pulsar from its ledgers, without a broker.

Nothing is written, and ledgers are opened without recovery, so no writer is disturbed. In an idle topic the bookies'
LAC is lower than the last confirmed entry, by the adds that were in flight last. So the last messages are read only if
a broker gives the end of the topic (``admin_url``), if the reader trusts an ack quorum of bookies
(``quorum_settle_ms``), or once the ledger is closed. Decision records 0075 and 0076 have the details.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.batch_iterator import BatchIterator, KeptItems
from bk_core.errors import InvalidArgumentError, LedgerOffloadedError
from bk_core.pulsar.cluster import PulsarAccess, PulsarCluster
from bk_core.pulsar.given.bounds import GivenBounds, Position, Positions
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.lookup.schema_entries import read_schemas
from bk_core.pulsar.model.managed_ledger import Cursor, ManagedLedger, TopicLedger
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds, PartitionPlan, TopicRange
from bk_core.pulsar.model.schemas import BYTES, SchemaChoice, SchemaVersion, TopicSchema, TopicSchemas, version_of
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId
from bk_core.pulsar.planning import PartitionPlanner, TopicEnd, settle
from bk_core.pulsar.tailing import FollowedPartition, Tail

if TYPE_CHECKING:
    from pyarrow import RecordBatch, RecordBatchReader, Schema, Table

    from bk_core.client.reading.pull import Pull
    from bk_core.pulsar.given.rows import GivenRows
    from bk_core.pulsar.messages.decoder import OnCorrupt, OnEncrypted
    from bk_core.pulsar.reading import Isolation, PartitionReading, ReadOptions

LATEST = "latest"
"""The start of a tail that leaves out the existing messages."""
SUBSCRIPTIONS_SHOWN = 20
"""The maximum number of subscriptions in an error about an unknown subscription."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition, or a topic without partitions. ``cursors`` has the subscriptions by name."""

    topic: TopicName
    ledgers: tuple[TopicLedger, ...]
    end: TopicEnd
    is_terminated: bool
    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the metadata describe it. ``is_partitioned`` distinguishes a topic with one partition from a topic
    without partitions."""

    topic: TopicName
    is_partitioned: bool
    partitions: tuple[PartitionInfo, ...]
    schema_versions: tuple[SchemaVersion, ...]


class Topic:
    """A topic, or one of its partitions. The constructor reads nothing. At the end of an ``async with`` block the topic
    is closed.

    Raises InvalidArgumentError for a name that no topic can have, UnsupportedTopicError for a non-persistent one.
    """

    name: str
    """The full name, such as ``persistent://public/default/orders``."""

    def __init__(self, bookkeeper: BookKeeper, name: str, *, access: PulsarAccess | None = None) -> None:
        self._topic = TopicName.parse(name)
        self.name = str(self._topic)
        self._bookkeeper, self._access = bookkeeper, access or PulsarAccess()
        self._cluster = PulsarCluster(bookkeeper, self._access)

    # --- what is there -----------------------------------------------------------------------------------------------

    async def info(self) -> TopicInfo:
        """Return the topic's partitions, ledgers, subscriptions, versions of its schema, and where it ends. Raises
        NoSuchTopicError, which names topics with similar names, and MetadataCorruptError."""
        nodes = await self._cluster.nodes()
        topics = await asyncio.to_thread(nodes.parts, self._topic)
        partitions = [await self._partition_info(nodes, topic) for topic in topics]
        is_partitioned = bool(topics) and topics[0] != self._topic
        versions = await asyncio.to_thread(nodes.schema_versions, self._topic)
        return TopicInfo(self._topic, is_partitioned, tuple(partitions), versions)

    async def _partition_info(self, nodes: PulsarNodes, topic: TopicName) -> PartitionInfo:
        record = await asyncio.to_thread(nodes.managed_ledger, topic) or ManagedLedger(())
        planner = self._cluster.planner(nodes, topic)
        try:
            if record.ledgers:
                with suppress(LedgerOffloadedError):  # its end is known anyway
                    await planner.ranges(Bounds(start=MessageId(record.ledgers[-1].ledger_id, 0)))
            cursors = await planner.cursors()
        finally:
            await planner.close()
        end = planner.end
        if end.last is None:  # the last ledger is empty
            full = [each for each in record.ledgers if each.entries > 0]
            if full:
                end = TopicEnd(EntryPosition(full[-1].ledger_id, full[-1].entries - 1), end.source)
        return PartitionInfo(topic, record.ledgers, end, record.terminated_at is not None, cursors)

    async def schemas(self) -> list[TopicSchema]:
        """Return the versions of the topic's schema, the newest last. The list is empty if it has no schema. Raises
        MetadataCorruptError if a version cannot be read, and NoSuchLedgerError if its ledger was deleted."""
        nodes = await self._cluster.nodes()
        return await read_schemas(self._bookkeeper, nodes, self._topic, self._access.password)

    async def subscription(self, name: str) -> dict[int, Position]:
        """Return the position of a subscription in each partition, by the number of the partition, or by −1 for a topic
        without partitions. A read can take it as ``start``. All messages before the position are acknowledged, and some
        messages after it may be. The call does not move the subscription. Raises InvalidArgumentError, which names the
        existing subscriptions, if no partition has this subscription."""
        nodes, found, known = await self._cluster.nodes(), dict[int, Position](), set[str]()
        for topic in await asyncio.to_thread(nodes.parts, self._topic):
            planner = self._cluster.planner(nodes, topic)
            cursors = await planner.cursors()
            known |= set(cursors)
            record = await asyncio.to_thread(nodes.managed_ledger, topic)
            if name in cursors and record is not None and record.ledgers:
                at = cursors[name].mark_delete
                first = EntryPosition(record.ledgers[0].ledger_id, 0)  # acknowledged ledgers may be trimmed
                found[topic.partition] = max(first, EntryPosition(at.ledger_id, at.entry_id + 1))
        if name not in known:
            raise InvalidArgumentError(
                f"{self.name} has no subscription {name}",
                value=f"it has {', '.join(sorted(known)[:SUBSCRIPTIONS_SHOWN])}" if known else "it has none",
                remedy="name one of these, or read from a position",
            )
        return found

    # --- reading -----------------------------------------------------------------------------------------------------

    async def to_arrow(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        published_from: datetime | int | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
        topic_schema: SchemaChoice = "bytes",
    ) -> Table:
        """Return the topic's messages as a ``pyarrow.Table``, one partition after another, in order within each.

        ``start`` is the first message of the read, and ``end`` is the first message after it. Instead of ``start``,
        ``after`` is the last message before the read. Without them, the read has all messages that are confirmed now.
        For a topic with partitions each is a mapping of positions by the number of the partition. With
        ``published_from`` (a time, or milliseconds since 1970), the read has only messages published then or later.

        Columns are ``value``, ``__key``, ``__topic``, ``__messageId`` (as ``MessageId.serialize()`` gives it),
        ``__publishTime``, ``__eventTime`` and ``__messageProperties``. ``columns`` names other columns, which can
        also be ``__partition``, ``__producer``, ``__sequenceId``, ``__orderingKey`` and ``__schemaVersion``.

        With ``topic_schema="latest"``, values become columns of the newest version of the topic's schema, and with a
        number, columns of that version. The fields of a record are columns of their own, a KEY_VALUE schema gives
        ``key`` and ``value``, and any other schema gives ``value`` (docs/pulsar.md lists the types). Each value is
        decoded with the version that it was written with. A value that cannot be decoded is a corrupt entry.

        With ``compacted``, the part of the topic that was compacted gives only the last message of each key.
        ``isolation="read_uncommitted"`` adds the messages of transactions that are undecided or were aborted.
        ``corrupt="skip"`` leaves out entries that are not messages, and logs them. ``encrypted="raw"`` returns the
        encrypted bytes of messages for which no private key is given.

        Raises NoSuchTopicError; InvalidArgumentError for an impossible position or column; NoSuchEntryError if the
        start was trimmed; LedgerOffloadedError if a ledger is only in storage that this version or ``access`` cannot
        read; OffloadUnavailableError, OffloadMissingError and CorruptOffloadError, which name the object;
        CorruptMessageError, MessageChecksumError, MessageSchemaError, UnsupportedTopicError and MessageEncryptedError,
        which name the entry; NoSchemaError for a topic without a schema; and the errors of :meth:`LedgerReader.read`.
        """
        wanted = GivenBounds(start, end, after, published_from, compacted)
        rows = self._rows(columns, isolation, corrupt, encrypted, topic_schema)
        options = await self._options(rows)
        made = list[Any]()
        async with aclosing(self._read(wanted, rows, options)) as batches:
            async for batch in batches:
                made.append(batch)
        return _table(made, options.schema)

    def read(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        published_from: datetime | int | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
        topic_schema: SchemaChoice = "bytes",
    ) -> BatchIterator[RecordBatch]:
        """Yield the rows of :meth:`to_arrow` in batches of a few megabytes. Raises the same errors."""
        wanted = GivenBounds(start, end, after, published_from, compacted)
        return BatchIterator(self._read(wanted, self._rows(columns, isolation, corrupt, encrypted, topic_schema)))

    async def record_batch_reader(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        published_from: datetime | int | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
        topic_schema: SchemaChoice = "bytes",
    ) -> RecordBatchReader:
        """Return the rows of :meth:`to_arrow` as a ``pyarrow.RecordBatchReader``, which has a few megabytes in memory
        at a time. pandas, polars and duckdb read from it through Arrow's PyCapsule interface.

        Each pull blocks its thread, so an asyncio program must pull on another thread (``asyncio.to_thread``). The
        reads end when the reader is closed or dropped, or its ``with`` block ends. An error of :meth:`to_arrow` that
        occurs during a pull becomes a ``pyarrow.ArrowInvalid``, whose text contains the text and the code of the error.
        """
        from bk_core.client.reading.pull import Pull

        wanted = GivenBounds(start, end, after, published_from, compacted)
        rows = self._rows(columns, isolation, corrupt, encrypted, topic_schema)
        options, pull = await self._options(rows), Pull(self._bookkeeper, asyncio.get_running_loop())
        return _stream(_PulledBatches(BatchIterator(self._read(wanted, rows, options)), pull), options.schema)

    def tail(
        self,
        start: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
        topic_schema: SchemaChoice = "bytes",
    ) -> BatchIterator[RecordBatch]:
        """Yield the messages from ``start`` on, or after ``after``, as soon as they are confirmed, as batches of the
        rows of :meth:`to_arrow`. Each batch has messages of one partition. ``start="latest"`` leaves out all messages
        that are confirmed now. A partition that is added later is read from its beginning. With ``topic_schema``, the
        columns stay those of the version at the beginning, also for values of later versions.

        The iterator ends once the topic is terminated and all its messages were yielded. With an admin URL, it yields
        the last messages of an idle topic within a second, and with ``quorum_settle_ms`` a little after that time;
        with neither, only once later messages follow them. Raises the errors of :meth:`to_arrow`, and NoSuchTopicError
        once the topic is deleted.
        """
        wanted = GivenBounds(None if start == LATEST else start, None, after, None, False)
        rows = self._rows(columns, isolation, corrupt, encrypted, topic_schema)
        return BatchIterator(self._tail(wanted, rows, start == LATEST))

    async def plan(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        *,
        after: Positions | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        topic_schema: SchemaChoice = "bytes",
    ) -> list[PartitionPlan]:
        """Return one plan for each partition, in order. With a plan, a reader needs no metadata store. If
        ``topic_schema`` is not ``bytes``, the plans have the versions of the schema.

        If the namespace has ever had transactions, ``isolation="read_committed"`` reads the heads of all entries. The
        ranges then end before the first message of an undecided transaction, and the plan names the aborted
        transactions. Raises the errors of :meth:`to_arrow`.
        """
        version = version_of(topic_schema)
        wanted = GivenBounds(start, end, after, None, compacted)
        nodes = await self._cluster.nodes()
        plans = list[PartitionPlan]()
        async with self._planned(nodes, wanted) as parts:
            for bounds, planner in parts:
                topic = planner.topic
                begin = bounds.first_entry
                history = [] if begin is None or compacted else await planner.history(begin)
                ranges, aborted = await planner.ranges(bounds, compacted=compacted), frozenset[TxnId]()
                last, follows = planner.end.last, planner.following
                looks = isolation == "read_committed" and await self._cluster.may_have_transactions(nodes, topic)
                if looks:
                    ranges, aborted = await self._cluster.outcomes(planner).decide(ranges, _beyond(planner, bounds))
                await planner.close()
                stop = None if last is None else EntryPosition(last.ledger_id, last.entry_id + 1)
                after = begin
                if ranges and not ranges[-1].is_compacted:
                    after = EntryPosition(ranges[-1].ledger_id, ranges[-1].last + 1)
                next_entry = None if after is None else follows(after)
                plans.append(
                    PartitionPlan(topic, tuple(ranges), stop, bounds, aborted, looks, next_entry, tuple(history))
                )
        if topic_schema == BYTES:
            return plans
        # After the ends are known: a version is registered before the first message that has it is sent.
        schemas = await self._topic_schemas(version)
        return [replace(each, schemas=schemas) for each in plans]

    async def close(self) -> None:
        """End the session with Pulsar's own metadata store, if it has one. The client of the ledgers stays open."""
        await self._cluster.close()

    async def __aenter__(self) -> Topic:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _reading(self, planner: PartitionPlanner, options: ReadOptions) -> PartitionReading:
        from bk_core.pulsar.reading import PartitionReading

        return PartitionReading(planner.topic, self._cluster.reads(planner.moved), options, planner.history)

    def _rows(
        self,
        columns: Sequence[str] | None,
        isolation: Isolation,
        corrupt: OnCorrupt,
        encrypted: OnEncrypted,
        topic_schema: SchemaChoice,
    ) -> GivenRows:
        from bk_core.pulsar.given.rows import GivenRows

        return GivenRows.of(columns, isolation, corrupt, encrypted, topic_schema, self._access.private_keys)

    async def _options(self, rows: GivenRows) -> ReadOptions:
        """Return the options of a read. Reads the topic's schema if values become columns."""
        if rows.topic_schema == BYTES:
            return rows.options
        found = await self._topic_schemas(version_of(rows.topic_schema))

        async def newer() -> TopicSchemas:
            nonlocal found
            found = await self._topic_schemas(found.version, found.versions)
            return found

        return rows.with_schema(found, newer)

    async def _topic_schemas(self, version: int | None, known: Sequence[TopicSchema] = ()) -> TopicSchemas:
        """Return the versions of the topic's schema, for the columns of one of them, or of the newest. Raises
        NoSuchTopicError, NoSchemaError and InvalidArgumentError."""
        nodes = await self._cluster.nodes()
        await asyncio.to_thread(nodes.parts, self._topic)
        versions = await read_schemas(self._bookkeeper, nodes, self._topic, self._access.password, known)
        return TopicSchemas.of(self._topic, versions, version)

    async def _read(
        self, wanted: GivenBounds, given: GivenRows, options: ReadOptions | None = None
    ) -> AsyncGenerator[RecordBatch, None]:
        """Yield the rows of all partitions. A partition is planned when the read reaches it. ``options`` are the
        options that ``given`` makes, if the caller has them already."""
        options = options or await self._options(given)
        nodes = await self._cluster.nodes()
        async with self._planned(nodes, wanted) as parts:
            for bounds, planner in parts:
                ranges = await planner.ranges(bounds, compacted=wanted.compacted)
                rows = self._reading(planner, options).rows(ranges, bounds, _beyond(planner, bounds))
                async with aclosing(rows) as batches:
                    async for batch in batches:
                        yield batch
                await planner.close()

    @asynccontextmanager
    async def _planned(
        self, nodes: PulsarNodes, wanted: GivenBounds
    ) -> AsyncIterator[list[tuple[Bounds, PartitionPlanner]]]:
        """Yield the bounds and the planner of each partition, after the quorum's ends are known. The planners are
        closed at the end of the block. A read closes a planner earlier once it has read the partition."""
        topics = await asyncio.to_thread(nodes.parts, self._topic)
        bounds = [wanted.of(topic, self._topic) for topic in topics]
        async with AsyncExitStack() as stack:
            planners = [self._cluster.planner(nodes, topic, quorum="settle") for topic in topics]
            for each in planners:
                stack.push_async_callback(each.close)
            await settle(planners, bounds)
            yield list(zip(bounds, planners, strict=True))

    async def _tail(self, wanted: GivenBounds, given: GivenRows, latest: bool) -> AsyncGenerator[RecordBatch, None]:
        options = await self._options(given)
        async with AsyncExitStack() as stack:
            tail = Tail(self._parts, partial(self._follow, wanted, options, stack), latest)
            while True:
                is_idle = True
                for each, ranges in await tail.planned():
                    async with aclosing(each.rows(ranges)) as batches:
                        async for batch in batches:
                            is_idle = False
                            yield batch
                if tail.has_ended:
                    return
                if is_idle:
                    await tail.wait()

    async def _follow(
        self, wanted: GivenBounds, options: ReadOptions, stack: AsyncExitStack, topic: TopicName
    ) -> FollowedPartition:
        """Return a partition to follow. ``stack`` closes its planner."""
        planner = self._cluster.planner(await self._cluster.nodes(), topic, broker_may_fail=True, quorum="follow")
        stack.push_async_callback(planner.close)
        return FollowedPartition(planner, self._reading(planner, options), wanted.of(topic, self._topic))

    async def _parts(self) -> list[TopicName]:
        """Return the partitions that exist now, or the topic itself if it has none."""
        return await asyncio.to_thread((await self._cluster.nodes()).parts, self._topic)


async def list_topics(
    bookkeeper: BookKeeper, namespace: str | None = None, *, access: PulsarAccess | None = None
) -> list[tuple[TopicName, int | None]]:
    """Return the topics of a namespace (``tenant/namespace``), or of all namespaces for None, sorted by name. With each
    topic comes the number of its partitions, or None if it is not partitioned. They include the topics that brokers
    made for themselves (``TopicName.is_system``). Raises InvalidArgumentError, NoSuchTopicError if the namespace has
    none, and MetadataCorruptError."""
    async with PulsarCluster(bookkeeper, access or PulsarAccess()) as cluster:
        return await asyncio.to_thread((await cluster.nodes()).topics_of, namespace)


def _beyond(planner: PartitionPlanner, bounds: Bounds) -> Callable[[], Awaitable[list[TopicRange]]] | None:
    """Return a function that returns the ranges behind the end of a read, or None if the read goes to the end of the
    topic."""
    return None if bounds.end is None else partial(planner.ranges, Bounds(start=bounds.end))


class _PulledBatches(Iterator["RecordBatch"]):
    """The batches of a read, pulled on another thread. If an interrupt ends a call, the next call returns the batch of
    that call."""

    def __init__(self, source: BatchIterator[RecordBatch], pull: Pull) -> None:
        self._source, self._pull, self._number = KeptItems(source), pull, 0

    def __next__(self) -> RecordBatch:
        found = self._pull.wait(self._source.item(self._number, None))
        if found is None:
            raise StopIteration
        self._number += 1
        return found


def _stream(batches: Iterator[RecordBatch], schema: Schema) -> RecordBatchReader:
    from bk_core.pulsar.messages.rows import stream

    return stream(batches, schema)


def _table(batches: Sequence[RecordBatch], schema: Schema) -> Table:
    from bk_core.pulsar.messages.rows import table

    return table(batches, schema)
