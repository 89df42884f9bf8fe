# SPDX-License-Identifier: Apache-2.0
"""A log under test: writing to it as jobs do, and reading all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.logs.model.head import NewExtent, PublishId, custom_metadata_for
from bk_core.logs.named_log import NamedLog
from tests.kit.canaries import PASSWORD
from tests.kit.extents import new_extent
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster


@dataclass
class StoreClock:
    """The metadata store's own clock, decades behind that of its clients."""

    now_ms: int = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def log_of(bookkeeper: BookKeeper) -> NamedLog:
    return NamedLog(bookkeeper, "events", password=PASSWORD)


@asynccontextmanager
async def one_log(
    bookies: int = 4, clock_ms: Callable[[], int] | None = None
) -> AsyncIterator[tuple[MemoryBookKeeper, BookKeeper, NamedLog]]:
    """Bookies in memory, a client of them, and its log."""
    async with memory_cluster(bookies, clock_ms) as cluster:
        bookkeeper = cluster.client()
        yield cluster, bookkeeper, log_of(bookkeeper)


async def read_all(log: NamedLog, start: int = 0, end: int | None = None) -> list[bytes]:
    """Return the entries from offset ``start`` to ``end``, or to the end of the log. No offset may be left out."""
    found: list[bytes] = []
    async for offset, batch in log.read(start, await log.end_offset() if end is None else end):
        assert offset == start + len(found)
        found += batch.to_list()
    return found


async def content_of(log: NamedLog) -> list[bytes]:
    """Return all entries that the log has."""
    head = (await log.head()).value
    return [entry async for _, batch in log.read(head.start_offset, head.next_offset) for entry in batch.to_list()]


async def ledger(bookkeeper: BookKeeper, log: NamedLog, *entries: bytes, codec: str = "raw") -> NewExtent:
    """Write a closed ledger as a job does, and return its extent. The log is made if it does not exist."""
    head, _ = await log.open_or_create()
    keys = custom_metadata_for(head.value.uuid, PublishId.job("x"), partition=0, attempt=0, codec=codec)
    async with await bookkeeper.create_ledger(password=PASSWORD, custom_metadata=keys) as writer:
        await writer.append_batch(EntryBatch.from_list(list(entries)))
    return new_extent(writer.ledger_id, len(entries), sum(map(len, entries)), codec=codec)


async def publish(bookkeeper: BookKeeper, log: NamedLog, *entries: bytes, codec: str = "raw") -> NewExtent:
    """Append the entries to the log as a job does: a ledger of them is written and published."""
    made = await ledger(bookkeeper, log, *entries, codec=codec)
    await log.publish([made], PublishId.job(str(made.ledger_id)))
    return made
