# SPDX-License-Identifier: Apache-2.0
"""A client and a bookie that live for months hold nothing of what has ended: no ledger, request, stream, watch, timer.

The same rounds of work run again and again. After the first ones everything is as it stays, and no container may grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import Counter
from pathlib import Path

import pytest

from bk_core.client import BookKeeper, ClientConfig, connect
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError
from bk_core.logs.named_log import NamedLog
from bk_core.metadata import open_store
from bk_core.model import BOOKIE_RPC
from bookie_server.main import Bookie
from tests.kit.lanes import ON_EACH_LANE, bookie_config
from tests.kit.leftovers import grown, held_by
from tests.kit.memory_store import MemoryStore as MemoryStore  # for memory://

WARM_ROUNDS, ROUNDS = 3, 4
SHAPE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
BOUNDED = {
    *("AuditLog._kinds", "_Kind.about"),  # events of the last minute
    *("StateCollector._lacs", "StateCollector._records", "Collector._known"),  # what is on the disk
    "Slots._back",  # memory that is used again
    "SegmentDirectory._lacs",  # of as many ledgers as are remembered
}
"""What grows with the first rounds and has a bound, which other tests reach."""
BOUNDED_BOOKIE_RPC = {
    *("ServedAdds._sessions", "ServedAdds._by_number", "Stream.sessions", "Core.ledgers"),
    "_Part.fields",
}
"""Apache's wire does not say that a ledger is closed: a connection keeps its last IDLE_SESSIONS_MAX sessions. It also
keeps the last LAYOUTS_KEPT layouts of messages."""
WATCH_MS = 400
"""Apache's wire cannot cancel a watch: the bookie keeps it for this time."""


async def work(bookkeeper: BookKeeper, number: int) -> None:
    """Appends, reads of all kinds, tails, waits that are given up, a takeover, a refusal, a deletion, a log."""
    writer = await bookkeeper.create_ledger(**SHAPE)
    await writer.append(b"first")
    await writer.append_batch(EntryBatch.from_list([b"x" * 300] * 200))
    reader = await bookkeeper.open_ledger(writer.ledger_id, recover=False)
    tail = reader.tail(0)
    assert (await anext(tail)).first_entry_id == 0
    while await reader.refresh_lac() < 150:
        await asyncio.sleep(0.01)  # with other lanes a bookie hears of the last entries a moment later
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.wait_lac(10_000, 0.2), 0.02)
    waiting = asyncio.create_task(reader.wait_lac(10_000, 0.2))
    await asyncio.sleep(0.02)
    await tail.aclose()
    entries = [entry async for batch in reader.read(0, 150) for entry in batch.to_list()]
    assert len(entries) == 151
    async for _ in reader.read(3, 150):
        break
    taker = await bookkeeper.open_ledger(writer.ledger_id, recover=True)
    assert taker.last_add_confirmed == 200
    with pytest.raises(BookKeeperError):
        await writer.append(b"late")
    with contextlib.suppress(BookKeeperError):
        await writer.close()
    await taker.close()
    await reader.close()
    with contextlib.suppress(BookKeeperError):
        await waiting
    await bookkeeper.delete_ledger(writer.ledger_id)
    log = NamedLog(bookkeeper, f"log-{number}")
    async with await log.lead(**SHAPE) as leader:
        await leader.append(b"of a log")


@pytest.mark.long
@ON_EACH_LANE
async def test_nothing_of_what_has_ended_stays_in_a_client_or_a_bookie(lane: str, tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    bookie = await Bookie.start(bookie_config(tmp_path, uri))
    bookkeeper = await connect(uri, config=ClientConfig(lanes=lane, watch_timeout_ms=WATCH_MS))
    try:
        rounds, held = itertools.count(), list[Counter[str]]()
        for count in (WARM_ROUNDS, ROUNDS, ROUNDS):
            for _ in range(count):
                await work(bookkeeper, next(rounds))
            await asyncio.sleep(1.2 * WATCH_MS / 1000)
            held.append(held_by(bookkeeper, bookie))
    finally:
        await bookkeeper.close()
        await bookie.stop()
        store.close()
    assert len(held[0]) > 60, "the walk sees clients and bookies"
    bounded = BOUNDED | BOUNDED_BOOKIE_RPC if lane == BOOKIE_RPC else BOUNDED
    more, again = (grown(before, after, bounded) for before, after in itertools.pairwise(held))
    kept = {name for name in more.keys() & again.keys() if min(more[name], again[name]) >= ROUNDS}
    assert kept == set(), "each round leaves something"
