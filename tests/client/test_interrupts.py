# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the blocking client: what was waiting ends on the client's thread too, and the client goes on."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import ClientClosedError, Outcome
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, hold, release
from tests.kit.waiting import in_thread

QUIET = replace(FAST, frame_bytes=1_000, window_bytes_max=4_000, add_timeout_ms=60_000, add_quorum_timeout_ms=60_000)


@pytest.fixture
def cluster() -> Iterator[list[MemoryBookKeeper]]:
    made: list[MemoryBookKeeper] = []
    yield made
    made[0].store.close()


@pytest.fixture
def bookkeeper(cluster: list[MemoryBookKeeper]) -> Iterator[BookKeeper]:
    async def make() -> Any:
        cluster.append(MemoryBookKeeper(4))
        return cluster[0].client(QUIET)

    with BookKeeper(make) as client:
        yield client


@contextmanager
def interrupted(after_s: float = 0.2) -> Iterator[None]:
    """The block gets a KeyboardInterrupt, as Ctrl-C gives, and passes it on."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tasks(bookkeeper: BookKeeper) -> list[str]:
    """What runs on the client's loop, after what was cancelled had turns to end."""

    async def look() -> list[str]:
        for _ in range(50):
            await asyncio.sleep(0.002)
        return sorted(repr(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task())

    return bookkeeper._thread.call(look())


def test_an_interrupted_batch_queues_nothing_more(cluster: list[MemoryBookKeeper], bookkeeper: BookKeeper) -> None:
    ledger = bookkeeper.create_ledger()
    before = tasks(bookkeeper)
    hold(cluster[0])
    with interrupted():
        ledger.append_batch(EntryBatch.from_list([bytes(400)] * 100))
    assert tasks(bookkeeper) == before
    queued = ledger.last_add_pushed
    assert 0 < queued < 99
    bookkeeper._thread.loop.call_soon_threadsafe(release, cluster[0])
    ledger.flush()
    assert ledger.append(b"next") == queued + 1
    ledger.close()


def test_an_interrupted_recovery_stops_where_it_is(cluster: list[MemoryBookKeeper], bookkeeper: BookKeeper) -> None:
    ledger = bookkeeper.create_ledger()
    ledger.append(b"0")
    hold(cluster[0])  # no fence becomes durable
    with interrupted():
        bookkeeper.open_ledger(ledger.ledger_id, recover=True)
    assert not [task for task in tasks(bookkeeper) if "fence" in task or "open_ledger" in task]
    assert not bookkeeper.read_metadata(ledger.ledger_id).value.is_closed


def list_for_ever(client: BookKeeper) -> None:
    while True:
        client.list_ledgers()


def test_nothing_that_is_begun_while_the_client_closes_waits_for_ever(cluster: list[MemoryBookKeeper]) -> None:
    async def make() -> Any:
        cluster.append(MemoryBookKeeper(4))
        return cluster[-1].client(QUIET)

    for _ in range(20):
        client = BookKeeper(make)
        calling = [in_thread(list_for_ever, client) for _ in range(4)]
        client.close()
        assert {type(each.exception(5)) for each in calling} == {ClientClosedError}


def test_what_is_called_while_the_loop_ends_is_refused_at_once(
    cluster: list[MemoryBookKeeper], bookkeeper: BookKeeper
) -> None:
    ending = threading.Event()

    async def stubborn(_: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ending.set()
            time.sleep(0.5)  # the loop does nothing else meanwhile

    bookkeeper.begin(stubborn)
    bookkeeper.list_ledgers()
    closing = in_thread(bookkeeper.close)
    assert ending.wait(5)
    with pytest.raises(ClientClosedError) as caught:
        bookkeeper.list_ledgers()
    assert caught.value.outcome is Outcome.NOT_APPLIED
    closing.result(5)
