# SPDX-License-Identifier: Apache-2.0
"""Carries an exchange over a TCP connection.

Requests of one turn of the loop are sent together (L4). The socket takes a few requests at a time, so that the others
wait in the exchange, which counts them. A connection counts as broken if the bookie owes answers and sends nothing for
``SILENCE_S``. TCP alone would wait many minutes for a lost machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from bk_core.access.secret_files import TokenFile
from bk_core.access.tls import Tls, failure
from bk_core.access.tokens import not_let_in
from bk_core.errors import AuthenticationError, BookKeeperError, TransportError
from bk_core.model import BookieId, Endpoint
from bk_core.transport.bookie_rpc.auth import Proof
from bk_core.transport.bookie_rpc.start_tls import ask_for_tls
from bk_core.transport.lane.link import unreachable
from bk_core.transport.tcp import over_tcp
from bk_core.transport.whereabouts import At, Whereabouts, reach
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, Buffer

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 64 << 10
RECEIVE_BYTES_MAX = 1 << 20
"""The size of a connection's receive buffer at first, and the size up to which it doubles each time that it was full,
in bytes. For a longer frame it grows further."""

UNSENT_BYTES = 1 << 20
"""The number of bytes, in addition to those that the kernel takes, that asyncio buffers before it pauses the writer."""

SILENCE_S = 15.0
"""The number of seconds without a byte from a bookie that owes answers after which the connection counts as broken."""


class Talk(Protocol):
    """The interface of an object that makes the requests of a connection and takes the answers, in one version of the
    wire."""

    version: int

    def next_buffers(self) -> list[Buffer] | None: ...
    def receive(self, received: Buffer) -> int: ...
    @property
    def owes(self) -> bool: ...


class BookieConnection:
    """A connection to one bookie. It is made when there is something to send, and follows a bookie that has moved. It
    breaks only once, and then calls ``failed``. At the end of each turn of the loop in which bytes came or requests
    wait, it calls ``turn`` before it sends requests."""

    def __init__(
        self,
        at: At,
        whereabouts: Whereabouts,
        connect_timeout_s: float,
        talk: Talk,
        *,
        turn: Callable[[], None],
        failed: Callable[[TransportError], None],
        tls: Tls | None = None,
        token: TokenFile | None = None,
    ) -> None:
        self._tls, self._token = tls, token if tls is not None else None
        self._proof: Proof | None = None  # set while AUTH is under way
        self._let_in = asyncio.Event()
        self._at, self._whereabouts, self._connect_timeout_s = at, whereabouts, connect_timeout_s
        self._bookie_id: BookieId = at.info.bookie_id
        self._talk, self._turn, self._failed = talk, turn, failed
        self.broken: TransportError | None = None
        self._loop = asyncio.get_running_loop()
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._ended = self._loop.create_future()
        self._writable = True
        self._flushing = self._watched = False
        self._heard = 0  # the number of times that bytes came

    def wake(self) -> None:
        """Send the waiting requests at the end of this turn of the loop."""
        if not self._flushing and self.broken is None:
            self._flushing = True
            self._loop.call_soon(self._flush)
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect(), name=f"bookie-rpc {self._bookie_id}")

    def _flush(self) -> None:
        self._flushing = False
        if self.broken is not None:
            return
        self._turn()
        talk = self._talk
        while self._transport is not None and self._writable and self._proof is None:
            buffers = talk.next_buffers()
            if buffers is None:
                break
            self._transport.write(b"".join(buffers))  # writelines() of Python 3.12 and later never pauses the writer
        if talk.owes and not self._watched:
            self._watched = True
            self._loop.call_later(SILENCE_S, self._look_for_silence, self._heard)

    def _look_for_silence(self, heard: int) -> None:
        self._watched = False
        if self.broken is None and self._talk.owes:
            if self._heard == heard and self._transport is not None:
                self._lost(f"it owes answers and said nothing for {SILENCE_S:g} s")
            else:
                self.wake()

    async def _connect(self) -> None:
        try:
            at = await self._whereabouts.checked(self._at)
            await reach(at, self._connect_to, reached=self._is_reached, moved=self._whereabouts.moved)
        except TransportError as error:
            self.fail(error)

    def _is_reached(self) -> bool:
        if self._transport is None:
            return False
        self._whereabouts.reached(self._bookie_id)
        return True

    async def _connect_to(self, at: At) -> None:
        """Connect to the bookie at this endpoint. Raises TransportError."""
        self._at, endpoint = at, at.endpoint
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                self._proof = Proof(self._talk.version, self._token.read()) if self._token is not None else None
                if self._tls is None:
                    await self._loop.create_connection(lambda: _Socket(self), endpoint.host, endpoint.port)
                else:
                    await self._connect_over_tls(self._tls, endpoint)
                if self._proof is not None:
                    await self._let_in.wait()
        except TimeoutError:
            raise self._error("no answer in time") from None
        except BookKeeperError as error:
            if isinstance(error, TransportError):
                raise
            raise self._tls_failure(error) from error
        except OSError as error:
            raise self._error(str(error)) from error

    async def _connect_over_tls(self, tls: Tls, endpoint: Endpoint) -> None:
        """Connect to the endpoint and start TLS. Raises TlsError, and OSError if no connection succeeds."""
        sock = await over_tcp(endpoint.host, endpoint.port)
        try:
            await ask_for_tls(sock)
            await self._loop.create_connection(
                lambda: _Socket(self), sock=sock, ssl=tls.client(), server_hostname=endpoint.host
            )
        except OSError as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise
            raise self._tls_failure(error) from error
        except BaseException:
            sock.close()
            raise

    def _tls_failure(self, error: BaseException) -> TransportError:
        return failure(f"bookie {self._bookie_id}", self._where, error)

    def connected(self, transport: asyncio.WriteTransport) -> None:
        if self.broken is not None:
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        _set_options(transport.get_extra_info("socket"))
        if self._proof is not None:
            transport.write(self._proof.request())
        self.wake()

    def set_writable(self, writable: bool) -> None:
        self._writable = writable
        if writable:
            self._flush()

    def receive(self, received: memoryview) -> int:
        """Take received bytes, and return the number of bytes that were used."""
        self._heard += 1
        try:
            used = self._talk.receive(received) if self._proof is None else self._take_proof(self._proof, received)
        except AuthenticationError as error:
            said = error.value if self._proof is None else f"{error.value}; {error.remedy}"
            self.fail(self._refused(said))
            return len(received)
        except BookKeeperError as error:
            self._turn()
            logger.warning("bookie %s: %s", self._bookie_id, error)
            broken = TransportError(f"the connection to bookie {self._bookie_id} was closed", value=str(error))
            broken.__cause__ = error
            self.fail(broken)
            return len(received)
        self._flush()
        return used

    def _take_proof(self, proof: Proof, received: memoryview) -> int:
        used = proof.receive(received)
        if proof.done:
            self._proof = None
            self._let_in.set()
        return used

    def _refused(self, why: str) -> AuthenticationError:
        return not_let_in(f"bookie {self._bookie_id}", why, has_token=self._token is not None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        if self._proof is not None and error is None:
            self.fail(self._refused("it ends the connection when it is shown the token"))
        if self._tls is not None and (isinstance(error, ssl.SSLError) or not self._heard):
            # a bookie refuses our certificate only after the handshake, or ends the connection without a reason
            self.fail(self._tls_failure(error or ConnectionError("the bookie closed it")))
        self._lost(str(error) if error else "the bookie closed it")

    @property
    def _where(self) -> str:
        return self._at.endpoint.where

    def _lost(self, detail: str) -> None:
        self.fail(self._error(detail))

    def _error(self, detail: str) -> TransportError:
        if self._transport is None:
            return unreachable(self._bookie_id, self._where, detail)
        return TransportError(f"the connection to bookie {self._bookie_id} broke", value=f"{self._where}: {detail}")

    def fail(self, error: TransportError) -> None:
        """Break the connection with ``error``."""
        if self.broken is not None:
            return
        self.broken = error
        self._let_in.set()  # ends the wait for AUTH
        self._failed(error)
        if self._transport is None:
            if self._connecting is not None:
                self._connecting.cancel()
            if not self._ended.done():
                self._ended.set_result(None)
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # a lost connection over TLS has no socket
            # A forked child may hold the socket, and then a close would not end the connection.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._transport.abort()

    async def close(self, error: TransportError) -> None:
        """Break the connection with ``error``. Return once it has ended."""
        self.fail(error)
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._ended


class _Socket(asyncio.BufferedProtocol):
    """Receives the bytes of a connection into one buffer, which grows up to the size of the longest frame."""

    def __init__(self, connection: BookieConnection) -> None:
        self._connection = connection
        self._buffer, self._filled, self._full = bytearray(RECEIVE_BYTES), 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._connection.connected(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = len(self._buffer)
        if self._filled == size or (self._full and size < RECEIVE_BYTES_MAX):
            grown = bytearray(min(2 * size, FRAME_BYTES_MAX + RECEIVE_BYTES_MAX))
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer, self._full = grown, False
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        filled = self._filled + nbytes
        self._full = filled == len(self._buffer)
        used = self._connection.receive(memoryview(self._buffer)[:filled])
        self._filled = filled - used
        if used and self._filled:
            self._buffer[: self._filled] = self._buffer[used:filled]

    def pause_writing(self) -> None:
        self._connection.set_writable(False)

    def resume_writing(self) -> None:
        self._connection.set_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


def _set_options(sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
