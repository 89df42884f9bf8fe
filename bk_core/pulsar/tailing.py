# SPDX-License-Identifier: Apache-2.0
"""Follows the partitions of a topic while messages and partitions are added."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bk_core.errors import MetadataUnavailableError, NoSuchLedgerError
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds, TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.planning import PartitionPlanner

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from bk_core.pulsar.reading import PartitionReading

POLL_S = 0.5
"""The seconds between two times that a tail looks for new ledgers and asks the broker for the end of the topic. In
between, the tail notices immediately when the LAC of an open ledger advances."""
PARTITIONS_S = 5.0
"""The seconds between two times that a tail looks for new partitions."""
UNAVAILABLE_MAX_S = 60.0
"""The seconds for which a tail continues while the metadata store is unavailable."""


class Tail:
    """The partitions that a tail follows. While the metadata store does not answer, the tail keeps the partitions that
    it has.

    ``parts`` returns the partitions that exist, and ``follow`` opens one of them. With ``latest``, the tail skips the
    messages that are confirmed when it begins.
    """

    def __init__(
        self,
        parts: Callable[[], Awaitable[list[TopicName]]],
        follow: Callable[[TopicName], Awaitable[FollowedPartition]],
        latest: bool,
    ) -> None:
        self._parts, self._follow, self._from_latest = parts, follow, latest
        self._following: dict[TopicName, FollowedPartition] = {}
        self._loop = asyncio.get_running_loop()
        self._answered_at, self._looked_at = self._loop.time(), -PARTITIONS_S

    @property
    def has_ended(self) -> bool:
        """Whether every partition was terminated and read to its end."""
        return bool(self._following) and all(each.has_ended for each in self._following.values())

    async def planned(self) -> list[tuple[FollowedPartition, list[TopicRange]]]:
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
        """Look for new partitions every PARTITIONS_S seconds. Raises NoSuchTopicError if the topic was deleted."""
        if self._loop.time() - self._looked_at < PARTITIONS_S:
            return
        for topic in await self._parts():
            if topic not in self._following:
                new = await self._follow(topic)
                if self._from_latest:
                    await new.skip()
                self._following[topic] = new
        self._from_latest, self._looked_at = False, self._loop.time()

    async def wait(self) -> None:
        """Wait until an open ledger has more entries, or for POLL_S."""
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
class FollowedPartition:
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
        """Return the ranges of entries that were not planned before."""
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
