# SPDX-License-Identifier: Apache-2.0
"""Reads a topic of Apache Pulsar from its ledgers, without a broker.

Nothing is written, and ledgers are opened without recovery, so no writer is disturbed. In an idle topic the bookies'
LAC is lower than the last confirmed entry, by the adds that were in flight last. So the last messages are read only if
a broker gives the end of the topic (``admin_url``), or once the ledger is closed. Decision record 0075 has the details.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.batch_iterator import BatchIterator, KeptItems
from bk_core.errors import InvalidArgumentError, MetadataUnavailableError, NoSuchLedgerError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.pulsar.broker import BrokerAdmin
from bk_core.pulsar.model.managed_ledger import Cursor, ManagedLedger, TopicLedger
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds, PartitionPlan, TopicRange
from bk_core.pulsar.model.schemas import SchemaVersion, TopicSchema, decode_schema
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId
from bk_core.pulsar.nodes import PulsarNodes, parse_metadata_uri
from bk_core.pulsar.planning import PASSWORD, PartitionPlanner, TopicEnd

if TYPE_CHECKING:
    from pyarrow import RecordBatch, RecordBatchReader, Schema, Table

    from bk_core.client.reading.pull import Pull
    from bk_core.pulsar.messages.decoder import OnCorrupt, OnEncrypted
    from bk_core.pulsar.reading import Isolation, PartitionReading, ReadOptions

Position: TypeAlias = MessageId | EntryPosition | bytes | str
"""A message id, the bytes that ``MessageId.serialize()`` of a Pulsar client gave, an entry, or ``"ledger:entry"``."""
Positions: TypeAlias = Position | Mapping[int, Position]
"""A position or, for a topic with partitions, positions by the number of the partition."""

LATEST = "latest"
SUBSCRIPTIONS_SHOWN = 20
POLL_S = 0.5
"""The seconds between two looks of a tail for new ledgers and at the broker's end of the topic. Between them, it sees
at once when the LAC of an open ledger advances."""
PARTITIONS_S = 5.0
"""The seconds between two looks of a tail for new partitions."""
UNAVAILABLE_MAX_S = 60.0
"""The seconds for which a tail continues while the metadata store is unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarAccess:
    """The addresses and secrets with which topics are read.

    ``metadata_uri`` is the place of Pulsar's metadata (``zk://host:2181/path``), if it is not the ZooKeeper of the
    ledgers. ``admin_url`` is the admin port of a broker or proxy (``http://host:8080``), which is asked where an open
    topic ends. ``token_path`` is a file with the token for its requests, which is read at each request; ``ca_path`` is
    a file with the certificates to trust. ``password`` is the password of the ledgers, if the brokers are configured
    with one. ``private_keys`` has private keys in PEM by the key names that producers use; ``*`` stands for all names.
    """

    metadata_uri: str = ""
    admin_url: str = ""
    token_path: str = ""
    ca_path: str = ""
    password: bytes = field(default=PASSWORD, repr=False)
    private_keys: Mapping[str, bytes] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition, or a topic without partitions. ``cursors`` has its subscriptions by name."""

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
        found = dict[int, TopicSchema]()
        wanted = list(await asyncio.to_thread(nodes.schema_versions, self._topic))
        while wanted:
            each = wanted.pop()
            if each.version in found:
                continue
            at = each.position
            async with await self._bookkeeper.open_ledger(
                at.ledger_id, recover=False, password=self._access.password
            ) as reader:
                # A schema's ledger has one entry and stays open, so its LAC does not cover that entry.
                beyond = not reader.is_closed
                async with aclosing(reader.reading(at.entry_id, at.entry_id, unconfirmed=beyond)) as batches:
                    entries = [entry async for batch in batches for entry in batch.to_list()]
            where = f"entry {at} of the schema of {self.name}"
            found[each.version], older = decode_schema(where, each.version, entries[0])
            wanted += older
        return [found[version] for version in sorted(found)]

    async def subscription(self, name: str) -> dict[int, Position]:
        """Return the position of a subscription in each partition, by the number of the partition, or by −1 for a topic
        without partitions. It can be the ``start`` of a read. All messages before it are acknowledged; some after it
        may be, too. The subscription itself does not move. Raises InvalidArgumentError, which names the subscriptions
        that exist, if no partition has it."""
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
    ) -> Table:
        """Return the topic's messages as a ``pyarrow.Table``, one partition after another, in order within each.

        ``start`` is the first message of the read, and ``end`` is the first message after it. Instead of ``start``,
        ``after`` is the last message before the read. Without them, the read has all messages that are confirmed now.
        For a topic with partitions each is a mapping of positions by the number of the partition. With
        ``published_from`` (a time, or milliseconds since 1970), the read has only messages published then or later.

        Columns are ``value``, ``__key``, ``__topic``, ``__messageId`` (as ``MessageId.serialize()`` gives it),
        ``__publishTime``, ``__eventTime`` and ``__messageProperties``. ``columns`` names other columns, which can
        also be ``__partition``, ``__producer``, ``__sequenceId``, ``__orderingKey`` and ``__schemaVersion``.

        With ``compacted``, the part of the topic that was compacted gives only the last message of each key.
        ``isolation="read_uncommitted"`` adds the messages of transactions that are undecided or were aborted.
        ``corrupt="skip"`` leaves out entries that are not messages, and logs them. ``encrypted="raw"`` returns the
        encrypted bytes of messages for which no private key is given.

        Raises NoSuchTopicError; InvalidArgumentError for an impossible position or column; NoSuchEntryError if the
        start was trimmed; LedgerOffloadedError if a ledger is only in other storage; CorruptMessageError,
        MessageChecksumError, UnsupportedTopicError and MessageEncryptedError, which name the entry; and the errors of
        :meth:`LedgerReader.read`.
        """
        wanted = _Wanted(start, end, after, published_from, compacted)
        options = self._options(columns, isolation, corrupt, encrypted)
        made = list[Any]()
        async with aclosing(self._read(wanted, options)) as batches:
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
    ) -> BatchIterator[RecordBatch]:
        """Yield the rows of :meth:`to_arrow` in batches of a few megabytes. Raises the same errors."""
        wanted = _Wanted(start, end, after, published_from, compacted)
        return BatchIterator(self._read(wanted, self._options(columns, isolation, corrupt, encrypted)))

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
    ) -> RecordBatchReader:
        """Return the rows of :meth:`to_arrow` as a ``pyarrow.RecordBatchReader``, which has a few megabytes in memory
        at a time. pandas, polars and duckdb read from it through Arrow's PyCapsule interface.

        Each pull blocks its thread, so an asyncio program must pull on another thread (``asyncio.to_thread``). The
        reads end when the reader is closed or dropped, or its ``with`` block ends. An error of :meth:`to_arrow` that
        occurs during a pull becomes a ``pyarrow.ArrowInvalid``, whose text contains the text and the code of the error.
        """
        from bk_core.client.reading.pull import Pull

        wanted = _Wanted(start, end, after, published_from, compacted)
        options = self._options(columns, isolation, corrupt, encrypted)
        pull = Pull(self._bookkeeper, asyncio.get_running_loop())
        return _stream(_PulledBatches(BatchIterator(self._read(wanted, options)), pull), options.schema)

    def tail(
        self,
        start: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
    ) -> BatchIterator[RecordBatch]:
        """Yield the messages from ``start`` on, or after ``after``, as soon as they are confirmed, as batches of the
        rows of :meth:`to_arrow`. Each batch has messages of one partition. ``start="latest"`` leaves out all messages
        that are confirmed now. A partition that is added later is read from its beginning.

        The iterator ends once the topic is terminated and all its messages were yielded. With an admin URL, it yields
        the last messages of an idle topic within a second; without one, only once later messages follow them. Raises
        the errors of :meth:`to_arrow`, and NoSuchTopicError once the topic is deleted.
        """
        wanted = _Wanted(None if start == LATEST else start, None, after, None, False)
        options = self._options(columns, isolation, corrupt, encrypted)
        return BatchIterator(self._tail(wanted, options, start == LATEST))

    async def plan(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        *,
        after: Positions | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
    ) -> list[PartitionPlan]:
        """Return one plan for each partition, in order. With a plan, a reader needs no metadata store.

        If the namespace has ever had transactions, ``isolation="read_committed"`` reads the heads of all entries. The
        ranges then end before the first message of an undecided transaction, and the plan names the aborted
        transactions. Raises the errors of :meth:`to_arrow`.
        """
        wanted = _Wanted(start, end, after, None, compacted)
        nodes = await self._cluster.nodes()
        plans = list[PartitionPlan]()
        for topic in await asyncio.to_thread(nodes.parts, self._topic):
            bounds, planner = wanted.of(topic, self._topic), self._cluster.planner(nodes, topic)
            try:
                begin = bounds.first_entry
                history = [] if begin is None or compacted else await planner.history(begin)
                ranges, aborted = await planner.ranges(bounds, compacted=compacted), frozenset[TxnId]()
                last, follows = planner.end.last, planner.following
                looks = isolation == "read_committed" and await self._cluster.may_have_transactions(nodes, topic)
                if looks:
                    ranges, aborted = await self._cluster.outcomes(topic).decide(ranges, _beyond(planner, bounds))
            finally:
                await planner.close()
            stop = None if last is None else EntryPosition(last.ledger_id, last.entry_id + 1)
            after = begin
            if ranges and not ranges[-1].is_compacted:
                after = EntryPosition(ranges[-1].ledger_id, ranges[-1].last + 1)
            next_entry = None if after is None else follows(after)
            plans.append(PartitionPlan(topic, tuple(ranges), stop, bounds, aborted, looks, next_entry, tuple(history)))
        return plans

    async def close(self) -> None:
        """End the session with Pulsar's own metadata store, if it has one. The client of the ledgers stays open."""
        await self._cluster.close()

    async def __aenter__(self) -> Topic:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _reading(self, planner: PartitionPlanner, options: ReadOptions) -> PartitionReading:
        from bk_core.pulsar.reading import LedgerReads, PartitionReading

        reads = LedgerReads(self._bookkeeper, self._access.password)
        return PartitionReading(planner.topic, reads, options, planner.history)

    def _options(
        self, columns: Sequence[str] | None, isolation: Isolation, corrupt: OnCorrupt, encrypted: OnEncrypted
    ) -> ReadOptions:
        from bk_core.pulsar.messages.decoder import DecodeOptions
        from bk_core.pulsar.messages.encryption import Decryptor
        from bk_core.pulsar.messages.rows import schema_of
        from bk_core.pulsar.reading import ReadOptions

        keys = self._access.private_keys
        decode = DecodeOptions(
            corrupt=corrupt, encrypted=encrypted, decryptor=None if keys is None else Decryptor(keys)
        )
        return ReadOptions(schema_of(columns), decode, isolation)

    async def _read(self, wanted: _Wanted, options: ReadOptions) -> AsyncGenerator[RecordBatch, None]:
        """Yield the rows of all partitions. Each is planned only when the read reaches it."""
        nodes = await self._cluster.nodes()
        topics = await asyncio.to_thread(nodes.parts, self._topic)
        for bounds, topic in [(wanted.of(topic, self._topic), topic) for topic in topics]:
            planner = self._cluster.planner(nodes, topic)
            try:
                ranges = await planner.ranges(bounds, compacted=wanted.compacted)
                rows = self._reading(planner, options).rows(ranges, bounds, _beyond(planner, bounds))
                async with aclosing(rows) as batches:
                    async for batch in batches:
                        yield batch
            finally:
                await planner.close()

    async def _tail(self, wanted: _Wanted, options: ReadOptions, latest: bool) -> AsyncGenerator[RecordBatch, None]:
        async with AsyncExitStack() as stack:
            tail = _Tail(self, wanted, options, stack, latest)
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

    async def following(
        self, topic: TopicName, wanted: _Wanted, options: ReadOptions, stack: AsyncExitStack
    ) -> _Following:
        """Return a partition to follow. ``stack`` closes what it opens."""
        planner = self._cluster.planner(await self._cluster.nodes(), topic, broker_may_fail=True)
        stack.push_async_callback(planner.close)
        return _Following(planner, self._reading(planner, options), wanted.of(topic, self._topic))

    async def parts(self) -> list[TopicName]:
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


class _Tail:
    """The partitions that a tail follows. While the metadata store does not answer, they stay as they are."""

    def __init__(
        self, topic: Topic, wanted: _Wanted, options: ReadOptions, stack: AsyncExitStack, latest: bool
    ) -> None:
        self._topic, self._wanted, self._options, self._stack = topic, wanted, options, stack
        self._from_latest = latest
        self._following: dict[TopicName, _Following] = {}
        self._loop = asyncio.get_running_loop()
        self._answered_at, self._looked_at = self._loop.time(), -PARTITIONS_S

    @property
    def has_ended(self) -> bool:
        """Whether every partition was terminated and is read."""
        return bool(self._following) and all(each.has_ended for each in self._following.values())

    async def planned(self) -> list[tuple[_Following, list[TopicRange]]]:
        """Return the new ranges of each partition. Raises MetadataUnavailableError after UNAVAILABLE_MAX_S without
        an answer of the metadata store."""
        try:
            await self._look()
            found = [(each, await each.planned()) for each in self._following.values()]
        except MetadataUnavailableError:
            if self._loop.time() - self._answered_at > UNAVAILABLE_MAX_S:
                raise
            return []
        self._answered_at = self._loop.time()
        return found

    async def _look(self) -> None:
        """Look for new partitions every PARTITIONS_S. Raises NoSuchTopicError if the topic is gone."""
        if self._loop.time() - self._looked_at < PARTITIONS_S:
            return
        for topic in await self._topic.parts():
            if topic not in self._following:
                new = await self._topic.following(topic, self._wanted, self._options, self._stack)
                if self._from_latest:
                    await new.skip()
                self._following[topic] = new
        self._from_latest, self._looked_at = False, self._loop.time()

    async def wait(self) -> None:
        """Wait until an open ledger has more, or for POLL_S."""
        waits = [asyncio.ensure_future(each.planner.wait(POLL_S)) for each in self._following.values()]
        waits = waits or [asyncio.ensure_future(asyncio.sleep(POLL_S))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            ended = await asyncio.gather(*waits, return_exceptions=True)
        for error in ended:
            # The next plan meets the same error, and handles it.
            if isinstance(error, NoSuchLedgerError | MetadataUnavailableError):
                await asyncio.sleep(POLL_S)
            elif isinstance(error, Exception):
                raise error


@dataclass(slots=True)
class _Following:
    """A partition that a tail follows."""

    planner: PartitionPlanner
    reading: PartitionReading
    bounds: Bounds
    has_ended: bool = False

    async def skip(self) -> None:
        """Move the start after all messages that are confirmed now."""
        await self.planner.ranges(Bounds())
        if (last := self.planner.end.last) is not None:
            self._go_on(EntryPosition(last.ledger_id, last.entry_id + 1))

    async def planned(self) -> list[TopicRange]:
        """Return the ranges that are new."""
        return await self.planner.ranges(self.bounds)

    async def rows(self, ranges: Sequence[TopicRange]) -> AsyncGenerator[RecordBatch, None]:
        """Yield the rows of the ranges that :meth:`planned` returned, and move the start after them."""
        async with aclosing(self.reading.rows(ranges, self.bounds)) as batches:
            async for batch in batches:
                yield batch
        before = self.reading.position or self.bounds.first_entry
        if before is not None:
            self._go_on(self.planner.following(before))
        last = ranges[-1] if ranges else None
        is_behind = last is not None and before is not None and before <= EntryPosition(last.ledger_id, last.last)
        self.has_ended = self.planner.is_terminated and not is_behind

    def _go_on(self, position: EntryPosition) -> None:
        if self.reading.position is None and self.bounds.start is not None and position <= self.bounds.start.entry:
            return  # nothing was read yet: the start may be within a batch
        self.bounds = replace(self.bounds, start=MessageId(*position), is_after=False)


def _beyond(planner: PartitionPlanner, bounds: Bounds) -> Callable[[], Awaitable[list[TopicRange]]] | None:
    """Return a function for the ranges after the end of a read, or None if the read goes to the end of the topic."""
    return None if bounds.end is None else partial(planner.ranges, Bounds(start=bounds.end))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The bounds of a read as the caller gave them, for all partitions."""

    start: Positions | None
    end: Positions | None
    after: Positions | None
    published_from: datetime | int | None
    compacted: bool

    def __post_init__(self) -> None:
        if self.start is not None and self.after is not None:
            raise InvalidArgumentError(
                "a read cannot have both start and after", value="both are given", remedy="give one of them"
            )

    def of(self, topic: TopicName, read: TopicName) -> Bounds:
        """Return the bounds for one partition of the topic ``read``. Raises InvalidArgumentError."""
        start, after, end = (
            _position(given, topic, name, topic != read)
            for name, given in (("start", self.start), ("after", self.after), ("end", self.end))
        )
        published = self.published_from
        if isinstance(published, datetime):
            published = int(published.timestamp() * 1000)
        return Bounds(after if start is None else start, after is not None, end, published)


def _position(given: Positions | None, topic: TopicName, name: str, is_partition: bool) -> MessageId | None:
    if isinstance(given, Mapping):
        given, is_partition = given.get(topic.partition), False
    if given is None:
        return None
    if isinstance(given, bytes | bytearray):
        given = MessageId.deserialize(bytes(given))
    elif isinstance(given, str):
        given = EntryPosition.parse(given)
    if isinstance(given, EntryPosition):
        given = MessageId(given.ledger_id, given.entry_id)
    if not isinstance(given, MessageId):
        raise InvalidArgumentError(
            f"{name} is not a position of a message",
            value=repr(given)[:200],
            remedy="give a MessageId, its bytes, or ledger:entry; for partitions a mapping of them",
        )
    if is_partition or given.partition not in (-1, topic.partition):
        raise InvalidArgumentError(
            f"{name} is a position in one partition, but the read has several",
            value=f"{given} for {topic}",
            remedy="give a mapping of positions by partition, or name one partition as the topic",
        )
    return given


async def _no_history(_: EntryPosition) -> list[TopicRange]:
    return []


def _broker(access: PulsarAccess) -> BrokerAdmin | None:
    """Return the broker to ask, or None without an admin URL. Raises InvalidArgumentError for a bad URL or file."""
    if not access.admin_url:
        return None
    import ssl

    token: Callable[[], str] | None = None
    if access.token_path:
        path = Path(access.token_path)

        def token() -> str:
            return path.read_text(encoding="utf-8").strip()

    try:
        tls = ssl.create_default_context(cafile=access.ca_path) if access.ca_path else None
        if token is not None:
            token()
    except OSError as error:
        raise InvalidArgumentError(
            "a file for requests to Pulsar's broker cannot be read",
            value=f"{error.filename or access.ca_path}: {error}",
        ) from error
    return BrokerAdmin(access.admin_url, token=token, tls=tls)


class _PulledBatches(Iterator["RecordBatch"]):
    """Batches that another thread pulls. If an interrupt ends a call, the next call returns the same batch."""

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


class PulsarCluster:
    """Pulsar's metadata and its broker, for reads of topics. Making it reads nothing. It is an async context manager
    that closes it. Raises InvalidArgumentError for an address or a file that cannot be used."""

    def __init__(self, bookkeeper: BookKeeper, access: PulsarAccess) -> None:
        self.bookkeeper, self._access = bookkeeper, access
        self._broker = _broker(access)
        self._own_store: MetadataStore | None = None
        self._nodes: PulsarNodes | None = None
        self._with_transactions = set[tuple[str, str]]()  # namespaces; one that has had transactions stays here

    async def nodes(self) -> PulsarNodes:
        """Return Pulsar's nodes, with everything that brokers wrote before this call. They are beside those of the
        ledgers, or in a store of their own. Raises MetadataUnavailableError."""
        self.bookkeeper.check_open()
        if self._nodes is None:
            store, root = self.bookkeeper.store, ""
            if self._access.metadata_uri:
                uri, root = parse_metadata_uri(self._access.metadata_uri)
                settings = self.bookkeeper.config.store_settings()
                store = self._own_store = await asyncio.to_thread(lambda: open_store(uri, **settings))
            self._nodes = PulsarNodes(store, root)
        await asyncio.to_thread(self._nodes.sync)
        return self._nodes

    def planner(
        self, nodes: PulsarNodes, topic: TopicName, *, asks_broker: bool = True, broker_may_fail: bool = False
    ) -> PartitionPlanner:
        """Return a planner of one topic or partition, which the caller closes."""
        return PartitionPlanner(
            self.bookkeeper,
            nodes,
            topic,
            password=self._access.password,
            broker=self._broker if asks_broker else None,
            broker_may_fail=broker_may_fail,
        )

    async def may_have_transactions(self, nodes: PulsarNodes, topic: TopicName) -> bool:
        """Return whether the topic's namespace has ever had transactions. Call it after the end of a read is known,
        because a broker notes the first transaction of a namespace before the messages of that transaction."""
        space = topic.tenant, topic.namespace
        if space not in self._with_transactions and await asyncio.to_thread(nodes.may_have_transactions, topic):
            self._with_transactions.add(space)
        return space in self._with_transactions

    def outcomes(self, topic: TopicName) -> PartitionReading:
        """Return a reader for :meth:`PartitionReading.decide` alone, which finds the outcomes of transactions. It makes
        no rows, so it needs no entries before its ranges."""
        from bk_core.pulsar.messages.rows import schema_of
        from bk_core.pulsar.reading import LedgerReads, PartitionReading, ReadOptions

        reads, options = LedgerReads(self.bookkeeper, self._access.password), ReadOptions(schema_of(None))
        return PartitionReading(topic, reads, options, _no_history)

    async def close(self) -> None:
        """End the session with Pulsar's own metadata store, if it has one."""
        store, self._own_store, self._nodes = self._own_store, None, None
        if store is not None:
            await asyncio.to_thread(store.close)

    async def __aenter__(self) -> PulsarCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
