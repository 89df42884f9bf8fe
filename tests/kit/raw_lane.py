# SPDX-License-Identifier: Apache-2.0
"""Clients of our lanes that obey the framing and nothing else. They begin messages that they never end, never read what
the bookie sends, and open streams without end.

HTTP/2 is written by hand here, because a library would not misbehave like this. Headers are literals, and windows have
the protocol's default sizes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

from bk_core.transport.lane.messages import SERVICE, hello
from bk_core.wire.lane.direct_messages import preamble
from bk_core.wire.proto import lane_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_WINDOW_BYTES, _FRAME_BYTES = 65535, 16384
_INITIAL_WINDOW_SIZE, _MAX_CONCURRENT_STREAMS = 4, 3


class RawDirect:
    """A client of the direct lane. Each stream has a connection of its own from the address ``source``. It reads
    nothing."""

    def __init__(self, bookie_id: str, source: str = "127.0.0.1") -> None:
        self.bookie_id, self._source = bookie_id, source
        self._sockets: list[socket.socket] = []
        self._ended: set[int] = set()

    async def open(self, port: int) -> RawDirect:
        self._port = port
        return self

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    @property
    def lost(self) -> bool:
        """Whether the bookie has ended all streams of this client."""
        for stream, sock in enumerate(self._sockets):
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sock.send(b"")
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or _is_reset(sock):
                self._ended.add(stream)
        return bool(self._sockets) and len(self._ended) == len(self._sockets)

    async def stream(self, kind: str, **request: Any) -> int:
        """Open a stream, as :meth:`RawConnection.stream` does."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        sock.bind((self._source, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        self._sockets.append(sock)
        stream = len(self._sockets) - 1
        await self.put(stream, preamble(kind))
        said = hello(self.bookie_id, "", "", "raw")
        await self.send(stream, getattr(lane_pb2, f"{kind}Request")(hello=said, **request).SerializeToString())
        return stream

    async def send(self, stream: int, message: bytes) -> int:
        """Send a whole message without frames. Return the number of bytes that the bookie took."""
        return await self.put(stream, struct.pack("<II", 0, len(message)) + message)

    async def begin(self, stream: int, size: int, patience_s: float = 1.0) -> int:
        """Begin a message with ``size`` bytes of frames, and never send the last byte."""
        return await self.put(stream, struct.pack("<II", size, 0) + bytes(size - 1), patience_s)

    async def put(self, stream: int, data: bytes, patience_s: float = 1.0) -> int:
        """Send bytes of a stream. Return the number of bytes that the bookie took."""
        loop, view, sent = asyncio.get_running_loop(), memoryview(data), 0
        while sent < len(data):
            part = view[sent : sent + (1 << 16)]
            try:
                async with asyncio.timeout(patience_s):
                    await loop.sock_sendall(self._sockets[stream], part)
            except TimeoutError:
                break
            except ConnectionError:
                self._ended.add(stream)
                break
            sent += len(part)
        return sent


def _is_reset(sock: socket.socket) -> bool:
    """Return whether the other end has closed the connection (TCP_INFO's state is not ESTABLISHED)."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1


class RawConnection:
    """A connection on which nothing is acknowledged, so that the bookie may send 65,535 bytes in all."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.streams_max = 0
        self.ended: set[int] = set()  # streams that the bookie has ended
        self.lost = False
        self._next = 1
        self._window, self._initial = _WINDOW_BYTES, _WINDOW_BYTES
        self._windows: dict[int, int] = {}
        self._news = asyncio.Event()

    async def open(self, port: int) -> RawConnection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._writer.write(_PREFACE + _frame(_SETTINGS, 0, 0))
        self._task = asyncio.create_task(self._receive())
        return self

    def close(self) -> None:
        self._task.cancel()
        self._writer.close()

    async def stream(self, kind: str, **request: Any) -> int:
        """Open a stream and say hello, in one message with ``request``."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        names = {
            b":method": b"POST",
            b":scheme": b"http",
            b":path": f"/{SERVICE}/{kind}".encode(),
            b":authority": b"bookie",
            b"content-type": b"application/grpc",
            b"te": b"trailers",
        }
        self._writer.write(_frame(_HEADERS, _END_HEADERS, stream, b"".join(map(_literal, names, names.values()))))
        said = hello(self.bookie_id, "", "", "raw")
        await self.send(stream, getattr(lane_pb2, f"{kind}Request")(hello=said, **request).SerializeToString())
        return stream

    async def send(self, stream: int, message: bytes) -> int:
        """Send a whole message. Return the number of bytes that the bookie took."""
        return await self.put(stream, b"\0" + len(message).to_bytes(4, "big") + message)

    async def begin(self, stream: int, size: int, patience_s: float = 1.0) -> int:
        """Begin a message of ``size`` bytes, and never send the last byte."""
        return await self.put(stream, b"\0" + size.to_bytes(4, "big") + bytes(size - 1), patience_s)

    async def put(self, stream: int, data: bytes, patience_s: float = 1.0) -> int:
        """Send bytes of a stream. Return the number of bytes that the bookie took within ``patience_s``."""
        sent = 0
        while sent < len(data) and not self.lost and stream not in self.ended:
            size = min(len(data) - sent, self._window, self._windows[stream], _FRAME_BYTES)
            if size <= 0:
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), patience_s)
                except TimeoutError:
                    break
                continue
            self._writer.write(_frame(_DATA, 0, stream, data[sent : sent + size]))
            self._window -= size
            self._windows[stream] -= size
            sent += size
            try:
                await self._writer.drain()
            except ConnectionError:
                self.lost = True
        return sent

    async def _receive(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._heard(head[3], head[4], int.from_bytes(head[5:], "big"), body)
                self._news.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost = True
            self._news.set()

    def _heard(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._settings(body)
            self._writer.write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._writer.write(_frame(_PING, _ACK, 0, body))
        elif kind == _WINDOW and stream:
            self._windows[stream] = self._windows.get(stream, self._initial) + int.from_bytes(body, "big")
        elif kind == _WINDOW:
            self._window += int.from_bytes(body, "big")
        elif kind == _RESET or (kind in (_HEADERS, _DATA) and flags & _END_STREAM):
            self.ended.add(stream)

    def _settings(self, body: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", body):
            if name == _MAX_CONCURRENT_STREAMS:
                self.streams_max = value
            elif name == _INITIAL_WINDOW_SIZE:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial
                self._initial = value


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _literal(name: bytes, value: bytes) -> bytes:
    """Encode a header that is not indexed and not compressed."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
