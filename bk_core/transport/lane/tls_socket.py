# SPDX-License-Identifier: Apache-2.0
"""TLS on sockets of our own, for either side of the direct lane: the handshake, and a :class:`MessageSocket` over it.

OpenSSL works in memory here: by itself it would send and receive one record of 16 KB a system call, and wake the other
end for each. Two things differ from a plain socket. OpenSSL keeps what came and nobody has taken, of which the loop
hears nothing; and what is encrypted must leave, in this order, before anything else. Both stay here, so that a
connection without TLS makes no call more.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from bk_core.access.tls import explained
from bk_core.errors import TlsError
from bk_core.transport.lane.message_socket import MessageSocket

RECORD_BYTES = 16 << 10
"""Shorter pieces are joined up to this: a record of TLS has so many bytes."""

PIECE_BYTES = 128 << 10
"""Limits the bytes encrypted or decrypted in one call, during which other connections wait. Each connection keeps a
buffer of this size."""


class TlsSocket:
    """A socket over TLS, which owns ``sock``, one that does not block. It has what is used of a socket here."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str = ""
    ) -> None:
        self.plain, self.family = sock, sock.family
        self._came, self._leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._came, self._leaves, server_side=server_side, server_hostname=server_hostname or None
        )
        self._unsent = memoryview(b"")
        self._piece_bytes = 0  # what is encrypted in it
        self._is_dry = False  # there is no whole record

    # --- as a socket ---

    def fileno(self) -> int:
        return self.plain.fileno()

    def setblocking(self, wanted: bool) -> None:
        self.plain.setblocking(wanted)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.plain.setsockopt(level, option, value)

    def close(self) -> None:
        self.plain.close()

    def getpeercert(self) -> dict[str, Any] | None:
        return self._tls.getpeercert()

    def do_handshake(self) -> None:
        """Goes on with it. Raises BlockingIOError until it is done, ``ssl.SSLWantWriteError`` if it waits for room."""
        while True:
            try:
                self._push()
            except BlockingIOError:
                raise ssl.SSLWantWriteError from None
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._encrypted()
                self._push()
                self._pull(RECORD_BYTES)
            except ssl.SSLError:
                self._encrypted()  # why, in a word
                with contextlib.suppress(OSError):
                    self._push()
                raise
            else:
                self._encrypted()
                if not self._unsent:
                    return

    def recv(self, size: int) -> bytes:
        """As a socket's."""
        buffer = memoryview(bytearray(size))
        (count,) = self.recvmsg_into([buffer])
        return bytes(buffer[:count])

    def send(self, data: bytes) -> int:
        """As a socket's, of a short message."""
        return self.sendmsg([memoryview(data)])

    # --- receiving ---

    def pending(self) -> bool:
        """Whether something has come that nobody has taken."""
        return not self._is_dry and bool(self._tls.pending() or self._came.pending)

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        """Fills the buffers as far as anything has come. Less than they hold means that nothing more is there. Raises
        BlockingIOError, TlsError for what the other end says of the handshake once it is over, OSError."""
        room = sum(map(len, buffers))
        size = 0
        self._is_dry = False
        try:
            for buffer in buffers:
                while buffer:
                    count = self._some(buffer, room - size)
                    if not count:
                        return (size,)
                    size += count
                    buffer = buffer[count:]
        except BlockingIOError:
            self._is_dry = True
            if not size:
                raise
        except ssl.SSLError as error:
            if not size:  # else it comes again
                why, remedy = explained(error)
                raise TlsError("a connection over TLS ended", value=why, remedy=remedy) from error
        return (size,)

    def _some(self, buffer: memoryview, room: int) -> int:
        """The bytes of one record; 0 at the end. Raises BlockingIOError if there is no whole one, OSError."""
        while True:
            try:
                return cast(int, self._tls.read(len(buffer), buffer))  # the stubs know only the other form
            except ssl.SSLWantReadError:
                if self._leaves.pending:  # an answer of TLS's own
                    self._encrypted()
                    self._push()
                self._pull(room)
            except ssl.SSLEOFError:  # without a farewell, as programs end that are killed
                return 0

    def _pull(self, room: int) -> None:
        """Receive what fills so much room, within bounds. Raises BlockingIOError if nothing has come, OSError."""
        data = self.plain.recv(min(max(room, RECORD_BYTES), PIECE_BYTES) + RECORD_BYTES)
        if data:
            self._came.write(data)
        else:
            self._came.write_eof()

    # --- sending ---

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Sends as many of these bytes as the system takes, of which what it did not take must come first the next
        time. Raises BlockingIOError if it does not take all that was encrypted, OSError."""
        if not self._piece_bytes:
            piece = _first_piece(buffers)
            self._piece_bytes = self._tls.write(piece)
            self._encrypted()
        self._push()
        size, self._piece_bytes = self._piece_bytes, 0
        return size

    def _encrypted(self) -> None:
        """What OpenSSL has encrypted leaves next."""
        if self._leaves.pending:
            made = self._leaves.read()
            self._unsent = memoryview(bytes(self._unsent) + made if self._unsent else made)

    def _push(self) -> None:
        """Send what is encrypted. Raises BlockingIOError unless the system takes all, OSError."""
        while self._unsent:
            self._unsent = self._unsent[self.plain.send(self._unsent) :]


Connected: TypeAlias = socket.socket | TlsSocket
"""With TLS or without."""


async def shake_hands(sock: TlsSocket, turns: asyncio.Lock | None = None) -> None:
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
        except BlockingIOError:
            await ready(sock)
        except ssl.SSLWantWriteError:
            await ready(sock, to_write=True)
        else:
            return


async def ready(sock: Connected, *, to_write: bool = False) -> None:
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


async def exactly(sock: Connected, size: int) -> bytes:
    """The next bytes of a connection with TLS or without, and not one more. Raises OSError."""
    taken = b""
    while len(taken) < size:
        try:
            more = sock.recv(size - len(taken))
        except BlockingIOError:
            await ready(sock)
        else:
            if not more:
                raise ConnectionError("the other end is gone")
            taken += more
    return taken


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
    """A :class:`MessageSocket` over TLS. What OpenSSL has already is taken in the next turn of the loop."""

    def __init__(self, sock: TlsSocket, *arguments: Any, **named: Any) -> None:
        self._tls = sock
        super().__init__(cast(socket.socket, self._tls), *arguments, **named)

    def read(self, wanted: bool) -> None:
        super().read(wanted)
        self._take_pending()

    def _readable(self) -> None:
        super()._readable()
        self._take_pending()

    def _take_pending(self) -> None:
        if self._reading and self._tls.pending():
            self._loop.call_soon(*self._on_readable)


def message_socket(sock: Connected, *arguments: Any, **named: Any) -> MessageSocket:
    """Makes a message socket of the kind that fits the connection."""
    kind: Any = TlsMessageSocket if isinstance(sock, TlsSocket) else MessageSocket
    made: MessageSocket = kind(sock, *arguments, **named)
    return made
