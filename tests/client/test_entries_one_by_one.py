# SPDX-License-Identifier: Apache-2.0
"""Entries that come one by one while there is room are queued without a look at anything else: only while nothing else
has to be looked at."""

from __future__ import annotations

import asyncio
import os

import pytest

from bk_core.client import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    ClientClosedError,
    EntryTooLargeError,
    ForkedHandleError,
    InvalidArgumentError,
    LedgerClosedError,
    WindowFullError,
)
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from tests.kit.memory_cluster import FAST, hold, memory_cluster, read_ledger, release

SMALL = ClientConfig(frame_bytes=1_000, window_bytes_max=4_000, slow_bookie_bytes_max=64_000)


async def test_ids_are_told_at_once_and_in_order_across_single_entries_and_batches() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        assert [writer.append_nowait(b"%d" % n) for n in range(50)] == list(range(50))
        assert await writer.append_batch(EntryBatch.from_list([b"50", b"51"])) == 51
        assert [writer.append_nowait(payload) for payload in (bytearray(b"52"), memoryview(b"53"))] == [52, 53]
        assert (writer.append_nowait(b"54"), writer.last_add_pushed) == (54, 54)
        await writer.close()
        found = await read_ledger(cluster.client(), writer.ledger_id, recover=False)
        assert found == [b"%d" % n for n in range(55)]


async def test_none_passes_a_batch_that_waits_for_room() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client(SMALL).create_ledger()
        await writer.append(b"first")
        hold(cluster)
        batch = EntryBatch.from_list([bytes(900) for _ in range(12)])
        waiting = asyncio.ensure_future(writer.append_batch(batch))
        await asyncio.sleep(0)
        with pytest.raises(WindowFullError):
            writer.append_nowait(b"x")
        release(cluster)
        assert await waiting == 12
        assert writer.append_nowait(b"last") == 13
        await writer.close()


@pytest.mark.parametrize("how", ["close", "abandon", "client"])
async def test_none_is_queued_once_the_writer_has_ended(how: str) -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(FAST)
        writer = await client.create_ledger()
        writer.append_nowait(b"a")
        hold(cluster)
        ends = {"close": writer.close, "abandon": writer.abandon, "client": client.close}
        ending = asyncio.ensure_future(ends[how]())
        await asyncio.sleep(0)
        with pytest.raises(LedgerClosedError if how == "close" else ClientClosedError):
            writer.append_nowait(b"b")
        release(cluster)
        await ending
        with pytest.raises((LedgerClosedError, ClientClosedError)):
            writer.append_nowait(b"c")
        assert writer.last_add_pushed == 0


@pytest.mark.rule("L5")
async def test_none_is_queued_that_no_frame_can_hold_however_much_room_there_is() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        writer.append_nowait(b"a")
        writer._queue.free_to = 1 << 30  # as just after a large batch was confirmed
        with pytest.raises(EntryTooLargeError):
            writer.append_nowait(bytes(ENTRY_BYTES_MAX + 1))
        assert writer.append_nowait(b"b") == 1
        await writer.close()


async def test_none_gets_an_id_of_its_own_in_a_ledger_whose_ids_the_caller_gives() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger(explicit_ids=True)
        writer.append_nowait(b"a", 0)
        with pytest.raises(InvalidArgumentError):
            writer.append_nowait(b"b")
        assert writer.last_add_pushed == 0
        await writer.close()


@pytest.mark.rule("K4")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 on warns of exactly what is tested
async def test_none_is_queued_in_a_forked_child() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        writer.append_nowait(b"a")
        child = os.fork()
        if child == 0:
            try:
                writer.append_nowait(b"b")
            except ForkedHandleError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        await writer.close()


async def test_a_wait_for_an_entry_that_was_not_appended_is_refused_at_once() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"x")
        with pytest.raises(InvalidArgumentError, match="no such entry"):
            await asyncio.wait_for(writer.wait_confirmed(1), 10)
        await writer.abandon()
        with pytest.raises(ClientClosedError):
            await writer.wait_confirmed(1)
