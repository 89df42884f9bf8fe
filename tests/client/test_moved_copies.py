# SPDX-License-Identifier: Apache-2.0
"""A detached reader whose record is older than a move of copies: each entry comes once, however far it had come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bk_core.client import DetachedReader
from bk_core.client.detached import Refresh
from bk_core.errors import NoSuchEntryError
from bk_core.model import BookieId, BookieServiceInfo, LedgerId, LedgerMetadata
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, memory_cluster
from tests.kit.waiting import eventually

COUNT = 30


async def a_ledger_that_moved(cluster: MemoryBookKeeper) -> tuple[LedgerId, LedgerMetadata, LedgerMetadata]:
    """A closed ledger whose later entries are on other bookies than its first; its record, and an older one by which
    the first bookies have all of it."""
    writer = await cluster.client().create_ledger()
    first = writer.metadata.last_fragment.ensemble
    for entry in range(COUNT):
        killed = first[entry - 10] if 10 <= entry < 13 else ""
        if killed:
            cluster.kill(killed)
        await writer.append(b"%d" % entry)
        await eventually(lambda: killed not in writer.metadata.last_fragment.ensemble)  # noqa: B023 - it is called before the next turn
    await writer.close()
    for name in first:
        cluster.network.restart(name)
        cluster.register(name)
    now = cluster.store.read_ledger(writer.ledger_id).value
    assert not set(now.last_fragment.ensemble) & set(first)
    return writer.ledger_id, now, replace(now, fragments=now.fragments[:1])


def a_reader(cluster: MemoryBookKeeper, refresh: Refresh | None) -> DetachedReader:
    reader = DetachedReader({}, instance_id=cluster.store.instance_id(), config=FAST, refresh=refresh)
    reader._transport = cluster.network.transport()  # type: ignore[assignment]  # the port is the same
    return reader


async def test_a_reader_that_reads_the_record_again_in_the_middle_gives_each_entry_once() -> None:
    async with memory_cluster(6) as cluster:
        ledger_id, now, older = await a_ledger_that_moved(cluster)
        asked: list[LedgerId] = []

        def refresh(ledger_id: LedgerId) -> tuple[LedgerMetadata, Mapping[BookieId, BookieServiceInfo]]:
            asked.append(ledger_id)
            return now, {}

        async with a_reader(cluster, refresh) as reader:
            got = [entry async for batch in reader.read(ledger_id, older, 3, COUNT - 1) for entry in batch.to_list()]
            assert got == [b"%d" % entry for entry in range(3, COUNT)]
            assert asked == [ledger_id], "once, and only because entries were missing"
            got = [entry async for batch in reader.read(ledger_id, now, 0, COUNT - 1) for entry in batch.to_list()]
            assert len(got) == COUNT
            assert asked == [ledger_id]


@pytest.mark.parametrize("refreshes", [False, True], ids=["nobody reads it again", "the record is the same"])
async def test_entries_that_are_nowhere_end_the_read_after_those_before_them(refreshes: bool) -> None:
    async with memory_cluster(6) as cluster:
        ledger_id, _, older = await a_ledger_that_moved(cluster)
        got: list[bytes] = []

        async def read(reader: DetachedReader) -> None:
            async for batch in reader.read(ledger_id, older, 0, COUNT - 1):
                got.extend(batch.to_list())

        async with a_reader(cluster, (lambda _: (older, {})) if refreshes else None) as reader:
            with pytest.raises(NoSuchEntryError):
                await read(reader)
        assert got == [b"%d" % entry for entry in range(len(got))]
        assert 10 <= len(got) < COUNT
