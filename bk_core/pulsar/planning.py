# SPDX-License-Identifier: Apache-2.0
"""Plans reads of one topic or partition. A plan needs its ledgers, the end of the last ledger, and its compacted
ledger.

Ledgers are opened without recovery, so no writer is disturbed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.reader import LedgerReader
from bk_core.errors import (
    LedgerOffloadedError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchTopicError,
)
from bk_core.model import EntryId, LedgerMetadata, LedgerState
from bk_core.pulsar.lookup.broker import BrokerAdmin
from bk_core.pulsar.lookup.nodes import PulsarNodes
from bk_core.pulsar.lookup.settled_end import SettledEnd
from bk_core.pulsar.model.managed_ledger import COMPACTION_CURSOR, Cursor, ManagedLedger, TopicLedger
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.plan import LOOK_BACK_BYTES, LOOK_BACK_RANGES, Bounds, TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.offloaded.access import BY_THE_RECORD, OffloadStorage

logger = logging.getLogger("bk_core.pulsar")

T = TypeVar("T")

LOOKUPS_AT_ONCE = 32
"""The maximum number of ledgers of a plan whose records are read, or which are opened, at the same time."""
PASSWORD = b""
"""The password of the ledgers of Pulsar's brokers, unless they are configured with another one."""
GUESSED_ENTRY_BYTES = 1024
"""The assumed size of an entry in bytes, if no record has the size of a closed ledger of the topic."""


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """The last confirmed entry of a topic, or None if it has none. ``source`` says how it was found: ``closed`` (the
    ledger's metadata), ``lac`` (the bookies), ``quorum`` (entries above the LAC that an ack quorum of bookies holds),
    ``broker``, or ``terminated`` (the topic's record)."""

    last: EntryPosition | None
    source: str


class PartitionPlanner:
    """Plans reads of one topic or partition. A tail uses the same object for all its plans. With ``broker_may_fail``, a
    topic ends at its LAC while no broker answers. Without it, a missing answer is an error. ``settled`` looks for the
    end above the LAC (``readMode=quorum``)."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        nodes: PulsarNodes,
        topic: TopicName,
        *,
        password: bytes = PASSWORD,
        broker: BrokerAdmin | None = None,
        broker_may_fail: bool = False,
        settled: SettledEnd | None = None,
        storage: OffloadStorage = BY_THE_RECORD,
    ) -> None:
        self.topic, self.password, self._settled, self._storage = topic, password, settled, storage
        self._bookkeeper, self._nodes, self._broker = bookkeeper, nodes, broker
        self._broker_may_fail, self._broker_is_away = broker_may_fail, False
        self._closed: dict[int, LedgerMetadata] = {}
        self._earlier: dict[int, LedgerMetadata] = {}  # those of the last history
        self._order: list[int] = []
        self.is_terminated = False
        self._open: LedgerReader | None = None
        self.end = TopicEnd(None, "closed")

    async def ranges(self, bounds: Bounds, *, compacted: bool = False) -> list[TopicRange]:
        """Return the ranges of a read with these bounds, in order. Raises NoSuchEntryError if the start was trimmed,
        LedgerOffloadedError if a ledger is only in storage that cannot be read, and NoSuchLedgerError if a ledger was
        deleted."""
        return await self._with_record(lambda record: self._ranges(record, bounds, compacted))

    @property
    def settles(self) -> bool:
        """Whether :meth:`settle` looks for an end above the LAC."""
        return self._settled is not None

    async def settle(self, end: EntryPosition | None, gate: asyncio.Semaphore) -> None:
        """Look for the end of the open ledger above its LAC, and wait for it. Later plans then end there. If the read
        ends at or below the LAC, the call does not wait; ``end`` is the last entry of the read, or None for all
        entries. ``gate`` limits the number of ledgers that are opened at the same time. Raises NoSuchLedgerError,
        MetadataUnavailableError and QuorumTimeoutError."""
        await self._with_record(lambda record: self._settle(record, end, gate))

    async def _settle(self, record: ManagedLedger, end: EntryPosition | None, gate: asyncio.Semaphore) -> None:
        last = record.ledgers[-1] if record.ledgers else None
        is_before = end is not None and last is not None and end.ledger_id < last.ledger_id
        if last is None or is_before or not last.is_in_bookies or self._settled is None:
            return
        async with gate:
            if (await self._records([last]))[0].is_closed:
                return
            reader = await self._opened(last.ledger_id)
        if end is None or end > EntryPosition(last.ledger_id, reader.last_add_confirmed):
            await self._settled.wait(reader)

    async def _with_record(self, work: Callable[[ManagedLedger], Awaitable[T]]) -> T:
        """Return the result of ``work`` for the topic's record. If a ledger of the record is gone, read the record and
        call ``work`` a second time."""
        for is_last_try in (False, True):
            record = await asyncio.to_thread(self._nodes.managed_ledger, self.topic)
            try:
                return await work(record or ManagedLedger(()))
            except NoSuchLedgerError:  # trimmed since the record was read, or a metadata server lags
                if is_last_try:
                    raise
                await asyncio.to_thread(self._nodes.sync)
        raise AssertionError("the second try returns or raises")

    async def _ranges(self, record: ManagedLedger, bounds: Bounds, compacted: bool) -> list[TopicRange]:
        horizon, found = bounds.first_entry, list[TopicRange]()
        self._order, self.is_terminated = [each.ledger_id for each in record.ledgers], record.terminated_at is not None
        if compacted and (cursor := await self._compaction()) is not None:
            found += await self._whole(cursor.compacted_ledger)
            after = EntryPosition(cursor.mark_delete.ledger_id, cursor.mark_delete.entry_id + 1)
            horizon = after if horizon is None else max(horizon, after)
        else:
            self._check_start(record, horizon)
        ledgers = [each for each in record.ledgers if horizon is None or each.ledger_id >= horizon.ledger_id]
        last_entry = bounds.last_entry
        if last_entry is not None:
            ledgers = [each for each in ledgers if each.ledger_id <= last_entry.ledger_id]
        records = await self._records(ledgers)
        # Only the ledgers of the last plan are kept, because a position is in one of them.
        self._closed = _closed_of(ledgers, records)
        for each, metadata in zip(ledgers, records, strict=True):
            last = await self._last_of(each, metadata, record)
            first = horizon.entry_id if horizon and horizon.ledger_id == each.ledger_id else 0
            if last_entry is not None and last_entry.ledger_id == each.ledger_id:
                last = min(last, last_entry.entry_id)
            if first > last:
                continue
            self._check_readable(each)
            found.append(self._range(each, metadata, record, last).part(first, last))
        return found

    def _range(self, ledger: TopicLedger, metadata: LedgerMetadata, record: ManagedLedger, last: EntryId) -> TopicRange:
        """Return the range of the entries 0 to ``last`` of a ledger, as the settings say in bookies or in its copy."""
        size = bytes_of(ledger, metadata, record.ledgers, last + 1)
        copy = ledger.copy if self._storage.reads_copy(ledger) else None
        return TopicRange(self.topic, ledger.ledger_id, metadata, 0, last, size, copy=copy)

    async def history(self, start: EntryPosition, bytes_max: int = LOOK_BACK_BYTES) -> list[TopicRange]:
        """Return, in order, the ranges before ``start`` in which a reader looks for earlier chunks. They are of at most
        LOOK_BACK_RANGES ledgers and have about ``bytes_max`` bytes. They begin after the last ledger that no reader can
        read, because only unreadable storage has it. Raises NoSuchLedgerError if a ledger was deleted."""
        return await self._with_record(lambda record: self._history(record, start, bytes_max))

    async def _history(self, record: ManagedLedger, start: EntryPosition, bytes_max: int) -> list[TopicRange]:
        near, size = list[TopicLedger](), 0
        for each in reversed(record.ledgers):
            if self._unreadable(each) or size >= bytes_max or len(near) == LOOK_BACK_RANGES:
                break
            if each.ledger_id <= start.ledger_id:
                near.insert(0, each)
                size += max(0, each.bytes)
        found, records = list[TopicRange](), await self._records(near)
        self._earlier = _closed_of(near, records)
        for each, metadata in zip(near, records, strict=True):
            last = metadata.last_entry_id if metadata.is_closed else start.entry_id - 1
            if each.ledger_id == start.ledger_id:
                last = min(last, start.entry_id - 1)
            if last >= 0:
                found.append(self._range(each, metadata, record, last))
        return found

    async def _last_of(self, ledger: TopicLedger, metadata: LedgerMetadata, record: ManagedLedger) -> int:
        """Return the last confirmed entry of a ledger, or −1 if it has none. Updates ``end``."""
        if metadata.is_closed:
            last, source = metadata.last_entry_id, "closed"
        else:
            last, source = await self._open_end(ledger.ledger_id)
        if record.terminated_at is not None and record.terminated_at.ledger_id == ledger.ledger_id:
            last, source = min(last, record.terminated_at.entry_id), "terminated"
        if last >= 0 or source != "closed":
            self.end = TopicEnd(EntryPosition(ledger.ledger_id, last) if last >= 0 else self.end.last, source)
        return last

    async def _open_end(self, ledger_id: int) -> tuple[EntryId, str]:
        """Return the greatest of the LAC, the quorum's end and the broker's end, and the name of its source."""
        reader = await self._opened(ledger_id)
        last, source = await reader.refresh_lac(), "lac"
        if reader.is_closed:
            return last, "closed"
        if self._settled is not None and (settled := self._settled.known(reader, last)) > last:
            last, source = settled, "quorum"
        said = await self._said_by_broker()
        if said is not None and (said.ledger_id != ledger_id or said.entry_id >= last or source == "lac"):
            source = "broker"
            if said.ledger_id == ledger_id:
                last = max(last, said.entry_id)
        return last, source

    async def _said_by_broker(self) -> EntryPosition | None:
        if self._broker is None:
            return None
        try:
            said = await asyncio.to_thread(self._broker.last_confirmed, self.topic)
        except (MetadataUnavailableError, NoSuchTopicError) as error:
            if not self._broker_may_fail:
                raise
            if not self._broker_is_away:
                logger.warning("%s: until a broker answers, the topic is followed to its LAC", error)
            self._broker_is_away = True
            return None
        self._broker_is_away = False
        return said

    async def _opened(self, ledger_id: int) -> LedgerReader:
        """Return the reader of the open ledger. It stays open between plans."""
        if self._open is None or self._open.ledger_id != ledger_id:
            await self.close()
            self._open = await self._bookkeeper.open_ledger(ledger_id, recover=False, password=self.password)
        return self._open

    def following(self, position: EntryPosition) -> EntryPosition:
        """Return ``position`` itself or, if the last plan saw its ledger closed before it, the begin of the next
        ledger. So a ledger that was read to its end may be trimmed. If a ledger is trimmed earlier, the next plan
        raises NoSuchEntryError. The begin of an empty ledger that a broker removed moves to the next ledger too."""
        while self._is_before(position) or self._was_removed_empty(position):
            later = [each for each in self._order if each > position.ledger_id]
            if not later:
                break
            position = EntryPosition(later[0], 0)
        return position

    def _is_before(self, position: EntryPosition) -> bool:
        """Return whether the last plan saw the ledger of a position closed before the position."""
        metadata = self._closed.get(position.ledger_id)
        return metadata is not None and position.entry_id > metadata.last_entry_id

    def _was_removed_empty(self, position: EntryPosition) -> bool:
        """Return whether a position is the begin of a ledger that the topic's record does not have, although it has an
        earlier one. A broker that loads a topic removes its last ledger if that is empty. Messages are trimmed from
        the begin of the topic only, so no ledger with messages can be missing there."""
        is_missing = position.ledger_id not in self._order
        return is_missing and position.entry_id == 0 and bool(self._order) and self._order[0] < position.ledger_id

    def closed(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the metadata of a ledger that was closed at the last plan, or None for another ledger. The metadata
        store may have no record of an offloaded ledger."""
        return self._closed.get(ledger_id)

    async def wait(self, timeout_s: float) -> None:
        """Wait until the LAC of the open ledger advances, or for ``timeout_s``."""
        if self._open is None or self._open.is_closed:
            await asyncio.sleep(timeout_s)
        else:
            await self._open.wait_lac(self._open.last_add_confirmed, timeout_s)

    async def _records(self, ledgers: Sequence[TopicLedger]) -> list[LedgerMetadata]:
        """Return the metadata of these ledgers. Those of closed ledgers are taken from the last plan or the last
        history, if these have them."""
        gate = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def look_up(ledger: TopicLedger) -> LedgerMetadata:
            known = self._closed.get(ledger.ledger_id) or self._earlier.get(ledger.ledger_id)
            if known is not None:
                return known
            if self._storage.reads_copy(ledger):
                return record_of_copy(ledger)
            async with gate:
                found = (await self._bookkeeper.read_metadata(ledger.ledger_id)).value
            self._bookkeeper.digester_of(ledger.ledger_id, found, self.password, None)
            return found

        return list(await asyncio.gather(*(look_up(each) for each in ledgers)))

    async def _whole(self, ledger_id: int) -> list[TopicRange]:
        """Return the range of the whole compacted ledger, or no range if the ledger is empty."""
        metadata = (await self._bookkeeper.read_metadata(ledger_id)).value
        last = metadata.last_entry_id
        if not metadata.is_closed:
            async with await self._bookkeeper.open_ledger(ledger_id, recover=False, password=self.password) as reader:
                last = reader.last_add_confirmed
        size = metadata.length or GUESSED_ENTRY_BYTES * (last + 1)
        return [TopicRange(self.topic, ledger_id, metadata, 0, last, size, is_compacted=True)] if last >= 0 else []

    async def _compaction(self) -> Cursor | None:
        """Return the cursor of the last compaction, or None if there was none."""
        cursor = await asyncio.to_thread(self._nodes.cursor, self.topic, COMPACTION_CURSOR)
        if cursor is not None and cursor.compacted_ledger < 0 <= cursor.ledger_id:
            cursor = await self._newest(cursor)
        return cursor if cursor is not None and cursor.compacted_ledger >= 0 else None

    async def _newest(self, cursor: Cursor) -> Cursor:
        """Return the newest state of a cursor from the last entry of the cursor's ledger, or ``cursor`` itself if no
        entry is found. Brokers do not send the LAC of these ledgers on its own, so the entry after the LAC is used too
        if a bookie has it. That is safe even if the entry is never confirmed: the broker wrote it, and the position
        and the ledger that it names existed before."""
        try:
            reader = await self._bookkeeper.open_ledger(cursor.ledger_id, recover=False, password=self.password)
        except NoSuchLedgerError:
            return cursor
        async with reader:
            last = reader.last_add_confirmed
            for entry_id in (last,) if reader.is_closed else (last + 1, last):
                if entry_id < 0:
                    break
                with suppress(NoSuchEntryError):
                    async with aclosing(reader.reading(entry_id, entry_id, unconfirmed=entry_id > last)) as batches:
                        entries = [entry async for batch in batches for entry in batch.to_list()]
                    where = f"entry {entry_id} of cursor ledger {cursor.ledger_id}"
                    return Cursor.of_entry(where, entries[0], cursor.ledger_id)
        return cursor

    async def cursors(self) -> dict[str, Cursor]:
        """Return the subscriptions by name, each in its newest readable state."""
        found = await asyncio.to_thread(self._nodes.cursors, self.topic)
        return {name: await self._newest(cursor) if cursor.ledger_id >= 0 else cursor for name, cursor in found.items()}

    def _check_start(self, record: ManagedLedger, start: EntryPosition | None) -> None:
        """Raise NoSuchEntryError if the ledger of the start was trimmed."""
        if start is None or not record.ledgers or any(each.ledger_id == start.ledger_id for each in record.ledgers):
            return
        if start.ledger_id < record.ledgers[0].ledger_id:
            raise NoSuchEntryError(
                f"messages of {self.topic} were trimmed",
                value=f"position {start}, the topic begins at {EntryPosition(record.ledgers[0].ledger_id, 0)}",
                remedy="start at that position, or give no start",
            )

    async def moved(self, wanted: TopicRange) -> TopicRange | None:
        """Return the range of a copy's entries, for a range of a ledger that the bookies have deleted. Return None if
        the topic's record names no copy that can be read."""
        await asyncio.to_thread(self._nodes.sync)
        record = await asyncio.to_thread(self._nodes.managed_ledger, self.topic) or ManagedLedger(())
        for each in record.ledgers:
            if each.ledger_id == wanted.ledger_id and each.copy is not None and not self._unreadable(each):
                return replace(wanted, copy=each.copy)
        return None

    def _unreadable(self, ledger: TopicLedger) -> str | None:
        """Return why a ledger that bookies may have deleted cannot be read from a copy. Return None for any other
        ledger."""
        if ledger.is_in_bookies or ledger.copy is None:
            return None
        return self._storage.problem(ledger.copy)

    def _check_readable(self, ledger: TopicLedger) -> None:
        if (why := self._unreadable(ledger)) is not None:
            raise LedgerOffloadedError(
                f"ledger {ledger.ledger_id} of {self.topic} is not in the bookies any more",
                value=f"it was offloaded by {ledger.offloaded_by}: {why}",
                remedy="start at a later position, or read with Pulsar's own client",
            )

    async def close(self) -> None:
        """Close the reader of the open ledger."""
        if self._settled is not None:
            await self._settled.close()
        if self._open is not None:
            reader, self._open = self._open, None
            await reader.close()


async def settle(planners: Sequence[PartitionPlanner], bounds: Sequence[Bounds] | None = None) -> None:
    """Wait until the quorum's end of each partition of a read is known. All searches run at the same time, and only the
    opening of ledgers is limited. Without ``readMode=quorum`` this does nothing. Raises the errors of
    :meth:`PartitionPlanner.settle`."""
    gate = asyncio.Semaphore(LOOKUPS_AT_ONCE)
    ends = [each.last_entry for each in bounds] if bounds is not None else [None] * len(planners)
    tasks = [
        asyncio.ensure_future(each.settle(end, gate)) for each, end in zip(planners, ends, strict=True) if each.settles
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def record_of_copy(ledger: TopicLedger) -> LedgerMetadata:
    """Return metadata for an offloaded ledger, made from the topic's record. The ledger's own record may be deleted."""
    assert ledger.copy is not None
    return LedgerMetadata(
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        fragments=(),
        state=LedgerState.CLOSED,
        last_entry_id=ledger.copy.last_entry,
        length=max(0, ledger.bytes),
    )


def _closed_of(ledgers: Sequence[TopicLedger], records: Sequence[LedgerMetadata]) -> dict[int, LedgerMetadata]:
    pairs = zip(ledgers, records, strict=True)
    return {each.ledger_id: metadata for each, metadata in pairs if metadata.is_closed}


def bytes_of(ledger: TopicLedger, metadata: LedgerMetadata, others: Sequence[TopicLedger], entries: int) -> int:
    """Return the size in bytes of the first ``entries`` entries of a ledger. It is estimated from average sizes."""
    if metadata.is_closed and metadata.length > 0:
        return metadata.length * entries // max(1, metadata.last_entry_id + 1)
    if ledger.entries > 0 and ledger.bytes > 0:
        return ledger.bytes * entries // ledger.entries
    known = [each for each in others if each.entries > 0 and each.bytes > 0]
    mean = known[-1].bytes // known[-1].entries if known else GUESSED_ENTRY_BYTES
    return max(1, mean) * entries
