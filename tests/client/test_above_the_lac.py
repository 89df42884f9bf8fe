# SPDX-License-Identifier: Apache-2.0
"""Entries above the LAC of an open ledger, which a reader sees if it asks for them: up to the quorum end (P15), or at
the caller's risk."""

from __future__ import annotations

import asyncio

import pytest

from bk_core.client import BookKeeper, LedgerWriter
from bk_core.errors import ClientClosedError, InvalidArgumentError, NoSuchEntryError
from tests.kit.memory_cluster import memory_cluster

pytestmark = pytest.mark.rule("P15")


async def ten_entries_above_the_lac(client: BookKeeper) -> LedgerWriter:
    """Append ten entries to a new ledger. With deferred sync its LAC stays below all of them."""
    writer = await client.create_ledger(deferred_sync=True)
    for number in range(10):
        writer.append_nowait(b"%d" % number)
    await writer.flush()
    return writer


async def test_entries_above_the_lac_are_read_after_the_wait_and_the_writer_goes_on() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        writer = await ten_entries_above_the_lac(client)
        async with await client.open_ledger(writer.ledger_id, recover=False) as reader:
            assert reader.last_add_confirmed == -1
            with pytest.raises(InvalidArgumentError, match="cannot be read"):
                [batch async for batch in reader.read(0, 9)]
            assert await reader.wait_quorum_end(settle_ms=20) == 9
            found = [one async for batch in reader.read(0, 9) for one in batch.to_list()]
            assert found == [b"%d" % number for number in range(10)]
            with pytest.raises(InvalidArgumentError, match="readable: 0 to 9"):
                [batch async for batch in reader.read(0, 10)]
            await writer.append(b"10")
            await writer.close()
            assert await reader.wait_quorum_end(settle_ms=60_000) == 10


async def test_a_ledger_without_entries_above_the_lac_is_not_waited_for() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        writer = await client.create_ledger()
        async with await client.open_ledger(writer.ledger_id, recover=False) as reader:
            assert await reader.wait_quorum_end() == -1
            with pytest.raises(InvalidArgumentError, match="settle_ms must be at least 0"):
                await reader.wait_quorum_end(-1)
        await writer.close()


async def test_a_ledger_that_is_closed_during_the_wait_ends_at_its_last_entry() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        writer = await client.create_ledger(deferred_sync=True)
        await writer.append(b"0")
        async with await client.open_ledger(writer.ledger_id, recover=False) as reader:
            waiting = asyncio.ensure_future(reader.wait_quorum_end(settle_ms=300))
            await asyncio.sleep(0.05)
            await writer.append(b"1")
            await writer.close()
            assert await waiting == 1
            assert reader.is_closed


async def test_a_reader_that_is_closed_ends_the_wait() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        writer = await client.create_ledger(deferred_sync=True)
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        waiting = asyncio.ensure_future(reader.wait_quorum_end())
        await asyncio.sleep(0.1)
        await reader.close()
        with pytest.raises(ClientClosedError):
            await waiting
        await writer.close()


async def read(client: BookKeeper, ledger_id: int, first: int, last: int, *, unconfirmed: bool = True) -> list[bytes]:
    async with await client.open_ledger(ledger_id, recover=False) as reader:
        batches = reader.read(first, last, unconfirmed=unconfirmed)
        return [one async for batch in batches for one in batch.to_list()]


@pytest.mark.rule("MUST14")
async def test_what_bookies_have_is_read_beyond_the_lac_if_the_caller_says_so() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        writer = await ten_entries_above_the_lac(client)
        assert await read(client, writer.ledger_id, 0, 9) == [b"%d" % number for number in range(10)]
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            await read(client, writer.ledger_id, 0, 9, unconfirmed=False)
        with pytest.raises(NoSuchEntryError, match=r"entry 10 .* is not there yet, and is not confirmed"):
            await read(client, writer.ledger_id, 8, 12)
        await writer.close()
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            await read(client, writer.ledger_id, 0, 10)


async def test_the_loss_of_a_confirmed_entry_is_still_a_loss() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        await writer.close()
        record = (await client.read_metadata(writer.ledger_id)).value
        client.store.write_ledger(writer.ledger_id, record.closed_at(3, 1), 1)
        with pytest.raises(NoSuchEntryError, match="is lost"):
            await read(client, writer.ledger_id, 0, 3)
