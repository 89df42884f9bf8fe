# SPDX-License-Identifier: Apache-2.0
"""What a client is told when a connection of the direct lane does not come about, breaks, or says what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bk_core.errors import BookieUnreachableError, ClusterMismatchError, RemoteProtocolError, TransportError
from bk_core.model import DIRECT, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lane import message_socket
from bk_core.transport.lanes import LaneTransport
from bk_core.wire.lane.direct_messages import PREAMBLE_BYTES, stream_of
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX
from bk_core.wire.proto import lane_pb2

HEAD = struct.Struct("<II")
INFO = lane_pb2.BookieInfo(total_bytes=3)


def message(rest: bytes, frames: bytes = b"") -> bytes:
    return HEAD.pack(len(frames), len(rest)) + frames + rest


def welcome(instance_id: str = "c") -> bytes:
    said = lane_pb2.HelloAnswer(version=1, bookie_id="b1", instance_id=instance_id)
    return message(lane_pb2.ControlResponse(hello=said).SerializeToString())


class Peer:
    """What the client opened, and asked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def stream(self) -> str:
        return stream_of(await self.reader.readexactly(PREAMBLE_BYTES))

    async def request(self) -> lane_pb2.ControlRequest:
        frames, rest = HEAD.unpack(await self.reader.readexactly(HEAD.size))
        assert not frames
        return lane_pb2.ControlRequest.FromString(await self.reader.readexactly(rest))


Script = Callable[[Peer], Awaitable[None]]


@contextlib.asynccontextmanager
async def reached(script: Script, **caller: float) -> AsyncIterator[LaneTransport]:
    """A transport to a bookie that does as the script says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(Peer(reader, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = LaneTransport(Caller("c", connect_timeout_s=caller.get("connect_timeout_s", 5.0)))
    transport.update_bookies([BookieServiceInfo("b1", (Endpoint(DIRECT, "127.0.0.1", port, DIRECT),))])
    try:
        async with asyncio.timeout(20):
            yield transport
    finally:
        await transport.close()
        server.close()


async def asked(script: Script, **caller: float) -> int:
    """What a call for the bookie's info comes to."""
    async with reached(script, **caller) as transport:
        return (await transport.link("b1").bookie_info(deadline_s=10)).total_bytes


async def serve_well(peer: Peer) -> None:
    assert await peer.stream() == "Control"
    first = await peer.request()
    assert first == lane_pb2.ControlRequest(hello=first.hello), "nothing goes with hello"
    assert first.hello.bookie_id == "b1"
    peer.writer.write(welcome())
    request = await peer.request()
    peer.writer.write(message(lane_pb2.ControlResponse(id=request.id, info=INFO).SerializeToString()))
    await peer.reader.read()


async def test_a_call_is_answered() -> None:
    assert await asked(serve_well) == 3


async def test_each_stream_has_a_connection_of_its_own() -> None:
    opened: list[str] = []

    async def script(peer: Peer) -> None:
        opened.append(await peer.stream())
        await peer.reader.read()

    async with reached(script) as transport:
        calls = [
            asyncio.ensure_future(transport.link("b1").bookie_info(deadline_s=1)),
            asyncio.ensure_future(transport.link("b1").delete_hint([1], deadline_s=1)),
            asyncio.ensure_future(anext(transport.link("b1").read(1, 0, 0, bytes_max=1, deadline_s=1))),
        ]
        while len(opened) < 2:
            await asyncio.sleep(0.01)
        assert sorted(opened) == ["Control", "Read"]
        for call in calls:
            call.cancel()


async def silent(peer: Peer) -> None:
    await peer.reader.read()


async def gone_before_hello(peer: Peer) -> None:
    await peer.stream()


async def gone_after_hello(peer: Peer) -> None:
    await peer.stream()
    await peer.request()
    peer.writer.write(welcome())
    await peer.writer.drain()


async def another_cluster(peer: Peer) -> None:
    await peer.stream()
    peer.writer.write(welcome("other"))
    await peer.reader.read()


async def noise(peer: Peer) -> None:
    await peer.stream()
    peer.writer.write(welcome() + message(b"\xff" * 50))
    await peer.reader.read()


async def too_long(peer: Peer) -> None:
    await peer.stream()
    peer.writer.write(welcome() + HEAD.pack(MESSAGE_BYTES_MAX, 1))
    await peer.reader.read()


async def frames_in_front(peer: Peer) -> None:
    await peer.stream()
    request = await peer.request()
    answer = lane_pb2.ControlResponse(id=request.id, info=INFO).SerializeToString()
    peer.writer.write(welcome() + message(answer, b"x" * 100_000))
    await peer.reader.read()


async def half(peer: Peer) -> None:
    await peer.stream()
    peer.writer.write(welcome() + HEAD.pack(0, 100_000) + b"half")
    await peer.reader.read()


async def cut(peer: Peer) -> None:
    await peer.stream()
    peer.writer.write(welcome() + HEAD.pack(0, 1_000) + b"half")
    await peer.writer.drain()
    peer.writer.transport.abort()


async def test_a_bookie_that_says_no_hello_in_time_is_unreachable() -> None:
    with pytest.raises(BookieUnreachableError, match="no answer in time"):
        await asked(silent, connect_timeout_s=0.3)


async def test_a_bookie_that_ends_the_connection_before_hello_is_unreachable() -> None:
    with pytest.raises(BookieUnreachableError, match="ended the connection"):
        await asked(gone_before_hello)


async def test_a_host_without_a_name_is_unreachable() -> None:
    transport = LaneTransport(Caller("c", connect_timeout_s=5))
    transport.update_bookies([BookieServiceInfo("b1", (Endpoint(DIRECT, "nowhere.invalid", 1, DIRECT),))])
    with pytest.raises(BookieUnreachableError, match=r"nowhere\.invalid"):
        await transport.link("b1").bookie_info(deadline_s=10)
    await transport.close()


@pytest.mark.parametrize("script", [gone_after_hello, cut])
async def test_a_connection_that_breaks_fails_its_calls_and_the_next_one_is_new(script: Script) -> None:
    with pytest.raises(TransportError) as told:
        await asked(script)
    assert not isinstance(told.value, BookieUnreachableError)


@pytest.mark.rule("L1")
async def test_a_bookie_of_another_cluster_is_named() -> None:
    with pytest.raises(TransportError, match="another cluster") as told:
        await asked(another_cluster)
    assert isinstance(told.value.__cause__, ClusterMismatchError)


async def test_a_bookie_that_ends_no_message_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 0.2)
    with pytest.raises(TransportError, match="did not end"):
        await asked(half)


@pytest.mark.parametrize("script", [noise, too_long, frames_in_front])
async def test_what_breaks_the_protocol_ends_the_connection_and_says_so(script: Script) -> None:
    with pytest.raises(TransportError, match="BK_REMOTE_PROTOCOL") as told:
        await asked(script)
    assert isinstance(told.value.__cause__, RemoteProtocolError)


async def test_a_transport_that_is_closed_while_it_connects_leaves_nothing_behind() -> None:
    async with reached(silent) as transport:
        call = asyncio.ensure_future(transport.link("b1").bookie_info(deadline_s=10))
        await asyncio.sleep(0.05)
        await transport.close()
        with pytest.raises(TransportError):
            await call
        assert {task.get_name() for task in asyncio.all_tasks()} & {"Control b1"} == set()
