# SPDX-License-Identifier: Apache-2.0
"""Named logs over bookies in memory: create, publish, read, tail, with all that can be wrong with what is published."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from bk_core.client import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    InvalidArgumentError,
    LogExistsError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    PublishConflictError,
    TransactionReplayDiffersError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.logs.machines.publication import PublishOptions
from bk_core.logs.model.codec import encode_head
from bk_core.logs.model.head import NewExtent, PublishId, custom_metadata_for
from bk_core.logs.model.next_head import add_open_extent
from bk_core.logs.named_log import NamedLog
from bk_core.logs.store import LogStore, nonce
from bk_core.metadata.port import LogWrite
from bk_core.model import DigestType
from tests.kit.canaries import PASSWORD
from tests.kit.extents import new_extent, open_extent
from tests.kit.memory_cluster import memory_cluster
from tests.logs.leader_kit import one_log, read_all


def values(first: int, count: int) -> list[bytes]:
    return [b"value %d" % n for n in range(first, first + count)]


async def write(
    bookkeeper: BookKeeper,
    log: NamedLog,
    entries: list[bytes],
    *,
    close: bool = True,
    log_uuid: str | None = None,
    **more: Any,
) -> NewExtent:
    """A ledger as a Spark task writes it."""
    uuid = log_uuid or (await log.head()).value.uuid
    made = custom_metadata_for(uuid, PublishId.job("x"), partition=0, attempt=0, codec="raw")
    ledger = await bookkeeper.create_ledger(**{"password": PASSWORD, "custom_metadata": made, **more})
    if entries:
        await ledger.wait_confirmed(await ledger.append_batch(EntryBatch.from_list(entries)))
    if close:
        await ledger.close()
    else:
        reader = await bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD)
        while await reader.refresh_lac() < len(entries) - 1:  # the last LAC travels in a hint (RULES P9)
            await asyncio.sleep(0.005)
        await ledger.abandon()
    return new_extent(ledger.ledger_id, len(entries), sum(map(len, entries)), fragments=ledger.metadata.fragments)


def job(name: str) -> PublishId:
    return PublishId.job(name)


async def test_what_is_published_is_read_in_order_from_any_offset() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create()
        parts = [await write(bookkeeper, log, values(first, 40)) for first in (0, 40, 80)]
        empty = await write(bookkeeper, log, [])
        record = await log.publish([parts[0], empty, parts[1]], job("a"))
        assert (record.base_offset, record.rows) == (0, 80)
        assert (await log.publish([parts[2]], job("b"))).base_offset == 80
        assert await log.end_offset() == 120
        assert await read_all(log, 0, 120) == values(0, 120)
        assert await read_all(log, 39, 81) == values(39, 42)
        assert await read_all(log, 7, 7) == []
        assert [e.ledger_id for e in await log.extents(40, 81)] == [parts[1].ledger_id, parts[2].ledger_id]
        assert [e.entry_count for e in await log.extents()] == [40, 40, 40]


async def test_what_is_not_there_cannot_be_read() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        with pytest.raises(NoSuchLogError, match="append makes one"):
            await log.head()
        await log.create()
        await log.publish([await write(bookkeeper, log, values(0, 10))], job("a"))
        for bounds in ((0, 11), (-1, 3), (5, 4)):
            with pytest.raises(InvalidArgumentError, match="readable: 0 to 10"):
                await read_all(log, *bounds)
        trim_to(bookkeeper, await log.head(), 5)
        with pytest.raises(NoSuchEntryError, match="begins at 5"):
            await read_all(log, 4, 6)
        assert await read_all(log, 5, 6) == values(5, 1)


def trim_to(bookkeeper: BookKeeper, found: Any, start: int) -> None:
    head = replace(found.value, start_offset=start)
    bookkeeper.store.write_logs([LogWrite("events", encode_head(head), found.version)])


async def test_a_log_has_one_password_and_one_digest_type() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        made = await log.create(digest_type=DigestType.CRC32)
        assert await log.create(digest_type=DigestType.CRC32) == made
        with pytest.raises(LogExistsError):
            await log.create(digest_type=DigestType.CRC32, exist_ok=False)
        with pytest.raises(WrongDigestTypeError, match="CRC32"):
            await log.create(digest_type=DigestType.MAC)
        other = NamedLog(bookkeeper, "events")
        for attempt in (other.head(), other.create(), other.end_offset(), other.publish([], job("a")), other.lead()):
            with pytest.raises(WrongPasswordError):
                await attempt
        assert (await other.head(check_password=False)).value == made


@pytest.mark.rule("N8")
async def test_names_are_checked_and_making_a_log_is_said() -> None:
    async with memory_cluster() as cluster:
        bookkeeper = cluster.client()
        for name in ("17", ".hidden", "a/b", "", "x" * 201, "ä"):
            with pytest.raises(InvalidArgumentError):
                NamedLog(bookkeeper, name)
        log = NamedLog(bookkeeper, "events")
        assert (await log.open_or_create())[1] is True
        assert (await log.open_or_create())[1] is False


@pytest.mark.rule("N4")
async def test_a_publish_happens_once_for_its_id() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create()
        first = await write(bookkeeper, log, values(0, 10))
        again = await write(bookkeeper, log, values(0, 10))
        record = await log.publish([first], PublishId.stream("q", 3))
        await bookkeeper.delete_ledger(again.ledger_id)
        assert await log.publish([again], PublishId.stream("q", 3)) == record
        with pytest.raises(TransactionReplayDiffersError):
            await log.publish([again, await write(bookkeeper, log, values(10, 1))], PublishId.stream("q", 3))
        assert [e.ledger_id for e in await log.extents()] == [first.ledger_id]


@pytest.mark.rule("N6")
async def test_only_ledgers_that_are_as_reported_are_published() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create()
        good = await write(bookkeeper, log, values(0, 10))
        bad = {
            "does not exist": replace(good, ledger_id=999),
            "is not closed": await write(bookkeeper, log, values(0, 10), close=False),
            "ends at entry 9, its writer says 10": replace(good, entry_count=11),
            "ends at entry 9, its writer says 8": replace(good, entry_count=9),
            "payload bytes": replace(good, size_bytes=1),
            "digest type": await write(bookkeeper, log, values(0, 10), digest_type=DigestType.MAC),
            "another password": await write(bookkeeper, log, values(0, 10), password=b""),
            "another log": await write(bookkeeper, log, values(0, 10), log_uuid="0" * 36),
        }
        for number, (words, extent) in enumerate(bad.items()):
            with pytest.raises(PublishConflictError, match=words):
                await log.publish([extent], job(str(number)))
        assert await log.end_offset() == 0
        head = await log.head()
        condemned = replace(head.value, condemned=(good.ledger_id,))
        bookkeeper.store.write_logs([LogWrite("events", encode_head(condemned), head.version)])
        with pytest.raises(PublishConflictError, match="condemned"):
            await log.publish([good], job("c"))


@pytest.mark.rule("N2")
async def test_a_reader_never_passes_the_first_open_extent() -> None:
    async with one_log() as (cluster, bookkeeper, log):
        await log.create()
        first = await write(bookkeeper, log, values(0, 3), close=False)
        second = await write(bookkeeper, log, values(3, 2), close=False)
        await list_open(bookkeeper, first, second)
        assert await log.end_offset() == 3
        assert [e.is_open for e in await log.extents()] == [True, True]
        assert await read_all(log, 0, 3) == values(0, 3)
        with pytest.raises(InvalidArgumentError, match="readable: 0 to 3"):
            await read_all(log, 0, 4)
        reading = asyncio.create_task(take(log, 0, 5))
        await asyncio.sleep(0.1)
        await bookkeeper.open_ledger(first.ledger_id, recover=True, password=PASSWORD)
        await asyncio.sleep(0.1)
        assert not reading.done()  # closed, but the head does not say yet where the second one begins
        await NamedLog(cluster.client(), "events", password=PASSWORD).publish(
            [], job("a"), PublishOptions(takeover=True)
        )
        assert await reading == values(0, 5)


async def test_a_takeover_minds_a_missing_ledger_only_where_it_is_open() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        await log.create()
        sealed = await write(bookkeeper, log, values(0, 3))
        await log.publish([sealed], job("a"))
        first, second = [await write(bookkeeper, log, values(3, 1), close=False) for _ in range(2)]
        await bookkeeper.delete_ledger(sealed.ledger_id)
        await list_open(bookkeeper, first)
        await log.publish([], job("b"), PublishOptions(takeover=True))
        assert await log.end_offset() == 4
        await list_open(bookkeeper, second)
        await bookkeeper.delete_ledger(second.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await log.publish([], job("c"), PublishOptions(takeover=True))
        with pytest.raises(NoSuchLedgerError):
            await log.lead()


async def list_open(bookkeeper: BookKeeper, *extents: NewExtent) -> None:
    """As a leader lists them that died in the middle of a roll."""
    store = LogStore(bookkeeper.store, "events")
    for extent in extents:
        opened = open_extent(extent.ledger_id)
        store.write(store.read(), lambda head, pages, new=opened: add_open_extent(head, new, nonce=nonce, pages=pages))


async def take(log: NamedLog, start: int, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(log.tail(start)) as batches:
        async for offset, batch in batches:
            assert offset == start + len(found)
            found += batch.to_list()
            if len(found) >= count:
                break
    return found


@pytest.mark.rule("P10")
async def test_a_tail_sees_what_is_published_while_it_waits() -> None:
    async with one_log() as (cluster, bookkeeper, log):
        await log.create()
        reading = asyncio.create_task(take(NamedLog(cluster.client(), "events", password=PASSWORD), 0, 20))
        for first in (0, 10):
            await log.publish([await write(bookkeeper, log, values(first, 10))], job(str(first)))
            await asyncio.sleep(0.02)
        assert await reading == values(0, 20)
        trim_to(bookkeeper, await log.head(), 5)
        with pytest.raises(NoSuchEntryError):
            await take(log, 4, 1)
