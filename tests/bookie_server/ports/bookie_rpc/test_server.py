# SPDX-License-Identifier: Apache-2.0
"""The port of Apache's wire of a real bookie: what it publishes, hostile clients, bounds, the end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_core.entries.apache import entry_headers_of
from bk_core.entries.batch import EntryBatch
from bk_core.model import BOOKIE_RPC
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import AnswerReader
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX
from bk_core.wire.bookie_rpc.runs import AddAnswers, ReadAnswers
from bookie_server.main import Bookie
from bookie_server.ports.bookie_rpc import server
from tests.kit.apache_frames import entry_bytes
from tests.kit.bookie_requests import add_requests
from tests.kit.lanes import KEY, digester, running_bookie

DEADLINE_S = 20.0


def bodies(ledger_id: int, payloads: list[bytes], first: int = 0) -> Bodies:
    made = EntryBatch.from_list(payloads)
    entries = entry_bytes(
        EntryBatch(
            lengths=made.lengths,
            payload=made.payload,
            ledger_id=ledger_id,
            first_entry_id=first,
            lac=first - 1,
            length_before=0,
        ),
        digester(ledger_id),
    )
    return Bodies.of_entries(b"".join(entries), np.array(list(map(len, entries)), dtype=np.int64))


def adds(ledger_id: int, payloads: list[bytes], first: int = 0, wire: Any = v3) -> bytes:
    ids = np.arange(first, first + len(payloads), dtype=np.int64)
    return b"".join(map(bytes, add_requests(wire, ids, ledger_id, ids, KEY, bodies(ledger_id, payloads, first))))


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.reader, self.writer = reader, writer
        self._answers, self._rest = AnswerReader(version), b""

    async def items(self, count: int) -> list[Any]:
        """Answers until so many have come, counting each of a run."""
        found: list[Any] = []
        while sum(len(each) if isinstance(each, (AddAnswers, ReadAnswers)) else 1 for each in found) < count:
            data = await asyncio.wait_for(self.reader.read(1 << 20), DEADLINE_S)
            assert data, "the bookie closed the connection"
            self._rest += data
            read = self._answers.read(self._rest)
            assert read.fault is None
            self._rest = self._rest[read.used :]
            found += read.items
        return found

    async def is_closed(self) -> bool:
        try:
            while await asyncio.wait_for(self.reader.read(1 << 20), DEADLINE_S):
                pass
        except ConnectionError:
            pass
        return True


@asynccontextmanager
async def running(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Bookie, Callable[..., Awaitable[Peer]]]]:
    async with running_bookie(tmp_path, **settings) as (bookie, store), AsyncExitStack() as stack:

        async def connect(version: int = 3) -> Peer:
            (info,) = store.writable_bookies().values()
            endpoint = info.endpoint(BOOKIE_RPC)
            peer = Peer(*await asyncio.open_connection(endpoint.host, endpoint.port), version)
            stack.callback(peer.writer.close)
            return peer

        yield bookie, connect


async def test_the_bookie_publishes_its_ports_and_its_id_has_that_of_apaches_wire(tmp_path: Path) -> None:
    async with running(tmp_path) as (bookie, _connect):
        ports = {service.endpoint("h").protocol: service.port for service in bookie._services}
        assert bookie.bookie_id == f"127.0.0.1:{ports[BOOKIE_RPC]}"
        assert len(set(ports.values())) == 3


HOSTILE = {
    "a frame that is too long": struct.pack(">I", FRAME_BYTES_MAX - 3),
    "a negative length": b"\xff\xff\xff\xff",
    "no message of any version": struct.pack(">I", 8) + b"\x99" * 8,
    "an operation that is none": struct.pack(">Iiqq", 20, 2 << 24 | 6 << 16, 1, 0),
    "an add without its ids": struct.pack(">Ii", 32, 2 << 24 | 1 << 16) + KEY + bytes(8),
    "HTTP": b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
}


@pytest.mark.rule("L5")
@pytest.mark.parametrize("name", HOSTILE)
async def test_what_cannot_be_a_request_closes_the_connection_and_others_are_served(name: str, tmp_path: Path) -> None:
    async with running(tmp_path) as (_bookie, connect):
        other = await connect()
        for before in (b"", adds(3, [b"one"])):
            peer = await connect()
            peer.writer.write(before + HOSTILE[name])
            assert await peer.is_closed()
        other.writer.write(adds(7, [b"a"]))
        (run,) = await other.items(1)
        assert run.statuses.tolist() == [0]


@pytest.mark.rule("L5")
async def test_a_frame_that_never_ends_costs_no_more_than_what_came(tmp_path: Path) -> None:
    async with running(tmp_path) as (bookie, connect):
        peer = await connect()
        peer.writer.write(struct.pack(">I", FRAME_BYTES_MAX - 4) + bytes(100_000))
        await peer.writer.drain()
        await asyncio.sleep(0.2)
        (socket,) = bookie._services[0]._open
        assert len(socket._buffer) <= 4 * 100_000
        (stream,) = bookie._clients.streams
        assert stream.reading_since < asyncio.get_running_loop().time(), "it is silent when memory is short"
        stream.cut("memory is short")
        assert await peer.is_closed()


async def test_who_sends_a_frame_byte_by_byte_is_silent_when_memory_is_short(tmp_path: Path) -> None:
    async with running(tmp_path, memory_bytes_max=1) as (bookie, connect):
        slow, other = await connect(), await connect()
        slow.writer.write(adds(7, [b"a"]) + struct.pack(">I", FRAME_BYTES_MAX - 4))
        await slow.items(1)
        ended = asyncio.ensure_future(slow.is_closed())
        async with asyncio.timeout(10):
            while not ended.done():
                slow.writer.write(b"x")
                other.writer.write(adds(8, [b"a"]))  # whole messages, as slowly
                await other.items(1)
                await asyncio.sleep(0.05)
        assert await ended
        assert len(bookie._clients.streams) == 1


async def test_who_says_nothing_is_cut_off_and_who_has_spoken_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HELLO_TIMEOUT_S", 0.3)

    async with running(tmp_path) as (_bookie, connect):
        silent, speaks = await connect(), await connect()
        speaks.writer.write(adds(7, [b"a"]))
        await speaks.items(1)
        assert await silent.is_closed()
        await asyncio.sleep(0.3)
        speaks.writer.write(adds(7, [b"b"], first=1))
        await speaks.items(1)


@pytest.mark.long
async def test_a_client_that_takes_nothing_is_not_read_and_is_cut_off_when_others_wait(tmp_path: Path) -> None:
    size, count = 500_000, 200

    async with running(tmp_path, read_stall_s=0.3) as (bookie, connect):
        writer, greedy = await connect(), await connect()
        for k in range(count):
            writer.writer.write(adds(7, [bytes(size)], first=k))
            await writer.items(1)
        ids = np.arange(count, dtype=np.int64)
        greedy.writer.write(v3.read_requests(ids, 7, ids) * 50)  # 5 GB, of which it takes nothing
        out: list[Any] = []
        while not out:
            await asyncio.sleep(0.01)
            out = [each for each in bookie._services[0]._open if not each._writable]
        assert len(out) == 1
        assert not out[0]._reading
        assert out[0]._transport.get_write_buffer_size() < 8 << 20
        for _ in range(3):
            writer.writer.write(v3.read_requests(ids[:40], 7, ids[:40]))
            assert sum(map(len, await writer.items(40))) == 40


def test_headers_of_entries_are_those_inside() -> None:
    made = bodies(7, [b"a", b""], first=5)
    assert entry_headers_of(made.payload, made.offsets).tolist() == [[7, 5, 4, 1], [7, 6, 4, 1]]
