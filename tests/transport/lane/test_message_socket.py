# SPDX-License-Identifier: Apache-2.0
"""A socket that carries messages: nothing is lost where the system takes a part, and every end is told once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bk_core.errors import BookKeeperError, RemoteProtocolError
from bk_core.memory.slots import SLOT_BYTES_MIN, Slots
from bk_core.transport.lane import message_socket
from bk_core.transport.lane.message_socket import GONE, LATE, MessageSocket
from bk_core.wire.lane.direct_messages import Received
from bk_core.wire.lane.reasons import LaneMessage
from tests.kit.waiting import eventually

HEAD = struct.pack("<II", 50_000, 50_000)


class End:
    """One end: what came, what is to be sent, and what was told."""

    def __init__(self, sock: socket.socket, kind: Callable[..., MessageSocket] = MessageSocket) -> None:
        self.out: deque[LaneMessage] = deque()
        self.came: list[Received] = []
        self.told: list[str] = []
        self.error: BookKeeperError | None = None
        self.on_message: Callable[[Received], None] = lambda _: None
        self.socket = kind(
            sock,
            Slots(),
            receive=self._receive,
            next_message=lambda: self.out.popleft() if self.out else None,
            ended=self._ended,
            left=lambda: self.told.append("left"),
            stuck=lambda: self.told.append("stuck"),
        )

    def _receive(self, message: Received) -> None:
        self.came.append(message)
        self.on_message(message)

    def _ended(self, reason: str, error: BookKeeperError | None) -> None:
        self.told.append(reason)
        self.error = error

    def send(self, *messages: LaneMessage) -> None:
        self.out += messages
        self.socket.wake()


@contextlib.contextmanager
def pair() -> Iterator[tuple[End, End]]:
    ends = [End(sock) for sock in socket.socketpair()]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.socket.close()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_messages_go_both_ways_and_what_is_longer_than_the_system_takes_arrives() -> None:
    with pair() as (here, there):
        here.socket.read(True)
        there.socket.read(True)
        long = [bytes([k]) * 3_000_000 for k in range(5)]
        here.send(*[LaneMessage(b"rest %d" % k, [long[k], b"more"]) for k in range(5)])
        there.send(LaneMessage(b"short"))
        await eventually(lambda: len(there.came) == 5 and len(here.came) == 1)
        assert [bytes(message.frames or b"") for message in there.came] == [each + b"more" for each in long]
        assert [message.rest for message in there.came] == [b"rest %d" % k for k in range(5)]
        assert here.told[0] == "stuck"
        await eventually(lambda: here.told[-1] == "left")


async def test_what_is_queued_in_a_turn_leaves_at_its_end() -> None:
    with pair() as (here, there):
        there.socket.read(True)
        here.send(LaneMessage(b"a"))
        here.send(LaneMessage(b"b", [b"frame"]))
        assert len(here.out) == 2
        await turns()
        assert (len(here.out), here.told) == (0, ["left"])
        await eventually(lambda: len(there.came) == 2)


async def test_no_more_messages_are_asked_for_while_much_waits() -> None:
    with pair() as (here, there):
        here.send(*[LaneMessage(b"", [bytes(1 << 20)]) for _ in range(20)])
        await turns(50)
        assert len(here.out) >= 17, "they stay where they are bounded"
        there.socket.read(True)
        await eventually(lambda: len(there.came) == 20)


async def test_nothing_is_received_while_it_is_not_wanted() -> None:
    with pair() as (here, there):
        there.socket.read(True)
        here.send(LaneMessage(b"a"))
        await eventually(lambda: len(there.came) == 1)
        there.socket.read(False)
        here.send(LaneMessage(b"b"))
        await asyncio.sleep(0.05)
        assert len(there.came) == 1
        there.socket.read(True)
        await eventually(lambda: len(there.came) == 2)


async def test_a_message_that_stands_still_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 0.6)

    with pair() as (here, there):
        there.socket.read(True)
        here.socket.send_first(HEAD + b"half")
        await asyncio.sleep(0.3)
        assert there.socket.waiting_since < asyncio.get_running_loop().time()
        here.socket.send_first(b"more")
        await asyncio.sleep(0.35)
        assert not there.told, "it goes on"
        await eventually(lambda: LATE in there.told)
        assert there.told == [LATE]


PACKET = 1_400


@contextlib.contextmanager
def over_tcp() -> Iterator[tuple[socket.socket, End, list[int]]]:
    """A bare socket, an end, and how many bytes the end received each time."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        counted = Counted(server.accept()[0])
        end = End(counted)
        end.socket.read(True)
        try:
            yield bare, end, counted.sizes
        finally:
            end.socket.close()


class Counted(socket.socket):
    def __init__(self, sock: socket.socket) -> None:
        super().__init__(fileno=sock.detach())
        self.sizes: list[int] = []

    def recvmsg_into(self, *arguments: Any) -> Any:
        received = super().recvmsg_into(*arguments)
        self.sizes.append(received[0])
        return received


async def trickle(bare: socket.socket, data: bytes, pause_s: float = 0.0) -> None:
    for at in range(0, len(data), PACKET):
        bare.sendall(data[at : at + PACKET])
        await asyncio.sleep(pause_s)


async def test_the_packets_of_a_long_message_do_not_wake_the_receiver_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And each message is given when it is whole, whatever follows."""
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 60.0)  # which would look, too

    body = bytes(range(256)) * 2_000
    message = struct.pack("<II", len(body), 0) + body
    with over_tcp() as (bare, end, sizes):
        await trickle(bare, message)
        await eventually(lambda: len(end.came) == 1)
        bare.sendall(struct.pack("<II", 0, 1) + b"x")
        await eventually(lambda: len(end.came) == 2)
        assert bytes(end.came[0].frames or b"") == body
        assert end.came[1].rest == b"x"
        assert sum(sizes) == len(message) + 9
        assert len(sizes) < 20, f"of {len(message) // PACKET} packets"
        await trickle(bare, message[: len(message) // 2])
        bare.close()
        await eventually(lambda: GONE in end.told)


async def test_a_long_message_may_come_slowly_but_may_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 0.25)

    with over_tcp() as (bare, end, _):
        await trickle(bare, struct.pack("<II", 100_000, 0) + bytes(12 * PACKET), 0.07)
        assert not end.told, "three times the timeout, and never as much as would wake it"
        await eventually(lambda: LATE in end.told)
        assert end.told == [LATE]


async def test_who_does_not_read_waits_for_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_socket, "MESSAGE_TIMEOUT_S", 0.3)

    with pair() as (here, there):
        there.socket.read(True)
        here.socket.send_first(HEAD + b"half")
        await asyncio.sleep(0.05)
        there.socket.read(False)
        assert there.socket.waiting_since == math.inf
        await asyncio.sleep(0.4)
        there.socket.read(True)
        await asyncio.sleep(0.1)
        assert not there.told, "it could not go on meanwhile"
        await eventually(lambda: LATE in there.told)


async def test_the_end_of_the_other_side_is_told_once_behind_its_last_message() -> None:
    with pair() as (here, there):
        there.socket.read(True)
        here.send(LaneMessage(b"last", [bytes(100_000)]))
        await eventually(lambda: here.told == ["left"])
        here.socket.close()
        await eventually(lambda: GONE in there.told)
        assert len(there.came) == 1
        there.send(LaneMessage(b"too late"))
        await turns()
        assert there.told == [GONE]


async def test_a_connection_that_breaks_while_sending_is_told() -> None:
    with pair() as (here, there):
        there.socket.close()
        here.send(LaneMessage(b"a"))
        await eventually(lambda: bool(here.told))
        assert here.told != ["left"]
        assert len(here.told) == 1


async def test_an_error_of_the_receiver_ends_the_connection_and_nothing_behind_it_is_given() -> None:
    with pair() as (here, there):

        def refuse(message: Received) -> None:
            raise RemoteProtocolError("this is wrong", value=repr(message.rest))

        there.on_message = refuse
        there.socket.read(True)
        here.send(LaneMessage(b"a"), LaneMessage(b"b"))
        await eventually(lambda: there.error is not None)
        assert [message.rest for message in there.came] == [b"a"]
        assert len(there.told) == 1


async def test_a_receiver_may_close_the_connection() -> None:
    with pair() as (here, there):
        there.on_message = lambda _: there.socket.close()
        there.socket.read(True)
        here.send(LaneMessage(b"a"), LaneMessage(b"b"))
        await eventually(lambda: len(there.came) == 1)
        await turns()
        assert (len(there.came), there.told) == (1, [])


def test_a_slot_is_used_again_once_nobody_refers_to_any_part_of_it() -> None:
    slots = Slots()
    first = slots.take(100_000)
    first[:] = b"x" * 100_000
    kept = first[5:9]
    del first
    gc.collect()
    other = slots.take(100_000)
    other[:] = b"y" * 100_000
    assert bytes(kept) == b"xxxx"
    del kept
    gc.collect()
    again = slots.take(SLOT_BYTES_MIN + 1)
    assert bytes(again[:4]) == b"xxxx", "the first one"
    assert bytes(other[:4]) == b"yyyy"


def test_only_so_many_free_slots_are_kept() -> None:
    slots = Slots(free_bytes_max=2 * SLOT_BYTES_MIN)
    taken = [slots.take(1) for _ in range(5)]
    for k, each in enumerate(taken):
        each[:1] = bytes([k + 1])
    del taken[:2], each
    other = slots.take(4 * SLOT_BYTES_MIN)  # of another size; what came back is free now
    del taken
    gc.collect()
    first_bytes = sorted(bytes(slot[:1])[0] for slot in [slots.take(1) for _ in range(5)])
    assert (len(other), first_bytes.count(0)) == (4 * SLOT_BYTES_MIN, 3), "new ones are zero"
