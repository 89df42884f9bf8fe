# SPDX-License-Identifier: Apache-2.0
"""A detached reader, as a Spark task has one: parts of entries where they can be had, whole entries elsewhere, and each
entry once although copies moved after its record was read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from random import Random

import pytest

from bk_core.client.detached import DetachedReader, Refresh
from bk_core.client.reading.read_ahead import WantedRange
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch, ColumnsWanted
from bk_core.errors import NoSuchEntryError
from bk_core.model import BookieId, BookieServiceInfo, DigestType, LedgerId, LedgerMetadata
from tests.kit.column_entries import column_entry, regions_of
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, memory_cluster
from tests.kit.waiting import eventually

SIZES, WANTED = (50_000, 800, 16), ColumnsWanted(3, (1, 2))


async def read(entries: list[bytes], wanted: ColumnsWanted, digest_type: DigestType) -> list[EntryBatch | ColumnBatch]:
    """Read a ledger of these entries as a task does. All entries must arrive, in order."""
    found: list[EntryBatch | ColumnBatch] = []
    async with memory_cluster() as cluster:
        async with await cluster.client().create_ledger(digest_type=digest_type, password=b"secret") as ledger:
            await ledger.append_batch(EntryBatch.from_list(entries))
        size = sum(map(len, entries))
        asked = WantedRange(ledger.ledger_id, ledger.metadata, 0, len(entries) - 1, size, wanted)
        async with DetachedReader({}, instance_id="", config=FAST) as reader:
            reader._transport = cluster.network.transport()  # type: ignore[assignment]  # slower than its own
            async with aclosing(reader.read_all([asked])) as lists:
                async for ready in lists:
                    found += [batch for _, batch in ready]
    ids = [n for batch in found for n in (batch.parts if isinstance(batch, ColumnBatch) else batch).entry_ids()]
    assert ids == list(range(len(entries)))
    return found


async def test_the_wanted_columns_come_alone() -> None:
    entries = [column_entry(Random(n), SIZES) for n in range(700)]  # several windows
    found = await read(entries, WANTED, DigestType.CRC32C)
    assert all(isinstance(batch, ColumnBatch) for batch in found)
    parts = [part for batch in found if isinstance(batch, ColumnBatch) for part in batch.parts.to_list()]
    assert parts == [regions_of(entry, WANTED.places) for entry in entries]
    assert [n for b in found if isinstance(b, ColumnBatch) for n in b.entry_lengths()] == [len(e) for e in entries]


@pytest.mark.parametrize("case", ["small entries", "CRC32", "an entry without a directory"])
async def test_entries_come_whole_where_parts_cannot_be_had_or_do_not_pay(case: str) -> None:
    sizes = (80, 80, 16) if case == "small entries" else SIZES
    entries = [column_entry(Random(n), sizes) for n in range(9)]
    if case == "an entry without a directory":
        entries[4] = b"not of codec arrow" * 3000
    found = await read(entries, WANTED, DigestType.CRC32 if case == "CRC32" else DigestType.CRC32C)
    assert [entry for batch in found if isinstance(batch, EntryBatch) for entry in batch.to_list()] == entries


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
