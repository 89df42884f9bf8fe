# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts for ``bk topic explain TOPIC``: what the metadata store, the bookies and the broker say about each
partition. It fences nothing, and waits for no settle time.

If a namespace has ever had transactions, the heads of the newest ``SCAN_BYTES`` of each partition are read. The marker
that ends a transaction comes after its messages, so the outcomes of the messages in these entries are exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from bk_core.client import BookKeeper
from bk_core.errors import BookKeeperError, InvalidArgumentError, MetadataUnavailableError, NoSuchLedgerError
from bk_core.model import EntryId, LedgerId, LedgerMetadata
from bk_core.pulsar.cluster import PulsarAccess, PulsarCluster
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.lookup.schema_entries import read_schemas
from bk_core.pulsar.messages.heads import Heads, read_heads
from bk_core.pulsar.model.managed_ledger import COMPACTION_CURSOR, Cursor, ManagedLedger, TopicLedger
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds, TopicRange
from bk_core.pulsar.model.schemas import TopicSchema
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import Transactions
from bk_core.pulsar.planning import PartitionPlanner
from bk_core.pulsar.reading import PIECE_BYTES, LedgerReads

SCAN_BYTES = 64 << 20
"""The maximum size of the entries, in bytes, whose heads are read for one question. It is about a second of reading."""
LEDGERS_MAX = 50
"""The maximum number of newest ledgers of a partition whose records are read."""
PARTS_AT_ONCE = 8
"""The maximum number of partitions that are examined at the same time."""
SHOWN_MAX = 8
"""The maximum number of ledgers or subscriptions that a sentence names."""


@dataclass(frozen=True, slots=True)
class EndSeen:
    """The end of the open ledger. ``lac`` is the LAC that the bookies prove. An ack quorum of bookies holds the entries
    up to ``held`` now. ``trouble`` is the reason why bookies did not answer."""

    lac: EntryId = -1
    held: EntryId = -1
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class PartSeen:
    """A partition, or a topic without partitions. ``records`` has the metadata of its newest ledgers in bookies, and
    None for a ledger that does not exist. ``open_end`` is None unless the last ledger is open. ``said`` is the end that
    the broker reports, and ``broker_trouble`` the reason why it reports none. ``scanned_from`` is the first entry whose
    head was read for ``transactions``, or None if no head was read."""

    topic: TopicName
    ledgers: tuple[TopicLedger, ...]
    terminated_at: EntryPosition | None
    records: Mapping[LedgerId, LedgerMetadata | None]
    open_end: EndSeen | None
    asked_broker: bool
    said: EntryPosition | None
    broker_trouble: str
    cursors: Mapping[str, EntryPosition]
    compaction: Cursor | None
    has_compacted_ledger: bool
    transactions: Transactions | None = None
    scanned_from: EntryPosition | None = None
    scan_trouble: str = ""

    @property
    def end(self) -> tuple[EntryPosition | None, str]:
        """Return the last entry that a read without a settle time shows, and its source as in :class:`TopicEnd`."""
        found, source = None, "closed"
        for each in reversed(self.ledgers):
            last = self.last_of(each)
            if last >= 0:
                found = EntryPosition(each.ledger_id, last)
                break
        if self.open_end is not None:
            source = "lac"
            if self.said is not None and (found is None or self.said >= found):
                found, source = self.said, "broker"
        if self.terminated_at is not None and (found is None or found >= self.terminated_at):
            found, source = self.terminated_at, "terminated"
        return found, source

    def last_of(self, ledger: TopicLedger) -> EntryId:
        """Return the last confirmed entry of a ledger by the records and the bookies, without the broker. Return −1 if
        it has none."""
        if ledger is self.ledgers[-1] and self.open_end is not None:
            return self.open_end.lac
        record = self.records.get(ledger.ledger_id)
        if record is not None and record.is_closed:
            return record.last_entry_id
        return ledger.entries - 1

    @property
    def first_undecided(self) -> EntryPosition | None:
        """The first message of an undecided transaction in the entries that were scanned."""
        return self.transactions.first_undecided if self.transactions is not None else None


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic. ``schema_trouble`` is the reason why the schema could not be read, or empty."""

    topic: TopicName
    is_partitioned: bool
    parts: Sequence[PartSeen]
    schemas: Sequence[TopicSchema]
    schema_trouble: str = ""


async def see_topic(
    bookkeeper: BookKeeper, name: str, access: PulsarAccess, *, ledger_id: LedgerId | None = None
) -> TopicSeen:
    """Gather the facts. With ``ledger_id``, only the partition that has this ledger is examined. Raises
    NoSuchTopicError, UnsupportedTopicError, MetadataCorruptError, MetadataUnavailableError, and InvalidArgumentError if
    no partition has the ledger."""
    offload = replace(access.offload, read_priority="bookkeeper-first")  # the facts are those of the bookies
    async with PulsarCluster(bookkeeper, replace(access, offload=offload)) as cluster:
        nodes, topic = await cluster.nodes(), TopicName.parse(name)
        parts = await asyncio.to_thread(nodes.parts, topic)
        gate = asyncio.Semaphore(PARTS_AT_ONCE)

        async def record_of(part: TopicName) -> ManagedLedger:
            async with gate:
                return await asyncio.to_thread(nodes.managed_ledger, part) or ManagedLedger(())

        async def look(part: TopicName, record: ManagedLedger) -> PartSeen:
            async with gate:
                return await see_part(cluster, nodes, part, record, access.password)

        found = dict(zip(parts, await asyncio.gather(*map(record_of, parts)), strict=True))
        wanted = found if ledger_id is None else _holding(topic, found, ledger_id)
        seen = await asyncio.gather(*(look(part, record) for part, record in wanted.items()))
        schemas, trouble = list[TopicSchema](), ""
        try:
            schemas = await read_schemas(bookkeeper, nodes, topic.whole, access.password)
        except BookKeeperError as error:
            trouble = str(error)
    return TopicSeen(topic, bool(parts) and parts[0] != topic, seen, schemas, trouble)


def _holding(
    topic: TopicName, records: Mapping[TopicName, ManagedLedger], ledger_id: LedgerId
) -> dict[TopicName, ManagedLedger]:
    """Return the partition that has this ledger, with its record. Raises InvalidArgumentError."""
    for part, record in records.items():
        if any(each.ledger_id == ledger_id for each in record.ledgers):
            return {part: record}
    ids = sorted(each.ledger_id for record in records.values() for each in record.ledgers)
    known = f"its ledgers are {named(list(map(str, ids)))}" if ids else "it has none"
    if ids and ledger_id < ids[0]:
        known += "; an earlier one was trimmed, or never was one of its ledgers"
    raise InvalidArgumentError(
        f"{topic} has no ledger {ledger_id}", value=known, remedy=f"bk topic show {topic} --ledgers lists them"
    )


def named(names: Sequence[str]) -> str:
    """Return a list of names for a sentence, which has at most SHOWN_MAX of them."""
    return ", ".join(names[:SHOWN_MAX]) + (" …" if len(names) > SHOWN_MAX else "")


async def see_part(
    cluster: PulsarCluster, nodes: PulsarNodes, topic: TopicName, record: ManagedLedger, password: bytes
) -> PartSeen:
    """Gather the facts about one partition. Raises MetadataCorruptError and MetadataUnavailableError."""
    records = await _records(cluster.bookkeeper, record.ledgers[-LEDGERS_MAX:])
    said, broker_trouble = await _said(cluster, topic)
    planner = cluster.planner(nodes, topic, broker_may_fail=True)
    try:
        cursors = await planner.cursors()
        compaction = cursors.pop(COMPACTION_CURSOR, None)
        last = record.ledgers[-1] if record.ledgers else None
        metadata = records.get(last.ledger_id) if last is not None else None
        open_end = None
        if last is not None and metadata is not None and not metadata.is_closed:
            open_end = await _open_end(cluster.bookkeeper, last.ledger_id, password)
        seen = PartSeen(
            topic,
            record.ledgers,
            record.terminated_at,
            records,
            open_end,
            cluster.asks_broker,
            said,
            broker_trouble,
            {name: cursor.mark_delete for name, cursor in sorted(cursors.items())},
            compaction,
            compaction is not None and await _exists(cluster.bookkeeper, compaction.compacted_ledger),
        )
        scans = await cluster.may_have_transactions(nodes, topic)
        return await _scanned(cluster, planner, record, seen) if scans else seen
    finally:
        await planner.close()


async def _scanned(
    cluster: PulsarCluster, planner: PartitionPlanner, record: ManagedLedger, seen: PartSeen
) -> PartSeen:
    """Return ``seen`` with the transactions of the partition's newest entries."""
    transactions, scanned_from, trouble = Transactions(), None, ""
    try:
        pieces = newest(await planner.ranges(_newest_in_bookies(record)))
        scanned_from = EntryPosition(pieces[0].ledger_id, pieces[0].first) if pieces else None
        async for heads in heads_of(cluster.reads(), pieces):
            heads.note(transactions)
    except BookKeeperError as error:
        trouble = str(error)
    return replace(seen, transactions=transactions, scanned_from=scanned_from, scan_trouble=trouble)


async def heads_of(reads: LedgerReads, pieces: Iterable[TopicRange]) -> AsyncGenerator[Heads, None]:
    """Read the heads of these entries, in order. Raises what reading raises."""
    for piece in pieces:
        async with aclosing(reads.read(piece)) as batches:
            async for batch in batches:
                yield await asyncio.to_thread(read_heads, batch, check=False)


def oldest(ranges: Iterable[TopicRange]) -> list[TopicRange]:
    """Return the first pieces of these ranges, at least one, of at most about ``SCAN_BYTES`` together."""
    return _bounded(piece for each in ranges for piece in each.pieces(PIECE_BYTES))


def newest(ranges: Iterable[TopicRange]) -> list[TopicRange]:
    """Return the last pieces of these ranges, at least one, of at most about ``SCAN_BYTES`` together."""
    return _bounded(reversed([piece for each in ranges for piece in each.pieces(PIECE_BYTES)]))[::-1]


def _bounded(pieces: Iterable[TopicRange]) -> list[TopicRange]:
    found, size = list[TopicRange](), 0
    for piece in pieces:
        size += piece.bytes
        if found and size > SCAN_BYTES:
            break
        found.append(piece)
    return found


def _newest_in_bookies(record: ManagedLedger) -> Bounds:
    """Return bounds that begin after the last ledger that bookies may have deleted."""
    first = None
    for each in reversed(record.ledgers):
        if not each.is_in_bookies:
            break
        first = each
    if first is None:
        return Bounds(start=MessageId(record.ledgers[-1].ledger_id + 1, 0)) if record.ledgers else Bounds()
    return Bounds(start=MessageId(first.ledger_id, 0))


async def _records(bookkeeper: BookKeeper, ledgers: Iterable[TopicLedger]) -> dict[LedgerId, LedgerMetadata | None]:
    async def look(ledger_id: LedgerId) -> LedgerMetadata | None:
        try:
            return (await bookkeeper.read_metadata(ledger_id)).value
        except NoSuchLedgerError:
            return None

    ids = [each.ledger_id for each in ledgers if each.is_in_bookies]
    return dict(zip(ids, await asyncio.gather(*map(look, ids)), strict=True))


async def _exists(bookkeeper: BookKeeper, ledger_id: LedgerId) -> bool:
    if ledger_id < 0:
        return False
    try:
        await bookkeeper.read_metadata(ledger_id)
    except NoSuchLedgerError:
        return False
    return True


async def _open_end(bookkeeper: BookKeeper, ledger_id: LedgerId, password: bytes) -> EndSeen:
    try:
        async with await bookkeeper.open_ledger(ledger_id, recover=False, password=password) as reader:
            lac = await reader.refresh_lac()
            return EndSeen(lac, await reader.wait_quorum_end(0))
    except MetadataUnavailableError:
        raise
    except BookKeeperError as error:
        return EndSeen(trouble=str(error))


async def _said(cluster: PulsarCluster, topic: TopicName) -> tuple[EntryPosition | None, str]:
    try:
        return await cluster.last_confirmed(topic), ""
    except BookKeeperError as error:
        return None, str(error)
