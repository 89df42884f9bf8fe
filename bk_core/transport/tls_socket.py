# SPDX-License-Identifier: Apache-2.0
"""TLS on sockets of our own, for either side of the direct lane: the handshake, and a :class:`MessageSocket` over it.

Two things differ from a plain socket. OpenSSL keeps what it has decrypted and nobody has taken, of which the loop hears
nothing; and what it could not send it wants again, the very same bytes. Both stay here, so that a connection without
TLS makes no call more.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

from bk_core.errors import TlsError
from bk_core.tls import explained
from bk_core.transport.message_socket import MessageSocket

RECORD_BYTES = 16 << 10
"""Shorter pieces are joined up to this: a record of TLS has so many bytes."""

PIECE_BYTES = 256 << 10
"""So much is encrypted and sent in one call, which others wait for."""


async def shake_hands(sock: ssl.SSLSocket, turns: asyncio.Lock | None = None) -> None:
    """The handshake of a socket that does not block. Each step has a turn of the loop of its own, and with ``turns``
    all handshakes that share it have one at a time. Raises OSError, of which ssl.SSLError is one."""
    while True:
        try:
            if turns is None:
                sock.do_handshake()
            else:
                async with turns:
                    await asyncio.sleep(0)
                    sock.do_handshake()
        except ssl.SSLWantReadError:
            await ready(sock)
        except ssl.SSLWantWriteError:
            await ready(sock, to_write=True)
        else:
            return


async def ready(sock: socket.socket, *, to_write: bool = False) -> None:
    """Returns once there is something to read, or room to write."""
    loop = asyncio.get_running_loop()
    now: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    number = sock.fileno()

    def is_ready() -> None:
        if not now.done():
            now.set_result(None)

    add(number, is_ready)
    try:
        await now
    finally:
        remove(number)


async def exactly(sock: socket.socket, size: int) -> bytes:
    """The next bytes of a connection with TLS or without, and not one more. Raises OSError."""
    taken = b""
    while len(taken) < size:
        try:
            more = sock.recv(size - len(taken))
        except (BlockingIOError, ssl.SSLWantReadError):
            await ready(sock)
        else:
            if not more:
                raise ConnectionError("the other end is gone")
            taken += more
    return taken


class TlsSocket:
    """What :class:`MessageSocket` wants of a socket, over one whose handshake is done."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock, self.family = sock, sock.family
        self._again: memoryview | None = None  # what OpenSSL could not send, and wants to be given again

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, wanted: bool) -> None:
        self._sock.setblocking(wanted)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._sock.setsockopt(level, option, value)

    def close(self) -> None:
        self._sock.close()

    def pending(self) -> int:
        """How much OpenSSL has decrypted and nobody has taken."""
        return self._sock.pending()

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        """Fills the buffers as far as anything has come. Less than they hold means that nothing more is there. Raises
        BlockingIOError, TlsError for what the other end says of the handshake once it is over, OSError."""
        size = 0
        try:
            for buffer in buffers:
                while buffer:
                    count = self._sock.recv_into(buffer)
                    if not count:
                        return (size,)
                    size += count
                    buffer = buffer[count:]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not size:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if not size:  # else it comes again
                why, remedy = explained(error)
                raise TlsError("a connection over TLS ended", value=why, remedy=remedy) from error
        return (size,)

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Sends as many of these bytes as the system takes. Raises BlockingIOError if it takes none, OSError."""
        piece = self._again if self._again is not None else _first_piece(buffers)
        size = 0
        try:
            while size < len(piece):
                size += self._sock.send(piece[size:])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._again = piece[size:]
            if not size:
                raise BlockingIOError from None
        else:
            self._again = None
        return size


def _first_piece(buffers: Sequence[memoryview]) -> memoryview:
    """What leaves first: a part of a long buffer as it lies there, or short ones joined."""
    first = buffers[0]
    if len(first) >= RECORD_BYTES or len(buffers) == 1:
        return first[:PIECE_BYTES]
    taken: list[memoryview] = []
    size = 0
    for each in buffers:
        part = each[: RECORD_BYTES - size]
        taken.append(part)
        size += len(part)
        if size >= RECORD_BYTES:
            break
    return memoryview(b"".join(taken))


class TlsMessageSocket(MessageSocket):
    """A :class:`MessageSocket` over TLS. What OpenSSL has decrypted already is taken in the next turn of the loop."""

    def __init__(self, sock: ssl.SSLSocket, *arguments: Any, **named: Any) -> None:
        self._tls = TlsSocket(sock)
        super().__init__(cast(socket.socket, self._tls), *arguments, **named)

    def read(self, wanted: bool) -> None:
        super().read(wanted)
        self._take_decrypted()

    def _readable(self) -> None:
        super()._readable()
        self._take_decrypted()

    def _take_decrypted(self) -> None:
        if self._reading and self._tls.pending():
            self._loop.call_soon(*self._on_readable)
