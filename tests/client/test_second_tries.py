# SPDX-License-Identifier: Apache-2.0
"""Second tries of a client: a read goes on where it stood; one deadline bounds all attempts together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError
from tests.kit.memory_cluster import FAST, memory_cluster


@pytest.mark.parametrize("how", ["read", "tail"])
async def test_a_read_that_fails_half_way_and_is_tried_again_gives_each_entry_once(how: str) -> None:
    async with memory_cluster(1) as cluster:
        config = replace(FAST, frame_bytes=1_000, read_bytes_max=2_000, read_timeout_ms=500)
        client = cluster.client(config)
        wanted = [b"%03d " % n + bytes(400) for n in range(60)]
        async with await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
            await writer.append_batch(EntryBatch.from_list(wanted))
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        tries: list[str] = []
        registered: Any = client.store.writable_bookies

        def comes_back() -> Any:
            tries.append("again")
            cluster.network.up("b0")
            return registered()

        client.store.writable_bookies = comes_back
        found: list[bytes] = []
        async for batch in reader.read(0, 59) if how == "read" else reader.tail(0):
            found += batch.to_list()
            if len(found) > 10 and not tries:
                cluster.network.down("b0")
        assert tries == ["again"]
        assert found == wanted


@pytest.mark.parametrize("recover", [False, True], ids=["LAC", "fence"])
async def test_a_bookie_that_comes_back_and_stays_silent_does_not_get_its_time_twice(recover: bool) -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        for name in cluster.names:
            cluster.network.down(name)

        def back_and_silent() -> None:
            for name in cluster.names:
                cluster.network.hold(name)
                cluster.network.up(name)

        loop = asyncio.get_running_loop()
        loop.call_later(0.7, back_and_silent)
        began = loop.time()
        with pytest.raises(BookKeeperError):
            await cluster.client(replace(FAST, lac_timeout_ms=800)).open_ledger(writer.ledger_id, recover=recover)
        assert 0.75 < loop.time() - began < 1.2
        await writer.abandon()


async def test_one_bookie_that_is_gone_does_not_hold_up_who_opens_a_ledger_that_is_written() -> None:
    """Two of three say how far it is confirmed: nobody waits for the deadline of the third."""

    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        cluster.network.down("b1")
        began = asyncio.get_running_loop().time()
        reader = await cluster.client(FAST).open_ledger(writer.ledger_id, recover=False)
        assert asyncio.get_running_loop().time() - began < FAST.lac_timeout_ms / 1000 / 4
        await reader.close()
        await writer.abandon()
