# SPDX-License-Identifier: Apache-2.0
"""Writers, killed bookies, recoverers and tails at once, from a seed: what was confirmed is there, in order, once."""

from __future__ import annotations

import asyncio
import random

import pytest

from bk_core.client import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, LedgerFencedError, RecoveryInconclusiveError
from tests.kit.amount import some
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster

SHAPES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2)]


def payload(entry: int) -> bytes:
    return b"%d:" % entry + b"." * (entry * 7 % 23)


async def write_until_it_fails(writer: LedgerWriter, rng: random.Random) -> None:
    sent = 0
    try:
        for _ in range(60):
            count = rng.randint(1, 20)
            await writer.append_batch(EntryBatch.from_list([payload(i) for i in range(sent, sent + count)]))
            sent += count
            if rng.random() < 0.3:
                await writer.flush()
            await asyncio.sleep(rng.random() * 0.004)
        await writer.flush()
    except BookKeeperError:
        return


async def tail(cluster: MemoryBookKeeper, ledger_id: int, seen: list[bytes]) -> None:
    reader = await cluster.client().open_ledger(ledger_id, recover=False)
    try:
        async for batch in reader.tail(0):
            seen.extend(batch.to_list())
    finally:
        await reader.close()


async def disturb(cluster: MemoryBookKeeper, rng: random.Random, stop: asyncio.Event) -> None:
    """One bookie at a time is killed, cut or held, and comes back: at most Qa − 1 are away."""
    while not stop.is_set():
        name = rng.choice(cluster.names)
        act = rng.choice(["kill", "cut", "hold", "break"])
        if act == "kill":
            cluster.network.kill(name)
        elif act == "cut":
            cluster.network.down(name)
        elif act == "hold":
            cluster.network.hold(name)
        else:
            cluster.network.bookies[name].break_connections()
        await asyncio.sleep(rng.random() * 0.25)
        if act == "kill":
            cluster.network.restart(name)
        elif act == "cut":
            cluster.network.up(name)
        elif act == "hold":
            cluster.network.release(name)
        await asyncio.sleep(rng.random() * 0.05)


async def take_over(cluster: MemoryBookKeeper, ledger_id: int) -> list[bytes]:
    for _ in range(20):
        try:
            reader = await cluster.client().open_ledger(ledger_id, recover=True)
            return [v async for b in reader.read(0, reader.last_add_confirmed) for v in b.to_list()]
        except (RecoveryInconclusiveError, BookKeeperError):
            await asyncio.sleep(0.1)
    raise AssertionError("recovery never finished although bookies came back")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(some(12, few=6)))
async def test_confirmed_entries_survive_kills_cuts_and_takeover(seed: int) -> None:
    rng = random.Random(seed)
    e, qw, qa = SHAPES[seed % len(SHAPES)]
    async with memory_cluster(6) as cluster:
        writer = await cluster.client().create_ledger(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa)
        stop, seen = asyncio.Event(), list[bytes]()
        tailing = asyncio.create_task(tail(cluster, writer.ledger_id, seen))
        disturbing = asyncio.create_task(disturb(cluster, rng, stop))
        writing = asyncio.create_task(write_until_it_fails(writer, rng))
        await asyncio.sleep(0.1 + rng.random() * 0.5)
        found = await take_over(cluster, writer.ledger_id)
        stop.set()
        await asyncio.gather(writing, disturbing)
        assert len(found) > writer.last_add_confirmed, "a confirmed entry is gone"
        assert found == [payload(i) for i in range(len(found))]
        await asyncio.wait_for(tailing, 10)
        assert seen == found
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        await writer.abandon()
