# SPDX-License-Identifier: Apache-2.0
"""The port of Apache's wire. It connects sockets to the objects of ``connection.py``.

Each connection has one receive buffer that grows if bursts fill it. A burst is handled in one turn of the loop, and its
answers are sent at the end of the turn, in one write.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from typing import cast

from bk_core.model import BOOKIE_RPC, TLS, Endpoint
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX
from bookie_server.engine.engine import BookieEngine
from bookie_server.ports.access.authority import Authority
from bookie_server.ports.access.tls import PortTls
from bookie_server.ports.bookie_rpc.auth import AuthPlugin, NoAuth
from bookie_server.ports.bookie_rpc.connection import ServedConnection
from bookie_server.ports.bookie_rpc.start_tls import PORT, begin_tls, principal_of
from bookie_server.ports.bounds.clients import Clients
from bookie_server.ports.bounds.memory_bounds import GRACE_S, HELLO_TIMEOUT_S, WRITE_TIMEOUT_S
from bookie_server.ports.lane.streams import BookieFacts
from bookie_server.ports.sockets import Acceptor, Timers, listening_socket

logger = logging.getLogger(__name__)

BUFFER_BYTES_MIN = 64 << 10
BUFFER_BYTES_MAX = 1 << 20
"""The maximum size of the receive buffer in bytes, and so of a burst, unless one frame is larger."""


RIGHTS_S = 30.0
"""The seconds after which the rights of a connected client are read again, in mode ``secure``."""


class BookieRpcServer:
    """:class:`~bookie_server.ports.service.Service` for Apache's clients."""

    def __init__(
        self,
        listen_address: str,
        port: int,
        clients: Clients,
        auth: AuthPlugin | None = None,
        tls: PortTls | None = None,
    ) -> None:
        """Bind the port. Raises PortInUseError."""
        self._socket = listening_socket(listen_address, port, "--port")
        self.port: int = self._socket.getsockname()[1]
        self._tls = tls
        self._acceptor: Acceptor | None = None  # only for a port with TLS
        self._clients, self._auth = clients, auth or NoAuth()
        self._server: asyncio.Server | None = None
        self._open: set[_Peer] = set()

    def endpoint(self, host: str) -> Endpoint:
        return Endpoint("bookie", host, self.port, BOOKIE_RPC, extensions=() if self._tls is None else (TLS,))

    async def start(self, engine: BookieEngine, facts: BookieFacts) -> None:
        tls = self._tls

        def peer() -> _Peer:
            return _Peer(engine, facts, self._auth, self._clients, self._open, tls)

        if tls is None:
            self._server = await asyncio.get_running_loop().create_server(peer, sock=self._socket)
        else:
            self._acceptor = Acceptor(
                [self._socket], lambda sock: begin_tls(sock, tls, peer), self._is_full, PORT, HELLO_TIMEOUT_S
            )
            self._acceptor.start()

    def _is_full(self, _: socket.socket, greeted: int) -> bool:
        return len(self._open) + greeted >= self._clients.connections.connections_max

    async def stop(self, grace_s: float) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
        elif self._server is not None:
            self._server.close()
        else:
            self._socket.close()
        for peer in list(self._open):
            peer.connection.close("the bookie stops")
        end = asyncio.get_running_loop().time() + grace_s
        while self._open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        for peer in list(self._open):
            peer.connection.cut("the bookie stops")
        while self._open:
            await asyncio.sleep(0)


class _Peer(asyncio.BufferedProtocol):
    """The socket of one connection."""

    connection: ServedConnection

    def __init__(
        self,
        engine: BookieEngine,
        facts: BookieFacts,
        auth: AuthPlugin,
        clients: Clients,
        peers: set[_Peer],
        tls: PortTls | None,
    ) -> None:
        self._tls = tls
        self._engine, self._facts, self._auth, self._clients, self._peers = engine, facts, auth, clients, peers
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(BUFFER_BYTES_MIN))
        self._have = 0
        self._writable, self._reading, self._scheduled = True, True, False
        self._silent_yet = True
        self._asking: asyncio.Task[None] | None = None
        self._timers = Timers()

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        principal, refused = principal_of(transport, self._tls)
        self.connection = ServedConnection(
            self._engine, self._facts, self._auth, lambda: int(time.time() * 1000), self._wake, self._flush, principal
        )
        self.connection.client.on_proven = self._ask_rights
        self.connection.client.on_held = lambda wait_s: self._timers.start("limit", wait_s, self.connection.let_go)
        self._peers.add(self)
        self._clients.streams.add(self.connection)
        plain = self._transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if len(self._peers) > self._clients.connections.connections_max:
            self.connection.cut("too many connections")
        elif refused:
            self.connection.cut(refused)
        self._timers.start("hello", HELLO_TIMEOUT_S, self._silent)
        if self._facts.authority is not None:
            self._ask_rights()
            self._flow()

    # --- mode secure ---

    def _ask_rights(self) -> None:
        """Read the client's rights now, and again every ``RIGHTS_S``."""
        assert self._facts.authority is not None
        if self._asking is not None:  # that question was about the client's former identity
            self._asking.cancel()
        self._asking = self._loop.create_task(self._learn_rights(self._facts.authority))

    async def _learn_rights(self, authority: Authority) -> None:
        rights = await authority.rights(self.connection.principal.identity)
        self.connection.allow(rights)
        self.buffer_updated(0)  # handle the bytes that waited for the rights
        self._timers.start("rights", RIGHTS_S, self._ask_rights)

    def connection_lost(self, error: Exception | None) -> None:
        if self._asking is not None:
            self._asking.cancel()
        self._timers.stop_all()
        self._clients.streams.discard(self.connection)
        self.connection.end()
        self._peers.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._have :] if self._have else self._buffer

    def buffer_updated(self, count: int) -> None:
        connection, have, size = self.connection, self._have + count, len(self._buffer)
        self._have = have
        try:
            used = self._engine.burst(connection.receive, self._buffer[:have])
        except Exception as error:
            logger.exception("connection %d ends by an exception", connection.stream)
            connection.cut(f"the bookie failed on this connection: {error!r}")
            used = self._have
        if connection.closing:
            used = have
        if used == have != size == BUFFER_BYTES_MIN:  # the usual case
            self._have = 0
        else:
            self._keep(used, have == size)
        if not self._have:
            connection.reading_since = math.inf
        elif used or connection.reading_since == math.inf:  # another byte of one message is no progress
            connection.reading_since = self._loop.time()
        if self._silent_yet and connection.has_begun:
            self._silent_yet = False
            self._timers.stop("hello")
        if connection.answers.waiting or connection.closing:
            self._flush()
        elif not (connection.flows and self._reading and self._writable):
            self._flow()

    def eof_received(self) -> bool:
        self.connection.close("the client is done")
        return self._tls is None  # queued answers are still sent; a TLS connection cannot be half closed

    def pause_writing(self) -> None:
        self._writable = False
        self._timers.start("stall", self._clients.read_stall_s, self.connection.stall)
        self._timers.start("write", WRITE_TIMEOUT_S, lambda: self.connection.cut("the client reads nothing"))
        self._flow()

    def resume_writing(self) -> None:
        self._writable = True
        self._timers.stop("stall")
        self._timers.stop("write")
        self._wake()

    # --- the buffer ---

    def _keep(self, used: int, full: bool) -> None:
        """Keep the bytes behind ``used`` in a buffer with room. The buffer grows if the burst filled it, and becomes
        small again when it is idle."""
        rest, size = self._have - used, len(self._buffer)
        wanted = size
        if rest == size or (full and size < BUFFER_BYTES_MAX):
            wanted = min(2 * size, FRAME_BYTES_MAX)
        elif not rest and size > BUFFER_BYTES_MIN and self._have < size // 4:
            wanted = BUFFER_BYTES_MIN
        if wanted != size:
            buffer = memoryview(bytearray(wanted))
            buffer[:rest] = self._buffer[used : self._have]
            self._buffer = buffer
        elif used and rest:
            self._buffer[:rest] = self._buffer[used : self._have]
        self._have = rest

    # --- what goes out ---

    def _wake(self) -> None:
        if not self._scheduled and not self._engine.gathers_answers:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        connection, answers = self.connection, self.connection.answers
        if connection.was_cut:
            self._transport.abort()
            return
        while answers.waiting and self._writable and not self._transport.is_closing():
            message = answers.next_message()
            # joined: writelines() of Python 3.12 and later never pauses the writer
            self._transport.write(message[0] if len(message) == 1 else b"".join(message))
            answers.message_left()
        if connection.closing and not self._transport.is_closing() and not answers.waiting:
            self._timers.start("end", GRACE_S, lambda: connection.cut("the client reads nothing"))
            self._transport.close()
        if not (connection.flows and self._reading and self._writable):
            self._flow()

    def _flow(self) -> None:
        """Read from the socket only while answers can be sent: a client that reads none of its answers is not read."""
        wanted = self._writable and self.connection.flows
        if wanted is not self._reading and not self._transport.is_closing():
            self._reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    # --- time ---

    def _silent(self) -> None:
        if not self.connection.has_begun:
            self.connection.cut("nothing came on this connection, or nothing that authenticates the client")
