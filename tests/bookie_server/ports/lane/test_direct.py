# SPDX-License-Identifier: Apache-2.0
"""The direct lane's server against clients that do not as they should: each is cut off in time, and others are
served."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bk_core.metadata import open_store
from bk_core.model import DIRECT
from bk_core.transport.lane import message_socket
from bk_core.transport.lane.messages import hello
from bk_core.wire.lane.direct_messages import preamble
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX
from bk_core.wire.lane.reasons import NAMED_TAKEN_MAX
from bk_core.wire.proto import lane_pb2
from bookie_server.machine.events import EntriesRequested, PauseStream, ResumeStream, SessionAttached
from bookie_server.main import Bookie
from bookie_server.ports import sockets
from bookie_server.ports.bounds.memory_bounds import MessageRoom
from bookie_server.ports.lane import direct as served
from bookie_server.ports.lane.streams import ADD_REST_BYTES_MAX, MESSAGE_BYTES_MAX_SHORT, AddStream
from tests.kit.direct_client import DirectClient, direct
from tests.kit.lanes import KEY, bookie_config, frame, lane_port, running_bookie
from tests.kit.waiting import eventually

REQUESTS: dict[str, Any] = {
    "Add": lane_pb2.AddRequest,
    "Read": lane_pb2.ReadRequest,
    "Control": lane_pb2.ControlRequest,
}
STREAMS = pytest.mark.parametrize("stream", list(REQUESTS))
MIB = 1 << 20


@asynccontextmanager
async def running(tmp_path: Path, **settings: Any) -> AsyncIterator[Bookie]:
    """A bookie. Behind it no stream is left, and a client is served."""
    async with running_bookie(tmp_path, 30, **settings) as (bookie, _):
        yield bookie
        await settled(bookie)
        async with direct(bookie, "Control") as client:
            await greet(client, bookie)
    assert not bookie._engine._streams


async def settled(bookie: Bookie) -> None:
    """Returns once the bookie has forgotten all streams."""
    await eventually(lambda: not (bookie._clients.streams or bookie._engine._streams))


async def greet(client: DirectClient, bookie: Bookie) -> None:
    client.send(REQUESTS[client.stream](hello=hello(bookie.bookie_id, "", "", "test")).SerializeToString())
    _, answer = await client.answer()
    assert answer.hello.bookie_id == bookie.bookie_id
    assert not answer.hello.reason


TOO_MUCH: dict[str, tuple[str, bytes]] = {
    "long": ("Add", lane_pb2.AddRequest(traceparent="x" * (ADD_REST_BYTES_MAX + 1)).SerializeToString()),
    "sessions": ("Add", lane_pb2.AddRequest(attach=[lane_pb2.Attach()] * (NAMED_TAKEN_MAX + 1)).SerializeToString()),
}


@pytest.mark.parametrize("what", TOO_MUCH)
async def test_a_message_that_is_much_work_ends_its_stream_before_the_work_is_done(what: str, tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        stream, message = TOO_MUCH[what]
        async with direct(bookie, stream) as client:
            await greet(client, bookie)
            client.send(message)
            assert await client.is_over(5)
        assert not bookie._engine.taken[SessionAttached]


def attached(ledger_id: int, frames: bytes) -> tuple[bytes, bytes]:
    attach = lane_pb2.Attach(session=1, ledger_id=ledger_id, ledger_key=KEY)
    return lane_pb2.AddRequest(attach=[attach]).SerializeToString(), frames


async def test_what_is_no_preamble_ends_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        for first in (b"GET / HTTP/1.1\r\n\r\n", b"bkdl\x09\x01\0\0", b"bkdl\x01\x07\0\0"):
            async with direct(bookie, "Add", first) as client:
                assert await client.is_over(5)


@pytest.mark.parametrize("first", [b"", b"bkd", None])
async def test_a_client_that_says_nothing_or_not_enough_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes | None
) -> None:
    monkeypatch.setattr(served, "HELLO_TIMEOUT_S", 0.2)

    async with running(tmp_path) as bookie, direct(bookie, "Add", first) as client:
        assert not await client.is_over(0.05)
        assert await client.is_over(5)


@pytest.mark.rule("L5")
@STREAMS
@pytest.mark.parametrize("sizes", [(MESSAGE_BYTES_MAX, 1), (0, 2**32 - 1)])
async def test_a_length_beyond_the_limit_ends_the_connection_at_once(
    tmp_path: Path, stream: str, sizes: tuple[int, int]
) -> None:
    async with running(tmp_path) as bookie, direct(bookie, stream) as client:
        await greet(client, bookie)
        client.writer.write(struct.pack("<II", *sizes) + b"x" * 100)
        assert await client.is_over(5)


@pytest.mark.rule("L5")
@pytest.mark.parametrize("stream", ["Read", "Control"])
@pytest.mark.parametrize(("rest", "frames"), [(MESSAGE_BYTES_MAX_SHORT + 1, 0), (0, 100)])
async def test_requests_are_short_and_carry_no_frames(tmp_path: Path, stream: str, rest: int, frames: int) -> None:
    async with running(tmp_path) as bookie, direct(bookie, stream) as client:
        await greet(client, bookie)
        client.send(b"\x0a" * rest, bytes(frames))
        assert await client.is_over(5)


@STREAMS
async def test_a_message_that_is_no_message_ends_the_connection(tmp_path: Path, stream: str) -> None:
    async with running(tmp_path) as bookie, direct(bookie, stream) as client:
        await greet(client, bookie)
        client.send(b"\xff" * 100)
        assert await client.is_over(5)


@STREAMS
@pytest.mark.parametrize("sent", [5, 20_000])
async def test_a_message_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str, sent: int
) -> None:
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 0.2)

    async with running(tmp_path) as bookie, direct(bookie, stream) as client, direct(bookie, stream) as idle:
        await greet(client, bookie)
        await greet(idle, bookie)
        client.writer.write(struct.pack("<II", 0, 50_000)[:sent] + bytes(max(0, sent - 8)))
        assert not await client.is_over(0.1)
        assert await client.is_over(5)
        assert not await idle.is_over(0.25), "a client that has nothing to say may be silent"


async def test_a_message_that_comes_slowly_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 0.3)

    async with running(tmp_path) as bookie, direct(bookie, "Add") as client:
        await greet(client, bookie)
        rest, frames = attached(7, frame(7, 0, [b"x" * 50_000], session=1))
        data = struct.pack("<II", len(frames), len(rest)) + frames + rest
        for at in range(0, len(data), 6_000):
            client.writer.write(data[at : at + 6_000])
            await asyncio.sleep(0.1)
        while not (said := (await client.answer())[1]).sessions:
            pass
        assert (list(said.sessions), list(said.frames)) == ([1], [1])


@pytest.mark.long
@pytest.mark.rule("L5")
async def test_long_messages_have_so_much_room_and_those_that_stand_still_make_place(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        (service,) = [each for each in bookie._services if isinstance(each, served.DirectServer)]
        service.room = MessageRoom(3 * MIB)
        async with contextlib.AsyncExitStack() as stack:
            still = [await stack.enter_async_context(direct(bookie, "Add")) for _ in range(6)]
            for each in still:
                await greet(each, bookie)
                each.writer.write(struct.pack("<II", 2 * MIB, 0) + bytes(MIB))
            await asyncio.sleep(0.2)
            assert sum(each.reading_since < math.inf for each in service.opened) == 1, "the others are not read"
            honest = await stack.enter_async_context(direct(bookie, "Add"))
            await greet(honest, bookie)
            honest.send(*attached(7, frame(7, 0, [b"x" * (2 * MIB)], session=1)))
            assert await still[0].is_over(3)
            while not (said := (await honest.answer())[1]).sessions:
                pass
            assert list(said.frames) == [1]
            assert not await honest.is_over(0.1)
            for each in still[1:]:
                assert each.writer.transport.get_write_buffer_size() == 0 or await each.is_over(5)


@pytest.mark.long
@pytest.mark.rule("L5")
async def test_long_messages_that_creep_make_place_when_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "CREEPING_S", 1.0)

    async with running(tmp_path) as bookie:
        (service,) = [each for each in bookie._services if isinstance(each, served.DirectServer)]
        service.room = MessageRoom(8 * MIB)
        async with direct(bookie, "Add") as creeps, direct(bookie, "Add") as honest:
            await greet(creeps, bookie)
            await greet(honest, bookie)
            creeps.writer.write(struct.pack("<II", 7 * MIB, 0) + bytes(200_000))
            over = asyncio.ensure_future(creeps.is_over(5))
            await asyncio.sleep(0.1)
            honest.send(*attached(7, frame(7, 0, [b"x" * (2 * MIB)], session=1)))
            while not over.done():
                creeps.writer.write(bytes(message_socket.WAKE_BYTES // 4))
                await asyncio.sleep(0.05)
            assert await over
            while not (said := (await honest.answer())[1]).sessions:
                pass
            assert list(said.frames) == [1]


async def many_entries(bookie: Bookie, ledger_id: int, count: int, size: int) -> None:
    async with direct(bookie, "Add") as client:
        await greet(client, bookie)
        client.send(*attached(ledger_id, frame(ledger_id, 0, [b"%05d" % 0 + bytes(size)], session=1)))
        for k in range(1, count):
            client.send(frames=frame(ledger_id, k, [b"%05d" % k + bytes(size)], session=1))
        acked = 0
        while acked < count:
            acked = max([acked, *(await client.answer())[1].frames])


def lone_read(number: int, entry_id: int, **more: Any) -> bytes:
    asked = lane_pb2.ReadRequest(id=number, ledger_id=7, first_entry_id=entry_id, last_entry_id=entry_id, **more)
    rest = asked.SerializeToString()
    return struct.pack("<II", 0, len(rest)) + rest


async def read_alone(client: DirectClient, entry_ids: Iterable[int]) -> None:
    """Read these entries one by one. Then the bookie has their segment open."""
    for entry_id in entry_ids:
        client.writer.write(lone_read(1000 + entry_id, entry_id))
        assert (await client.answer())[1].trailer.answered_through == entry_id


@asynccontextmanager
async def reading_alone(bookie: Bookie, entries: int) -> AsyncIterator[DirectClient]:
    """A client whose bookie has these entries, and their segment open."""
    await many_entries(bookie, 7, entries, 100)
    async with direct(bookie, "Read") as client:
        await greet(client, bookie)
        await read_alone(client, range(entries))
        yield client


async def test_reads_of_single_entries_that_arrive_together_are_answered_together(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        async with reading_alone(bookie, 5) as client:
            before = bookie._engine.taken[EntriesRequested]
            client.writer.write(b"".join(lone_read(k + 1, k) for k in (4, 0, 2)) + lone_read(9, 77))
            answers = [await client.answer() for _ in range(4)]
            assert bookie._engine.taken[EntriesRequested] == before + 1
        found = {said.id: (frames[-105:-100], said.trailer.answered_through) for frames, said in answers}
        assert found == {5: (b"00004", 4), 1: (b"00000", 0), 3: (b"00002", 2), 9: (b"", 77)}
        assert [said.trailer.absent[0].first_entry_id for _, said in answers if said.id == 9] == [77]
        await eventually(lambda: not bookie._engine.numbers().parts)


async def test_a_read_that_is_cancelled_in_the_same_burst_is_not_answered_and_holds_no_room(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie, reading_alone(bookie, 2) as client:
        cancel = lane_pb2.ReadRequest(cancel=[1]).SerializeToString()
        client.writer.write(lone_read(1, 0) + lone_read(2, 1) + struct.pack("<II", 0, len(cancel)) + cancel)
        client.writer.write(lone_read(3, 0))
        assert {(await client.answer())[1].id for _ in range(2)} == {2, 3}
        await eventually(lambda: not bookie._engine.numbers().parts)


async def test_a_stream_that_breaks_the_rules_behind_its_reads_leaves_nothing(tmp_path: Path) -> None:
    """The reads that came in the same burst are not given to the machine once it has forgotten the stream."""
    async with running(tmp_path) as bookie:
        async with reading_alone(bookie, 2) as client:
            client.writer.write(lone_read(1, 0) + lone_read(2, 1) + struct.pack("<II", 0, 3) + b"no!")
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await client.answer()
        await settled(bookie)
        assert bookie._engine.numbers().parts == 0


async def test_more_reads_than_the_machine_takes_at_once_are_all_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie, reading_alone(bookie, 2) as client:
        before = bookie._engine.taken[EntriesRequested]
        client.writer.write(b"".join(lone_read(k + 1, k % 2) for k in range(150)))
        assert {(await client.answer())[1].id for _ in range(150)} == set(range(1, 151))
        assert bookie._engine.taken[EntriesRequested] >= before + 3


async def test_a_client_that_takes_nothing_is_cut_off_and_others_read_on(tmp_path: Path) -> None:
    async with running(tmp_path, read_stall_s=0.3, reads_active_max=4) as bookie:
        await many_entries(bookie, 7, 40, MIB)
        ask = lane_pb2.ReadRequest(id=1, ledger_id=7, first_entry_id=0, last_entry_id=39, bytes_max=64 * MIB)
        lazy = []
        for _ in range(4):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", lane_port(bookie, DIRECT)))
            asked = REQUESTS["Read"](hello=hello(bookie.bookie_id, "", "", "test"))
            asked.MergeFrom(ask)
            data = asked.SerializeToString()
            sock.sendall(preamble("Read") + struct.pack("<II", 0, len(data)) + data)
            lazy.append(sock)
        async with direct(bookie, "Read") as client:
            await greet(client, bookie)
            client.send(ask.SerializeToString())
            size = 0
            async with asyncio.timeout(8):
                while not (said := await client.answer())[1].HasField("trailer"):
                    size += len(said[0])
            assert size + len(said[0]) > 40 * MIB
        for sock in lazy:
            sock.close()


@pytest.mark.rule("L5")
async def test_a_stream_that_is_paused_is_not_read(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie, direct(bookie, "Add") as client:
        await greet(client, bookie)
        (stream,) = bookie._engine._streams.values()
        stream.deliver(PauseStream(stream.stream))
        for _ in range(40):
            client.send(frames=bytes(MIB))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.writer.drain()
        stream.deliver(ResumeStream(stream.stream))
        await client.is_over(5)  # the bookie reads the frames now, and answers


async def test_no_more_clients_are_taken_than_allowed(tmp_path: Path) -> None:
    async with (
        running(tmp_path, connections_max=2, connections_per_address_max=2) as bookie,
        direct(bookie, "Add") as first,
        direct(bookie, "Read") as second,
    ):
        await greet(first, bookie)
        await greet(second, bookie)
        async with direct(bookie, "Control") as third:
            assert await third.is_over(0.5), "at once, not when somebody counts"


async def test_a_bookie_without_files_for_a_connection_accepts_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_ACCEPT_AGAIN_S", 0.2)

    async with running(tmp_path) as bookie:
        (service,) = [each for each in bookie._services if isinstance(each, served.DirectServer)]
        calls: list[int] = []

        class Full:
            """A listening socket of a process that may open no more files."""

            def __getattr__(self, name: str) -> Any:
                return getattr(listening, name)

            def accept(self) -> Any:
                calls.append(1)
                if len(calls) == 1:
                    raise OSError(errno.EMFILE, "too many open files")
                return listening.accept()

        listening = service.acceptor._sockets[0]
        asyncio.get_running_loop().add_reader(listening, service.acceptor.accept, Full())
        async with direct(bookie, "Add") as client:
            await asyncio.sleep(0.1)
            assert len(calls) == 1, "it does not ask again and again"
            await greet(client, bookie)


async def test_a_bookie_that_stops_answers_what_it_took_and_ends_the_streams(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    bookie = await Bookie.start(bookie_config(tmp_path, uri), open_store(uri), init_cluster=True)
    async with direct(bookie, "Add") as client, direct(bookie, "Add", b"bkd"):
        await greet(client, bookie)
        client.send(*attached(7, frame(7, 0, [b"x"], session=1)))
        while not (said := (await client.answer())[1]).sessions:
            pass
        assert list(said.frames) == [1]
        async with asyncio.timeout(10):
            await bookie.stop()
        assert await client.is_over(5)
    assert not bookie._engine._streams


async def test_an_exception_ends_its_stream_alone_and_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take(self: AddStream, rest: bytes, frames: memoryview | None) -> None:
        raise ZeroDivisionError("made to fail")

    monkeypatch.setattr(AddStream, "take", take)

    async with running(tmp_path) as bookie, direct(bookie, "Add") as client:
        client.send(lane_pb2.AddRequest(hello=hello(bookie.bookie_id, "", "", "test")).SerializeToString())
        await client.reader.read()  # until the end
    assert "ZeroDivisionError: made to fail" in caplog.text, "with its traceback"
