# SPDX-License-Identifier: Apache-2.0
"""The least that a client in Python does for writers and readers that wait for each entry: the ceilings of
``append_many_ledgers``, ``append_single`` and ``read_random``.

Each writer has a task and each entry a future. The entries of one turn of the loop leave in messages of as many entries
as ours, to three servers that write and sync them. Two acks complete the futures. Each reader has a task, too, and asks
one of the servers in turn for a piece of its file. There is no protocol: no digests, frames, sessions, windows,
deadlines or LAC.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import deque
from functools import partial

from benchmarks.peers.raw_server import ENTRY_BYTES, READ, REQUEST, WRITE
from bk_core.transport.lane.streams import MESSAGE_FRAMES_MAX

QUORUM = 2
PATIENCE_S = 60


class BareWriters:
    """Uses duplicates of connections to raw servers. It belongs to the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._sent: deque[list[asyncio.Future[None]]] = deque()  # the futures of messages that no quorum has acked
        self._acked: list[int] = []  # acked messages, by server
        self._done = 0
        self._transports: list[asyncio.Transport] = []

    async def connect(self, sockets: list[socket.socket]) -> None:
        for number, each in enumerate(sockets):
            self._acked.append(0)
            transport, _ = await self._loop.create_connection(partial(_Acks, self, number), sock=each.dup())
            self._transports.append(transport)

    def close(self) -> None:
        for each in self._transports:
            each.close()

    async def append(self, payload: bytes) -> None:
        done = self._loop.create_future()
        self._pending.append((payload, done))
        if len(self._pending) == 1:
            self._loop.call_soon(self._flush)
        await done

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        for at in range(0, len(pending), MESSAGE_FRAMES_MAX):
            some = pending[at : at + MESSAGE_FRAMES_MAX]
            body = b"".join([payload for payload, _ in some])
            message = REQUEST.pack(WRITE, len(body)) + body
            self._sent.append([done for _, done in some])
            for each in self._transports:
                each.write(message)

    def acked(self, server: int, messages: int) -> None:
        self._acked[server] += messages
        quorum = sorted(self._acked)[-QUORUM]
        while self._done < quorum:
            self._done += 1
            for done in self._sent.popleft():
                done.set_result(None)

    async def rate(self, writers: int, rounds: int, payload: bytes) -> float:
        """Let ``writers`` writers append ``rounds`` entries each, one at a time. Return the entries per second of all
        writers together."""

        async def write() -> None:
            for _ in range(rounds):
                await self.append(payload)

        began = time.perf_counter()
        await asyncio.gather(*(write() for _ in range(writers)))
        took = time.perf_counter() - began
        await self._settled()
        return writers * rounds / took

    async def single_ms(self, count: int, payload: bytes) -> list[float]:
        """Return the milliseconds of each append, one at a time."""
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            await self.append(payload)
            samples.append((time.perf_counter() - began) * 1e3)
        await self._settled()
        return samples

    async def _settled(self) -> None:
        """Wait until all servers have acked everything, so that the next user of the connections gets only acks of its
        own messages."""
        async with asyncio.timeout(PATIENCE_S):
            while min(self._acked) < self._done:
                await asyncio.sleep(0.001)


class _Acks(asyncio.Protocol):
    def __init__(self, writers: BareWriters, server: int) -> None:
        self._writers, self._server = writers, server

    def data_received(self, data: bytes) -> None:
        self._writers.acked(self._server, len(data))


class BareReaders:
    """Uses duplicates of connections to raw servers. It belongs to the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._servers: list[_Entries] = []
        self._asked = 0

    async def connect(self, sockets: list[socket.socket]) -> None:
        for each in sockets:
            _, server = await self._loop.create_connection(_Entries, sock=each.dup())
            self._servers.append(server)

    def close(self) -> None:
        for each in self._servers:
            each.transport.close()

    async def rate(self, readers: int, count: int, entries: int) -> float:
        """Return the entries per second of reads of random entries out of ``entries``."""
        wanted = random.Random(count).choices(range(entries), k=count)

        async def read(some: list[int]) -> None:
            for entry in some:
                self._asked += 1
                server = self._servers[self._asked % len(self._servers)]
                assert len(await server.read(entry)) == ENTRY_BYTES

        began = time.perf_counter()
        await asyncio.gather(*(read(wanted[number::readers]) for number in range(readers)))
        return count / (time.perf_counter() - began)


class _Entries(asyncio.Protocol):
    """The requests to one server. Those of one turn of the loop leave together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests: list[bytes] = []
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def read(self, entry: int) -> asyncio.Future[bytes]:
        if not self._requests:
            self._loop.call_soon(self._flush)
        self._requests.append(REQUEST.pack(READ, entry))
        self._waiting.append(self._loop.create_future())
        return self._waiting[-1]

    def _flush(self) -> None:
        requests, self._requests = self._requests, []
        self.transport.write(b"".join(requests))

    def data_received(self, data: bytes) -> None:
        received, at = self._received + data, 0
        while len(received) - at >= ENTRY_BYTES:
            self._waiting.popleft().set_result(received[at : at + ENTRY_BYTES])
            at += ENTRY_BYTES
        self._received = received[at:]
