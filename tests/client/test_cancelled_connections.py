# SPDX-License-Identifier: Apache-2.0
"""Who is cancelled while connecting or closing leaves no session behind, which would renew itself for ever."""

from __future__ import annotations

import asyncio
import importlib
import threading
import uuid
from typing import Any

import pytest

from bk_core.client import connect
from bk_core.errors import ClientClosedError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from tests.kit.memory_cluster import memory_cluster
from tests.kit.waiting import eventually


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
