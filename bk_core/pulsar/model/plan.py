# SPDX-License-Identifier: Apache-2.0
"""Defines the plans of reads. A plan has ranges of a topic's ledgers, and everything that a reader without a metadata
store needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bk_core.model import LedgerMetadata
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.offload import OffloadedCopy
from bk_core.pulsar.model.schemas import TopicSchemas
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId

LOOK_BACK_BYTES = 512 << 20
"""The maximum number of bytes before a range in which a reader looks for earlier chunks. It is four times the largest
message, because the chunks of several messages may be mixed."""
LOOK_BACK_RANGES = 64
"""The maximum number of ranges before a range in which a reader looks for earlier chunks. It keeps plans small, because
a plan names each of these ranges."""


@dataclass(frozen=True, slots=True)
class TopicRange:
    """The entries ``first`` to ``last``, both inclusive, of one ledger of a topic or partition. ``bytes`` estimates
    their size. All of them are confirmed, but the LAC of the bookies may be lower than ``last`` if a broker reported
    the last entry. ``is_compacted`` says that the ledger contains the compacted topic. With a ``copy``, a reader takes
    the entries from object storage, and ``metadata`` has nothing but the end of the ledger."""

    topic: TopicName
    ledger_id: int
    metadata: LedgerMetadata
    first: int
    last: int
    bytes: int
    is_compacted: bool = False
    copy: OffloadedCopy | None = None

    def __len__(self) -> int:
        return self.last + 1 - self.first

    def part(self, first: int, last: int) -> TopicRange:
        """Return the part of this range from entry ``first`` to entry ``last``, both inclusive."""
        return replace(self, first=first, last=last, bytes=self.bytes * (last + 1 - first) // max(1, len(self)))

    def pieces(self, bytes_max: int) -> Iterator[TopicRange]:
        """Yield the range in pieces of about ``bytes_max`` each, by the estimate in ``bytes``."""
        step = max(1, bytes_max * len(self) // max(1, self.bytes))
        for first in range(self.first, self.last + 1, step):
            yield self.part(first, min(first + step - 1, self.last))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a read. Messages from ``start`` on and before ``end`` belong to the read. With ``is_after`` the
    message ``start`` does not. A bound of None does not limit the read."""

    start: MessageId | None = None
    is_after: bool = False
    end: MessageId | None = None
    published_from_ms: int | None = None
    published_before_ms: int | None = None

    @property
    def first_entry(self) -> EntryPosition | None:
        """The first entry to read, or None without a start. A chunked message begins at its first chunk."""
        if self.start is None:
            return None
        if self.start.first_chunk is not None and not self.is_after:
            return self.start.first_chunk
        if self.is_after and (self.start.batch_index < 0 or self.start.batch_index + 1 == self.start.batch_size):
            return EntryPosition(self.start.ledger_id, self.start.entry_id + 1)
        return self.start.entry

    @property
    def last_entry(self) -> EntryPosition | None:
        """The last entry to read, or None without an end."""
        if self.end is None:
            return None
        before = self.end.batch_index <= 0
        return EntryPosition(self.end.ledger_id, self.end.entry_id - before)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The ranges to read of one topic or partition, in order.

    ``end`` is the entry after the last entry that is known to be confirmed. ``next_entry`` is the entry at which the
    next plan of a stream begins; None means the entry at which this plan began. Messages of the transactions in
    ``aborted`` are left out. ``decided`` says that every transaction with a message in the ranges has ended.
    ``history`` has the ranges before the start, which contain the earlier chunks of messages that end after the start.
    ``schemas`` has the versions of the topic's schema if values become columns.
    """

    topic: TopicName
    ranges: tuple[TopicRange, ...]
    end: EntryPosition | None
    bounds: Bounds = Bounds()
    aborted: frozenset[TxnId] = frozenset()
    decided: bool = False
    next_entry: EntryPosition | None = None
    history: tuple[TopicRange, ...] = ()
    schemas: TopicSchemas | None = None

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.ranges)


def clipped(ranges: list[TopicRange], before: EntryPosition) -> list[TopicRange]:
    """Return the part of ``ranges`` before an entry of the topic. Ranges of a compacted ledger are kept, because their
    entries come before those of the topic itself."""
    kept = list[TopicRange]()
    for each in ranges:
        if each.is_compacted or each.ledger_id < before.ledger_id:
            kept.append(each)
        elif each.ledger_id == before.ledger_id and each.first < before.entry_id:
            kept.append(each.part(each.first, min(each.last, before.entry_id - 1)))
    return kept
