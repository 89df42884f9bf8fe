# SPDX-License-Identifier: Apache-2.0
"""Plans what to read of one topic or partition: its ledgers, where the last one ends, and what was compacted.

Ledgers are opened without recovery, so no writer is disturbed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.reading.reader import LedgerReader
from bk_core.errors import (
    LedgerOffloadedError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchTopicError,
)
from bk_core.model import LedgerMetadata
from bk_core.pulsar.broker import BrokerAdmin
from bk_core.pulsar.model.managed_ledger import COMPACTION_CURSOR, Cursor, ManagedLedger, TopicLedger
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.plan import LOOK_BACK_BYTES, Bounds, TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.nodes import PulsarNodes

logger = logging.getLogger("bk_core.pulsar")

LOOKUPS_AT_ONCE = 32
PASSWORD = b""
"""That of Pulsar's ledgers; brokers can be given another one."""
GUESSED_ENTRY_BYTES = 1024
"""The size of an entry of the open ledger, as long as the topic has no other ledger."""


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """The last entry of a topic that is confirmed, None without one, and what says so: ``closed``, ``lac``, ``broker``
    or ``terminated``."""

    last: EntryPosition | None
    source: str


class PartitionPlanner:
    """Plans reads of one topic or partition, again and again for a tail. ``broker_may_fail``: while no broker answers,
    the topic ends at its LAC; else that is an error."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        nodes: PulsarNodes,
        topic: TopicName,
        *,
        password: bytes = PASSWORD,
        broker: BrokerAdmin | None = None,
        broker_may_fail: bool = False,
    ) -> None:
        self.topic, self.password = topic, password
        self._bookkeeper, self._nodes, self._broker = bookkeeper, nodes, broker
        self._broker_may_fail, self._broker_is_away = broker_may_fail, False
        self._closed: dict[int, LedgerMetadata] = {}
        self._order: list[int] = []
        self.is_terminated = False
        self._open: LedgerReader | None = None
        self.end = TopicEnd(None, "closed")

    async def ranges(self, bounds: Bounds, *, compacted: bool = False) -> list[TopicRange]:
        """The ranges of a read with these bounds, in order. Raises NoSuchEntryError if its start was trimmed,
        LedgerOffloadedError if bookies do not have all of it, NoSuchLedgerError if a ledger is gone."""
        for is_last_try in (False, True):
            record = await asyncio.to_thread(self._nodes.managed_ledger, self.topic)
            try:
                return await self._ranges(record or ManagedLedger(()), bounds, compacted)
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
        # Only those of the last plan are kept: a position is in one of them.
        pairs = zip(ledgers, records, strict=True)
        self._closed = {each.ledger_id: metadata for each, metadata in pairs if metadata.is_closed}
        for each, metadata in zip(ledgers, records, strict=True):
            last = await self._last_of(each, metadata, record)
            first = horizon.entry_id if horizon and horizon.ledger_id == each.ledger_id else 0
            if last_entry is not None and last_entry.ledger_id == each.ledger_id:
                last = min(last, last_entry.entry_id)
            if first > last:
                continue
            self._check_not_offloaded(each)
            size = _bytes_of(each, metadata, record.ledgers, last + 1)
            whole = TopicRange(self.topic, each.ledger_id, metadata, 0, last, size)
            found.append(whole.part(first, last))
        return found

    async def history(self, start: EntryPosition, bytes_max: int = LOOK_BACK_BYTES) -> list[TopicRange]:
        """The ranges before an entry, as far back as readers look for the chunks of a message. Ledgers that bookies do
        not have any more end it."""
        record = await asyncio.to_thread(self._nodes.managed_ledger, self.topic) or ManagedLedger(())
        near, size = list[TopicLedger](), 0
        for each in reversed(record.ledgers):
            if not each.is_in_bookies or size >= bytes_max:
                break
            if each.ledger_id <= start.ledger_id:
                near.insert(0, each)
                size += max(0, each.bytes)
        found = list[TopicRange]()
        for each, metadata in zip(near, await self._records(near), strict=True):
            last = metadata.last_entry_id if metadata.is_closed else start.entry_id - 1
            if each.ledger_id == start.ledger_id:
                last = min(last, start.entry_id - 1)
            if last >= 0:
                size = _bytes_of(each, metadata, record.ledgers, last + 1)
                found.append(TopicRange(self.topic, each.ledger_id, metadata, 0, last, size))
        return found

    async def _last_of(self, ledger: TopicLedger, metadata: LedgerMetadata, record: ManagedLedger) -> int:
        """The last entry of a ledger that is confirmed; −1 without one."""
        if metadata.is_closed:
            last, source = metadata.last_entry_id, "closed"
        else:
            reader = await self._opened(ledger.ledger_id)
            last, source = await reader.refresh_lac(), "closed" if reader.is_closed else "lac"
            if not reader.is_closed and (said := await self._said_by_broker()) is not None:
                source = "broker"
                if said.ledger_id == ledger.ledger_id:
                    last = max(last, said.entry_id)
        if record.terminated_at is not None and record.terminated_at.ledger_id == ledger.ledger_id:
            last, source = min(last, record.terminated_at.entry_id), "terminated"
        if last >= 0 or source != "closed":
            self.end = TopicEnd(EntryPosition(ledger.ledger_id, last) if last >= 0 else self.end.last, source)
        return last

    async def _said_by_broker(self) -> EntryPosition | None:
        if self._broker is None:
            return None
        try:
            said = await asyncio.to_thread(self._broker.last_confirmed, self.topic)
        except (MetadataUnavailableError, NoSuchTopicError) as error:
            if not self._broker_may_fail:
                raise
            if not self._broker_is_away:
                logger.warning("%s: the topic is followed to its LAC meanwhile", error)
            self._broker_is_away = True
            return None
        self._broker_is_away = False
        return said

    async def _opened(self, ledger_id: int) -> LedgerReader:
        """The reader of the open ledger, kept between plans."""
        if self._open is None or self._open.ledger_id != ledger_id:
            await self.close()
            self._open = await self._bookkeeper.open_ledger(ledger_id, recover=False, password=self.password)
        return self._open

    def following(self, position: EntryPosition) -> EntryPosition:
        """The position itself or, if its ledger has ended before it, the begin of the next ledger, as the last plan saw
        them. So a ledger that was read whole may be trimmed, and one that was not is missed."""
        metadata = self._closed.get(position.ledger_id)
        while metadata is not None and position.entry_id > metadata.last_entry_id:
            later = [each for each in self._order if each > position.ledger_id]
            if not later:
                break
            position = EntryPosition(later[0], 0)
            metadata = self._closed.get(position.ledger_id)
        return position

    async def wait(self, timeout_s: float) -> None:
        """Wait until the LAC of the open ledger moves, or this time is over."""
        if self._open is None or self._open.is_closed:
            await asyncio.sleep(timeout_s)
        else:
            await self._open.wait_lac(self._open.last_add_confirmed, timeout_s)

    async def _records(self, ledgers: Sequence[TopicLedger]) -> list[LedgerMetadata]:
        """The metadata of ledgers. Those of closed ones that the last plan had are not read again."""
        gate = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def look_up(ledger: TopicLedger) -> LedgerMetadata:
            known = self._closed.get(ledger.ledger_id)
            if known is not None:
                return known
            if not ledger.is_in_bookies:
                self._check_not_offloaded(ledger)
            async with gate:
                found = (await self._bookkeeper.read_metadata(ledger.ledger_id)).value
            self._bookkeeper.digester_of(ledger.ledger_id, found, self.password, None)
            return found

        return list(await asyncio.gather(*(look_up(each) for each in ledgers)))

    async def _whole(self, ledger_id: int) -> list[TopicRange]:
        """All of the ledger of a compacted topic."""
        metadata = (await self._bookkeeper.read_metadata(ledger_id)).value
        last = metadata.last_entry_id
        if not metadata.is_closed:
            async with await self._bookkeeper.open_ledger(ledger_id, recover=False, password=self.password) as reader:
                last = reader.last_add_confirmed
        size = metadata.length or GUESSED_ENTRY_BYTES * (last + 1)
        return [TopicRange(self.topic, ledger_id, metadata, 0, last, size, is_compacted=True)] if last >= 0 else []

    async def _compaction(self) -> Cursor | None:
        """What was compacted last; None if nothing was."""
        cursor = await asyncio.to_thread(self._nodes.cursor, self.topic, COMPACTION_CURSOR)
        if cursor is not None and cursor.compacted_ledger < 0 <= cursor.ledger_id:
            cursor = await self._newest(cursor)
        return cursor if cursor is not None and cursor.compacted_ledger >= 0 else None

    async def _newest(self, cursor: Cursor) -> Cursor:
        """The state of a cursor that is in a ledger of its own: in the last entry of it. Brokers say nothing of the LAC
        of these ledgers, so the entry behind the LAC is taken too, if a bookie has it. It is a state that the broker
        wrote, and nothing is lost if the broker never confirms it: what it names was there before."""
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
        """The subscriptions by name, each in its newest state that may be read."""
        found = await asyncio.to_thread(self._nodes.cursors, self.topic)
        return {name: await self._newest(cursor) if cursor.ledger_id >= 0 else cursor for name, cursor in found.items()}

    def _check_start(self, record: ManagedLedger, start: EntryPosition | None) -> None:
        """Raises NoSuchEntryError for a start in a ledger that was trimmed."""
        if start is None or not record.ledgers or any(each.ledger_id == start.ledger_id for each in record.ledgers):
            return
        if start.ledger_id < record.ledgers[0].ledger_id:
            raise NoSuchEntryError(
                f"messages of {self.topic} were trimmed",
                value=f"position {start}, the topic begins at {EntryPosition(record.ledgers[0].ledger_id, 0)}",
                remedy="read from there, or from its begin",
            )

    def _check_not_offloaded(self, ledger: TopicLedger) -> None:
        if not ledger.is_in_bookies:
            raise LedgerOffloadedError(
                f"ledger {ledger.ledger_id} of {self.topic} is not in the bookies any more",
                value=f"it was offloaded by {ledger.offloaded_by}",
                remedy="read from a later position, or with Pulsar's own client",
            )

    async def close(self) -> None:
        """Close the reader of the open ledger."""
        if self._open is not None:
            reader, self._open = self._open, None
            await reader.close()


def _bytes_of(ledger: TopicLedger, metadata: LedgerMetadata, others: Sequence[TopicLedger], entries: int) -> int:
    """The bytes of the first ``entries`` of a ledger, estimated if the ledger is open."""
    if metadata.is_closed and metadata.length > 0:
        return metadata.length * entries // max(1, metadata.last_entry_id + 1)
    if ledger.entries > 0 and ledger.bytes > 0:
        return ledger.bytes * entries // ledger.entries
    known = [each for each in others if each.entries > 0 and each.bytes > 0]
    mean = known[-1].bytes // known[-1].entries if known else GUESSED_ENTRY_BYTES
    return max(1, mean) * entries
