# SPDX-License-Identifier: Apache-2.0
"""A log under test, and reading all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bk_core.client import BookKeeper
from bk_core.logs.named_log import NamedLog
from tests.kit.canaries import PASSWORD
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


async def read_all(log: NamedLog) -> list[bytes]:
    found: list[bytes] = []
    async for offset, batch in log.read(0, await log.end_offset()):
        assert offset == len(found)
        found += batch.to_list()
    return found


async def content_of(log: NamedLog) -> list[bytes]:
    """Return all entries that the log has."""
    head = (await log.head()).value
    return [entry async for _, batch in log.read(head.start_offset, head.next_offset) for entry in batch.to_list()]
