# SPDX-License-Identifier: Apache-2.0
"""What clients may hold of a bookie beside its machine: counts, the watch over memory, a connection ended from below,
answers of the control stream that nobody takes."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.errors import RemoteProtocolError
from bk_core.transport.lane.messages import hello
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX
from bk_core.wire.lane.reasons import NAMED_TAKEN_MAX, Reason
from bk_core.wire.proto import lane_pb2
from bookie_server.machine import events as ev
from bookie_server.ports.bounds.hang_up import connected, hang_up
from bookie_server.ports.bounds.memory_bounds import (
    AnswerRoom,
    MemoryWatch,
    MessageRoom,
    connections_allowed,
    group_limits,
    memory_bytes_usable,
    raise_files_max,
    resident_bytes,
)
from bookie_server.ports.lane.control_stream import ControlStream
from bookie_server.ports.lane.streams import AddStream, BookieFacts, LaneStream, ReadStream

MIB = 1 << 20


class Engine:
    """Hears what streams feed it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def open_stream(self, stream: object) -> int:
        return 1

    def close_stream(self, stream: int) -> None: ...

    def feed(self, event: Any) -> None:
        self.heard.append(event)

    def at_burst_end(self, call: Callable[[], None]) -> None:
        self.end_burst = call


def opened(kind: type[LaneStream], room: AnswerRoom | None = None) -> Any:
    """A stream whose client has said hello, and was answered."""
    facts = BookieFacts(
        bookie_id="b1",
        instance_id="i",
        incarnation="1",
        in_flight_bytes_max=1,
        read_only=lambda: False,
        answers=room or AnswerRoom(),
    )
    stream: Any = kind(Engine(), facts)
    request = {AddStream: lane_pb2.AddRequest, ReadStream: lane_pb2.ReadRequest}.get(kind, lane_pb2.ControlRequest)
    stream.receive(request(hello=hello("b1", "", "", "test")).SerializeToString())
    assert stream.next_message()
    stream.message_left()
    return stream


def evidence(size: int, lac_size: int = 0) -> LacEvidence:
    return LacEvidence(0, bytes(size), b"", bytes(lac_size), False, True)


def answer(stream: Any) -> lane_pb2.ControlResponse:
    return lane_pb2.ControlResponse.FromString(stream.next_message().rest)


# --- counts ---


def test_connections_leave_files_to_storage() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
        assert connections_allowed(1024, 256) == 744
        assert connections_allowed(10, 256) == 10
        assert connections_allowed(10, 5000) == 1
        raise_files_max()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 16), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- memory ---


def test_memory_watch_sheds_above_its_bound_and_not_for_what_stays_taken() -> None:
    watch = MemoryWatch(1000 * MIB)
    assert not watch.shed(1000 * MIB)
    assert watch.shed(1001 * MIB)
    watch.has_shed(990 * MIB)
    assert not watch.shed(1050 * MIB), "it comes back to what it was"
    assert watch.shed(1055 * MIB)
    watch.has_shed(1300 * MIB)  # nothing helped
    assert not watch.shed(1310 * MIB)
    assert watch.shed(1365 * MIB)
    assert not watch.shed(870 * MIB)
    assert watch.shed(1001 * MIB), "it was well below its bound"


def test_memory_watch_does_not_shed_again_and_again_where_memory_goes_up_and_down_at_its_bound() -> None:
    watch, sheds = MemoryWatch(1000 * MIB), 0
    for taken in [1020, 980, 1010, 940] * 10:
        if watch.shed(taken * MIB):
            sheds += 1
            watch.has_shed(980 * MIB)
    assert sheds == 1


@pytest.mark.parametrize(
    ("told", "limits"),
    [
        ("0::/\n", {"memory.max": "900"}),
        ("0::/system.slice/bookie.service\n", {"system.slice/bookie.service/memory.max": "900", "memory.max": "max"}),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "900"}),
        ("5:cpu:/x\n4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": "900", "x/memory.max": "1"}),
    ],
    ids=["own", "service", "around", "older"],
)
def test_memory_limit_is_the_least_of_the_control_groups(tmp_path: Path, told: str, limits: dict[str, str]) -> None:
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "told").write_text(told)
    assert min(group_limits(tmp_path / "told", tmp_path)) == 900
    assert min(group_limits(tmp_path / "none", tmp_path)) > 1 << 60


def test_memory_is_told_by_the_system() -> None:
    assert 10 * MIB < resident_bytes() < memory_bytes_usable()


# --- long messages ---


class Waiter:
    def __init__(self) -> None:
        self.goes_on = 0

    def go_on(self) -> None:
        self.goes_on += 1


def test_long_messages_wait_for_room_in_their_order() -> None:
    room, (a, b, c, d) = MessageRoom(10), [Waiter() for _ in range(4)]
    assert room.take(a, 8)
    assert not room.take(b, 5)
    assert not room.take(c, 1), "there is room, but nobody overtakes"
    assert room.is_short()
    room.give_back(a)
    assert (b.goes_on, c.goes_on, room.is_short()) == (1, 1, False)
    assert not room.take(d, 5)
    room.give_back(d)  # it is gone
    assert not room.is_short()
    assert room.take(b, 9), "its next message, instead of the one that came"
    assert (a.goes_on, b.goes_on, d.goes_on) == (0, 1, 0)


# --- a connection ended from below ---


def test_hang_up_ends_that_connection_and_no_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        ends = [server.accept()[0] for _ in clients]
        assert hang_up(f"ipv4:127.0.0.1:{clients[0].getsockname()[1]}", port)
        assert clients[0].recv(1) == b""
        ends[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        assert not hang_up("ipv4:127.0.0.1:1", port)
        assert not hang_up("unix:/somewhere", port)
        for one in (*clients, *ends):
            one.close()


def test_hang_up_knows_connections_from_one_port_to_several() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [server.getsockname()[1] for server in (one, other)]
        first, second = clients = socket.socket(), socket.socket()
        mine = ("127.0.0.1", 0)  # bound, so that the system gives this port to no other socket
        for client, port in zip(clients, ports, strict=True):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(mine)
            mine = client.getsockname()
            client.connect(("127.0.0.1", port))
        ends = [server.accept()[0] for server in (one, other)]
        assert hang_up(f"ipv4:127.0.0.1:{first.getsockname()[1]}", ports[1])
        assert second.recv(1) == b""
        ends[0].sendall(b"x")
        assert first.recv(1) == b"x"
        for each in (first, second, *ends):
            each.close()


def test_only_connections_to_the_ports_that_are_asked_for_are_counted() -> None:
    """The others are the process's own: to the metadata store, or of another bookie in it."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [server.getsockname()[1] for server in (one, other)]
        mine = [socket.create_connection(("127.0.0.1", port)) for port in ports]
        ends = [server.accept()[0] for server in (one, other)]
        came = [("127.0.0.1", client.getsockname()[1], port) for client, port in zip(mine, ports, strict=True)]
        assert connected(ports[:1]) == came[:1]
        assert set(connected(ports)) == set(came)
        for each in (*mine, *ends):
            each.close()


def test_hang_up_finds_an_ipv4_client_of_a_port_that_listens_on_ipv6() -> None:
    """gRPC names it by its IPv4 address, the system by that address written as IPv6."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        end = server.accept()[0]
        assert end.getpeername()[0] == "::ffff:127.0.0.1"
        assert hang_up(f"ipv4:127.0.0.1:{client.getsockname()[1]}", port)
        assert client.recv(1) == b""
        client.close()
        end.close()


# --- answers that nobody takes ---


async def test_control_stream_is_not_read_on_while_its_answers_wait() -> None:
    stream = opened(ControlStream)
    for number in range(3):
        stream.deliver(ev.SendLac((1, number), evidence(2 * MIB)))
    assert not stream.flows
    stream.next_message()
    stream.message_left()
    assert not stream.flows
    stream.next_message()
    stream.next_message()
    stream.message_left()
    assert stream.flows


async def test_what_watches_are_told_meanwhile_is_refused_and_fences_have_a_share_of_their_own() -> None:
    room = AnswerRoom(100 * MIB)
    stream = opened(ControlStream, room)
    for number in range(12):
        stream.deliver(ev.SendLac((1, number), evidence(2 * MIB)))
    said = [answer(stream).reason for _ in range(12)]
    assert said[:8] == [0] * 8
    assert said[-1] == lane_pb2.OVERLOADED
    room.bytes = 101 * MIB  # of others
    fence = lane_pb2.ControlRequest(id=20, fence=lane_pb2.FenceRequest(ledger_id=1, ledger_key=b"k"))
    stream.receive(fence.SerializeToString())
    for number in (20, 21):
        stream.deliver(ev.SendLac((1, number), evidence(MIB)))
    assert [answer(stream).reason for _ in range(2)] == [0, lane_pb2.OVERLOADED]


async def test_stream_that_ends_gives_back_the_room_of_its_answers() -> None:
    room = AnswerRoom()
    stream = opened(ControlStream, room)
    stream.deliver(ev.SendLac((1, 1), evidence(MIB)))
    assert room.bytes > MIB
    stream.end()
    assert room.bytes == 0


async def test_a_stream_that_ends_takes_its_deadlines_along() -> None:
    stream = opened(ControlStream)
    asked = lane_pb2.ControlRequest(id=7, deadline_ms=1, read_lac=lane_pb2.ReadLacRequest(ledger_id=1))
    stream.receive(asked.SerializeToString())
    stream.end()
    await asyncio.sleep(0.05)
    assert [type(event) for event in stream.engine.heard] == [ev.ReadLacRequested]


async def test_a_cancelled_read_gives_back_its_turn() -> None:
    stream = opened(ReadStream)
    stream.deliver(ev.SendPart((1, 5), [b"part"]))
    stream.deliver(ev.SendPart((1, 6), [b"of another"]))
    stream.receive(lane_pb2.ReadRequest(cancel=[5]).SerializeToString())
    assert stream.engine.heard == [ev.RequestCancelled((1, 5)), ev.PartSent((1, 5))]
    assert stream.next_message().frames == [b"of another"]


def lone_read(number: int, entry_id: int) -> bytes:
    asked = lane_pb2.ReadRequest(id=number, ledger_id=7, first_entry_id=entry_id, last_entry_id=entry_id)
    return asked.SerializeToString()


async def test_reads_of_one_burst_are_given_to_the_machine_together_unless_their_stream_has_ended() -> None:
    for ends in (False, True):
        stream = opened(ReadStream)
        stream.receive(lone_read(5, 50))
        stream.receive(lone_read(6, 60))
        assert stream.engine.heard == []
        if ends:
            stream.end()
        stream.engine.end_burst()
        assert stream.engine.heard == ([] if ends else [ev.EntriesRequested(1, (5, 6), (7, 7), (50, 60))])


async def test_answers_of_one_entry_count_until_they_are_written_and_a_cancelled_one_gives_back_its_turn() -> None:
    stream = opened(ReadStream)
    stream.deliver(ev.SendEntries(1, [5, 6, 7], [50, 60, 70], [b"a", b"b", b"c"], [False, False, True], [0, 0, 0]))
    assert stream.waiting == 3
    stream.receive(lane_pb2.ReadRequest(cancel=[6]).SerializeToString())
    assert stream.engine.heard == [ev.RequestCancelled((1, 6)), ev.PartSent((1, 6))]
    assert stream.waiting == 2
    for number, entry_id, frame, fenced in ((5, 50, b"a", False), (7, 70, b"c", True)):
        message = stream.next_message()
        trailer = lane_pb2.ReadTrailer(answered_through=entry_id, fenced=fenced)
        assert lane_pb2.ReadResponse.FromString(message.rest) == lane_pb2.ReadResponse(id=number, trailer=trailer)
        assert list(message.frames) == [frame]
    assert (stream.waiting, stream.next_message()) == (0, None)
    stream.message_left()
    stream.message_left()
    assert stream.engine.heard[2:] == [ev.EntriesSent(1, 2)]


async def test_many_cancels_look_through_what_waits_once() -> None:
    """Else one message holds up all clients for minutes."""
    stream = opened(ReadStream)
    waiting = [ev.SendTrailer((1, number), ReadTrailer(0)) for number in range(1, 4001)]
    for each in waiting:
        stream.deliver(each)
    kept: list[object] = []
    keep = stream._keep

    def counted(each: ev.SendTrailer) -> None:
        kept.append(each)
        keep(each)

    stream._keep = counted
    stream.receive(lane_pb2.ReadRequest(cancel=[*range(4000, 1, -1), *([2] * 4000)]).SerializeToString())
    assert kept == waiting[:1]
    assert len(stream.engine.heard) == 3999
    assert stream.waiting == 1


async def test_no_more_grants_are_looked_at_than_a_message_may_show() -> None:
    for kind, request in ((AddStream, lane_pb2.AddRequest), (ControlStream, lane_pb2.ControlRequest)):
        stream = opened(kind)
        shown: list[int] = []
        stream.gate = SimpleNamespace(show=lambda grants, shown=shown: shown.append(len(grants)))
        stream.receive(request(grants=[b""] * NAMED_TAKEN_MAX).SerializeToString())
        with pytest.raises(RemoteProtocolError):
            stream.receive(request(grants=[b""] * (NAMED_TAKEN_MAX + 1)).SerializeToString())
        assert shown == [NAMED_TAKEN_MAX]


async def test_evidence_of_two_large_entries_fits_a_message() -> None:
    """Else the ledger could not be fenced: its answer could not be sent."""
    stream = opened(ControlStream)
    stream.deliver(ev.SendLac((1, 1), evidence(5 * MIB - 1024, 5 * MIB - 1024)))
    message = stream.next_message().rest
    assert len(message) <= MESSAGE_BYTES_MAX
    assert len(lane_pb2.ControlResponse.FromString(message).lac.last_entry_frame) == 5 * MIB - 1024


async def test_read_stream_is_not_read_on_while_its_trailers_wait() -> None:
    stream = opened(ReadStream)
    for number in range(ReadStream.waiting_max + 1):
        stream.deliver(ev.SendTrailer((1, number), ReadTrailer(0)))
    assert not stream.flows
    while stream.next_message():
        stream.message_left()
    assert stream.flows


async def test_ends_of_many_sessions_leave_in_several_messages_and_hold_the_stream_up() -> None:
    stream = opened(AddStream)
    ends = [ev.Ended(number, 0, Reason.STORAGE_FAILED, "x" * 100) for number in range(1, 100_000)]
    stream.deliver(ev.SendAcks(1, [], [], ends))
    assert not stream.flows
    told = 0
    while message := stream.next_message():
        assert len(message.rest) < MESSAGE_BYTES_MAX
        told += len(lane_pb2.AddResponse.FromString(message.rest).ended)
        stream.message_left()
    assert told == len(ends)
    assert stream.flows


async def test_stream_is_read_on_only_if_the_machine_and_its_answers_allow() -> None:
    stream = opened(ControlStream)
    stream.deliver(ev.PauseStream(1))
    assert not stream.flows
    stream.message_left()
    assert not stream.flows
    stream.deliver(ev.ResumeStream(1))
    assert stream.flows


# --- clients that take nothing ---


async def test_stalled_stream_is_told_to_the_machine_and_cut_when_it_says_so() -> None:
    stream, cuts = opened(ReadStream), []
    stream.on_cut = lambda: cuts.append(1)
    stream.stall()
    assert stream.engine.heard == [ev.StreamStalled(1)]
    assert not cuts
    stream.deliver(ev.CloseStream(1, "others wait"))
    assert cuts == [1]
    assert stream.was_cut


async def test_stream_that_writes_on_is_not_cut_when_it_is_told_to_end() -> None:
    stream, cuts = opened(ReadStream), []
    stream.on_cut = lambda: cuts.append(1)
    stream.stall()
    stream.message_left()
    stream.deliver(ev.CloseStream(1, "the bookie stops"))
    assert stream.closing
    assert not cuts


async def test_message_without_frames_that_is_far_too_long_ends_the_stream() -> None:
    for kind, request in ((ReadStream, lane_pb2.ReadRequest), (ControlStream, lane_pb2.ControlRequest)):
        stream = opened(kind)
        with pytest.raises(RemoteProtocolError):
            stream.receive(request(id=1, hello=lane_pb2.Hello(client="x" * (300 << 10))).SerializeToString())
