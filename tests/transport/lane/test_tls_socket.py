# SPDX-License-Identifier: Apache-2.0
"""Messages over TLS: nothing is lost where the system takes a part or OpenSSL has decrypted more than was taken."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from bk_core.access.tls import Tls
from bk_core.errors import TlsError
from bk_core.transport.lane.message_socket import GONE, TURN_BYTES_MAX
from bk_core.transport.lane.tls_socket import PIECE_BYTES, TlsMessageSocket, TlsSocket, exactly, shake_hands
from bk_core.wire.lane.reasons import LaneMessage
from tests.kit.certificates import Authority
from tests.kit.waiting import eventually
from tests.transport.lane.test_message_socket import End, turns


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Authority(tmp_path).issue("both").tls()


async def secured(tls: Tls, sizes: int = 0) -> tuple[TlsSocket, TlsSocket]:
    """Both ends of a connection; ``sizes`` is about what the system keeps of it."""
    plain = socket.socketpair()
    for each in plain:
        each.setblocking(False)
        if sizes:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sizes)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, sizes)
    client = TlsSocket(plain[0], tls.client(), server_hostname="localhost")
    server = TlsSocket(plain[1], tls.server(), server_side=True)
    await asyncio.gather(shake_hands(client), shake_hands(server, asyncio.Lock()))
    return client, server


@contextlib.asynccontextmanager
async def pair(tls: Tls, sizes: int = 0) -> AsyncIterator[tuple[End, End]]:
    ends = [End(sock, TlsMessageSocket) for sock in await secured(tls, sizes)]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.socket.close()


def messages(count: int, seed: int) -> list[LaneMessage]:
    """Of every size that matters: none, those around a record, those around a piece, and longer than a turn's."""
    chance = random.Random(seed)
    sizes = [0, 1, 16_375, 16_384, 16_385, PIECE_BYTES - 8, PIECE_BYTES + 1, TURN_BYTES_MAX + 5]
    made = []
    for n in range(count):
        size = sizes[n] if n < len(sizes) else chance.choice([chance.randrange(200), chance.randrange(400_000)])
        made.append(LaneMessage(chance.randbytes(chance.randrange(1, 50)), [chance.randbytes(size)] if size else []))
    return made


@pytest.mark.parametrize("sizes", [0, 4096])
async def test_messages_of_every_size_come_as_they_went_whatever_the_system_takes(sizes: int, tls: Tls) -> None:
    async with pair(tls, sizes) as (one, other):
        there, back = messages(30, 1), messages(30, 2)
        one.send(*there)
        other.send(*back)
        for end in (one, other):
            end.socket.read(True)
        await eventually(lambda: len(one.came) == 30 and len(other.came) == 30)
        for end, went in ((other, there), (one, back)):
            for came, sent in zip(end.came, went, strict=True):
                assert (bytes(came.frames or b""), came.rest) == (b"".join(sent.frames), sent.rest)
        assert GONE not in one.told + other.told


async def test_what_openssl_has_decrypted_is_taken_although_nothing_more_comes(tls: Tls) -> None:
    """Two short messages in one record; the reader stops behind the first, and goes on later."""

    async with pair(tls) as (one, other):
        other.on_message = lambda _: other.socket.read(False)
        body = bytes(30_000)

        def has_come(wanted: int) -> bool:
            return len(other.came) >= wanted

        one.send(*(LaneMessage(bytes([n]), [body]) for n in range(3)))
        for wanted in (1, 2, 3):
            other.socket.read(True)
            await eventually(partial(has_come, wanted))
        assert [came.rest for came in other.came] == [b"\0", b"\1", b"\2"]


async def test_bytes_behind_the_preamble_that_came_in_its_record_are_not_lost(tls: Tls) -> None:
    client, server = await secured(tls)
    client.send(b"preamble" + b"\0\0\0\0\3\0\0\0abc")
    assert await exactly(server, 8) == b"preamble"
    end = End(server, TlsMessageSocket)
    end.socket.read(True)
    await eventually(lambda: bool(end.came))
    assert end.came[0].rest == b"abc"
    end.socket.close()
    client.close()


async def test_a_peer_that_goes_ends_the_connection_once_with_what_it_sent_before(tls: Tls) -> None:
    async with pair(tls) as (one, other):
        one.send(LaneMessage(b"last"))
        await turns()
        one.socket.close()
        other.socket.read(True)
        await eventually(lambda: GONE in other.told)
        assert [came.rest for came in other.came] == [b"last"]
        assert other.told.count(GONE) == 1


async def test_a_changed_byte_ends_the_connection_and_no_message_comes_of_it(tls: Tls) -> None:
    client, server = await secured(tls)
    end = End(server, TlsMessageSocket)
    end.socket.read(True)
    client.plain.send(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that the client has not sealed
    await eventually(lambda: end.error is not None)
    client.close()
    assert isinstance(end.error, TlsError)
    assert end.came == []
