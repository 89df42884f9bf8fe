# SPDX-License-Identifier: Apache-2.0
"""Tests of our client on Apache's bookies, with Apache's client beside it, that are not cells of the matrix
(test_matrix.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bk_core.client import BookKeeper, ClientConfig, connect
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import WrongPasswordError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, JavaClient
from tests.interop.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATTERN = Pattern(seed=3, size_min=0, size_max=2000)
SMALL = Pattern(seed=4, size_min=40, size_max=40)
STORY_S = 120.0
LARGE_LEDGER = 2**33 + 7


@asynccontextmanager
async def our_client(cluster: ApacheCluster) -> AsyncIterator[BookKeeper]:
    """Yield our client."""
    config = ClientConfig(add_timeout_ms=20_000, lac_stall_ms=500)
    async with asyncio.timeout(STORY_S), await connect(cluster.uri, config=config) as client:
        yield client


async def append(writer: LedgerWriter, pattern: Pattern, first: int, last: int) -> None:
    await writer.append_batch(EntryBatch.from_list(list(pattern.payloads(first, last))))
    await writer.flush()


async def what_we_read(client: BookKeeper, ledger_id: int, first: int, last: int, *, recover: bool = False) -> str:
    async with await client.open_ledger(ledger_id, recover=recover, password=PASSWORD) as reader:
        return checksum([entry async for batch in reader.read(first, last) for entry in batch.to_list()])


async def test_entries_of_the_greatest_size_go_both_ways(apache: ApacheCluster, java: JavaClient) -> None:
    large = Pattern(seed=5, size_min=(5 << 20) - 1024, size_max=(5 << 20) - 1024)

    async with our_client(apache) as client:
        writer = await client.create_ledger(password=PASSWORD)
        await append(writer, large, 0, 3)
        await writer.close()
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
        assert (await asyncio.to_thread(theirs.read, 0, 3)).checksum == large.checksum(0, 3)
        assert await what_we_read(client, writer.ledger_id, 0, 3) == large.checksum(0, 3)


async def test_ledgers_that_were_closed_empty(apache: ApacheCluster, java: JavaClient) -> None:
    async with our_client(apache) as client:
        ledger = await asyncio.to_thread(java.create)
        await asyncio.to_thread(ledger.close)
        abandoned = await asyncio.to_thread(java.create)
        for ledger_id, recover in ((ledger.ledger_id, False), (abandoned.ledger_id, True)):
            async with await client.open_ledger(ledger_id, recover=recover, password=PASSWORD) as reader:
                assert (reader.last_add_confirmed, reader.is_closed, reader.length) == (-1, True, 0)
        writer = await client.create_ledger(password=PASSWORD)
        await writer.close()
        theirs = await asyncio.to_thread(java.open, writer.ledger_id)
        assert (theirs.opened.lac, theirs.opened.closed, theirs.opened.length) == (-1, True, 0)


@pytest.mark.rule("D29")
async def test_ledger_ids_beyond_32_bits(apache: ApacheCluster, java: JavaClient) -> None:
    async with our_client(apache) as client:
        ledger = await asyncio.to_thread(lambda: java.create(adv=True, ledger_id=LARGE_LEDGER))
        await asyncio.to_thread(ledger.add, 300, SMALL)
        await asyncio.to_thread(ledger.close)
        assert await what_we_read(client, LARGE_LEDGER, 0, 299) == SMALL.checksum(0, 299)
        open_one = await asyncio.to_thread(lambda: java.create(adv=True, ledger_id=LARGE_LEDGER + 1))
        await asyncio.to_thread(open_one.add, 300, SMALL)
        assert await what_we_read(client, LARGE_LEDGER + 1, 0, 299, recover=True) == SMALL.checksum(0, 299)


@pytest.mark.rule("L2")
async def test_another_password_fences_nobody(apache: ApacheCluster, java: JavaClient) -> None:
    async with our_client(apache) as client:
        ledger = await asyncio.to_thread(java.create)
        await asyncio.to_thread(ledger.add, 3, SMALL)
        with pytest.raises(WrongPasswordError):
            await client.open_ledger(ledger.ledger_id, recover=True, password=b"guessed")
        await asyncio.to_thread(ledger.add, 3, SMALL, first=3)


async def test_a_bookie_tells_its_space(apache: ApacheCluster) -> None:
    async with our_client(apache) as client:
        for bookie in await client.refresh_bookies():
            said = await client.transport.link(bookie).bookie_info(deadline_s=10)
            assert 0 < said.free_bytes <= said.total_bytes
