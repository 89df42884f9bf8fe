# SPDX-License-Identifier: Apache-2.0
"""Reads one topic or partition in order. Other threads make rows, so that the event loop can receive entries
meanwhile.

A read looks for the outcomes of transactions once it meets the first message of a transaction. It then scans the heads
of all entries up to the end. They show which transactions were aborted, and where the first undecided message is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.made_in_order import made_in_order
from bk_core.client.reading.read_ahead import read_ahead
from bk_core.client.reading.reader import LedgerReader
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError, NoSuchEntryError, NoSuchLedgerError
from bk_core.pulsar.gathering import Gathered, Received, gathered, joined
from bk_core.pulsar.messages.decoder import DecodeOptions
from bk_core.pulsar.messages.heads import Heads, read_heads
from bk_core.pulsar.messages.row_maker import LookBack, RowMaker, without
from bk_core.pulsar.messages.rows import Values
from bk_core.pulsar.messages.scan import Mask
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.plan import Bounds, TopicRange, clipped
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import Transactions, TxnId
from bk_core.pulsar.offloaded.access import BY_THE_RECORD
from bk_core.pulsar.offloaded.source import OffloadedReads

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("bk_core.pulsar")

T = TypeVar("T")
Ranges: TypeAlias = Sequence[TopicRange]
History: TypeAlias = Callable[[EntryPosition], Awaitable[Ranges]]
"""A function that returns the ranges before an entry."""
_Lack: TypeAlias = LookBack | frozenset[int]
"""The chunks or the schema versions that must be found before rows can be made of some entries."""
Isolation = Literal["read_committed", "read_uncommitted"]
Moved: TypeAlias = Callable[[TopicRange], Awaitable[TopicRange | None]]
"""A function that returns the same range of the ledger's copy in other storage, or None if there is no such copy."""
PIECE_BYTES = 4 << 20
"""The size, in bytes, of the pieces in which a ledger is read from bookies, and in which chunks are looked for."""
COPY_PIECE_BYTES = 32 << 20
"""The size, in bytes, of the pieces in which chunks are looked for in a copy. It is larger than for bookies, because a
piece is read from the begin of its block, which has 64 MiB by Pulsar's default."""
MADE_TOGETHER = 2
"""The number of record batches of a group that are made before the first of them is yielded. A few short entries may
have many batches of some tens of megabytes each."""
ENTRIES_HERE = 2048
"""The number of entries up to which their heads are read on the thread of the event loop. This holds the loop up for
some milliseconds, and saves a seventh of the time of a read: another thread would wait for this one's Python code, and
fetch the bytes into the cache of its processor."""
AHEAD_BYTES = 32 << 20
"""The maximum size, in bytes by estimate, of the pieces that a read of rows reads at the same time."""
SCAN_AHEAD_BYTES = 8 << 20
"""The maximum size, in bytes by estimate, of the pieces that a search for outcomes of transactions reads together."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading the messages of a topic. ``values`` decodes values into columns. ``newer`` returns such a
    decoder that also has the versions of the schema added since. If both are None, values are bytes."""

    schema: pa.Schema
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    isolation: Isolation = "read_committed"
    values: Values | None = None
    newer: Callable[[], Awaitable[Values]] | None = None

    def __post_init__(self) -> None:
        choices = (
            ("isolation", self.isolation, ("read_committed", "read_uncommitted")),
            ("corrupt", self.decode.corrupt, ("fail", "skip")),
            ("encrypted", self.decode.encrypted, ("fail", "raw")),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise InvalidArgumentError(
                    f"there is no such {name}", value=f"{name}={value!r}", remedy=f"choose from {', '.join(allowed)}"
                )


@dataclass(slots=True)
class _SharedReader:
    """A reader that is open or being opened, and the number of reads that use it."""

    opening: asyncio.Task[LedgerReader]
    users: int = 0


class LedgerReads:
    """Reads ranges of ledgers, from bookies or from copies in other storage. Concurrent reads of one ledger share a
    reader. If bookies deleted a ledger after it was planned, the ledger is read from its copy, if ``moved`` finds
    one."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        password: bytes,
        offloaded: OffloadedReads | None = None,
        moved: Moved | None = None,
    ) -> None:
        self._bookkeeper, self._password = bookkeeper, password
        self._offloaded, self._moved = offloaded or OffloadedReads(BY_THE_RECORD), moved
        self._readers: dict[int, _SharedReader] = {}

    async def read(self, wanted: TopicRange, *, keep_heads: bool = False) -> AsyncGenerator[EntryBatch, None]:
        """Yield the entries of a range, without fencing the ledger. ``keep_heads`` is as in
        :meth:`LedgerReader.reading`."""
        position = wanted.first
        if wanted.copy is None:
            try:
                async with aclosing(self._from_bookies(wanted, keep_heads)) as batches:
                    async for batch in batches:
                        yield batch
                        position = batch.last_entry_id + 1
                return
            except (NoSuchLedgerError, NoSuchEntryError):
                moved = await self._moved(wanted) if self._moved is not None else None
                if moved is None:
                    raise
                wanted = moved.part(position, moved.last)
        async with aclosing(self._offloaded.read(wanted)) as batches:
            async for batch in batches:
                yield batch

    async def _from_bookies(self, wanted: TopicRange, keep_heads: bool) -> AsyncGenerator[EntryBatch, None]:
        async with self._reader(wanted.ledger_id) as reader:
            # The plan says that all these entries are confirmed, but the LAC that bookies return now may be lower.
            beyond = not reader.is_closed and wanted.last > reader.last_add_confirmed
            reading = reader.reading(wanted.first, wanted.last, unconfirmed=beyond, keep_heads=keep_heads)
            async with aclosing(reading) as batches:
                async for batch in batches:
                    yield batch

    @asynccontextmanager
    async def _reader(self, ledger_id: int) -> AsyncIterator[LedgerReader]:
        shared = self._readers.get(ledger_id)
        if shared is None:
            opening = self._bookkeeper.open_ledger(ledger_id, recover=False, password=self._password)
            shared = self._readers[ledger_id] = _SharedReader(asyncio.ensure_future(opening))
        shared.users += 1
        try:
            yield await asyncio.shield(shared.opening)
        finally:
            shared.users -= 1
            if not shared.users:
                del self._readers[ledger_id]
                await _end(shared.opening)

    def read_all(self, ranges: Iterable[TopicRange], bytes_max: int) -> AsyncGenerator[Gathered, None]:
        """Yield the entries of all ranges in order, as :func:`gathered`. They are read ahead."""
        return gathered(self._ahead(ranges, bytes_max))

    async def _ahead(self, ranges: Iterable[TopicRange], bytes_max: int) -> AsyncGenerator[Received, None]:
        # A copy is read without a break: each piece of it would begin with the begin of its block.
        pieces = [
            piece for each in ranges for piece in ((each,) if each.copy is not None else each.pieces(PIECE_BYTES))
        ]
        async with aclosing(read_ahead(pieces, partial(self.read, keep_heads=True), bytes_max=bytes_max)) as lists:
            async for found in lists:
                for number, batch in found:
                    yield pieces[number], batch


@dataclass(slots=True, eq=False)
class _Group:
    """Entries that arrived together. ``rows`` makes their rows, and ``made`` are the rows that wait for the reader.
    ``following`` is the entry after them, or None in the ledger of a compacted topic. ``is_done`` is set once the
    reader has all rows."""

    rows: Iterator[pa.RecordBatch]
    following: EntryPosition | None
    made: list[pa.RecordBatch] = field(default_factory=list)
    is_done: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self) -> _Group:
        """Make the first rows."""
        self.made = _some(self.rows)
        return self


class PartitionReading:
    """Makes the rows of one topic or partition, range after range. Between two calls it keeps the chunks of unfinished
    messages and the states of transactions."""

    def __init__(self, topic: TopicName, reads: LedgerReads, options: ReadOptions, history: History) -> None:
        self.topic = topic
        self._reads, self._options, self._history = reads, options, history
        self._first: EntryPosition | None = None
        self._has_begun = False
        self._maker = RowMaker(topic, options.schema, options.decode, options.values)
        self._looked_for = set[int]()  # versions of the schema
        self._transactions: Transactions | None = None
        self._known_to = EntryPosition(-1, -1)
        self._restart: EntryPosition | None = None
        self.position: EntryPosition | None = None
        """The entry after the last one that was processed, whether it had rows or not; None before the first."""

    async def rows(
        self, ranges: Sequence[TopicRange], bounds: Bounds, beyond: Callable[[], Awaitable[Ranges]] | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows of these ranges that are within the bounds. Stops before the first message of an undecided
        transaction unless the isolation is ``read_uncommitted``. ``beyond`` returns the topic's ranges after
        ``ranges``, because transactions of messages in ``ranges`` may end there."""
        left = list(ranges)
        if not self._has_begun:
            self._first, self._has_begun = bounds.first_entry, True
        if self._transactions is not None and self._transactions.undecided:
            left = await self._decided(left, beyond)
        while left:
            self._restart = None
            async with aclosing(made_in_order(self._groups(left, bounds), _Group.make)) as groups:
                async for group in groups:
                    while group.made:
                        for found in group.made:
                            yield found
                        full = len(group.made) == MADE_TOGETHER
                        group.made = await asyncio.to_thread(_some, group.rows) if full else []
                    group.is_done.set()
                    self._report()
                    self.position = group.following or self.position
            if self._restart is None:
                return
            left = await self._decided(_from(left, self._restart), beyond)

    async def _groups(self, ranges: Ranges, bounds: Bounds) -> AsyncGenerator[_Group, None]:
        """Yield the groups of entries whose rows can be made. Stop before the first group for which the outcomes of
        transactions must be found, and set ``_restart`` to its first entry. After a group with chunks, the next group
        is yielded once all rows of that group are made, because it may have further chunks of the same messages."""
        async with aclosing(self._reads.read_all(ranges, AHEAD_BYTES)) as batches:
            async for piece, some in batches:
                here = sum(map(len, some)) <= ENTRIES_HERE
                heads = await _call(self._heads, piece, some, here=here)
                rows = await self._with_what_they_lack(piece, heads, bounds, here)
                if rows is None:
                    self._restart = EntryPosition(some[0].ledger_id, some[0].first_entry_id)
                    return
                behind = EntryPosition(some[-1].ledger_id, some[-1].last_entry_id + 1)
                group = _Group(rows, None if piece.is_compacted else behind)
                yield group
                if heads.has_chunks:
                    await group.is_done.wait()

    def _heads(self, piece: TopicRange, batches: list[EntryBatch]) -> Heads:
        return self._maker.heads(joined(batches), compacted=piece.is_compacted)

    async def _with_what_they_lack(
        self, piece: TopicRange, heads: Heads, bounds: Bounds, here: bool
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the result of :meth:`_begun`, after finding the chunks and schema versions that it needs."""
        while isinstance(begun := await _call(self._begun, piece, heads, bounds, here=here), LookBack | frozenset):
            await self._find(begun)
        return begun

    def _begun(self, piece: TopicRange, heads: Heads, bounds: Bounds) -> Iterator[pa.RecordBatch] | _Lack | None:
        """Return an iterator that makes the rows of some entries. If chunks or versions of the schema must be found
        first, return these. If the outcomes of transactions must be found first, return None. Each is looked for only
        once."""
        if self._must_look(piece, heads):
            return None
        if self._first is not None and not piece.is_compacted and (missing := self._maker.missing(heads)) is not None:
            return missing
        if self._maker.values is not None and (unknown := self._maker.values.unknown(heads) - self._looked_for):
            return frozenset(unknown)
        return self._maker.rows(heads, bounds, self._committed(heads))

    async def _find(self, lack: _Lack) -> None:
        """Find the chunks or the schema versions that some entries lack."""
        if isinstance(lack, LookBack):
            await self._look_back(lack)
            return
        self._looked_for |= lack
        if self._options.newer is not None:
            self._maker.values = await self._options.newer()

    async def _look_back(self, wanted: LookBack) -> None:
        """Look for chunks in the entries before the start of the read, going backwards."""
        assert self._first is not None
        pieces = [
            piece
            for each in await self._history(self._first)
            for piece in each.pieces(PIECE_BYTES if each.copy is None else COPY_PIECE_BYTES)
        ]
        for piece in reversed(pieces):
            batches = [batch async for batch in self._reads.read(piece)]
            heads = await asyncio.to_thread(list, map(self._maker.heads, batches))
            if not all(map(wanted.add, reversed(heads))):
                break
        await asyncio.to_thread(wanted.finish)

    def _must_look(self, piece: TopicRange, heads: Heads) -> bool:
        """Return whether these entries have messages of transactions, and are not all scanned for outcomes yet."""
        if self._options.isolation == "read_uncommitted" or piece.is_compacted or not len(heads):
            return False
        last = heads.position(len(heads) - 1)
        return last > self._known_to and bool((heads.in_transaction & ~heads.is_marker).any())

    async def decide(
        self, ranges: Ranges, beyond: Callable[[], Awaitable[Ranges]] | None = None
    ) -> tuple[list[TopicRange], frozenset[TxnId]]:
        """Read the heads of all entries of the ranges, for readers that cannot look for outcomes themselves. Return
        the ranges up to the first message of an undecided transaction, and the transactions that were aborted."""
        left = await self._decided(ranges, beyond)
        assert self._transactions is not None
        return left, frozenset(self._transactions.aborted)

    async def _decided(self, ranges: Ranges, beyond: Callable[[], Awaitable[Ranges]] | None) -> list[TopicRange]:
        """Look for the outcomes of transactions in the entries that are not scanned yet, those of ``beyond`` included.
        Return ``ranges`` up to the first message of an undecided transaction."""
        transactions = self._transactions = self._transactions or Transactions()
        known = [*ranges, *(await beyond() if beyond is not None else ())]
        new = _from(known, EntryPosition(self._known_to.ledger_id, self._known_to.entry_id + 1))
        async with aclosing(self._reads.read_all(new, SCAN_AHEAD_BYTES)) as batches:
            async for _, some in batches:
                await asyncio.to_thread(_note, some, transactions)
                self._known_to = EntryPosition(some[-1].ledger_id, some[-1].last_entry_id)
        undecided = transactions.first_undecided
        return list(ranges) if undecided is None else clipped(list(ranges), undecided)

    def _committed(self, heads: Heads) -> Mask | None:
        """Return a mask of the entries outside aborted transactions, or None if all entries are kept."""
        transactions = self._transactions
        if transactions is None or not transactions.aborted or self._options.isolation == "read_uncommitted":
            return None
        return without(heads, transactions.aborted)

    def _report(self) -> None:
        """Log the entries that were left out because they are not messages."""
        for error in self._maker.take_reports():
            logger.warning("%s: left out", error)


async def _call(work: Callable[..., T], *arguments: Any, here: bool) -> T:
    """Call ``work``, on this thread or on another one."""
    return work(*arguments) if here else await asyncio.to_thread(work, *arguments)


async def _end(opening: asyncio.Task[LedgerReader]) -> None:
    """Close a reader, or cancel the task that opens it."""
    if not opening.done():
        opening.cancel()
    elif not opening.cancelled() and opening.exception() is None:
        await opening.result().close()


def _some(rows: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(islice(rows, MADE_TOGETHER))


def _note(batches: Sequence[EntryBatch], transactions: Transactions) -> None:
    read_heads(joined(batches), check=False).note(transactions)


def _from(ranges: Sequence[TopicRange], first: EntryPosition) -> list[TopicRange]:
    """Return the part of ``ranges`` from entry ``first`` on. Ranges of a compacted ledger are dropped, because they
    come before that entry."""
    kept = list[TopicRange]()
    for each in ranges:
        if each.is_compacted or each.ledger_id < first.ledger_id:
            continue
        if each.ledger_id > first.ledger_id:
            kept.append(each)
        elif each.last >= first.entry_id:
            kept.append(each.part(max(each.first, first.entry_id), each.last))
    return kept
