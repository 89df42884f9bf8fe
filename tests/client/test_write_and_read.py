# SPDX-License-Identifier: Apache-2.0
"""Writer, reader and recovery through the asyncio driver, over bookies that run the real machine in this process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from bk_core.client import LedgerReader
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    ClientClosedError,
    EntryTooLargeError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    Outcome,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.model import DigestType, LedgerState
from bk_core.placement import FLAT
from bk_core.protocol.events import MetadataConflicted
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from tests.kit.canaries import PASSWORD
from tests.kit.memory_cluster import FAST, collect, memory_cluster
from tests.kit.waiting import eventually


def entries(count: int, start: int = 0) -> list[bytes]:
    return [b"entry %d " % i + b"x" * (i % 7) for i in range(start, start + count)]


async def read_all(reader: LedgerReader) -> list[bytes]:
    return [value async for batch in reader.read(0, reader.last_add_confirmed) for value in batch.to_list()]


SHAPES = [(3, 3, 2), (3, 2, 2), (1, 1, 1), (4, 2, 2), (4, 3, 2), (2, 2, 1)]


@pytest.mark.parametrize("digest", list(DigestType))
@pytest.mark.parametrize(("e", "qw", "qa"), SHAPES)
async def test_what_is_written_is_read_back_in_order(e: int, qw: int, qa: int, digest: DigestType) -> None:
    async with memory_cluster(5) as cluster:
        bookkeeper = cluster.client()
        async with await bookkeeper.create_ledger(
            ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa, digest_type=digest, password=PASSWORD
        ) as ledger:
            wanted = entries(50)
            last = await ledger.append_batch(EntryBatch.from_list(wanted[:30]))
            await ledger.wait_confirmed(last)
            for value in wanted[30:]:
                await ledger.append(value)
        metadata = (await bookkeeper.read_metadata(ledger.ledger_id)).value
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 49)
        assert metadata.length == sum(map(len, wanted))
        reader = await bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD)
        assert await read_all(reader) == wanted


@pytest.mark.parametrize(("e", "qw", "qa"), SHAPES)
async def test_recovery_keeps_every_confirmed_entry_and_fences_the_writer(e: int, qw: int, qa: int) -> None:
    async with memory_cluster(5) as cluster:
        writer = await cluster.client().create_ledger(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa)
        wanted = entries(40)
        last = await writer.append_batch(EntryBatch.from_list(wanted))
        await writer.wait_confirmed(last)
        reader = await cluster.client().open_ledger(writer.ledger_id, recover=True)
        assert reader.is_closed
        assert await read_all(reader) == wanted
        assert reader.length == sum(map(len, wanted))
        with pytest.raises(LedgerFencedError) as caught:
            await writer.append(b"too late")
        assert caught.value.outcome is Outcome.UNKNOWN
        with pytest.raises(LedgerFencedError):
            await writer.close()


async def test_an_open_ledger_is_read_to_the_lac_without_disturbing_its_writer() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        for value in entries(5):
            await writer.append(value)
        await eventually(lambda: any(b.machine for b in cluster.network.bookies.values()))
        reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
        assert not reader.is_closed
        await reader.wait_lac(3, 2.0)
        assert reader.last_add_confirmed == 4
        assert await read_all(reader) == entries(5)
        await writer.append(b"more")
        await writer.close()
        await reader.close()


@pytest.mark.rule("P9")
async def test_the_last_entry_of_an_idle_writer_reaches_a_tail() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"first")
        reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
        seen: list[bytes] = []
        task = asyncio.create_task(collect(reader.tail(0), seen))
        await eventually(lambda: seen == [b"first"])
        began = asyncio.get_running_loop().time()
        await writer.append(b"second")
        await eventually(lambda: seen == [b"first", b"second"])
        assert asyncio.get_running_loop().time() - began < 0.2
        await writer.close()
        await asyncio.wait_for(task, 3)
        await reader.close()


@pytest.mark.rule("MUST14")
async def test_a_tail_reads_to_the_end_of_a_ledger_that_is_closed_under_it() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
        seen: list[bytes] = []
        task = asyncio.create_task(collect(reader.tail(0), seen))
        for part in range(10):
            await writer.append_batch(EntryBatch.from_list(entries(10, part * 10)))
        await writer.close()
        await asyncio.wait_for(task, 3)
        assert seen == entries(100)
        await reader.close()


async def test_without_a_spare_bookie_the_writer_fails_with_unknown_outcome() -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"safe")
        cluster.kill(writer.metadata.last_fragment.ensemble[0])
        cluster.kill(writer.metadata.last_fragment.ensemble[1])
        with pytest.raises(NotEnoughBookiesError) as caught:
            await writer.append(b"unsafe")
        assert caught.value.outcome is Outcome.UNKNOWN


@pytest.mark.rule("P8")
async def test_close_marks_the_copies_it_could_not_make() -> None:
    async with memory_cluster(4) as cluster:
        writer = await cluster.client().create_ledger()
        slow = writer.metadata.last_fragment.ensemble[2]
        cluster.network.hold(slow)
        await writer.append(b"two copies only")
        await writer.close()
        assert list(cluster.store.list_underreplicated()) == [(writer.ledger_id, (slow,))]


async def test_bad_input_is_refused_before_anything_is_created() -> None:
    async with memory_cluster(3) as cluster:
        bookkeeper = cluster.client()
        with pytest.raises(InvalidArgumentError, match="3, 3, 2"):
            await bookkeeper.create_ledger(ensemble_size=2, write_quorum_size=3, ack_quorum_size=2)
        with pytest.raises(InvalidArgumentError):
            await bookkeeper.create_ledger(ack_quorum_size=0)
        with pytest.raises(NotEnoughBookiesError, match="4 writable bookies are needed and 3 can be used"):
            await bookkeeper.create_ledger(ensemble_size=4)
        assert await bookkeeper.list_ledgers() == []
        ledger = await bookkeeper.create_ledger(password=b"right")
        with pytest.raises(EntryTooLargeError):
            await ledger.append(b"x" * (ENTRY_BYTES_MAX + 1))
        await ledger.close()
        with pytest.raises(LedgerClosedError):
            ledger.append_nowait(b"late")
        with pytest.raises(WrongPasswordError):
            await bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=b"wrong")
        with pytest.raises(WrongDigestTypeError):
            await bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=b"right", digest_type=DigestType.MAC)
        with pytest.raises(NoSuchLedgerError, match="nearest ids"):
            await bookkeeper.open_ledger(ledger.ledger_id + 1000, recover=False)
        reader = await bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=b"right")
        with pytest.raises(InvalidArgumentError):
            [b async for b in reader.read(0, 0)]


async def test_a_writer_abandoned_inside_its_block_leaves_it_quietly_and_its_sessions_end() -> None:
    async with memory_cluster() as cluster:
        async with await cluster.client().create_ledger() as writer:
            await writer.append(b"0")
            await writer.abandon()
        assert writer.is_failed
        with pytest.raises(ClientClosedError):
            await writer.append(b"1")
        bookies = cluster.network.bookies.values()
        await eventually(lambda: all(not bookie.machine._core.ledgers for bookie in bookies))


async def test_a_failed_bookie_is_avoided_until_nothing_else_is_left_or_its_time_is_over() -> None:
    async with memory_cluster(5) as cluster:
        client = cluster.client()
        failed = ("b0", "b1")
        assert (await client._bookies_without(failed)).quarantined == failed
        chosen = [client._choose(await client.refresh_bookies(), 3, 3, FLAT) for _ in range(5)]
        assert {frozenset(bookies) for bookies in chosen} == {frozenset(("b2", "b3", "b4"))}
        four = client._choose(await client.refresh_bookies(), 4, 3, FLAT)
        assert {"b2", "b3", "b4"} < set(four)
        brief = cluster.client(replace(FAST, quarantine_ms=20))
        await brief._bookies_without(failed)
        await eventually(lambda: brief._failed.now() == ())


async def test_a_degraded_writer_goes_on_with_the_bookies_that_are_left_and_marks_the_rest() -> None:
    async with memory_cluster(3) as cluster:
        writer = await cluster.client(replace(FAST, allow_degraded_writes=True)).create_ledger()
        await writer.append(b"0")
        cluster.kill("b1")
        assert [await writer.append(b"x") for _ in range(20)] == list(range(1, 21))
        await writer.close()
        assert list(cluster.store.list_underreplicated()) == [(writer.ledger_id, ("b1",))]


async def test_a_machine_that_is_fed_the_impossible_ends_its_writer_and_its_sessions() -> None:
    async with memory_cluster() as cluster:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        writer._driver.feed(MetadataConflicted())  # answers nothing that was asked
        with pytest.raises(LocalProtocolError, match="OPEN MetadataConflicted"):
            await writer.append(b"1")
        bookies = cluster.network.bookies.values()
        await eventually(lambda: all(not bookie.machine._core.ledgers for bookie in bookies))
        assert (await cluster.client().open_ledger(writer.ledger_id, recover=True)).last_add_confirmed == 0


CUSTOM = {"application": b"tests", "binary": bytes(range(256)), "empty": b""}


@pytest.mark.parametrize("digest", list(DigestType))
@pytest.mark.parametrize("password", [b"", b"secret", bytes(range(256)) * 16], ids=["none", "text", "every byte"])
async def test_what_a_ledger_was_created_with_is_there_after_its_recovery(password: bytes, digest: DigestType) -> None:
    async with memory_cluster(4) as cluster:
        client, other = cluster.client(), cluster.client()
        given = dict(CUSTOM)
        ledger = await client.create_ledger(password=password, digest_type=digest, custom_metadata=given)
        given.clear()  # the caller's own dict is not kept
        assert ledger.metadata.custom_metadata == CUSTOM
        await ledger.append(b"first")
        cluster.kill(ledger.metadata.last_fragment.ensemble[1])
        await ledger.append(b"second")
        for wrong in (password + b"x", password[:-1] if password else b"\x00"):
            with pytest.raises(WrongPasswordError):
                await other.open_ledger(ledger.ledger_id, recover=True, password=wrong)
        await ledger.append(b"third")  # a wrong password has fenced nobody
        reader = await other.open_ledger(ledger.ledger_id, recover=True, password=password)
        found = [value async for batch in reader.read(0, 2) for value in batch.to_list()]
        assert found == [b"first", b"second", b"third"]
        metadata = (await client.read_metadata(ledger.ledger_id)).value
        assert metadata.is_closed
        assert (metadata.password, metadata.digest_type) == (password, digest)
        assert dict(metadata.custom_metadata) == CUSTOM
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"fourth")


async def test_a_ledger_says_when_it_was_created_and_that_stays() -> None:
    async with memory_cluster(4) as cluster:
        client = cluster.client()
        before_ms = int(time.time() * 1000)
        ledger = await client.create_ledger()
        created_ms = ledger.metadata.ctime_ms
        assert created_ms is not None
        assert before_ms <= created_ms <= time.time() * 1000
        await ledger.append(b"first")
        cluster.kill(ledger.metadata.last_fragment.ensemble[0])
        await ledger.append(b"second")
        await ledger.close()
        assert (await client.read_metadata(ledger.ledger_id)).value.ctime_ms == created_ms
