# SPDX-License-Identifier: Apache-2.0
"""Features of Java's client, used by our client on Apache's bookies, and on an ensemble of theirs and ours: explicit
entry ids, deferred syncs, explicit LACs, reads beyond the LAC, placement."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.client import BookKeeper, ClientConfig, LedgerWriter, connect
from bk_core.errors import InvalidArgumentError, LedgerFencedError, NoSuchEntryError
from bookie_server.main import Bookie
from tests.interop.jars import MAIN, toolchain
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, JavaClient, PeerClient
from tests.interop.peers import ApacheCluster
from tests.kit.lanes import bookie_config

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATTERN = Pattern(seed=11, size_min=0, size_max=900)
STORY_S = 120.0
KINDS = pytest.mark.parametrize("mixed", [False, True], ids=["apache", "mixed"])


@contextlib.asynccontextmanager
async def some_of_ours(apache: ApacheCluster, path: Path, mixed: bool, client: BookKeeper) -> AsyncIterator[None]:
    """With ``mixed``, put each ledger on two bookies of Apache's and one of ours."""
    if not mixed:
        yield
        return
    ours = await Bookie.start(bookie_config(path / "ours", apache.uri))
    try:
        chosen = [ours.bookie_id, *(bookie.bookie_id for bookie in apache.bookies[:2])]
        client._choose = lambda writable, size, *_: tuple(chosen[:size])
        yield
    finally:
        await ours.stop()


@asynccontextmanager
async def our_client(
    apache: ApacheCluster, path: Path, *, mixed: bool = False, **config: float | str
) -> AsyncIterator[BookKeeper]:
    settings = ClientConfig(add_timeout_ms=20_000, lac_stall_ms=500, **config)
    async with (
        asyncio.timeout(STORY_S),
        await connect(apache.uri, config=settings) as client,
        some_of_ours(apache, path, mixed, client),
    ):
        yield client


async def read(client: BookKeeper, ledger_id: int, first: int, last: int, **how: bool) -> str:
    async with await client.open_ledger(ledger_id, recover=False, password=PASSWORD) as reader:
        return checksum([entry async for batch in reader.read(first, last, **how) for entry in batch.to_list()])


async def java_reads(java: JavaClient, ledger_id: int, first: int, last: int, how: str = "confirmed") -> str:
    ledger = await asyncio.to_thread(java.open, ledger_id, recover=False)
    return (await asyncio.to_thread(ledger.read, first, last, how=how)).checksum


async def append(writer: LedgerWriter, first: int, last: int) -> None:
    for payload in PATTERN.payloads(first, last):
        writer.append_nowait(payload)
    await writer.flush()


@KINDS
async def test_entries_with_ids_of_ours_are_what_java_reads(
    apache: ApacheCluster, java: JavaClient, tmp_path: Path, mixed: bool
) -> None:
    async with our_client(apache, tmp_path, mixed=mixed) as client:
        writer = await client.create_ledger(explicit_ids=True, password=PASSWORD)
        payloads = dict(enumerate(PATTERN.payloads(0, 199)))
        order = [*range(199, 100, -2), *range(1, 100, 2), *range(0, 200, 2)]
        waiting = [asyncio.ensure_future(writer.append(payloads[entry_id], entry_id)) for entry_id in order]
        late = asyncio.ensure_future(writer.append(b"never", 300))
        assert await asyncio.gather(*waiting) == order
        assert writer.last_add_confirmed == 199
        await writer.close()
        assert isinstance((await asyncio.gather(late, return_exceptions=True))[0], Exception)
        assert await java_reads(java, writer.ledger_id, 0, 199) == PATTERN.checksum(0, 199)
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
        assert (theirs.opened.lac, theirs.opened.length, theirs.opened.closed) == (199, writer.length, True)


async def test_a_ledger_that_java_wrote_with_a_gap_ends_below_it(
    apache: ApacheCluster, java: JavaClient, tmp_path: Path
) -> None:
    async with our_client(apache, tmp_path) as client:
        ledger = await asyncio.to_thread(java.create, adv=True)
        await asyncio.to_thread(ledger.add, 50, PATTERN)
        late = ledger.submit_add(10, PATTERN, first=60)
        await asyncio.sleep(0.5)
        async with await client.open_ledger(ledger.ledger_id, recover=True, password=PASSWORD) as reader:
            assert reader.last_add_confirmed == 49
        assert await read(client, ledger.ledger_id, 0, 49) == PATTERN.checksum(0, 49)
        del late  # Java's client waits for the missing entry


@KINDS
async def test_the_lac_of_deferred_syncs_follows_forces_for_java_too(
    apache: ApacheCluster, java: JavaClient, tmp_path: Path, mixed: bool
) -> None:
    async with our_client(apache, tmp_path, mixed=mixed) as client:
        writer = await client.create_ledger(deferred_sync=True, password=PASSWORD)
        await append(writer, 0, 499)
        theirs = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
        assert (writer.last_add_confirmed, await asyncio.to_thread(theirs.last_confirmed)) == (-1, -1)
        assert await java_reads(java, writer.ledger_id, 0, 499, "unconfirmed") == PATTERN.checksum(0, 499)
        assert await writer.force() == 499
        await writer.write_lac()
        assert await asyncio.to_thread(theirs.last_confirmed) == 499
        assert await asyncio.to_thread(theirs.last_confirmed, "explicit") == 499
        await append(writer, 500, 999)
        await writer.close()
        assert await java_reads(java, writer.ledger_id, 0, 999) == PATTERN.checksum(0, 999)


async def test_a_bookie_that_dies_before_the_force_gets_everything_again(
    apache: ApacheCluster, java: JavaClient, tmp_path: Path
) -> None:
    """A bookie is killed between the acks and the force. The entries that it had not synced are sent again, to it or to
    a spare."""
    mortal = apache.add_bookie()

    async with our_client(apache, tmp_path) as client:
        chosen = [mortal.bookie_id, *(bookie.bookie_id for bookie in apache.bookies[:2])]
        client._choose = lambda writable, size, *_: tuple(chosen[:size])
        writer = await client.create_ledger(deferred_sync=True, password=PASSWORD)
        await append(writer, 0, 999)
        mortal.kill()
        assert await writer.force() == 999
        await append(writer, 1000, 1999)
        await writer.close()
        assert await java_reads(java, writer.ledger_id, 0, 1999) == PATTERN.checksum(0, 1999)
    assert mortal is apache.bookies.pop()


async def test_java_fences_a_writer_with_deferred_syncs(
    apache: ApacheCluster, java: JavaClient, tmp_path: Path
) -> None:
    async with our_client(apache, tmp_path) as client:
        writer = await client.create_ledger(deferred_sync=True, password=PASSWORD)
        await append(writer, 0, 99)
        taken = await asyncio.to_thread(java.open, writer.ledger_id, recover=True)
        assert taken.opened.lac == 99, "the recovery lost acked entries"
        with pytest.raises(LedgerFencedError):
            await append(writer, 100, 100)


@KINDS
async def test_an_explicit_lac_goes_both_ways(
    apache: ApacheCluster, peer: PeerClient, tmp_path: Path, mixed: bool
) -> None:
    eager = peer.client(apache.uri, conf={"explicitLacInterval": 50})

    async with our_client(apache, tmp_path, mixed=mixed) as client:
        writer = await client.create_ledger(password=PASSWORD)
        await append(writer, 0, 9)
        assert await writer.write_lac() == 9
        theirs = await asyncio.to_thread(eager.open, writer.ledger_id, recover=False)
        assert await asyncio.to_thread(theirs.last_confirmed, "explicit") == 9
        ledger = await asyncio.to_thread(eager.create)
        await asyncio.to_thread(ledger.add, 10, PATTERN)
        async with await client.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD) as reader:
            async with asyncio.timeout(20):
                while await reader.refresh_lac() < 9:
                    await asyncio.sleep(0.05)
        assert await read(client, ledger.ledger_id, 0, 9) == PATTERN.checksum(0, 9)


async def test_what_java_has_not_confirmed_is_read_at_the_callers_risk(
    apache: ApacheCluster, java: JavaClient, tmp_path: Path
) -> None:
    async with our_client(apache, tmp_path) as client:
        ledger = await asyncio.to_thread(java.create)
        await asyncio.to_thread(ledger.add, 100, PATTERN, window=1)
        with pytest.raises(InvalidArgumentError):
            await read(client, ledger.ledger_id, 0, 99)  # the last entry carries the LAC before it
        assert await read(client, ledger.ledger_id, 0, 99, unconfirmed=True) == PATTERN.checksum(0, 99)
        with pytest.raises(NoSuchEntryError, match="not there yet"):
            await read(client, ledger.ledger_id, 100, 100, unconfirmed=True)


async def test_custom_metadata_ids_and_deletion_go_both_ways(
    apache: ApacheCluster, java: JavaClient, tmp_path: Path
) -> None:
    async with our_client(apache, tmp_path) as client:
        async with await client.create_ledger(
            ledger_id=4711, password=PASSWORD, custom_metadata={"who": bytes(range(256))}
        ) as writer:
            await append(writer, 0, 9)
        told = await asyncio.to_thread(java.metadata, 4711)
        assert told["custom"] == {"who": bytes(range(256))}
        with pytest.raises(PeerError, match="LedgerExist"):
            await asyncio.to_thread(java.create, ledger_id=4711)
        ledger = await asyncio.to_thread(java.create, ledger_id=4712, custom={"who": b"java"})
        assert (await client.read_metadata(4712)).value.custom_metadata == {"who": b"java"}
        await asyncio.to_thread(ledger.close)
        await client.delete_ledger(4712)
        await asyncio.to_thread(java.delete, 4711)
        assert not {4711, 4712} & set(await client.list_ledgers())


@pytest.fixture
def two_racks(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Iterator[ApacheCluster]:
    """Yield four bookies, at four addresses of loopback."""
    with ApacheCluster(toolchain(MAIN), zookeeper_server.connect_string, tmp_path / "racks") as cluster:
        for last in (1, 2, 3, 4):
            cluster.start(1, {"advertisedAddress": f"127.0.0.{last}"})
        yield cluster


async def test_one_script_places_the_ledgers_of_both_clients(two_racks: ApacheCluster, tmp_path: Path) -> None:
    script = tmp_path / "racks.sh"
    script.write_text(
        "#!/bin/sh\n"
        "for host; do case $host in 127.0.0.[12]) echo /a;; 127.0.0.[34]) echo /b;; *) echo /c;; esac; done\n"
    )
    script.chmod(0o755)
    java = two_racks.peer_client().client(two_racks.uri, conf={"networkTopologyScriptFileName": str(script)})
    sizes = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}

    def racks_of(ensemble: tuple[str, ...]) -> set[bool]:
        return {bookie.split(":")[0] in ("127.0.0.1", "127.0.0.2") for bookie in ensemble}

    async with our_client(
        two_racks, tmp_path, rack_script=str(script), enforce_racks=True, disk_weight_placement=True
    ) as client:
        for _ in range(10):
            writer = await client.create_ledger(**sizes)
            assert len(racks_of(writer.metadata.last_fragment.ensemble)) == 2
            await writer.close()
            ledger = await asyncio.to_thread(java.create, **sizes)
            (ensemble,) = (await asyncio.to_thread(java.metadata, ledger.ledger_id))["ensembles"].values()
            assert len(racks_of(ensemble)) == 2
        writer = await client.create_ledger(**sizes)
        first, second = writer.metadata.last_fragment.ensemble
        two_racks.bookies[int(first.split(":")[0][-1]) - 1].set_read_only(True)
        await append(writer, 0, 9)
        after = writer.metadata.last_fragment.ensemble
        assert (after[1], first in after) == (second, False)
        assert len(racks_of(after)) == 2, "the spare is of another rack than the bookie that it replaces"
        for _ in range(10):
            other = await client.create_ledger(**sizes)
            assert first not in other.metadata.last_fragment.ensemble, "a read-only bookie was chosen"
            await other.close()
        await writer.close()
