# SPDX-License-Identifier: Apache-2.0
"""Ledgers whose bookies are of two kinds: our own, and some that answer as Apache's do. The client needs no setting."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.client import BookKeeper, ClientConfig, LedgerWriter
from bk_core.errors import LedgerFencedError
from bk_core.metadata import open_store
from bk_core.metadata.records import legacy_service_info
from bk_core.model import DigestType
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bookie_server.main import Bookie
from tests.kit.apache_bookie import ApacheServer
from tests.kit.lanes import bookie_config
from tests.kit.memory_cluster import FAST, read_ledger

SIZES = {"striped": (4, 3, 2), "whole": (4, 4, 3)}


@contextlib.asynccontextmanager
async def mixed_cluster(
    data_dir: Path, config: ClientConfig = FAST
) -> AsyncIterator[tuple[BookKeeper, list[Bookie], list[ApacheServer]]]:
    """Two bookies of ours, and three that answer as Apache's."""
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(store.close)
        ours = [await Bookie.start(bookie_config(data_dir / f"{n}", uri)) for n in range(2)]
        theirs = [await ApacheServer().start() for _ in range(3)]
        for server in (*ours, *theirs):
            stack.push_async_callback(server.stop)
        for server in theirs:
            store.register_bookie(legacy_service_info(f"127.0.0.1:{server.port}"))
        transport = LaneTransport(Caller(store.instance_id(), connect_timeout_s=2))
        async with BookKeeper(open_store(uri), transport, instance_id=store.instance_id(), config=config) as client:
            chosen = [bookie.bookie_id for bookie in ours] + [f"127.0.0.1:{server.port}" for server in theirs]
            client._choose = lambda writable, size, *_: tuple(chosen[:size])
            yield client, ours, theirs


async def append(writer: LedgerWriter, first: int, last: int) -> None:
    for k in range(first, last + 1):
        writer.append_nowait(b"entry %d" % k)
    await writer.flush()


@pytest.mark.rule("P6", "MUST6")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
async def test_bookies_of_both_kinds_hold_one_ledger(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    wanted = [b"entry %d" % k for k in range(900)]

    async with asyncio.timeout(40), mixed_cluster(tmp_path) as (client, _, theirs):
        names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
        closed, dead = [
            await client.create_ledger(digest_type=DigestType.MAC, **dict(zip(names, sizes, strict=True)))
            for _ in range(2)
        ]
        for writer in (closed, dead):
            await append(writer, 0, 499)
        await theirs[0].stop()  # a bookie dies; the third of its kind is the spare
        spare = f"127.0.0.1:{theirs[2].port}"
        for writer in (closed, dead):
            await append(writer, 500, 899)
            while spare not in writer.metadata.last_fragment.ensemble:
                await asyncio.sleep(0.01)
        await closed.close()
        assert await read_ledger(client, closed.ledger_id, recover=False) == wanted
        assert await read_ledger(client, dead.ledger_id, recover=True) == wanted
        with pytest.raises(LedgerFencedError):
            await append(dead, 900, 900)


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)], ids=["whole", "striped"])
async def test_bookies_that_are_all_slow_are_asked_for_little_more_than_there_is(
    sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    """A read is no worse than its bookies: who is slow is not given up, and asked again, with every silence."""
    count, per_s = 1200, 400
    config = replace(FAST, speculative_read_ms=500, read_timeout_ms=1_500, add_timeout_ms=5_000)

    async with asyncio.timeout(40), mixed_cluster(tmp_path, config) as (client, _, theirs):
        chosen = [f"127.0.0.1:{server.port}" for server in theirs]
        client._choose = lambda writable, size, *_: tuple(chosen[:size])
        writer = await client.create_ledger(
            ensemble_size=sizes[0], write_quorum_size=sizes[1], ack_quorum_size=sizes[2]
        )
        await append(writer, 0, count - 1)
        await writer.close()
        for server in theirs:
            server.pace_s, server.bookie.asked["read"] = 1 / per_s, 0
        assert await read_ledger(client, writer.ledger_id, recover=False) == [b"entry %d" % k for k in range(count)]
        assert sum(server.bookie.asked["read"] for server in theirs) < 4 * count
