# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts for ``bk topic explain TOPIC MESSAGE_ID``: the entry that holds a message, its copies, what its
broker and its producer wrote before the payload, and what the topic says about it. Nothing is fenced.

An entry of a ledger that bookies have deleted is read from its copy in object storage.

To find the outcome of a transaction and the later chunks of a message, at most ``SCAN_BYTES`` of the entries behind the
message are read. To find its earlier chunks, at most ``SCAN_BYTES`` before it are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from bk_cli.explain.topic_seen import PartSeen, TopicSeen, heads_of, newest, oldest, see_topic
from bk_core import quorum
from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, InvalidArgumentError, NoSuchEntryError, TopicError
from bk_core.model import BookieId, Fragment, LedgerMetadata
from bk_core.pulsar.cluster import PulsarAccess, PulsarCluster
from bk_core.pulsar.messages import heads as fields
from bk_core.pulsar.messages.decoder import DecodeOptions, MessageDecoder
from bk_core.pulsar.messages.heads import Heads, read_heads
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import TopicRange
from bk_core.pulsar.model.transactions import Transactions, TxnId
from bk_core.pulsar.offloaded.access import OffloadStorage
from bk_core.pulsar.planning import bytes_of, record_of_copy
from bk_core.pulsar.proto.message_pb2 import BrokerEntryMetadata, MessageMetadata
from bk_core.pulsar.reading import LedgerReads
from bk_core.wire.lane.evidence import ReadTrailer

ANSWER_S = 2.0
"""The seconds that a bookie has to say whether it holds the entry."""
HAS, LACKS = "has it", "lacks it"


@dataclass(frozen=True, slots=True)
class Placed:
    """The location of an entry. ``copies`` has each bookie of its write set, with the bookie's answer in words."""

    metadata: LedgerMetadata
    fragment: Fragment
    copies: Mapping[BookieId, str]


@dataclass(frozen=True, slots=True)
class ChunksSeen:
    """The entries that have the chunks of a message, by the number of the chunk. Chunks that were not found are
    missing. ``is_all_searched`` says that the search covered all entries of the topic that may have them."""

    count: int
    found: Mapping[int, EntryPosition]
    is_all_searched: bool

    @property
    def is_whole(self) -> bool:
        return len(self.found) == self.count


@dataclass(frozen=True, slots=True)
class Inner:
    """One message of a batch, or the only message of an entry. ``keyed_by`` is its key, or None."""

    value_bytes: int
    keyed_by: bytes | None
    event_time_ms: int
    sequence_id: int


@dataclass(frozen=True, slots=True)
class MessageSeen:
    """A message. If the message id names only an entry, ``batch_index`` is −1. ``elsewhere`` is the driver whose
    storage alone has the ledger, and ``not_read_there`` the reason why a read cannot use that storage. ``placed`` is
    None if the bookies do not have the ledger. ``unreadable`` is the reason why the entry could not be read, and
    ``problem`` the reason why it is not a message. ``refusal`` is the error of a read that has no private key.
    ``inner`` is None if the entry has no such message. ``outcome`` is the outcome of its transaction: ``committed``,
    ``aborted``, ``undecided`` or ``unknown``. It is empty outside transactions."""

    topic: TopicSeen
    part: PartSeen
    position: EntryPosition
    batch_index: int
    placed: Placed | None = None
    elsewhere: str = ""
    not_read_there: str = ""
    unreadable: str = ""
    entry_bytes: int = 0
    payload_bytes: int = 0
    broker: BrokerEntryMetadata | None = None
    metadata: MessageMetadata | None = None
    problem: str = ""
    is_wrong_checksum: bool = False
    refusal: TopicError | None = None
    inner: Inner | None = None
    messages_in_entry: int = 0
    chunks: ChunksSeen | None = None
    txn: TxnId | None = None
    outcome: str = ""


def parse_id(text: str) -> MessageId:
    """Parse ``ledger:entry``, or the text of a message id: ``ledger:entry:partition`` and ``…:batch index``. Raises
    InvalidArgumentError."""
    try:
        numbers = [int(part) for part in text.split(":")]
        if not 2 <= len(numbers) <= 4 or min(numbers[:2]) < 0 or min(numbers) < -1 or max(numbers) >= 1 << 63:
            raise ValueError(text)
    except ValueError:
        raise InvalidArgumentError(
            "this is not the id of a message",
            value=repr(text),
            remedy="write ledger:entry, or what Pulsar's tools and bk topic read print: ledger:entry:partition:batch",
        ) from None
    ledger_id, entry_id, partition, batch_index = [*numbers, -1, -1][:4]
    return MessageId(ledger_id, entry_id, partition, batch_index)


async def see_message(bookkeeper: BookKeeper, name: str, wanted: MessageId, access: PulsarAccess) -> MessageSeen:
    """Gather the facts. Raises what :func:`see_topic` raises, and InvalidArgumentError if no ledger of the topic or no
    bookie has the entry, or if the entry has no such message."""
    topic = await see_topic(bookkeeper, name, access, ledger_id=wanted.ledger_id)
    (part,) = topic.parts
    seen = MessageSeen(topic, part, wanted.entry, wanted.batch_index)
    record = part.records.get(wanted.ledger_id)
    ledger = next(each for each in part.ledgers if each.ledger_id == wanted.ledger_id)
    async with PulsarCluster(bookkeeper, access) as cluster:
        copy = None if ledger.is_in_bookies else ledger.copy
        if copy is not None:
            seen = replace(seen, elsewhere=copy.driver, not_read_there=cluster.storage.problem(copy) or "")
            if seen.not_read_there:
                return seen
            record = record_of_copy(ledger)
        elif record is None and wanted.ledger_id not in part.records:
            record = (await bookkeeper.read_metadata(wanted.ledger_id)).value
        if record is None:
            return replace(seen, unreadable=f"ledger {wanted.ledger_id} does not exist in the metadata of the bookies")
        if copy is None:
            seen = replace(seen, placed=await _placed(bookkeeper, record, wanted.entry))
        if record.is_closed and wanted.entry_id > record.last_entry_id:
            raise _no_entry(part, wanted, f"ledger {wanted.ledger_id} ends at entry {record.last_entry_id}")
        at = TopicRange(part.topic, wanted.ledger_id, record, wanted.entry_id, wanted.entry_id, 0, copy=copy)
        try:
            batch = await _entry(cluster.reads(), at)
        except NoSuchEntryError as error:
            if not record.is_closed:
                raise _no_entry(part, wanted, "no bookie has it") from error
            return replace(seen, unreadable=str(error))
        except BookKeeperError as error:
            return replace(seen, unreadable=str(error))
        return await _decoded(cluster, seen, batch)


def _no_entry(part: PartSeen, wanted: MessageId, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{part.topic} has no entry {wanted.entry}",
        value=why,
        remedy=f"bk topic explain {part.topic} says where it begins and ends",
    )


# --- the entry --------------------------------------------------------------------------------------------------------


async def _placed(bookkeeper: BookKeeper, record: LedgerMetadata, at: EntryPosition) -> Placed:
    """Return the location of the entry. All its bookies are asked at the same time."""
    await bookkeeper.refresh_bookies()
    fragment = record.fragment_of(at.entry_id)
    members = quorum.write_set(at.entry_id, record.ensemble_size, record.write_quorum_size)
    bookies = [fragment.ensemble[index] for index in members]
    said = await asyncio.gather(*(_copy(bookkeeper, bookie, at) for bookie in bookies))
    return Placed(record, fragment, dict(zip(bookies, said, strict=True)))


async def _copy(bookkeeper: BookKeeper, bookie: BookieId, at: EntryPosition) -> str:
    trailer: ReadTrailer | None = None
    try:
        link = bookkeeper.transport.link(bookie)
        answers = link.read(at.ledger_id, at.entry_id, at.entry_id, bytes_max=1, deadline_s=ANSWER_S)
        async with asyncio.timeout(ANSWER_S):
            async for answer in answers:
                trailer = answer if isinstance(answer, ReadTrailer) else trailer
    except (BookKeeperError, TimeoutError) as error:
        return error.what if isinstance(error, BookKeeperError) else f"silent for {ANSWER_S:g} s"
    for gap in trailer.unknown if trailer is not None else ():
        if gap.first <= at.entry_id <= gap.last:
            return f"does not know: {gap.reason.name.lower()}"
    lacks = trailer is None or any(gap.first <= at.entry_id <= gap.last for gap in trailer.absent)
    return LACKS if lacks else HAS


async def _entry(reads: LedgerReads, wanted: TopicRange) -> EntryBatch:
    async with aclosing(reads.read(wanted)) as batches:
        async for batch in batches:
            return batch
    raise NoSuchEntryError(f"entry {wanted.first} of ledger {wanted.ledger_id} is not there")


async def _decoded(cluster: PulsarCluster, seen: MessageSeen, batch: EntryBatch) -> MessageSeen:
    heads = read_heads(batch)
    begin, payload, end = (int(each[0]) for each in (heads.begin, heads.payload_begin, heads.payload_end))
    seen = replace(seen, entry_bytes=end - begin, payload_bytes=end - payload)
    if 0 in heads.problems and 0 not in heads.failed_checksum:
        return replace(seen, problem=heads.problems[0])
    data = bytes(heads.data[begin:end])
    broker, metadata = _heads_of(data)
    seen = replace(
        seen,
        broker=broker,
        metadata=metadata,
        problem=heads.problems.get(0, ""),
        is_wrong_checksum=0 in heads.failed_checksum,
        messages_in_entry=metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1,
    )
    if seen.problem:
        return seen
    if bool(heads.in_transaction[0]):
        seen = replace(seen, txn=heads.txn(0))
        seen = replace(seen, outcome=await _outcome(cluster, seen))
    if metadata.HasField("marker_type"):
        return replace(seen, messages_in_entry=0)
    if metadata.num_chunks_from_msg > 1:
        return replace(seen, chunks=await _chunks(cluster, seen, metadata))
    return _with_message(seen, heads)


def _heads_of(data: bytes) -> tuple[BrokerEntryMetadata | None, MessageMetadata]:
    """Parse the heads of an entry that :func:`read_heads` accepted."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "big")

    at, broker = 0, None
    if number(0, 2) == fields.BROKER_MAGIC:
        size = number(2, 4)
        broker, at = BrokerEntryMetadata.FromString(data[6 : 6 + size]), 6 + size
    if number(at, 2) == fields.CHECKSUM_MAGIC:
        at += 6
    size = number(at, 4)
    return broker, MessageMetadata.FromString(data[at + 4 : at + 4 + size])


def _with_message(seen: MessageSeen, heads: Heads) -> MessageSeen:
    """Return ``seen`` with its message, or with the error of a read that has no private key. Raises
    InvalidArgumentError if the entry has no message of this number."""
    decoder = MessageDecoder(str(seen.part.topic), DecodeOptions())
    try:
        (found,) = decoder.messages(heads)
    except TopicError as error:
        return replace(seen, refusal=error)
    columns, wanted = found.columns, seen.batch_index
    if wanted >= seen.messages_in_entry or (wanted >= 0 and not _is_batch(seen)):
        raise InvalidArgumentError(
            f"entry {seen.position} of {seen.part.topic} has no message {wanted}",
            value=f"it has {seen.messages_in_entry}" if _is_batch(seen) else "it is not a batch",
            remedy=f"give {seen.position}, or a number below {seen.messages_in_entry}"
            if _is_batch(seen)
            else f"give {seen.position}",
        )
    rows = np.flatnonzero((columns.batch_index == wanted) | (columns.batch_index < 0)).tolist()
    if (wanted < 0 and _is_batch(seen)) or not rows:
        return seen  # a batch, of which no message is named; or the compaction removed this message
    at, length = (int(each[rows[0]]) for each in columns.key)
    return replace(
        seen,
        inner=Inner(
            max(0, int(columns.value[1][rows[0]])),
            bytes(found.data[at : at + length]) if length >= 0 else None,
            int(columns.event_time[rows[0]]),
            int(columns.sequence_id[rows[0]]),
        ),
    )


def _is_batch(seen: MessageSeen) -> bool:
    return seen.metadata is not None and seen.metadata.HasField("num_messages_in_batch")


# --- what other entries say -------------------------------------------------------------------------------------------


async def _outcome(cluster: PulsarCluster, seen: MessageSeen) -> str:
    """Return the outcome of the entry's transaction, which a later entry has."""
    part, txn = seen.part, seen.txn
    assert txn is not None
    transactions, is_exact = part.transactions or Transactions(), True
    if part.scanned_from is None or part.scanned_from > seen.position or part.scan_trouble:
        transactions = Transactions()
        found, is_exact = await _around(cluster, seen, behind=True)
        for heads in found:
            heads.note(transactions)
    if txn in transactions.committed:
        return "committed"
    if txn in transactions.aborted:
        return "aborted"
    return "undecided" if is_exact else "unknown"


async def _chunks(cluster: PulsarCluster, seen: MessageSeen, metadata: MessageMetadata) -> ChunksSeen:
    """Look for the chunks of a message in the entries around one of them."""
    found, count, uuid = {metadata.chunk_id: seen.position}, metadata.num_chunks_from_msg, metadata.uuid
    is_all_searched = True
    for behind, is_wanted in ((False, metadata.chunk_id > 0), (True, metadata.chunk_id < count - 1)):
        if not is_wanted:
            continue
        around, is_all = await _around(cluster, seen, behind=behind)
        is_all_searched &= is_all
        for each in around:
            for row in np.flatnonzero(each.metadata.number(fields.CHUNKS) > 1).tolist():
                begin, length = (int(column[row]) for column in each.metadata.span(fields.UUID))
                if bytes(each.data[begin : begin + max(0, length)]) == uuid:
                    found.setdefault(int(each.metadata.number(fields.CHUNK)[row]), each.position(row))
    return ChunksSeen(count, dict(sorted(found.items())), is_all_searched)


async def _around(cluster: PulsarCluster, seen: MessageSeen, *, behind: bool) -> tuple[list[Heads], bool]:
    """Return the heads of the entries behind the message, or before it, up to SCAN_BYTES, and whether these are all of
    the topic's entries there. The search ends at an entry that cannot be read."""
    ranges, is_all = _ranges(cluster.storage, seen, behind=behind)
    pieces, found = oldest(ranges) if behind else newest(ranges), list[Heads]()
    is_all &= sum(map(len, pieces)) == sum(map(len, ranges))
    try:
        async with aclosing(heads_of(cluster.reads(), pieces)) as heads:
            async for each in heads:
                found.append(each)
    except BookKeeperError:
        is_all = False
    return found, is_all


def _ranges(storage: OffloadStorage, seen: MessageSeen, *, behind: bool) -> tuple[Sequence[TopicRange], bool]:
    """Return the ranges of the topic's entries behind the message, or before it, that can be read, and whether these
    are all ranges there."""
    part, at, placed = seen.part, seen.position, seen.placed
    last, _ = part.end
    found, is_all = list[TopicRange](), part.open_end is None or not part.open_end.trouble
    for ledger in part.ledgers:
        is_own = ledger.ledger_id == at.ledger_id
        if last is None or (not is_own and (ledger.ledger_id < at.ledger_id) == behind):
            continue
        copy = None if ledger.is_in_bookies else ledger.copy
        if copy is not None:
            record = record_of_copy(ledger) if storage.problem(copy) is None else None
        else:
            record = placed.metadata if is_own and placed is not None else part.records.get(ledger.ledger_id)
        if record is None:
            is_all = False
            continue
        end = last.entry_id if last.ledger_id == ledger.ledger_id else part.last_of(ledger)
        first = at.entry_id + 1 if is_own and behind else 0
        if is_own and not behind:
            end = at.entry_id - 1
        if first <= end:
            size = bytes_of(ledger, record, part.ledgers, end + 1)
            found.append(TopicRange(part.topic, ledger.ledger_id, record, 0, end, size, copy=copy).part(first, end))
    return found, is_all
