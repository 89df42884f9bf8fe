# SPDX-License-Identifier: Apache-2.0
"""Ledgers whose entries get their ids from the caller, in any order, as with Apache's LedgerHandleAdv."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.client import LedgerWriter
from bk_core.client.writing.append_queue import ENTRY_COST_BYTES, AppendQueue
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    BookKeeperError,
    DuplicateEntryIdError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerExistsError,
    Outcome,
    WindowFullError,
)
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, memory_cluster, read_ledger
from tests.kit.waiting import eventually


@asynccontextmanager
async def explicit_writer(**config: int) -> AsyncIterator[tuple[MemoryBookKeeper, LedgerWriter]]:
    async with asyncio.timeout(20), memory_cluster() as cluster:
        client = cluster.client(replace(FAST, **config))
        yield cluster, await client.create_ledger(explicit_ids=True)


@given(ids=st.lists(st.integers(0, 12), max_size=30))
def test_what_is_taken_has_no_gap_and_each_id_its_payload(ids: list[int]) -> None:
    queue, given_ids, taken = AppendQueue(), set[int](), list[bytes]()
    with queue.lock:
        for number, entry_id in enumerate(ids):
            try:
                queue.put_at(entry_id, b"%d" % entry_id)
            except DuplicateEntryIdError:
                assert entry_id in given_ids
            else:
                assert entry_id not in given_ids
            given_ids.add(entry_id)
            whole = next(n for n in range(14) if n not in given_ids)
            assert (queue.next_id, queue.last_id) == (whole, max(given_ids)), number
            sizes = {
                kind: sum(len(b"%d" % n) + ENTRY_COST_BYTES for n in given_ids if kind(n))
                for kind in (whole.__gt__, whole.__lt__)
            }
            assert (queue.held, queue.early_bytes) == (sum(sizes.values()), sizes[whole.__lt__])
    while len(queue):
        taken += queue.take(64)[0].to_list()
    assert taken == [b"%d" % n for n in range(len(taken))]
    assert len(taken) == queue.next_id
    with queue.lock:
        queue.drop_early()
    assert (queue.early_bytes, queue.last_id) == (0, queue.next_id - 1)


@pytest.mark.rule("MUST1")
async def test_entries_are_confirmed_in_the_order_of_their_ids() -> None:
    order: list[int] = []

    async with explicit_writer() as (cluster, writer):

        async def append(entry_id: int) -> None:
            assert await writer.append(b"entry %d" % entry_id, entry_id) == entry_id
            order.append(entry_id)

        late = [asyncio.ensure_future(append(entry_id)) for entry_id in (4, 2, 1)]
        await asyncio.sleep(0.05)
        assert (order, writer.last_add_confirmed, writer.last_add_pushed) == ([], -1, 4)
        await append(0)
        await asyncio.gather(*late[1:])
        assert (sorted(order), writer.last_add_confirmed, late[0].done()) == ([0, 1, 2], 2, False)
        await append(3)
        await late[0]
        assert order[-2:] == [3, 4]
        await writer.close()
        assert await read_ledger(cluster.client(), writer.ledger_id, recover=True) == [
            b"entry %d" % n for n in range(5)
        ]


async def test_an_id_is_taken_once() -> None:
    async with explicit_writer() as (cluster, writer):
        await writer.append(b"a", 0)
        writer.append_nowait(b"c", 2)
        for entry_id in (0, 2):
            with pytest.raises(DuplicateEntryIdError, match=f"entry {entry_id} was appended before") as caught:
                await writer.append(b"other", entry_id)
            assert caught.value.outcome is Outcome.NOT_APPLIED
        await writer.append(b"b", 1)
        await writer.close()
        assert await read_ledger(cluster.client(), writer.ledger_id, recover=True) == [b"a", b"b", b"c"]


async def test_a_close_ends_below_the_first_id_that_was_not_given() -> None:
    async with explicit_writer() as (cluster, writer):
        waiting = [asyncio.ensure_future(writer.append(b"%d" % n, n)) for n in (0, 1, 3, 4)]
        future = writer.append_future(b"6", 6)
        await asyncio.sleep(0)
        await writer.close()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert done[:2] == [0, 1]
        for refused in (*done[2:], future.exception(1)):
            assert isinstance(refused, LedgerClosedError)
            assert refused.outcome is Outcome.NOT_APPLIED, "they were never sent"
        assert writer.metadata.last_entry_id == 1
        assert await read_ledger(cluster.client(), writer.ledger_id, recover=True) == [b"0", b"1"]


def filled(writer: LedgerWriter) -> int:
    """Fills the window with entries above a gap; the first id for which there was no room."""
    for entry_id in range(1, 100):
        try:
            writer.append_nowait(bytes(900), entry_id)
        except WindowFullError:
            return entry_id
    raise AssertionError("the window has no end")


async def test_the_entry_that_all_others_wait_for_needs_no_room() -> None:
    """A window full of entries above a gap would else never be emptied."""

    async with explicit_writer(window_bytes_max=8 << 10, frame_bytes=1 << 10) as (_cluster, writer):
        entry_id = filled(writer)
        assert entry_id > 5
        behind = [asyncio.ensure_future(writer.append(bytes(900), n)) for n in (entry_id + 1, entry_id)]
        await asyncio.sleep(0.05)
        assert writer.last_add_confirmed == -1
        await writer.append(bytes(5000), 0)
        assert sorted(await asyncio.gather(*behind)) == [entry_id, entry_id + 1]
        assert writer.last_add_confirmed == entry_id + 1
        await writer.close()


async def test_who_waits_for_room_hears_of_the_end() -> None:
    async with explicit_writer(window_bytes_max=8 << 10, frame_bytes=1 << 10) as (_cluster, writer):
        filled(writer)
        behind = asyncio.ensure_future(writer.append(bytes(900), 200))
        await asyncio.sleep(0.01)
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await behind


@pytest.mark.parametrize("entry_id", [None, -1, 2**63 - 1])
async def test_an_id_has_to_be_given_and_fit(entry_id: int | None) -> None:
    async with explicit_writer() as (_cluster, writer):
        with pytest.raises(InvalidArgumentError, match="get their ids from the caller"):
            await writer.append(b"a", entry_id)


async def test_ids_and_batches_are_for_the_ledgers_that_are_made_for_them() -> None:
    async with explicit_writer() as (cluster, writer):
        with pytest.raises(InvalidArgumentError, match="get their ids from the caller"):
            await writer.append_batch(EntryBatch.from_list([b"a"]))
        numbered = await cluster.client().create_ledger()
        with pytest.raises(InvalidArgumentError, match="numbers its entries itself"):
            await numbered.append(b"a", 0)


async def test_the_end_of_a_client_reaches_entries_above_a_gap() -> None:
    async with explicit_writer() as (_cluster, writer):
        waiting = asyncio.ensure_future(writer.append(b"b", 1))
        await asyncio.sleep(0)
        await writer.abandon()
        with pytest.raises(BookKeeperError, match="abandoned"):
            await waiting


async def test_a_ledger_gets_the_id_that_was_asked_for_once() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client()
        async with await client.create_ledger(ledger_id=2**40 + 7) as writer:
            await writer.append(b"a")
        assert writer.ledger_id == 2**40 + 7
        assert await read_ledger(client, 2**40 + 7, recover=True) == [b"a"]
        with pytest.raises(LedgerExistsError):
            await client.create_ledger(ledger_id=2**40 + 7)
        with pytest.raises(InvalidArgumentError):
            await client.create_ledger(ledger_id=-1)


async def test_entries_above_a_gap_outlive_the_loss_of_a_bookie() -> None:
    async with explicit_writer() as (cluster, writer):
        late = asyncio.ensure_future(writer.append(b"b", 1))
        await asyncio.sleep(0)
        for name in writer.metadata.last_fragment.ensemble[:1]:
            cluster.kill(name)
        await writer.append(b"a", 0)
        await late
        await eventually(lambda: writer.last_add_confirmed == 1)
        await writer.close()
        assert await read_ledger(cluster.client(), writer.ledger_id, recover=True) == [b"a", b"b"]
