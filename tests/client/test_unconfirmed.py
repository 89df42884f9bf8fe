# SPDX-License-Identifier: Apache-2.0
"""Reads beyond the LAC, at the caller's risk."""

from __future__ import annotations

import asyncio

import pytest

from bk_core.client import BookKeeper
from bk_core.errors import InvalidArgumentError, NoSuchEntryError
from tests.kit.memory_cluster import memory_cluster


async def read(client: BookKeeper, ledger_id: int, first: int, last: int, *, unconfirmed: bool = True) -> list[bytes]:
    async with await client.open_ledger(ledger_id, recover=False) as reader:
        batches = reader.read(first, last, unconfirmed=unconfirmed)
        return [one async for batch in batches for one in batch.to_list()]


@pytest.mark.rule("MUST14")
async def test_what_bookies_have_is_read_beyond_the_lac_if_the_caller_says_so() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        writer = await client.create_ledger(deferred_sync=True)  # whose LAC stands still
        for number in range(10):
            writer.append_nowait(b"%d" % number)
        await writer.flush()
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
