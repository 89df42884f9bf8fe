# SPDX-License-Identifier: Apache-2.0
"""The writers of one process share one budget (RULES P3)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from bk_core.client import ClientConfig, LedgerWriter
from bk_core.client.writing.process_budget import (
    IDLE_BYTES_MAX,
    IDLE_PART,
    KEPT_BYTES_MAX,
    ProcessBudget,
    process_budget,
)
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError, WindowFullError
from bk_core.protocol.events import MetadataConflicted
from tests.kit.memory_cluster import hold, memory_cluster, release
from tests.kit.waiting import eventually, in_thread

MIB = 1 << 20
CONFIG = ClientConfig(
    frame_bytes=64 << 10,
    window_bytes_max=MIB,
    process_window_bytes_max=8 * MIB,
    add_timeout_ms=60_000,
    add_quorum_timeout_ms=60_000,
)


def fill(writer: LedgerWriter, payload: bytes) -> int:
    count = 0
    while True:
        try:
            writer.append_nowait(payload)
        except WindowFullError:
            return count * len(payload)
        count += 1


@pytest.mark.rule("P3")
async def test_forty_writers_of_two_clients_hold_one_budget_and_all_get_through() -> None:
    async with memory_cluster() as cluster:
        clients = cluster.client(CONFIG), cluster.client(replace(CONFIG, process_window_bytes_max=64 * MIB))
        writers = [await clients[n % 2].create_ledger() for n in range(40)]
        hold(cluster)
        payload = bytes(10_000)
        assert sum(fill(writer, payload) for writer in writers) <= 8 * MIB + 40 * len(payload)
        waiting = [asyncio.create_task(writer.append_batch(EntryBatch.from_list([payload] * 50))) for writer in writers]
        await asyncio.sleep(0.05)
        assert process_budget().decision.bytes <= 8 * MIB + 40 * 100_000
        release(cluster)
        await asyncio.gather(*waiting)
        await asyncio.gather(*(writer.close() for writer in writers))
        assert process_budget().decision.bytes == 0


@pytest.mark.rule("P3")
async def test_what_is_kept_for_a_slow_bookie_counts_and_is_given_back_when_it_has_caught_up() -> None:
    async with memory_cluster(3) as cluster:
        config = replace(CONFIG, process_window_bytes_max=2 * MIB)
        writer = await cluster.client(config).create_ledger()
        slow = writer.metadata.last_fragment.ensemble[2]
        cluster.network.bookies[slow].hold_commits()
        appending = asyncio.create_task(writer.append_batch(EntryBatch.from_list([bytes(50_000)] * 100)))
        await eventually(lambda: writer._machine.retained_bytes > MIB)
        await asyncio.sleep(0.3)
        assert not appending.done()  # 5 MB, of which 2 MiB may be kept for the slow one
        assert process_budget().decision.bytes <= 2 * MIB + 64 * 1024
        cluster.network.bookies[slow].release_commits()
        assert await appending == 99
        await writer.flush()
        await eventually(lambda: process_budget().decision.bytes <= IDLE_BYTES_MAX)
        await writer.close()
        assert process_budget().decision.bytes == 0


@pytest.mark.rule("P3")
async def test_a_writer_keeps_no_unused_byte_while_another_one_waits() -> None:
    budget, woken = ProcessBudget(), asyncio.Event()
    budget.client(100_000)
    loop = asyncio.get_running_loop()
    busy, late = budget.share(loop, lambda: None), budget.share(loop, woken.set)
    assert busy.reach(90_000, at_most=90_000, waits=False)
    busy.keep(89_000)
    assert busy.bytes == 90_000
    assert late.reach(5_000, at_most=5_000, waits=True)
    assert not late.reach(20_000, at_most=20_000, waits=True)
    busy.keep(50_000)
    assert busy.bytes == 50_000
    async with asyncio.timeout(20):
        await woken.wait()


@pytest.mark.rule("P3")
async def test_idle_writers_keep_few_bytes_and_leave_most_of_the_budget() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client(replace(CONFIG, process_window_bytes_max=MIB))
        writers = [await client.create_ledger() for _ in range(100)]
        for writer in writers:
            await writer.append(b"x")
        await eventually(lambda: all(writer._machine.retained_bytes == 0 for writer in writers))
        assert IDLE_BYTES_MAX <= process_budget().decision.bytes <= MIB // IDLE_PART + KEPT_BYTES_MAX
        assert await writers[0].append(bytes(2 * MIB)) == 1  # a writer that uses no bytes is never refused
        await asyncio.gather(*(writer.close() for writer in writers))
        assert process_budget().decision.bytes == 0


@pytest.mark.rule("P3")
@pytest.mark.parametrize("how", ["abandon", "client", "failure"])
async def test_a_writer_that_ends_gives_its_part_back_and_others_go_on(how: str) -> None:
    async with memory_cluster() as cluster:
        client, other = cluster.client(CONFIG), cluster.client(CONFIG)
        config = replace(CONFIG, process_window_bytes_max=MIB)
        ending, going_on = await client.create_ledger(), await other.create_ledger()
        limits = cluster.client(config)
        hold(cluster)
        fill(ending, bytes(10_000))
        going_on.append_nowait(bytes(500_000))
        waiting = asyncio.create_task(going_on.append(bytes(300_000)))
        await asyncio.sleep(0.01)
        assert going_on.last_add_pushed == 0
        if how == "abandon":
            await ending.abandon()
        elif how == "client":
            await client.close()
        else:
            ending._driver.feed(MetadataConflicted())  # answers nothing that was asked
            assert ending.is_failed
        await eventually(lambda: going_on.last_add_pushed == 1)
        release(cluster)
        await waiting
        await limits.close()


def test_the_budget_is_checked_with_the_window() -> None:
    with pytest.raises(InvalidArgumentError, match="process_window_bytes_max"):
        ClientConfig(process_window_bytes_max=MIB)


@pytest.mark.rule("K4")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_with_an_empty_budget_whose_lock_is_free() -> None:
    parents = process_budget()
    close = parents.client(1_000)
    parents.take(10**9, 600, 0, None)
    with parents._lock:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                own = process_budget()
                own.client(1_000)
                code = 0 if own is not parents and own.take(1, 900, 0, None) == 900 else 1
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    parents.leave(10**9)
    close()


@pytest.mark.rule("P3")
def test_a_client_that_is_collected_while_its_thread_holds_the_lock_waits_for_nobody() -> None:
    budget = ProcessBudget()
    close_small, close_large = budget.client(1_000), budget.client(1 << 20)

    def collected() -> None:
        with budget._lock:
            close_small()

    in_thread(collected).result(10)
    assert budget.take(1, 600, 0, None) == budget.take(2, 600, 0, None) == budget.take(1, 600, 0, None) == 600
    close_large()
