# SPDX-License-Identifier: Apache-2.0
"""A reader and bookies whose addresses it did not know when it was opened."""

from __future__ import annotations

from bk_core.errors import BookieUnreachableError
from tests.kit.memory_cluster import memory_cluster


async def test_a_reader_finds_bookies_that_registered_after_it_was_opened() -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        client = cluster.client()
        known: set[str] = set()
        link = client.transport.link
        client.transport.update_bookies = lambda infos: known.update(i.bookie_id for i in infos)

        def checked(bookie: str) -> object:
            if bookie not in known:
                raise BookieUnreachableError(f"no address of {bookie}")
            return link(bookie)

        client.transport.link = checked
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        for name in ("b3", "b4", "b5"):
            cluster.network.add(name)
            cluster.register(name)
        for name in ("b0", "b1", "b2"):
            cluster.kill(name)
            await writer.append(b"1")
        await writer.append(b"2")
        await writer.close()
        await reader.refresh_lac()
        got = [v async for b in reader.read(3, 4) for v in b.to_list()]
        assert got == [b"1", b"2"]
        await reader.close()
