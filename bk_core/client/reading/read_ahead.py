# SPDX-License-Identifier: Apache-2.0
"""Reads many ranges ahead. It reads several ranges at the same time and delivers them in order, so that thousands of
small ledgers do not cost a round trip each.

At most RANGES_MAX ranges are read at the same time, and by the estimates of their sizes at most BYTES_MAX payload
bytes. A larger range is read alone, no faster than its consumer takes its batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bk_core.entries.parts import ColumnsWanted
from bk_core.model import EntryId, LedgerId, LedgerMetadata

RANGES_MAX = 32
"""The default of the maximum number of ranges that are read at the same time."""
BYTES_MAX = 4 << 20
"""The default of the maximum number of payload bytes, by estimate, in the ranges that are read at the same time."""
BATCHES_QUEUED_MAX = 2
"""The maximum number of batches of one range that wait for the consumer. :mod:`bk_core.client.reading.ranges` has
another queue, of the events of one read."""
HANDED_BYTES_MAX = 1 << 20
"""The size, in payload bytes, at which a delivery of ready batches ends. Batches are delivered together because each
delivery costs a change of threads."""


@dataclass(frozen=True, slots=True)
class WantedRange:
    """The entries ``first`` to ``last`` of a ledger, both inclusive. ``bytes`` estimates their payload bytes. With
    ``columns``, only these columns are wanted of entries of codec ``arrow``."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    first: EntryId
    last: EntryId
    bytes: int = 0
    columns: ColumnsWanted | None = None


class Range(Protocol):
    """A range to read. ``bytes`` estimates its payload bytes."""

    @property
    def bytes(self) -> int: ...


class Item(Protocol):
    """A batch of a range."""

    @property
    def payload_bytes(self) -> int: ...


W = TypeVar("W", bound=Range)
B = TypeVar("B", bound=Item)
Read = Callable[[W], AsyncGenerator[B, None]]


class _Reading(Generic[W, B]):
    """A task that reads one range into a small queue. The last item of the queue is None, or the exception that ended
    the range."""

    def __init__(self, number: int, wanted: W, read: Read[W, B]) -> None:
        self.number, self.bytes = number, wanted.bytes
        self._items: asyncio.Queue[B | Exception | None] = asyncio.Queue(BATCHES_QUEUED_MAX)
        self._task = asyncio.create_task(self._run(read(wanted)))

    async def _run(self, batches: AsyncGenerator[B, None]) -> None:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    await self._items.put(batch)
        except Exception as error:
            await self._items.put(error)
        else:
            await self._items.put(None)

    def is_ready(self) -> bool:
        return not self._items.empty()

    async def next(self) -> B | Exception | None:
        return await self._items.get()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def read_ahead(
    wanted: Iterable[W], read: Read[W, B], *, ranges_max: int = RANGES_MAX, bytes_max: int = BYTES_MAX
) -> AsyncGenerator[list[tuple[int, B]], None]:
    """Read all ranges in order, and yield lists of the batches that are ready, each with the number of its range.

    Raises the errors of ``read``, after the batches before the error. Closing the generator ends the reads of all
    ranges.
    """
    window = _Window(enumerate(wanted), read, ranges_max, bytes_max)
    try:
        while window.begin():
            if taken := await window.ready():
                yield taken
    finally:
        await window.stop()


class _Window(Generic[W, B]):
    """The ranges that are being read, in order."""

    def __init__(self, wanted: Iterator[tuple[int, W]], read: Read[W, B], ranges_max: int, bytes_max: int) -> None:
        self._wanted, self._read = wanted, read
        self._ranges_max, self._bytes_max = ranges_max, bytes_max
        self._next = next(wanted, None)
        self._begun: deque[_Reading[W, B]] = deque()
        self._error: Exception | None = None

    def begin(self) -> bool:
        """Begin to read as many ranges as the limits allow, but at least one. Return False when all ranges are
        delivered."""
        held = sum(reading.bytes for reading in self._begun)
        while self._next is not None and (
            not self._begun or (len(self._begun) < self._ranges_max and held + self._next[1].bytes <= self._bytes_max)
        ):
            number, wanted = self._next
            self._begun.append(_Reading(number, wanted, self._read))
            held += wanted.bytes
            self._next = next(self._wanted, None)
        return bool(self._begun)

    async def ready(self) -> list[tuple[int, B]]:
        """Wait for the next batch or the end of the first range. Return this batch and the batches that are ready after
        it."""
        if self._error is not None:
            raise self._error
        taken: list[tuple[int, B]] = []
        size = 0
        while self._begun and size < HANDED_BYTES_MAX and (not taken or self._begun[0].is_ready()):
            reading = self._begun[0]
            item = await reading.next()
            if isinstance(item, Exception):
                if not taken:
                    raise item
                self._error = item  # raised by the next call, after these batches
                break
            if item is None:
                self._begun.popleft()
                if not taken:
                    break  # the caller begins further ranges before it waits
            else:
                taken.append((reading.number, item))
                size += item.payload_bytes
        return taken

    async def stop(self) -> None:
        for reading in self._begun:
            await reading.stop()
