# SPDX-License-Identifier: Apache-2.0
"""The socket of a connection on Apache's wire: what breaks it, what it holds, and what it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bk_core.entries.apache import lac_body
from bk_core.entries.frame import parse_header
from bk_core.errors import BookieUnreachableError, TransportError
from bk_core.model import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bk_core.transport.bookie_rpc import connection as connection_module
from bk_core.transport.bookie_rpc.link import BookieRpcLink
from bk_core.transport.bookie_rpc.packing import Packer
from bk_core.transport.caller import Caller
from bk_core.transport.port import NewSession, ReadPart, RefusedError
from bk_core.transport.whereabouts import At, Whereabouts
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.connection import AnswerReader
from bk_core.wire.bookie_rpc.runs import WireAnswer
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.reasons import AttachMode, Reason
from tests.kit.apache_bookie import ApacheServer
from tests.kit.lanes import KEY, Listener, digester, frame
from tests.kit.waiting import eventually

LEDGER = 7
LAC_BODY = lac_body(3, digester(LEDGER))


@asynccontextmanager
async def server_and_link() -> AsyncIterator[tuple[ApacheServer, BookieRpcLink]]:
    async with asyncio.timeout(30):
        server = await ApacheServer().start()
        link = linked(server.port)
        try:
            yield server, link
        finally:
            await link.close()
            await server.stop()


def linked(port: int, *, batch_reads: bool = True) -> BookieRpcLink:
    endpoint = Endpoint("bookie", "127.0.0.1", port, BOOKIE_RPC)
    caller = Caller(connect_timeout_s=2.0, batch_reads=batch_reads)
    return BookieRpcLink(At(BookieServiceInfo("b"), endpoint), caller, Whereabouts(None, lambda _: None), Packer())


async def written(link: BookieRpcLink, frames: int = 1, entry: bytes = b"x") -> Listener:
    listener = Listener()
    link.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, listener))
    for first in range(frames):
        link.send(1, frame(LEDGER, first, [entry], session=1))
    await listener.acked(1, frames)
    return listener


async def test_a_port_where_nobody_listens_is_unreachable_and_says_so_to_all() -> None:
    async with server_and_link() as (server, link):
        await server.stop()
        listener = Listener()
        link.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, listener))
        with pytest.raises(BookieUnreachableError, match="cannot be reached from host"):
            await link.fence(LEDGER, KEY, deadline_s=5)
        await listener.broken(1)
        assert isinstance(link.broken, BookieUnreachableError)
        with pytest.raises(BookieUnreachableError):
            await link.read_lac(LEDGER, deadline_s=5)


@pytest.mark.rule("P12")
async def test_a_force_needs_the_session_that_it_speaks_of() -> None:
    async with server_and_link() as (server, link):
        listener = Listener()
        link.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, listener, deferred=True))
        server.bookie.held = True
        link.send(1, frame(LEDGER, 0, [b"x"], session=1))
        await listener.acked(1, 1)
        forced = asyncio.ensure_future(link.force(LEDGER, 1, deadline_s=5))
        await asyncio.sleep(0.05)
        assert not forced.done(), "nothing is on disk"
        server.bookie.release()
        await forced
        server.bookie.refuse = lambda what, *_: Status.EIO if what == "force" else None
        with pytest.raises(RefusedError, match="could not sync"):
            await link.force(LEDGER, 1, deadline_s=5)
        server.bookie.refuse = lambda *_: None
        link.detach(1)
        with pytest.raises(RefusedError, match="the session with bookie b is over"):
            await link.force(LEDGER, 1, deadline_s=5)
        assert (server.bookie.asked["deferred add"], server.bookie.asked["force"]) == (1, 2)


@pytest.mark.rule("P5", "MUST4")
@pytest.mark.parametrize("fails", ["the last entry", "the LAC"])
async def test_a_half_of_read_lac_that_the_disk_fails_leaves_the_bookie_unheard(fails: str) -> None:
    """EIO with a LAC is about the last entry, so the plain read of it decides; EIO without one says nothing."""

    def broken(said: bytes) -> list[bytes]:
        (item,) = AnswerReader(3).read(said).items
        if fails == "the LAC" and isinstance(item, WireAnswer):
            item.response.readLacResponse.ClearField("lacBody")
            return [v3.framed(item.response)]
        return [said]

    async with server_and_link() as (server, link):
        await link.write_lac(LEDGER, KEY, LAC_BODY, deadline_s=5)
        assert (await link.read_lac(LEDGER, deadline_s=5)).lac_body == LAC_BODY
        if fails == "the last entry":
            server.bookie.refuse = lambda what, *_: Status.EIO if what == "read" else None
        server.lie = broken
        with pytest.raises(RefusedError, match=f"could not read {fails}") as refused:
            await link.read_lac(LEDGER, deadline_s=5)
        assert refused.value.reason is Reason.IO_ERROR


async def test_a_connection_that_is_cut_breaks_all_that_waits() -> None:
    async with server_and_link() as (server, link):
        listener = await written(link)
        server.bookie.held = True
        link.send(1, frame(LEDGER, 1, [b"never answered"], session=1))
        watch = asyncio.ensure_future(link.watch_lac(LEDGER, 5, timeout_s=60))
        await asyncio.sleep(0.1)
        server.cut()
        await listener.broken(1)
        with pytest.raises(TransportError, match="broke"):
            await watch
        assert listener.said[-1][0] == "broken"


@pytest.mark.rule("P1")
async def test_nonsense_closes_the_connection_with_outcome_unknown() -> None:
    async with server_and_link() as (server, link):
        server.lie = lambda said: [said, said]
        listener = Listener()
        link.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, listener))
        link.send(1, frame(LEDGER, 0, [b"acked twice"], session=1))
        await listener.broken(1)
        assert link.broken is not None
        assert "a request that was not sent" in str(link.broken)


async def test_a_bookie_that_owes_answers_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_S", 0.2)

    async with server_and_link() as (server, link):
        await written(link)
        watch = asyncio.ensure_future(link.watch_lac(LEDGER, 5, timeout_s=0.8))
        await watch  # who waits for a LAC may be kept waiting
        assert link.broken is None
        server.lie = lambda said: []
        with pytest.raises(TransportError, match="said nothing"):
            await link.read_lac(LEDGER, deadline_s=10)


async def test_a_call_ends_at_its_deadline_and_the_link_goes_on() -> None:
    async with server_and_link() as (server, link):
        await written(link)
        server.bookie.held = True
        with pytest.raises(RefusedError) as refused:
            await link.write_lac(LEDGER, KEY, bytes(20), deadline_s=0.1)
        assert refused.value.reason is Reason.TIMEOUT
        parts = link.read(99, 0, 9, bytes_max=1 << 20, fence_key=KEY, deadline_s=0.1)
        with pytest.raises(RefusedError) as late:
            await anext(parts)
        assert late.value.reason is Reason.TIMEOUT
        server.bookie.release()
        assert (await link.read_lac(LEDGER, deadline_s=5)).last_entry_id == 0


@pytest.mark.long
async def test_a_bookie_that_is_slow_is_not_silent() -> None:
    async with server_and_link() as (server, link):
        await written(link, 250)
        server.pace_s = 0.01
        singly = linked(server.port, batch_reads=False)
        for each in link, singly:
            parts = 0
            async for part in each.read(LEDGER, 0, 249, bytes_max=1 << 20, deadline_s=2):  # together: 2.5 seconds
                parts += isinstance(part, ReadPart)
            assert parts > 1
        assert server.bookie.asked["batch"] > 3
        await singly.close()


@pytest.mark.rule("MUST3", "D6")
async def test_a_fence_that_finds_nothing_is_answered_when_it_is_on_disk() -> None:
    async with server_and_link() as (server, link):
        server.bookie.held = True
        fence = asyncio.ensure_future(link.fence(99, KEY, deadline_s=5))
        await asyncio.sleep(0.2)
        assert not fence.done()
        assert server.bookie.asked["force"] == 1
        server.bookie.release()
        said = await fence
        server.bookie.kill()
        assert (said.fenced, said.last_entry_id, server.bookie.ledgers[99].fenced) == (True, -1, True)
        server.bookie.refuse = lambda what, ledger, k: Status.EIO if what == "force" else None
        with pytest.raises(RefusedError):
            await link.fence(98, KEY, deadline_s=5)


async def test_what_the_socket_does_not_take_stays_in_the_exchange() -> None:
    async with server_and_link() as (_server, link):
        listener = await written(link)
        for first in range(1, 40):
            link.send(1, frame(LEDGER, first, [bytes(1 << 20)], session=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        transport = link._connection._transport
        assert transport is not None
        assert transport.get_write_buffer_size() < 4 << 20
        await listener.acked(1, 40)
        entries = 0
        async for part in link.read(LEDGER, 0, 39, bytes_max=64 << 20, deadline_s=5):
            entries += isinstance(part, ReadPart)
        assert entries > 1
        assert (await link.fence(LEDGER, KEY, deadline_s=5)).last_entry_id == 39


async def test_explicit_lacs_are_asked_for_when_a_watch_hears_of_one() -> None:
    async with server_and_link() as (_server, link):
        await written(link, 3)
        body = LEDGER.to_bytes(8, "big") + (2).to_bytes(8, "big") + bytes(4)
        watch = asyncio.ensure_future(link.watch_lac(LEDGER, -1, timeout_s=5))
        await asyncio.sleep(0.05)
        await link.write_lac(LEDGER, KEY, body, deadline_s=5)
        assert (await watch).lac_body == body
        assert (await link.watch_lac(LEDGER, 2, timeout_s=0.05)).last_entry_id == 2


async def read_100(link: BookieRpcLink) -> int:
    parts = link.read(LEDGER, 0, 99, bytes_max=1 << 20, deadline_s=5)
    frames = [part.frames async for part in parts if isinstance(part, ReadPart)]
    return sum(parse_header(one).count for one in frames)


async def test_long_ranges_come_over_a_second_connection_as_long_as_there_is_one() -> None:
    async with server_and_link() as (server, link):
        await written(link)
        link.send(1, frame(LEDGER, 1, [b"more"] * 99, session=1))
        assert await read_100(link) == 100
        assert (server.bookie.asked["batch"], len(server._writers)) == (2, 2), "the first is a short one"
        server.bookie.batches = False
        for _ in range(2):
            assert await read_100(link) == 100
        assert (server.bookie.asked["batch"], link.broken) == (2, None)
        await eventually(lambda: len(server._writers) == 1)
        server.bookie.batches = True
        other = linked(server.port, batch_reads=False)
        assert await read_100(other) == 100
        await other.close()
        assert server.bookie.asked["batch"] == 2


async def test_the_second_connection_ends_with_the_first() -> None:
    async with server_and_link() as (server, link):
        await written(link)
        await read_100(link)
        assert len(server._writers) == 2
        server.lie = lambda said: [said, said]
        with pytest.raises(TransportError):
            await link.read_lac(LEDGER, deadline_s=5)
        await eventually(lambda: not server._writers)


async def test_closing_ends_the_connections_at_the_bookie() -> None:
    async with server_and_link() as (server, link):
        await written(link)
        await read_100(link)
        assert len(server._writers) == 2
        await link.close()
        await link.close()
        await eventually(lambda: not server._writers)


async def test_a_link_that_never_connected_closes() -> None:
    async with server_and_link() as (server, link):
        await link.close()
        other = linked(server.port)
        other.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, Listener()))
        await other.close()
