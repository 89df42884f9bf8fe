# SPDX-License-Identifier: Apache-2.0
"""Reading ahead: order is kept, limits hold, an error comes in its turn and nothing is left running."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from bk_core.client.reading.read_ahead import WantedRange, read_ahead
from bk_core.entries.batch import EntryBatch
from bk_core.errors import NoSuchEntryError
from bk_core.model import Fragment, LedgerMetadata

RECORD = LedgerMetadata(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, fragments=(Fragment(0, ("b1",)),))


def wanted(count: int, *, entries: int = 3, size: int = 30) -> list[WantedRange]:
    return [WantedRange(i, RECORD, 0, entries - 1, size) for i in range(count)]


class Ledgers:
    """Ledgers that answer when it pleases them, two entries at a time, and count who reads them."""

    def __init__(self, *, missing: int | None = None, seed: int = 1) -> None:
        self._random, self._missing = random.Random(seed), missing
        self.running = self.running_max = self.begun = 0
        self.sizes, self.size_max = 0, 0

    async def read(self, wanted: WantedRange) -> AsyncGenerator[EntryBatch, None]:
        self.begun += 1
        self.running += 1
        self.sizes += wanted.bytes
        self.running_max, self.size_max = max(self.running_max, self.running), max(self.size_max, self.sizes)
        try:
            for first in range(wanted.first, wanted.last + 1, 2):
                await asyncio.sleep(self._random.choice((0, 0, 0.001, 0.003)))
                count = min(2, wanted.last + 1 - first)
                yield EntryBatch.from_list([b"%d" % wanted.ledger_id] * count, first_entry_id=first)
                if wanted.ledger_id == self._missing:
                    raise NoSuchEntryError("it is gone")
        finally:
            self.running -= 1
            self.sizes -= wanted.bytes


async def collected(ledgers: Ledgers, ranges: list[WantedRange], **limits: int) -> list[tuple[int, int, int]]:
    found = []
    async with aclosing(read_ahead(ranges, ledgers.read, **limits)) as lists:
        async for ready in lists:
            assert ready
            found += [(number, batch.first_entry_id, len(batch)) for number, batch in ready]
            await asyncio.sleep(0)
    assert ledgers.running == 0
    return found


@pytest.mark.parametrize("seed", range(5))
async def test_every_range_comes_whole_and_in_order(seed: int) -> None:
    ledgers = Ledgers(seed=seed)
    found = await collected(ledgers, wanted(50), ranges_max=8)
    assert found == [(i, first, count) for i in range(50) for first, count in ((0, 2), (2, 1))]
    assert ledgers.running_max == 8


async def test_what_is_under_way_is_bounded_in_bytes() -> None:
    ledgers = Ledgers()
    assert len(await collected(ledgers, wanted(30, size=40), bytes_max=100)) == 60
    assert ledgers.size_max <= 80
    alone = Ledgers()
    assert len(await collected(alone, wanted(5, size=1000), bytes_max=100)) == 10
    assert alone.running_max == 1


async def test_nothing_wanted_is_nothing_read() -> None:
    assert await collected(Ledgers(), []) == []
    assert await collected(Ledgers(), [WantedRange(1, RECORD, 0, -1, 0)]) == []


async def test_an_error_comes_after_all_that_stands_before_it() -> None:
    ledgers, found = Ledgers(missing=7), list[tuple[int, int]]()

    async def read() -> None:
        async for ready in read_ahead(wanted(20), ledgers.read, ranges_max=16):
            found.extend((number, batch.first_entry_id) for number, batch in ready)

    with pytest.raises(NoSuchEntryError):
        await read()
    assert found == [*((i, first) for i in range(7) for first in (0, 2)), (7, 0)]
    assert ledgers.running == 0


async def test_a_consumer_that_stops_early_leaves_nothing_running() -> None:
    ledgers = Ledgers()
    async with aclosing(read_ahead(wanted(1000, entries=100), ledgers.read)) as lists:
        await anext(lists)
    assert ledgers.running == 0
    assert ledgers.begun < 100


async def test_a_slow_consumer_holds_the_readers_back() -> None:
    produced = 0

    async def read(wanted: WantedRange) -> AsyncGenerator[EntryBatch, None]:
        nonlocal produced
        for first in range(wanted.first, wanted.last + 1):
            yield EntryBatch.from_list([b"x"], first_entry_id=first)
            produced += 1

    async with aclosing(read_ahead(wanted(1, entries=10_000), read)) as lists:
        await anext(lists)
        for _ in range(100):
            await asyncio.sleep(0)
        assert produced < 20
