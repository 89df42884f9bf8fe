# SPDX-License-Identifier: Apache-2.0
"""A reader or a client that closes, or is cancelled while it connects, raises an error in each call that waits, and
leaves no task behind."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bk_core.client import BookKeeper, LedgerReader, connect
from bk_core.entries.batch import EntryBatch
from bk_core.errors import ClientClosedError, Outcome
from bk_core.logs.named_log import NamedLog
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from tests.kit.memory_cluster import blocking_cluster, collect, hold, memory_cluster
from tests.kit.waiting import eventually, in_thread


@pytest.mark.parametrize("what", ["reader", "client"])
async def test_a_tail_of_an_open_ledger_ends_when_its_reader_or_client_is_closed(what: str) -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        client = cluster.client()
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        seen: list[bytes] = []
        tail = asyncio.create_task(collect(reader.tail(0), seen))
        await eventually(lambda: seen)
        await asyncio.sleep(0.02)
        async with asyncio.timeout(2):
            await (reader if what == "reader" else client).close()
            with pytest.raises(ClientClosedError):
                await tail
        for late in (reader.wait_lac(5, 10), reader.refresh_lac(), collect(reader.tail(0), [])):
            with pytest.raises(ClientClosedError):
                await late
        await writer.close()


@pytest.mark.parametrize("led", [True, False], ids=["led", "idle"])
async def test_a_tail_of_a_log_ends_when_its_client_is_closed(led: bool) -> None:
    async with memory_cluster() as cluster:
        leader = await NamedLog(cluster.client(), "events").lead()
        await leader.append(b"0")
        if not led:
            await leader.close()
        client = cluster.client()
        tail = NamedLog(client, "events").tail(0)
        await anext(tail)
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(2):
            await client.close()
            with pytest.raises(ClientClosedError):
                await waiting


@pytest.mark.parametrize("what", ["ledger", "log", "reader alone"])
def test_a_thread_that_tails_is_told_when_the_client_or_its_reader_closes(what: str) -> None:
    with blocking_cluster() as (bookkeeper, _):
        ledger, leader = bookkeeper.create_ledger(), bookkeeper.log("events").lead()
        ledger.append(b"0")
        leader.append(b"0")
        reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
        tail: Iterator[object] = bookkeeper.log("events").tail(0) if what == "log" else reader.tail(0)
        in_thread(next, tail).result(5)
        waiting = in_thread(next, tail)
        time.sleep(0.05)
        (reader if what == "reader alone" else bookkeeper).close()
        assert isinstance(waiting.exception(5), ClientClosedError)


async def test_a_recovery_that_is_under_way_is_told_and_leaves_nothing_behind() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        hold(cluster)  # no fence becomes durable
        client = cluster.client()
        opening = asyncio.create_task(client.open_ledger(writer.ledger_id, recover=True))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            await client.close()
            with pytest.raises(ClientClosedError):
                await opening


async def test_a_closed_client_begins_nothing() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client()
        await client.close()
        for late in (client.create_ledger(), client.open_ledger(0, recover=True), client.delete_ledger(0)):
            with pytest.raises(ClientClosedError) as caught:
                await late
            assert caught.value.outcome is Outcome.NOT_APPLIED


def tasks() -> set[str]:
    """What runs beside the test itself."""
    return {repr(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def reader_in_use(client: BookKeeper, ledger_id: int) -> LedgerReader:
    """It follows the ledger, and a read of it was begun and not finished."""
    reader = await client.open_ledger(ledger_id, recover=False)
    await reader.wait_lac(10**6, 0.05)
    batches = reader.read(0, reader.last_add_confirmed)
    await anext(batches)
    await batches.aclose()
    return reader


@pytest.mark.parametrize("what", ["reader", "client"])
async def test_no_task_and_no_watch_outlives_the_close(what: str) -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.wait_confirmed(await writer.append_batch(EntryBatch.from_list([bytes(100_000)] * 100)))
        before = tasks()
        client = cluster.client()
        reader = await reader_in_use(client, writer.ledger_id)
        assert tasks() > before
        assert reader._follower._cancel_store is not None
        await (reader if what == "reader" else client).close()
        await eventually(lambda: tasks() <= before)
        assert reader._follower._cancel_store is None
        await writer.close()
        assert not reader.is_closed  # nobody tells it any more


def is_closed(store: MetadataStore) -> bool:
    try:
        list(store.list_ledgers())
    except ClientClosedError:
        return True
    return False


@pytest.mark.parametrize("opened_first", [False, True])
async def test_a_store_that_opens_for_somebody_who_was_cancelled_is_closed(
    opened_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    open_store(uri).initialize_cluster()
    waiting, may_open, opened = threading.Event(), threading.Event(), list[MetadataStore]()

    def slowly(*args: Any, **options: Any) -> MetadataStore:
        waiting.set()
        may_open.wait(5)
        opened.append(open_store(*args, **options))
        return opened[0]

    monkeypatch.setattr(importlib.import_module("bk_core.client.bookkeeper"), "open_store", slowly)

    task = asyncio.ensure_future(connect(uri))
    await asyncio.to_thread(waiting.wait, 5)
    if opened_first:  # and the loop has not heard of it
        may_open.set()
        while not opened:
            threading.Event().wait(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_open.set()
    await eventually(lambda: bool(opened) and is_closed(opened[0]))


async def test_a_close_that_is_cancelled_ends_the_session_all_the_same() -> None:
    async with memory_cluster() as cluster:
        client = cluster.client()
        held = asyncio.Event()

        async def never() -> None:
            held.set()
            await asyncio.Event().wait()

        client.transport.close = never
        closing = asyncio.ensure_future(client.close())
        await held.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        del client.transport.close
        assert is_closed(client.store)
