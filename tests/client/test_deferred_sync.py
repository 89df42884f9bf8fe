# SPDX-License-Identifier: Apache-2.0
"""Deferred syncs and forces over sockets: bookies that answer as Apache's do, alone and in one ensemble with ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.client import BookKeeper, ClientConfig
from bk_core.errors import BookKeeperError, LedgerFencedError
from bk_core.wire.bookie_rpc.status import Status
from tests.client.test_mixed_ensembles import append, mixed_cluster
from tests.kit.apache_bookie import ApacheServer
from tests.kit.memory_cluster import FAST, memory_cluster, read_ledger
from tests.kit.waiting import eventually

SIZES = {"ensemble_size": 4, "write_quorum_size": 4, "ack_quorum_size": 3}
WANTED = [b"entry %d" % k for k in range(300)]


CALM = replace(FAST, add_timeout_ms=5_000, reconnect_budget_ms=3_000)
"""No bookie fails because this machine is busy."""


@asynccontextmanager
async def deferring(path: Path, config: ClientConfig = CALM) -> AsyncIterator[tuple[BookKeeper, list[ApacheServer]]]:
    """A story on ensembles of two bookies of ours, which sync every add, and two that defer."""
    async with asyncio.timeout(40), mixed_cluster(path, config) as (client, _, theirs):
        yield client, theirs


async def lac_of(client: BookKeeper, ledger_id: int) -> int:
    async with await client.open_ledger(ledger_id, recover=False) as reader:
        return reader.last_add_confirmed


@pytest.mark.rule("P12")
async def test_the_lac_follows_forces_alone(tmp_path: Path) -> None:
    async with deferring(tmp_path) as (client, theirs):
        writer = await client.create_ledger(deferred_sync=True, **SIZES)
        await append(writer, 0, 99)
        assert await writer.append(b"entry 100") == 100
        assert (writer.last_add_confirmed, await lac_of(client, writer.ledger_id)) == (-1, -1)
        assert theirs[0].bookie.asked == {**theirs[0].bookie.asked, "deferred add": 101}
        assert "add" not in theirs[0].bookie.asked
        assert await writer.force() == 100 == writer.last_add_confirmed
        async with asyncio.timeout(5):  # the bookies are told by a message of its own
            while await lac_of(client, writer.ledger_id) != 100:
                await asyncio.sleep(0.01)
        await append(writer, 101, 299)
        await writer.close()
        assert writer.metadata.last_entry_id == 299, "a close forces"
        assert await read_ledger(client, writer.ledger_id, recover=False) == WANTED


@pytest.mark.rule("P12")
async def test_a_bookie_that_refuses_a_force_is_replaced(tmp_path: Path) -> None:
    async with deferring(tmp_path) as (client, theirs):
        writer = await client.create_ledger(deferred_sync=True, **SIZES)
        theirs[0].bookie.refuse = lambda what, *_: Status.EIO if what == "force" else None
        await append(writer, 0, 99)
        await writer.force()
        await eventually(lambda: f"127.0.0.1:{theirs[2].port}" in writer.metadata.last_fragment.ensemble)
        await append(writer, 100, 299)
        await writer.close()
        assert await read_ledger(client, writer.ledger_id, recover=False) == WANTED


@pytest.mark.rule("MUST11")
async def test_a_force_of_a_fenced_writer_says_so(tmp_path: Path) -> None:
    async with deferring(tmp_path) as (client, _theirs):
        writer = await client.create_ledger(deferred_sync=True, **SIZES)
        await append(writer, 0, 9)
        assert await read_ledger(client, writer.ledger_id, recover=True) == WANTED[:10], "acked, and not forced"
        with pytest.raises(LedgerFencedError):
            await append(writer, 10, 10)
        with pytest.raises(LedgerFencedError):
            await writer.force()


async def test_the_window_bounds_what_is_not_forced() -> None:
    small = replace(CALM, window_bytes_max=64 << 10, slow_bookie_bytes_max=128 << 10, frame_bytes=4 << 10)
    async with memory_cluster() as cluster:
        writer = await cluster.client(small).create_ledger(deferred_sync=True)
        for _ in range(100):
            await writer.append(bytes(4000))
            assert writer._machine.retained_bytes < 100 << 10, "the window, and a few entries on their way"
        assert writer.last_add_confirmed > 30, "it forced by itself"
        await writer.close()
        assert writer.metadata.last_entry_id == 99


async def test_a_force_waits_for_what_is_queued_and_ends_with_the_writer() -> None:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client()
        plain, deferred = await client.create_ledger(), await client.create_ledger(deferred_sync=True)
        for writer in (plain, deferred):
            assert await writer.force() == -1
            for number in range(10):
                writer.append_nowait(b"%d" % number)
            assert await writer.force() == 9 == writer.last_add_confirmed
        deferred.append_nowait(b"10")
        await deferred.flush()
        waiting = asyncio.ensure_future(deferred.force())
        await deferred.abandon()
        with pytest.raises(BookKeeperError, match="abandoned"):
            await waiting


async def test_a_lac_by_call_is_taken_by_an_ack_quorum(tmp_path: Path) -> None:
    """Without the call, a reader of Apache's bookies sees the last entry only once another one carries its LAC."""

    async with deferring(tmp_path, replace(CALM, explicit_lac_delay_ms=60000, lac_stall_ms=60000)) as (client, theirs):
        writer = await client.create_ledger(**SIZES)
        assert await writer.write_lac() == -1
        await append(writer, 0, 9)
        assert await writer.write_lac() == 9
        assert await lac_of(client, writer.ledger_id) == 9
        for server in theirs[:2]:
            server.bookie.read_only = True
        with pytest.raises(BookKeeperError, match="too few bookies took the LAC 9") as caught:
            await writer.write_lac()
        assert "EREADONLY" in str(caught.value)
        await writer.abandon()
