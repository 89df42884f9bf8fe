# SPDX-License-Identifier: Apache-2.0
"""The server of the direct lane. It has a listening socket, and a connection for each stream of a client.

``streams.py`` interprets the messages. This file bounds the time for the first message, for a message that has begun,
and for answers that the client does not read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Mapping
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.memory.slots import Slots
from bk_core.model import DIRECT, TLS, Endpoint
from bk_core.transport.lane import same_host
from bk_core.transport.lane.tls_socket import Connected, exactly, message_socket
from bk_core.wire.lane.direct_messages import HEAD_BYTES, PREAMBLE_BYTES, Received, SendQueue, stream_of
from bk_core.wire.lane.reasons import LaneMessage
from bk_core.wire.proto import lane_pb2
from bookie_server.engine.engine import BookieEngine
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.access.tls import PortTls, linger
from bookie_server.ports.bounds.clients import SILENT_S, Clients
from bookie_server.ports.bounds.memory_bounds import GRACE_S, HELLO_TIMEOUT_S, WRITE_TIMEOUT_S, MessageRoom
from bookie_server.ports.lane.control_stream import STREAMS
from bookie_server.ports.lane.streams import BookieFacts, LaneStream, refusal
from bookie_server.ports.sockets import Acceptor, Timers, listening_socket, peer_of

logger = logging.getLogger(__name__)

_LEAVING_BYTES = 32 << 10
"""The number of bytes up to which short answers are sent together."""

CREEPING_S = 10.0
"""The seconds that a long message may take to arrive while other connections wait for room."""

ANSWERS: Mapping[str, Any] = {
    "Add": lane_pb2.AddResponse,
    "Read": lane_pb2.ReadResponse,
    "Control": lane_pb2.ControlResponse,
}
"""The types of the bookie's messages, by the name of the stream."""


class DirectServer:
    """The :class:`~bookie_server.ports.service.Service` of the direct lane, which our clients reach over plain
    sockets."""

    def __init__(
        self, listen_address: str, port: int, clients: Clients, *, local: bool = True, tls: PortTls | None = None
    ) -> None:
        """Bind the port. With ``local`` this also listens on a unix socket for clients on this machine. Raises
        PortInUseError."""
        sockets = [listening_socket(listen_address, port, "--direct-port")]
        self.port: int = sockets[0].getsockname()[1]
        self._tls = tls
        self._extensions: tuple[str, ...] = () if tls is None else (TLS,)
        if local and (listening := same_host.listen()):
            sockets.append(listening[0])
            self._extensions += (listening[1],)
        self.acceptor = Acceptor(sockets, self._greet, self._is_full, "direct lane", HELLO_TIMEOUT_S)
        self.clients, self.slots, self.room = clients, Slots(), MessageRoom()
        self.opened: set[_Connection] = set()
        self._cutting: asyncio.TimerHandle | None = None

    def endpoint(self, host: str) -> Endpoint:
        return Endpoint(DIRECT, host, self.port, DIRECT, extensions=self._extensions)

    async def start(self, engine: BookieEngine, facts: BookieFacts) -> None:
        self._engine, self._facts = engine, facts
        self.acceptor.start()

    async def stop(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._cutting is not None:
            self._cutting.cancel()
        self.acceptor.stop()
        for each in list(self.opened):
            each.stream.close("the bookie stops")
        end = loop.time() + grace_s
        while self.opened and loop.time() < end:
            await asyncio.sleep(0.01)
        for each in list(self.opened):
            each.stream.cut("the bookie stops")

    def _is_full(self, sock: socket.socket, greeted: int) -> bool:
        """Return whether no more clients may connect. Clients on the unix socket have no addresses, so together they
        have the share of one address; ``connections.py`` enforces the shares of all others."""
        bounds = self.clients.connections
        local = sock.family == socket.AF_UNIX and sum(each.is_local for each in self.opened) >= bounds.share_max
        return local or len(self.opened) + greeted >= bounds.connections_max

    async def _greet(self, plain: socket.socket) -> None:
        """Begin the stream that a new connection names in its first bytes."""
        sock: Connected = plain
        client: Principal | str
        if self._tls is not None:
            sock, client = await self._tls.greeted(plain, "direct lane")
        else:
            client = Principal(peer_of(plain))
        try:
            name = stream_of(await exactly(sock, PREAMBLE_BYTES))
            if isinstance(client, str):
                await self._refuse(sock, name, client)
                return
        except BaseException:
            sock.close()
            raise
        _Connection(sock, STREAMS[name](self._engine, self._facts, client), self)

    async def _refuse(self, sock: Connected, name: str, why: str) -> None:
        """Answer a refused client's hello with the reason, without reading the hello, and close the connection."""
        answer = ANSWERS[name](hello=refusal(self._facts, why))
        queue = SendQueue()
        queue.put(LaneMessage(answer.SerializeToString()))
        sock.send(b"".join(queue.next()))
        await linger(sock)

    def cut_silent(self) -> None:
        """End the streams whose messages do not arrive or arrive too slowly, because others wait for room. Repeat this
        while any wait."""
        now_s = asyncio.get_running_loop().time()
        self._cutting = None
        for each in list(self.opened):
            if each.is_late(now_s):
                each.cut("memory is short, and nothing came on this stream")
        self.room_is_short()

    def is_strange(self, client: Principal) -> bool:
        """Return whether the client must still authenticate with its first message."""
        return self._tls is not None and self._tls.wants_tokens and client.proof is Proof.NONE

    def room_is_short(self) -> None:
        if self._cutting is None and self.room.is_short():
            self._cutting = asyncio.get_running_loop().call_later(SILENT_S, self.cut_silent)


class _Connection:
    """Carries the messages of one stream until either side ends it."""

    def __init__(self, sock: Connected, stream: LaneStream, server: DirectServer) -> None:
        self.stream, self._server, self._clients, self._opened = stream, server, server.clients, server.opened
        stream.lane = DIRECT
        self.is_local = sock.family == socket.AF_UNIX
        self._waits = False  # a long message waits for room
        self._has_room_since = math.inf
        self._loop = asyncio.get_running_loop()
        self._timers = Timers()
        self._leaving = 0  # bytes of the stream's messages that are not sent yet
        self._silent_yet, self._is_stuck = True, False
        self._socket = message_socket(
            sock,
            server.slots,
            receive=self._receive,
            next_message=self._next_message,
            ended=self._lost,
            left=self._left,
            stuck=self._stuck,
            burst=stream.engine.burst,
            long=self._long,
        )
        self._opened.add(self)
        self._clients.streams.add(self)
        stream.wake, stream.on_cut, stream.leave = self._wake, self._cut, self._socket.flush
        self._timers.start("hello", HELLO_TIMEOUT_S, lambda: stream.cut("nothing came on this stream"))
        self._socket.read(True)

    @property
    def reading_since(self) -> float:
        """The loop's time when the connection began to wait for the rest of a message. It is infinite while no message
        has begun, because such a stream holds no memory here."""
        return self._socket.waiting_since

    @property
    def principal(self) -> Principal:
        return self.stream.principal

    def close(self, message: str) -> None:
        self.stream.close(message)

    def cut(self, message: str) -> None:
        self.stream.cut(message)

    def _receive(self, message: Received) -> None:
        if self._silent_yet:
            self._silent_yet = False
            self._timers.stop("hello")
        stream = self.stream
        if stream.closing:
            return
        try:
            stream.receive(message.rest, message.frames)
        except BookKeeperError as error:
            logger.warning("stream %d: %s", stream.stream, error)
            stream.close(str(error))
        except Exception as error:
            logger.exception("stream %d ends by an exception", stream.stream)
            stream.cut(f"the bookie failed on this stream: {error!r}")

    def _long(self, size: int) -> None:
        room = self._server.room
        self._has_room_since = math.inf
        if not size:
            room.give_back(self)
        elif self._silent_yet and self._server.is_strange(self.principal):
            self.stream.cut("a client that has not authenticated sends a long message")
        elif room.take(self, size):
            self._has_room_since = self._loop.time()
        else:
            self._waits = True
            self._read()
            self._server.room_is_short()

    def go_on(self) -> None:
        self._waits, self._has_room_since = False, self._loop.time()
        self._read()

    def is_late(self, now_s: float) -> bool:
        """Return whether a message has stopped arriving, or arrives too slowly."""
        return now_s - self.reading_since > SILENT_S or now_s - self._has_room_since > CREEPING_S

    def _read(self) -> None:
        wanted = self.stream.flows and not self.stream.closing and not self._waits
        if wanted is not self._socket.reads:
            self._socket.read(wanted)

    def _wake(self) -> None:
        if self not in self._opened:  # the stream has ended
            return
        self._read()
        if self.stream.closing and not self._timers.runs("end"):
            self._timers.start("end", GRACE_S, lambda: self.stream.cut("the client reads nothing"))
        if not self.stream.engine.gathers_answers:
            self._socket.wake()

    # --- what goes out ---

    def _next_message(self) -> LaneMessage | None:
        """Take the next message to send, unless many bytes are not sent yet. Further messages stay in the stream, which
        bounds them."""
        if self._leaving >= _LEAVING_BYTES:
            return None
        message = self.stream.next_message()
        if message is not None:
            self._leaving += HEAD_BYTES + len(message.rest)
            if message.frames:
                self._leaving += sum(map(len, message.frames))
        return message

    def _stuck(self) -> None:
        self._is_stuck = True
        self._timers.start("stall", self._clients.read_stall_s, self.stream.stall)
        self._timers.start("write", WRITE_TIMEOUT_S, lambda: self.stream.cut("the client reads nothing"))

    def _left(self) -> None:
        if self._is_stuck:
            self._is_stuck = False
            self._timers.stop("stall")
            self._timers.stop("write")
        if self._leaving:
            if self._leaving >= _LEAVING_BYTES or self.stream.closing:
                self._socket.wake()  # send more messages, or notice that there are none and end
            self._leaving = 0
            self.stream.message_left()
        elif self.stream.closing:
            self._end()

    # --- ends ---

    def _lost(self, reason: str, error: BookKeeperError | None) -> None:
        if error is not None:
            logger.warning("stream %d: %s", self.stream.stream, error)
        self.stream.close(f"the client is gone: {reason}")
        self._end()

    def _cut(self) -> None:
        """End the connection now, and the stream in the loop's next turn, because the engine may be the caller."""
        self._socket.close()
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._timers.stop_all()
        if self in self._opened:
            self._opened.discard(self)
            self._server.room.give_back(self)
            self._clients.streams.discard(self)
            self.stream.on_cut = None
            self.stream.end()
