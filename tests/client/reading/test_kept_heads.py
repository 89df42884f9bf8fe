# SPDX-License-Identifier: Apache-2.0
"""Reads that keep the heads of entries of Apache's clients, so that no payload is copied."""

from __future__ import annotations

from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame
from bk_core.model import DigestType
from tests.kit.apache_frames import behind_heads, encode_apache, entry_bytes
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.kit.memory_holdings import stored

PASSWORD = b"pw"
PAYLOADS = [b"%d" % k * (k + 1) for k in range(8)]


async def written(cluster: MemoryBookKeeper) -> int:
    """Write a ledger of PAYLOADS. Its bookies hold the entries as Apache's clients send them, two in a frame."""
    async with await cluster.client().create_ledger(password=PASSWORD, digest_type=DigestType.CRC32C) as writer:
        for payload in PAYLOADS:
            await writer.append(payload)
    digester = Digester(DigestType.CRC32C, PASSWORD, writer.ledger_id)
    for bookie in cluster.network.bookies.values():
        ledger = bookie.store.ledgers.get(writer.ledger_id)
        if ledger is not None:
            entries = [each for one in ledger.frames for each in entry_bytes(decode_frame(one.data), digester)]
            ledger.frames = [stored(encode_apache(writer.ledger_id, entries[k : k + 2])) for k in range(0, 8, 2)]
    return writer.ledger_id


async def test_only_a_read_that_asks_for_them_gets_heads_and_every_read_the_same_payloads() -> None:
    async with memory_cluster(3) as cluster:
        ledger_id = await written(cluster)
        asking, plain = cluster.client(), cluster.client()
        async with await asking.open_ledger(ledger_id, recover=False, password=PASSWORD) as reader:
            kept = [batch async for batch in reader.reading(1, 6, keep_heads=True)]
        async with await plain.open_ledger(ledger_id, recover=False, password=PASSWORD) as reader:
            batches = [batch async for batch in reader.read(1, 6)]
        found = [payload for batch in kept for payload in behind_heads(batch)]
        assert found == [entry for batch in batches for entry in batch.to_list()] == PAYLOADS[1:7]
        assert all(batch.heads is None for batch in batches)
        assert asking.metrics().read_bytes == plain.metrics().read_bytes == sum(map(len, PAYLOADS[1:7]))
