# SPDX-License-Identifier: Apache-2.0
"""A reader asks on as soon as an answer has ended, while its entries are still on their way to the consumer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.frame import split_frames
from bk_core.transport.port import ReadPart
from tests.kit.memory_cluster import FAST, MemoryCluster, memory_cluster
from tests.kit.memory_transport import read_through
from tests.kit.waiting import eventually

ENTRIES = [b"%04d" % n + bytes(1_000) for n in range(60)]
CONFIG = replace(FAST, read_bytes_max=5_000)


async def written(cluster: MemoryCluster) -> int:
    writer = await cluster.client().create_ledger()
    for entry in ENTRIES:
        await writer.append(entry)
    await writer.close()
    return writer.ledger_id


def heard(client: BookKeeper, *, damaged: int = -1) -> list[tuple[str, int]]:
    """The bookie and first entry of each request; the part that begins with entry ``damaged`` is damaged once."""
    asked: list[tuple[str, int]] = []
    damage = [damaged]

    async def reads(bookie: str, read: Any, ledger: int, first: int, last: int, **options: Any) -> AsyncIterator[Any]:
        asked.append((bookie, first))
        async with contextlib.aclosing(read(ledger, first, last, **options)) as answers:
            async for answer in answers:
                if not isinstance(answer, ReadPart):
                    yield answer
                    continue
                for header, frame in split_frames(answer.frames):
                    if damage == [header.first_entry_id]:
                        damage.clear()
                        frame = memoryview(bytes(frame[:-1]) + b"?")
                    yield ReadPart(frame)

    read_through(client.transport, reads)
    return asked


async def test_the_next_answer_is_asked_for_while_this_one_is_consumed_and_no_range_twice() -> None:
    async with memory_cluster(3) as cluster:
        ledger_id, client = await written(cluster), cluster.client(CONFIG)
        reader = await client.open_ledger(ledger_id, recover=False)
        asked, got = heard(client), []
        batches = reader.read(0, 59)
        got += (await anext(batches)).to_list()
        await eventually(lambda: len(asked) == 2)
        await asyncio.sleep(0.05)
        assert len(asked) == 2, "one ahead: each holds memory"
        async for batch in batches:
            got += batch.to_list()
        assert got == ENTRIES
        firsts = [first for _, first in asked]
        assert firsts == sorted(set(firsts))
        assert len({bookie for bookie, _ in asked}) == 1
        await reader.close()


@pytest.mark.parametrize("damaged", [1, 3])
async def test_what_was_asked_ahead_in_vain_is_dropped(damaged: int) -> None:
    async with memory_cluster(3) as cluster:
        ledger_id, client = await written(cluster), cluster.client(replace(CONFIG, read_bytes_max=2_000))
        reader = await client.open_ledger(ledger_id, recover=False)
        asked, batches, got = heard(client, damaged=damaged), reader.reading(0, 59), []
        while len(got) < damaged:
            got += (await anext(batches)).to_list()
        await eventually(lambda: asked[-1][1] > damaged)
        await asyncio.sleep(0.05)  # what was asked ahead is there, and waits
        async for batch in batches:
            got += batch.to_list()
        assert got == ENTRIES
        assert len({bookie for bookie, _ in asked}) == 2, "the other one's answer is taken for what it is"
        await reader.close()


async def test_a_read_that_is_given_up_leaves_no_request_behind() -> None:
    async with memory_cluster(3) as cluster:
        ledger_id, client = await written(cluster), cluster.client(CONFIG)
        reader = await client.open_ledger(ledger_id, recover=False)
        asked, before = heard(client), asyncio.all_tasks()
        async with contextlib.aclosing(reader.read(0, 59)) as batches:
            await anext(batches)
            await eventually(lambda: len(asked) == 2)
        await eventually(lambda: not asyncio.all_tasks() - before)
        await reader.close()
