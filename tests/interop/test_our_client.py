# SPDX-License-Identifier: Apache-2.0
"""Our client on Apache's bookies, with Apache's client beside it: both write, read, follow, recover and delete what the
other wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bk_core.client import BookKeeper, ClientConfig, connect
from bk_core.client.writer import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import LedgerFencedError, NoSuchLedgerError, WrongPasswordError
from bk_core.model import DigestType
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, JavaClient, PeerClient, added
from tests.interop.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATTERN = Pattern(seed=3, size_min=0, size_max=2000)
SMALL = Pattern(seed=4, size_min=40, size_max=40)
DIGESTS = [digest.name for digest in DigestType]
STORY_S = 120.0
LARGE_LEDGER, LARGE_ENTRY = 2**33 + 7, 2**32 + 5

Story = Callable[[BookKeeper], Awaitable[None]]


@pytest.fixture(scope="module")
def java(apache: ApacheCluster, peer: PeerClient) -> JavaClient:
    return peer.client(apache.uri)


def run(cluster: ApacheCluster, story: Story) -> None:
    """A story with our client."""

    async def told() -> None:
        config = ClientConfig(add_timeout_ms=5_000, lac_stall_ms=500)
        async with asyncio.timeout(STORY_S), await connect(cluster.uri, config=config) as client:
            await story(client)

    asyncio.run(told())


async def append(writer: LedgerWriter, pattern: Pattern, first: int, last: int) -> None:
    await writer.append_batch(EntryBatch.from_list(list(pattern.payloads(first, last))))
    await writer.flush()


async def what_we_read(client: BookKeeper, ledger_id: int, first: int, last: int, *, recover: bool = False) -> str:
    async with await client.open_ledger(ledger_id, recover=recover, password=PASSWORD) as reader:
        return checksum([entry async for batch in reader.read(first, last) for entry in batch.to_list()])


@pytest.mark.parametrize("digest", DIGESTS)
def test_java_reads_what_we_wrote_and_we_read_what_java_wrote(
    apache: ApacheCluster, java: JavaClient, digest: str
) -> None:
    async def story(client: BookKeeper) -> None:
        writer = await client.create_ledger(digest_type=DigestType[digest], password=PASSWORD)
        await append(writer, PATTERN, 0, 2999)
        await writer.close()
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, digest=digest, recover=False)
        assert (theirs.opened.lac, theirs.opened.length, theirs.opened.closed) == (2999, writer.length, True)
        assert (await asyncio.to_thread(theirs.read, 0, 2999)).checksum == PATTERN.checksum(0, 2999)
        assert await what_we_read(client, writer.ledger_id, 0, 2999) == PATTERN.checksum(0, 2999)
        ledger = await asyncio.to_thread(java.create, digest=digest)
        await asyncio.to_thread(ledger.add, 3000, PATTERN)
        await asyncio.to_thread(ledger.close)
        assert await what_we_read(client, ledger.ledger_id, 0, 2999) == PATTERN.checksum(0, 2999)
        assert await what_we_read(client, ledger.ledger_id, 1234, 1234) == PATTERN.checksum(1234, 1234)

    run(apache, story)


def test_striped_ledgers_go_both_ways(apache: ApacheCluster, java: JavaClient) -> None:
    async def story(client: BookKeeper) -> None:
        writer = await client.create_ledger(write_quorum_size=2, ack_quorum_size=1, password=PASSWORD)
        await append(writer, SMALL, 0, 9999)
        await writer.close()
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
        assert (await asyncio.to_thread(theirs.read, 0, 9999)).checksum == SMALL.checksum(0, 9999)
        assert await what_we_read(client, writer.ledger_id, 0, 9999) == SMALL.checksum(0, 9999)

    run(apache, story)


def test_entries_of_the_greatest_size_go_both_ways(apache: ApacheCluster, java: JavaClient) -> None:
    large = Pattern(seed=5, size_min=(5 << 20) - 1024, size_max=(5 << 20) - 1024)

    async def story(client: BookKeeper) -> None:
        writer = await client.create_ledger(password=PASSWORD)
        await append(writer, large, 0, 3)
        await writer.close()
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
        assert (await asyncio.to_thread(theirs.read, 0, 3)).checksum == large.checksum(0, 3)
        assert await what_we_read(client, writer.ledger_id, 0, 3) == large.checksum(0, 3)

    run(apache, story)


@pytest.mark.rule("P9")
@pytest.mark.rule("P10")
def test_each_follows_the_other_live_writer(apache: ApacheCluster, java: JavaClient) -> None:
    async def story(client: BookKeeper) -> None:
        ledger = await asyncio.to_thread(java.create)
        await asyncio.to_thread(ledger.add, 100, SMALL)
        async with await client.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD) as reader:
            seen: list[bytes] = []
            tail = asyncio.ensure_future(_take(reader.tail(0), seen))
            await asyncio.to_thread(ledger.add, 1, SMALL, first=100)  # a Java writer shows an entry with the next one
            await _until(lambda: len(seen) >= 100, 10)
            await asyncio.to_thread(ledger.add, 49, SMALL, first=101, window=1)
            await _until(lambda: len(seen) >= 149, 10)
            await asyncio.to_thread(ledger.close)
            await asyncio.wait_for(tail, 20)
            assert checksum(seen) == SMALL.checksum(0, 149)
        writer = await client.create_ledger(password=PASSWORD)
        await append(writer, SMALL, 0, 99)
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
        follow = await asyncio.to_thread(theirs.tail, 0)
        assert (await asyncio.to_thread(follow.take, 100)).count == 100, "our writer says its LAC when it is idle"
        await append(writer, SMALL, 100, 149)
        assert (await asyncio.to_thread(follow.take, 50)).count == 50
        await writer.close()

    run(apache, story)


async def _take(batches: object, seen: list[bytes]) -> None:
    async for batch in batches:  # type: ignore[attr-defined]
        seen += batch.to_list()


async def _until(true: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.02)


@pytest.mark.rule("MUST9")
@pytest.mark.rule("MUST11")
@pytest.mark.parametrize("sizes", [(3, 2, 2), (3, 3, 2)])
def test_we_recover_the_ledger_of_a_living_java_writer(
    apache: ApacheCluster, java: JavaClient, sizes: tuple[int, int, int]
) -> None:
    async def story(client: BookKeeper) -> None:
        names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
        ledger = await asyncio.to_thread(lambda: java.create(**dict(zip(names, sizes, strict=True))))
        await asyncio.to_thread(ledger.add, 5000, SMALL)
        adding = ledger.submit_add(1_000_000, SMALL, first=5000)
        await asyncio.sleep(0.2)
        async with await client.open_ledger(ledger.ledger_id, recover=True, password=PASSWORD) as reader:
            end = reader.last_add_confirmed
        with pytest.raises(PeerError, match="Fenced") as fenced:
            added(await asyncio.to_thread(adding.result, 60))
        assert end >= 4999 + fenced.value.acked
        assert await what_we_read(client, ledger.ledger_id, 0, end) == SMALL.checksum(0, end)
        theirs = await asyncio.to_thread(java.open, ledger.ledger_id, recover=False)
        assert (theirs.opened.lac, theirs.opened.closed) == (end, True)
        assert (await asyncio.to_thread(theirs.read, 0, end)).checksum == SMALL.checksum(0, end)

    run(apache, story)


@pytest.mark.rule("MUST11")
def test_java_recovers_the_ledger_of_our_living_writer(apache: ApacheCluster, java: JavaClient) -> None:
    async def story(client: BookKeeper) -> None:
        writer = await client.create_ledger(password=PASSWORD)
        await append(writer, SMALL, 0, 999)
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=True)
        assert (theirs.opened.lac, theirs.opened.closed) == (999, True)
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        assert (await asyncio.to_thread(theirs.read, 0, 999)).checksum == SMALL.checksum(0, 999)

    run(apache, story)


def test_ledgers_that_were_closed_empty(apache: ApacheCluster, java: JavaClient) -> None:
    async def story(client: BookKeeper) -> None:
        ledger = await asyncio.to_thread(java.create)
        await asyncio.to_thread(ledger.close)
        abandoned = await asyncio.to_thread(java.create)
        for ledger_id, recover in ((ledger.ledger_id, False), (abandoned.ledger_id, True)):
            async with await client.open_ledger(ledger_id, recover=recover, password=PASSWORD) as reader:
                assert (reader.last_add_confirmed, reader.is_closed, reader.length) == (-1, True, 0)
        writer = await client.create_ledger(password=PASSWORD)
        await writer.close()
        theirs = await asyncio.to_thread(java.open, writer.ledger_id)
        assert (theirs.opened.lac, theirs.opened.closed, theirs.opened.length) == (-1, True, 0)

    run(apache, story)


@pytest.mark.rule("D29")
def test_ledger_ids_beyond_32_bits(apache: ApacheCluster, java: JavaClient) -> None:
    async def story(client: BookKeeper) -> None:
        ledger = await asyncio.to_thread(lambda: java.create(adv=True, ledger_id=LARGE_LEDGER))
        await asyncio.to_thread(ledger.add, 300, SMALL)
        await asyncio.to_thread(ledger.close)
        assert await what_we_read(client, LARGE_LEDGER, 0, 299) == SMALL.checksum(0, 299)
        open_one = await asyncio.to_thread(lambda: java.create(adv=True, ledger_id=LARGE_LEDGER + 1))
        await asyncio.to_thread(open_one.add, 300, SMALL)
        assert await what_we_read(client, LARGE_LEDGER + 1, 0, 299, recover=True) == SMALL.checksum(0, 299)

    run(apache, story)


def test_deleted_ledgers_are_gone_for_both(apache: ApacheCluster, java: JavaClient) -> None:
    async def story(client: BookKeeper) -> None:
        ledger = await asyncio.to_thread(java.create)
        await asyncio.to_thread(ledger.add, 3, SMALL)
        await asyncio.to_thread(ledger.close)
        await client.delete_ledger(ledger.ledger_id)
        assert ledger.ledger_id not in await asyncio.to_thread(java.ledger_ids)
        writer = await client.create_ledger(password=PASSWORD)
        await writer.close()
        await asyncio.to_thread(java.delete, writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await client.open_ledger(writer.ledger_id, recover=False, password=PASSWORD)

    run(apache, story)


@pytest.mark.rule("L2")
def test_another_password_fences_nobody(apache: ApacheCluster, java: JavaClient) -> None:
    async def story(client: BookKeeper) -> None:
        ledger = await asyncio.to_thread(java.create)
        await asyncio.to_thread(ledger.add, 3, SMALL)
        with pytest.raises(WrongPasswordError):
            await client.open_ledger(ledger.ledger_id, recover=True, password=b"guessed")
        await asyncio.to_thread(ledger.add, 3, SMALL, first=3)

    run(apache, story)


def test_a_bookie_tells_its_space(apache: ApacheCluster) -> None:
    async def story(client: BookKeeper) -> None:
        for bookie in await client.refresh_bookies():
            said = await client.transport.bookie_info(bookie, deadline_s=10)
            assert 0 < said.free_bytes <= said.total_bytes

    run(apache, story)


@pytest.mark.rule("MUST6")
def test_a_killed_bookie_is_replaced_while_we_write(apache: ApacheCluster, java: JavaClient) -> None:
    mortal = apache.add_bookie()

    async def story(client: BookKeeper) -> None:
        writer = await client.create_ledger(ensemble_size=4, write_quorum_size=4, ack_quorum_size=4, password=PASSWORD)
        assert mortal.bookie_id in writer.metadata.fragments[0].ensemble
        (spare,) = await asyncio.to_thread(apache.start, 1)
        await append(writer, PATTERN, 0, 499)
        await asyncio.to_thread(mortal.kill)
        await append(writer, PATTERN, 500, 999)
        await writer.close()
        assert len(writer.metadata.fragments) == 2 or mortal.bookie_id not in writer.metadata.last_fragment.ensemble
        assert spare.bookie_id in writer.metadata.last_fragment.ensemble
        assert await what_we_read(client, writer.ledger_id, 0, 999) == PATTERN.checksum(0, 999)
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
        assert (await asyncio.to_thread(theirs.read, 0, 999)).checksum == PATTERN.checksum(0, 999)

    run(apache, story)
    mortal.start()
