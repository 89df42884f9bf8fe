# SPDX-License-Identifier: Apache-2.0
"""Bookies return under their ids at other addresses, one after the other, while they are used: nobody loses them, on
any lane. There is no spare bookie, so a writer that takes one for failed ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from bk_core.client import ClientConfig
from bk_core.client.detached import DetachedReader
from bk_core.client.writing.writer import LedgerWriter
from bk_core.errors import EntryUnreadableError
from bk_core.logs.named_log import NamedLog
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BOOKIE_RPC, DIRECT, GRPC, BookieId, BookieServiceInfo, LedgerId, LedgerMetadata
from bk_core.wire.lane.evidence import ReadTrailer
from tests.kit.lanes import ON_EACH_LANE, lane_port
from tests.kit.memory_cluster import collect, read_ledger
from tests.kit.moving_cluster import MovingCluster, moving_cluster

STORY_S = 60.0
COUNT = 50


@asynccontextmanager
async def moving(path: Path, lane: str, *, bookies: int = 3) -> AsyncIterator[MovingCluster]:
    async with asyncio.timeout(STORY_S), moving_cluster(path, lane, bookies=bookies) as cluster:
        yield cluster


async def append_until(ended: asyncio.Event, writer: LedgerWriter) -> int:
    """Appends one entry after the other; returns how many."""
    count = 0
    while not ended.is_set():
        await writer.append(b"entry %d" % count)
        count += 1
        await asyncio.sleep(0.01)
    return count


@pytest.mark.long
@ON_EACH_LANE
@pytest.mark.rule("P3")
async def test_a_busy_writer_without_a_spare_goes_on_with_the_same_bookies(lane: str, tmp_path: Path) -> None:
    async with moving(tmp_path, lane) as cluster, await cluster.client() as client:
        writer, ended = await client.create_ledger(), asyncio.Event()
        appending = asyncio.create_task(append_until(ended, writer))
        await cluster.move_all()
        ended.set()
        count = await appending
        await writer.close()
        value = (await client.read_metadata(writer.ledger_id)).value
        assert (len(value.fragments), value.last_entry_id) == (1, count - 1)
        assert cluster.marks() == []
        assert await read_ledger(client, writer.ledger_id, recover=False) == [b"entry %d" % k for k in range(count)]


@ON_EACH_LANE
@pytest.mark.rule("P8")
async def test_an_idle_writer_has_all_copies_of_what_it_appends_later(lane: str, tmp_path: Path) -> None:
    async with moving(tmp_path, lane) as cluster, await cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append(b"before")
        await cluster.move_all(down_s=0.1)
        await writer.append(b"after")
        await writer.close()
        value = (await client.read_metadata(writer.ledger_id)).value
        assert (len(value.fragments), value.last_entry_id, cluster.marks()) == (1, 1, [])


@ON_EACH_LANE
@pytest.mark.long
@pytest.mark.rule("P10")
async def test_a_tail_goes_on_to_the_last_entry(lane: str, tmp_path: Path) -> None:
    async with (
        moving(tmp_path, lane) as cluster,
        await cluster.client() as writing,
        await cluster.client() as reading,
    ):
        writer = await writing.create_ledger()
        await writer.append(b"entry 0")
        seen = list[bytes]()
        async with await reading.open_ledger(writer.ledger_id, recover=False) as reader:
            following = asyncio.create_task(collect(reader.tail(), seen))
            for number, bookie_id in enumerate(sorted(cluster.bookies)):
                await cluster.move(bookie_id)
                for k in range(number * 10, number * 10 + 10):
                    await writer.append(b"entry %d" % (k + 1))
                async with asyncio.timeout(5):
                    while len(seen) < number * 10 + 11:
                        await asyncio.sleep(0.01)
            await writer.close()
            async with asyncio.timeout(5):
                await following
        assert seen == [b"entry %d" % k for k in range(31)]


@ON_EACH_LANE
async def test_a_reader_reads_what_all_its_bookies_hold_at_other_addresses(lane: str, tmp_path: Path) -> None:
    async with moving(tmp_path, lane) as cluster, await cluster.client() as client:
        writer = await client.create_ledger()
        for k in range(COUNT):
            writer.append_nowait(b"entry %d" % k)
        await writer.flush()
        async with await client.open_ledger(writer.ledger_id, recover=False) as reader:
            assert await reader.wait_lac(COUNT - 2, 10.0) == COUNT - 1
            await cluster.move_all(down_s=0.0)
            assert await reader.refresh_lac() == COUNT - 1
            read = [one async for batch in reader.read(0, COUNT - 1) for one in batch.to_list()]
            assert read == [b"entry %d" % k for k in range(COUNT)]


@ON_EACH_LANE
@pytest.mark.long
async def test_a_tail_of_a_log_goes_on_and_so_does_its_leader(lane: str, tmp_path: Path) -> None:
    async with (
        moving(tmp_path, lane) as cluster,
        await cluster.client() as writing,
        await cluster.client() as reading,
    ):
        log = NamedLog(writing, "events")
        await log.create()
        leader = await log.lead()
        followed = NamedLog(reading, "events")
        seen = list[bytes]()

        async def follow() -> None:
            async for _, batch in followed.tail(0):
                seen.extend(batch.to_list())

        await leader.append(b"entry 0")
        following = asyncio.create_task(follow())
        for number, bookie_id in enumerate(sorted(cluster.bookies)):
            await cluster.move(bookie_id)
            await leader.append(b"entry %d" % (number + 1))
            async with asyncio.timeout(5):
                while len(seen) < number + 2:
                    await asyncio.sleep(0.01)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await leader.close()
        assert seen == [b"entry %d" % k for k in range(4)]
        assert cluster.marks() == []


@ON_EACH_LANE
@pytest.mark.rule("L1")
async def test_a_bookie_is_not_taken_for_the_one_whose_address_it_has_now(lane: str, tmp_path: Path) -> None:
    async with moving(tmp_path, lane) as cluster:
        async with await cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(b"before")
            protocols = {"port": BOOKIE_RPC, "direct_port": DIRECT, "grpc_port": GRPC}
            ports = {name: lane_port(cluster.bookies["b0"], protocol) for name, protocol in protocols.items()}
            for bookie_id in ("b0", "b1"):
                await cluster.stop(bookie_id)
            await cluster.start("b1", **ports)
            await cluster.start("b0")
            await writer.append(b"after")
            await writer.close()
            assert (len(writer.metadata.fragments), cluster.marks()) == (1, [])
        async with await cluster.client() as other:
            await other.refresh_bookies()
            for bookie_id in ("b0", "b1"):
                link = other.transport.link(bookie_id)
                told = [each async for each in link.read(writer.ledger_id, 0, 1, bytes_max=1 << 20, deadline_s=5)]
                trailer = told[-1]
                assert isinstance(trailer, ReadTrailer)
                assert (trailer.absent, trailer.unknown) == ((), ()), f"{bookie_id} has its own copies"


@ON_EACH_LANE
async def test_a_recovery_fences_reads_and_writes_back_where_the_bookies_are_now(lane: str, tmp_path: Path) -> None:
    async with (
        moving(tmp_path, lane) as cluster,
        await cluster.client() as writing,
        await cluster.client() as recovering,
    ):
        writer = await writing.create_ledger()
        await writer.append(b"the only one")
        digester = recovering.digester_of(writer.ledger_id, writer.metadata, b"", None)
        async with await recovering.open_ledger(writer.ledger_id, recover=False) as reader:
            assert reader.last_add_confirmed in (-1, 0)
        await cluster.move_all(down_s=0.0)
        found, _ = await recovering.recover_ledger(digester, b"")
        assert (found.value.is_closed, found.value.last_entry_id, len(found.value.fragments)) == (True, 0, 1)
        assert cluster.marks() == []


@ON_EACH_LANE
async def test_a_bookie_that_returns_read_only_is_read_from(lane: str, tmp_path: Path) -> None:
    async with moving(tmp_path, lane, bookies=1) as cluster:
        sizes = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
        async with await cluster.client() as client:
            writer = await client.create_ledger(**sizes)
            await writer.append(b"the only one")
            await writer.close()
            async with await client.open_ledger(writer.ledger_id, recover=False) as reader:
                cluster.store.write_bookie_order("b0", BookieOrder(Order.READ_ONLY, 0))
                await cluster.move("b0")
                assert list(cluster.store.read_only_bookies()) == ["b0"]
                assert [batch.to_list() async for batch in reader.read(0, 0)] == [[b"the only one"]]


@pytest.mark.long
@ON_EACH_LANE
@pytest.mark.rule("K3")
async def test_a_detached_reader_asks_for_addresses_once_per_move_and_not_for_ever(lane: str, tmp_path: Path) -> None:
    async with moving(tmp_path, lane) as cluster:
        asked = list[LedgerId]()
        entries = [bytes([k]) * (1 << 20) for k in range(10)]  # too long to be joined
        async with await cluster.client() as client:
            writer = await client.create_ledger()
            for entry in entries:
                await writer.append(entry)
            await writer.close()
        store, value = cluster.store, writer.metadata

        def refresh(ledger_id: LedgerId) -> tuple[LedgerMetadata, Mapping[BookieId, BookieServiceInfo]]:
            asked.append(ledger_id)
            return store.read_ledger(ledger_id).value, store.writable_bookies()

        config = ClientConfig(lanes=lane, read_bytes_max=1)  # an answer has one entry
        infos, instance_id = dict(store.writable_bookies()), store.instance_id()
        async with DetachedReader(infos, instance_id=instance_id, config=config, refresh=refresh) as reader:
            await cluster.move_all(down_s=0.0)
            seen = list[bytes]()
            async for batch in reader.read(writer.ledger_id, value, 0, 9):
                seen += batch.to_list()
                if len(seen) == 1:
                    assert len(asked) == 1
                    await cluster.move_all(down_s=0.0)
            assert (seen == entries, len(asked)) == (True, 2)
            for bookie_id in list(cluster.bookies):
                await cluster.stop(bookie_id)
            with pytest.raises(EntryUnreadableError):
                _ = [batch async for batch in reader.read(writer.ledger_id, value, 0, 0)]
            assert len(asked) == 3
