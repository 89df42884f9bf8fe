# SPDX-License-Identifier: Apache-2.0
"""Compaction over bookies in memory: what is copied, what trouble it survives, and that it never touches the rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    IntegrityError,
    NoSuchEntryError,
    NoSuchLedgerError,
    WrongPasswordError,
)
from bk_core.logs.compactor import Compactor
from bk_core.logs.machines.compaction import Compacted
from bk_core.logs.model.compaction import (
    CompactionLimits,
    Content,
)
from bk_core.logs.model.head import NewExtent, PublishId, custom_metadata_for
from bk_core.logs.named_log import NamedLog
from bk_core.model import DigestType
from tests.logs.leader_kit import PASSWORD, content_of, log_of, one_log


async def publish(
    bookkeeper: BookKeeper, log: NamedLog, entries: Sequence[bytes], *, first_entry_id: int = 0, **more: object
) -> NewExtent:
    """A ledger as a job writes it, from this entry on at the end of the log."""
    head, _ = await log.open_or_create()
    keys = custom_metadata_for(head.value.uuid, PublishId.job("x"), partition=0, attempt=0, codec="raw")
    sizes = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2} | more
    writer = await bookkeeper.create_ledger(
        password=PASSWORD,
        custom_metadata=keys,
        digest_type=head.value.digest_type,
        **sizes,
    )
    await writer.append_batch(EntryBatch.from_list(list(entries)))
    await writer.close()
    new = NewExtent(
        ledger_id=writer.ledger_id,
        first_entry_id=first_entry_id,
        entry_count=len(entries) - first_entry_id,
        size_bytes=sum(map(len, entries[first_entry_id:])),
        created_ms=writer.ledger_id + 1,
        fragments=writer.metadata.fragments,
        **sizes,
    )
    await log.publish([new], PublishId.job(str(new.ledger_id)))
    return new


def values(first: int, count: int) -> list[bytes]:
    return [b"value %d" % n * (n % 4) for n in range(first, first + count)]


@pytest.mark.long
@pytest.mark.rule("N7")
@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_many_ledgers_become_one_with_the_same_entries_at_the_same_offsets(digest_type: DigestType) -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create(digest_type=digest_type)
        for n in range(40):
            await publish(bookkeeper, log, values(10 * n, 10))
        seen: list[int] = []
        done = await log.compactor(progress=seen.append).run()
        assert (done.extents, done.entries, len(done.ledgers)) == (40, 400, 1)
        assert sum(seen) == 400
        (extent,) = await log.extents()
        assert (extent.base_offset, extent.entry_count, extent.created_ms) == (0, 400, 40)
        assert extent.size_bytes == sum(map(len, values(0, 400)))
        assert await content_of(log) == values(0, 400)
        assert [batch.to_list() async for _, batch in log.read(123, 124)] == [values(123, 1)]
        metadata = (await bookkeeper.read_metadata(extent.ledger_id)).value
        assert extent.fragments == metadata.fragments
        assert metadata.digest_type is digest_type
        assert await log.compactor().run() == Compacted()  # nothing is left to do


async def test_a_merged_ledger_is_as_safe_as_the_safest_that_it_replaces() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await publish(bookkeeper, log, values(0, 5), ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        await publish(bookkeeper, log, values(5, 5), ensemble_size=3, write_quorum_size=2, ack_quorum_size=2)
        await log.compactor().run()
        (extent,) = await log.extents()
        assert (extent.ensemble_size, extent.write_quorum_size, extent.ack_quorum_size) == (3, 2, 2)
        assert await content_of(log) == values(0, 10)


async def test_large_ledgers_between_small_ones_and_parts_of_ledgers_are_copied_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bk_core.logs import compactor

    monkeypatch.setattr(compactor, "AHEAD_BYTES", 20_000)
    monkeypatch.setattr(compactor, "JOIN_BYTES", 3_000)

    async with one_log() as (_cluster, bookkeeper, log):
        entries: list[bytes] = []
        for n in range(12):
            part = [random.Random(n).randbytes(900)] * (30 if n % 5 == 2 else 3)
            await publish(bookkeeper, log, part)
            entries += part
        await log.trim(4)  # cuts the second extent, which stays whole
        await log.compactor().run()
        extents = await log.extents()
        assert [extent.base_offset for extent in extents] == [3]
        assert await content_of(log) == entries[4:]


@pytest.mark.rule("N1")
async def test_extents_that_are_parts_of_ledgers_are_copied_without_the_rest() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        for n in range(3):
            await publish(bookkeeper, log, values(10 * n, 10), first_entry_id=6)
        assert await content_of(log) == [*values(6, 4), *values(16, 4), *values(26, 4)]
        before = await content_of(log)
        assert (await log.compactor().run()).entries == 12
        (extent,) = await log.extents()
        assert (extent.first_entry_id, extent.entry_count) == (0, 12)
        assert await content_of(log) == before


async def interrupted(compactor: Compactor, monkeypatch: pytest.MonkeyPatch, between: object) -> Compacted:
    """Runs it with ``between`` awaited after the first copy was verified."""
    content, is_done = compactor._content, False

    async def then_disturbed(new: NewExtent) -> Content:
        nonlocal is_done
        found = await content(new)
        if not is_done:
            is_done = True
            await between()
        return found

    monkeypatch.setattr(compactor, "_content", then_disturbed)
    return await compactor.run()


@pytest.mark.rule("N7")
@pytest.mark.parametrize("what", ["trim", "overwrite", "compact"])
async def test_a_run_that_others_changed_during_the_copy_is_left_as_they_made_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_log() as (cluster, bookkeeper, log):
        for n in range(6):
            await publish(bookkeeper, log, values(5 * n, 5))

        async def disturb() -> None:
            if what == "trim":
                await log.trim(12)
            elif what == "overwrite":
                await log.overwrite([], PublishId.job("empty"))
                await publish(bookkeeper, log, values(30, 2))
            else:
                await log.compactor().run()
            await asyncio.sleep(0.005)
            await log.vacuum(delete_delay_ms=0, force=True)

        done = await interrupted(log_of(cluster.client()).compactor(), monkeypatch, disturb)
        head = (await log.head()).value
        start = {"trim": 12, "overwrite": 30, "compact": 0}[what]
        end = 32 if what == "overwrite" else 30
        assert (head.start_offset, head.next_offset) == (start, end)
        assert await content_of(log) == values(start, end - start)
        assert done.entries == (20 if what == "trim" else 0)


async def test_a_bookie_that_dies_during_the_copy_costs_time_and_no_entry() -> None:
    async with one_log() as (cluster, bookkeeper, log):
        for n in range(20):
            await publish(bookkeeper, log, values(10 * n, 10))
        is_killed = False

        def kill(_: int) -> None:
            nonlocal is_killed
            if not is_killed:
                is_killed = True
                cluster.kill("b1")

        done = await log.compactor(CompactionLimits(ledger_bytes_max=2000), kill).run()
        assert is_killed
        assert done.entries == 200
        assert await content_of(log) == values(0, 200)


@pytest.mark.rule("N4")
async def test_a_cancelled_compaction_leaves_no_ledger_behind_and_the_next_one_begins_anew() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        for n in range(6):
            await publish(bookkeeper, log, values(5 * n, 5))
        before = await bookkeeper.list_ledgers()
        reached = asyncio.Event()
        compacting = asyncio.create_task(log.compactor(progress=lambda _: reached.set()).run())
        await reached.wait()
        compacting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compacting
        assert await bookkeeper.list_ledgers() == before
        assert (await log.compactor().run()).entries == 30
        assert await content_of(log) == values(0, 30)


async def test_entries_that_are_lost_end_the_compaction_and_the_log_stays() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        made = [await publish(bookkeeper, log, values(5 * n, 5)) for n in range(3)]
        before = await log.extents()
        bookkeeper.store.delete_ledger(made[1].ledger_id)
        ledgers = await bookkeeper.list_ledgers()
        with pytest.raises((NoSuchLedgerError, NoSuchEntryError)):
            await log.compactor().run()
        assert await log.extents() == before
        assert await bookkeeper.list_ledgers() == ledgers


async def test_a_ledger_that_is_not_what_the_log_lists_is_not_copied() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        made = [await publish(bookkeeper, log, values(5 * n, 5)) for n in range(3)]
        found = bookkeeper.store.read_ledger(made[1].ledger_id)
        shorter = replace(found.value, last_entry_id=3)
        bookkeeper.store.write_ledger(made[1].ledger_id, shorter, found.version)
        with pytest.raises(IntegrityError, match=f"ledger {made[1].ledger_id}"):
            await log.compactor().run()


async def test_a_wrong_password_is_told_before_anything_is_made() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        for n in range(2):
            await publish(bookkeeper, log, values(5 * n, 5))
        before = await bookkeeper.list_ledgers()
        with pytest.raises(WrongPasswordError):
            await NamedLog(bookkeeper, log.name, password=b"other").compactor().run()
        assert await bookkeeper.list_ledgers() == before
        assert (await bookkeeper.create_ledger()).ledger_id == max(before) + 1


async def test_a_plan_says_what_would_be_done_and_does_nothing() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        for n in range(4):
            await publish(bookkeeper, log, values(5 * n, 5))
        before = await log.extents(), await bookkeeper.list_ledgers()
        (planned,) = await log.compactor().plan()
        assert list(planned) == before[0]
        assert (await log.extents(), await bookkeeper.list_ledgers()) == before
