# SPDX-License-Identifier: Apache-2.0
"""A connected socket that carries messages of the direct lane, on either side, on the loop.

asyncio's own transports copy what they cannot send at once, and join buffers; this sends frames from where they are,
and receives a long message straight into its slot. What is to be sent leaves once a turn of the loop, in as few system
calls as possible.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from collections.abc import Callable

from bk_core.errors import BookKeeperError
from bk_core.memory.slots import Slots
from bk_core.transport.lane.same_host import widen
from bk_core.wire.lane.direct_messages import MessageReader, Received, SendQueue
from bk_core.wire.lane.reasons import LaneMessage

TURN_BYTES_MAX = 4 << 20
"""Limits the bytes received in one turn of the loop; then other connections have their turn."""

MESSAGE_TIMEOUT_S = 10.0
"""The connection ends if a message has begun, and for so long no more of it comes although it is read."""

GONE = "the other side ended the connection"
LATE = "a message did not end"

WAKE_BYTES = 128 << 10
"""How many bytes of a long message arrive before the system wakes this process: each packet of 1,500 bytes would."""

_QUEUED_BYTES = 1 << 20
"""More messages are asked for while less than this waits to be sent."""

_LINUX = sys.platform == "linux"
_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 20_000))
"""A host that is gone is noticed in 20 seconds. Where the system has no such option, its own times hold."""


class MessageSocket:
    """Owns ``sock``, which must not block. All calls and callbacks are on the loop.

    ``receive`` gets each message; a BookKeeperError that it raises ends the connection. ``next_message`` says what is
    to be sent. ``left`` is called when the system has taken all there was, ``stuck`` when it begins to take nothing.
    ``burst`` calls what it is given, which receives all there is. ``ended`` is called once, unless :meth:`close` came
    first, with the reason and the error that was raised, if one was. ``long`` gets the size of a message that is
    received into a slot, before more than its first bytes are there, and 0 when it has come: then it may stop reading.
    """

    def __init__(
        self,
        sock: socket.socket,
        slots: Slots,
        *,
        receive: Callable[[Received], None],
        next_message: Callable[[], LaneMessage | None],
        ended: Callable[[str, BookKeeperError | None], None],
        left: Callable[[], None] = lambda: None,
        stuck: Callable[[], None] = lambda: None,
        burst: Callable[[Callable[[], None]], None] | None = None,
        long: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._sock, self._loop = sock, asyncio.get_running_loop()
        self._receive, self._next_message, self._ended = receive, next_message, ended
        self._left, self._stuck, self._long, self._long_bytes = left, stuck, long, 0
        self._on_readable = (self._readable,) if burst is None else (burst, self._readable)
        self._reader, self._queue = MessageReader(slots.take), SendQueue()
        self._scheduled = self._blocked = self._reading = self._closed = False
        self._flushing = self._again = False
        self._received_at = self._loop.time()
        self._late: asyncio.TimerHandle | None = None  # looks whether a message goes on
        self._wakes_at = 1  # the bytes with which the system wakes us
        self._can_wait = _LINUX and isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX
        _prepare(sock)

    @property
    def waiting_since(self) -> float:
        """When the last bytes came of a message that has not ended; infinite if there is none, or nothing is read."""
        return self._received_at if self._reading and self._reader.in_message else math.inf

    def send_first(self, data: bytes) -> None:
        """Send bytes that are no message, before all messages."""
        self._queue.put_bytes(data)
        self.wake()

    def wake(self) -> None:
        """There may be something to send: look at the end of this turn of the loop, or of what is being sent."""
        if self._flushing:
            self._again = True
        elif not self._scheduled and not self._blocked and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Send what there is now, as far as the system takes it."""
        if self._flushing:
            self._again = True
        elif not self._blocked:
            self._flush()

    @property
    def reads(self) -> bool:
        return self._reading

    def read(self, wanted: bool) -> None:
        """Go on receiving, or stop it."""
        if wanted is self._reading or self._closed:
            return
        self._reading = wanted
        if wanted:
            self._loop.add_reader(self._sock, *self._on_readable)
            self._received_at = self._loop.time()  # the other side could not go on
            self._watch()
        else:
            self._loop.remove_reader(self._sock)

    def close(self) -> None:
        """End the connection at once. Idempotent."""
        if not self._closed:
            self.read(False)
            if self._blocked:
                self._loop.remove_writer(self._sock)
            if self._late is not None:
                self._late.cancel()
            self._closed = True
            self._sock.close()
            self._reader.drop()

    # --- receiving ---

    def _readable(self) -> None:
        try:
            self._receive_some()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(str(error))
        except BookKeeperError as error:
            self._end(str(error), error)
        if self._reader.in_message:
            self._watch()

    def _watch(self) -> None:
        if self._late is None:
            self._look()

    def _look(self) -> None:
        """End the connection if a message stands still; look again while one is under way."""
        self._late = None
        if self._closed or (since := self.waiting_since) == math.inf:
            return
        left = since + MESSAGE_TIMEOUT_S - self._loop.time()
        if left > 0:
            self._late = self._loop.call_later(left, self._look)
        elif self._wakes_at > 1:
            self._wake_at(1)
            call, *arguments = self._on_readable
            call(*arguments)  # it may be slow: what came counts, and if nothing did, this is asked again
        else:
            self._end(LATE)

    def _receive_some(self) -> None:
        """Receive what there is, as far as it fits a turn."""
        size = 0
        while size < TURN_BYTES_MAX and self._reading:
            buffers = self._reader.buffers()
            count = self._sock.recvmsg_into(buffers)[0]
            if count == 0:
                self._end(GONE)
                return
            size += count
            for message in self._reader.received(count):
                self._receive(message)
                if self._closed:
                    return
            if self._reader.in_message:
                self._received_at = self._loop.time()
            if self._long_bytes != self._reader.long_bytes:
                self._long_bytes = self._reader.long_bytes
                self._long(self._long_bytes)
            if count < sum(map(len, buffers)):
                break  # that was all
        if self._can_wait and (self._long_bytes or self._wakes_at > 1):
            self._wake_at(min(self._reader.missing, WAKE_BYTES) or 1)

    def _wake_at(self, count: int) -> None:
        """Let the system wake us once so many bytes are there, or as many as it has room for. Not with TLS, which may
        hold some of them itself, nor on unix sockets, which have no packets."""
        if count != self._wakes_at and not self._closed:
            self._wakes_at = count
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    # --- sending ---

    def _flush(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        queue = self._queue
        self._flushing = self._again = True
        try:
            while self._again and not self._closed:
                self._again = False
                self._fill()
                while queue.bytes:
                    queue.sent(self._sock.sendmsg(queue.next()))
                self._left()
            if self._blocked and not self._closed:
                self._blocked = False
                self._loop.remove_writer(self._sock)
        except (BlockingIOError, InterruptedError):
            if not self._blocked:
                self._blocked = True
                self._loop.add_writer(self._sock, self._flush)
                self._stuck()
        except OSError as error:
            self._end(str(error))
        finally:
            self._flushing = False

    def _fill(self) -> None:
        """Queue messages, as many as there are or may wait."""
        queue = self._queue
        while queue.bytes < _QUEUED_BYTES:
            message = self._next_message()
            if message is None:
                return
            queue.put(message)
        self._again = True

    def _end(self, reason: str, error: BookKeeperError | None = None) -> None:
        if not self._closed:
            self.close()
            self._ended(reason, error)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        widen(sock)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
