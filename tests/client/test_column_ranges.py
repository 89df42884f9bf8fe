# SPDX-License-Identifier: Apache-2.0
"""Ranges of which a Spark task wants some columns: parts where they can be had, whole entries elsewhere."""

from __future__ import annotations

from contextlib import aclosing
from random import Random

import pytest

from bk_core.client.detached import DetachedReader
from bk_core.client.reading.read_ahead import WantedRange
from bk_core.entries.batch import EntryBatch
from bk_core.entries.parts import ColumnBatch, ColumnsWanted
from bk_core.model import DigestType
from tests.kit.column_entries import column_entry, regions_of
from tests.kit.memory_cluster import FAST, memory_cluster

SIZES, WANTED = (50_000, 800, 16), ColumnsWanted(3, (1, 2))


async def read(entries: list[bytes], wanted: ColumnsWanted, digest_type: DigestType) -> list[EntryBatch | ColumnBatch]:
    """What a task gets of a ledger of these entries; all of it must arrive, in order."""
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
