# SPDX-License-Identifier: Apache-2.0
"""TLS for either side of the direct lane: the handshake, and a :class:`MessageSocket` over TLS.

OpenSSL works in memory here. On a socket it would send and receive one record of 16 KB per system call, and wake the
other end for each of them. A TLS connection differs from a plain socket in two ways. OpenSSL may hold received bytes,
which the loop does not report. Encrypted bytes must be sent in their order, before any others. Only this file handles
both, so a connection without TLS makes no additional call.
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
"""The size of one TLS record in bytes. Shorter buffers are joined up to this size."""

PIECE_BYTES = 128 << 10
"""The maximum number of bytes that are encrypted in one call. At most this number and one record are received in one
call. Larger pieces would let other connections wait, and make OpenSSL's buffers larger."""


class TlsSocket:
    """A TLS connection over the non-blocking socket ``sock``, which it owns. It has the methods of a socket that the
    lane uses."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str = ""
    ) -> None:
        self.plain, self.family = sock, sock.family
        self._came, self._leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._came, self._leaves, server_side=server_side, server_hostname=server_hostname or None
        )
        self._unsent = memoryview(b"")
        self._piece_bytes = 0  # the number of plain bytes that `_unsent` holds encrypted
        self._is_dry = False  # whether OpenSSL has no whole record

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
        """Continue the handshake. Raises BlockingIOError if it waits for the other end, ``ssl.SSLWantWriteError`` if
        the system takes no bytes now, and ``ssl.SSLError`` if it fails."""
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
                self._encrypted()  # the alert with the reason
                with contextlib.suppress(OSError):
                    self._push()
                raise
            else:
                self._encrypted()
                if not self._unsent:
                    return

    def recv(self, size: int) -> bytes:
        """Receive up to ``size`` bytes, as ``socket.recv`` does."""
        buffer = memoryview(bytearray(size))
        (count,) = self.recvmsg_into([buffer])
        return bytes(buffer[:count])

    def send(self, data: bytes) -> int:
        """Send a short message, as ``socket.send`` does."""
        return self.sendmsg([memoryview(data)])

    # --- receiving ---

    def pending(self) -> bool:
        """Return whether OpenSSL holds received bytes that may contain a whole record."""
        return not self._is_dry and bool(self._tls.pending() or self._came.pending)

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        """Fill the buffers with the bytes that have come, and return their number. If the buffers are not full, no more
        bytes have come. Raises BlockingIOError if nothing has come, OSError, and TlsError for an error of TLS, such as
        the alert of another end that refuses our certificate after the handshake."""
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
            if not size:  # otherwise the next call raises it
                why, remedy = explained(error)
                raise TlsError("a connection over TLS ended", value=why, remedy=remedy) from error
        return (size,)

    def _some(self, buffer: memoryview, room: int) -> int:
        """Decrypt at most one record into ``buffer``, and return its number of bytes, or 0 at the end of the
        connection. Raises OSError, such as BlockingIOError if no whole record has come."""
        while True:
            try:
                return cast(int, self._tls.read(len(buffer), buffer))  # the stubs know only the other form
            except ssl.SSLWantReadError:
                if self._leaves.pending:  # OpenSSL itself has bytes to send
                    self._encrypted()
                    self._push()
                self._pull(room)
            except ssl.SSLEOFError:  # without close_notify, as when the other program was killed
                return 0

    def _pull(self, room: int) -> None:
        """Receive encrypted bytes for OpenSSL, about ``room`` and one record. ``room`` counts as at least RECORD_BYTES
        and at most PIECE_BYTES. Raises OSError, such as BlockingIOError if nothing has come."""
        data = self.plain.recv(min(max(room, RECORD_BYTES), PIECE_BYTES) + RECORD_BYTES)
        if data:
            self._came.write(data)
        else:
            self._came.write_eof()

    # --- sending ---

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Encrypt and send a first piece of these bytes, and return its size. Raises OSError, such as BlockingIOError
        if the system does not take the whole piece. The next call must then begin with the same bytes, and sends the
        rest."""
        if not self._piece_bytes:
            piece = _first_piece(buffers)
            self._piece_bytes = self._tls.write(piece)
            self._encrypted()
        self._push()
        size, self._piece_bytes = self._piece_bytes, 0
        return size

    def _encrypted(self) -> None:
        """Queue the bytes that OpenSSL has encrypted, to be sent next."""
        if self._leaves.pending:
            made = self._leaves.read()
            self._unsent = memoryview(bytes(self._unsent) + made if self._unsent else made)

    def _push(self) -> None:
        """Send the encrypted bytes. Raises OSError, such as BlockingIOError if the system does not take all of them."""
        while self._unsent:
            self._unsent = self._unsent[self.plain.send(self._unsent) :]


Connected: TypeAlias = socket.socket | TlsSocket
"""A connection with TLS or without."""


async def shake_hands(sock: TlsSocket, turns: asyncio.Lock | None = None) -> None:
    """Do the handshake of a non-blocking socket. With ``turns`` each step has a separate turn of the loop, and the
    handshakes that share ``turns`` take their steps one at a time. Raises OSError, such as ssl.SSLError."""
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
    """Return once the connection has bytes to read or, with ``to_write``, takes bytes."""
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
    """Receive the next ``size`` bytes of a connection, and not one byte more. Raises OSError."""
    taken = b""
    while len(taken) < size:
        try:
            more = sock.recv(size - len(taken))
        except BlockingIOError:
            await ready(sock)
        else:
            if not more:
                raise ConnectionError("the other end has closed the connection")
            taken += more
    return taken


def _first_piece(buffers: Sequence[memoryview]) -> memoryview:
    """Return the piece to encrypt next. This is a part of a long buffer, without a copy, or several short buffers
    joined."""
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
    """A :class:`MessageSocket` over TLS. Bytes that OpenSSL already holds are taken in the next turn of the loop."""

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
    """Make a message socket for a connection with or without TLS. The arguments are those of :class:`MessageSocket`."""
    kind: Any = TlsMessageSocket if isinstance(sock, TlsSocket) else MessageSocket
    made: MessageSocket = kind(sock, *arguments, **named)
    return made
