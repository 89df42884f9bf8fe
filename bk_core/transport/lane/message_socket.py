# SPDX-License-Identifier: Apache-2.0
"""Carries messages of the direct lane over a connected socket, on either side, on the loop.

asyncio's transports copy bytes that they cannot send immediately, and join buffers. This class sends frames without a
copy, and receives a long message directly into its slot. It sends once per turn of the loop, with as few system calls
as possible.
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
"""The approximate maximum number of bytes that one connection receives in one turn of the loop, so that other
connections are not delayed."""

MESSAGE_TIMEOUT_S = 10.0
"""The number of seconds without a byte of an unfinished message, while this side reads, after which the connection
ends."""

GONE = "the other side ended the connection"
LATE = "a message did not end"

WAKE_BYTES = 128 << 10
"""The number of bytes of a long message after which the system wakes this process. Otherwise each packet of 1,500 bytes
would wake it."""

_QUEUED_BYTES = 1 << 20
"""The number of waiting bytes from which the socket takes no further messages to send."""

_LINUX = sys.platform == "linux"
_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 20_000))
"""The TCP options by which a lost host is noticed within 20 seconds. A system that lacks an option uses its default
time."""


class MessageSocket:
    """Sends and receives messages over the non-blocking socket ``sock``, which it owns. All calls and callbacks are on
    the loop.

    ``receive`` is called with each message; a BookKeeperError that it raises ends the connection. ``next_message``
    returns the next message to send, or None. ``left`` is called when the system has taken all bytes to send, and
    ``stuck`` when it stops taking bytes. ``burst`` is called when bytes have come; its argument is a function that it
    must call to receive them. ``ended`` is called once, unless :meth:`close` was called before, with the reason and the
    error that was raised, or None. ``long`` is called with the size of a message that is received into a slot, when its
    first bytes have come, and with 0 when the message is complete. It may stop reading.
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
        self._late: asyncio.TimerHandle | None = None  # checks whether an unfinished message continues
        self._wakes_at = 1  # the number of bytes at which the system wakes us
        self._can_wait = _LINUX and isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX
        _prepare(sock)

    @property
    def waiting_since(self) -> float:
        """The loop's time at which the last bytes of an unfinished message came. It is infinite if no message is
        unfinished, or if this side does not read."""
        return self._received_at if self._reading and self._reader.in_message else math.inf

    def send_first(self, data: bytes) -> None:
        """Send bytes that are not a message, before all messages."""
        self._queue.put_bytes(data)
        self.wake()

    def wake(self) -> None:
        """Send the messages that are there at the end of this turn of the loop, or after a send that is running."""
        if self._flushing:
            self._again = True
        elif not self._scheduled and not self._blocked and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Send the messages that are there now, as far as the system takes them."""
        if self._flushing:
            self._again = True
        elif not self._blocked:
            self._flush()

    @property
    def reads(self) -> bool:
        return self._reading

    def read(self, wanted: bool) -> None:
        """Begin or stop receiving."""
        if wanted is self._reading or self._closed:
            return
        self._reading = wanted
        if wanted:
            self._loop.add_reader(self._sock, *self._on_readable)
            self._received_at = self._loop.time()  # this side paused, so the time limit of a message begins again
            self._watch()
        else:
            self._loop.remove_reader(self._sock)

    def close(self) -> None:
        """End the connection without sending more. A second call does nothing."""
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
        """End the connection if an unfinished message has not continued for MESSAGE_TIMEOUT_S. Otherwise check again
        later."""
        self._late = None
        if self._closed or (since := self.waiting_since) == math.inf:
            return
        left = since + MESSAGE_TIMEOUT_S - self._loop.time()
        if left > 0:
            self._late = self._loop.call_later(left, self._look)
        elif self._wakes_at > 1:
            self._wake_at(1)
            call, *arguments = self._on_readable
            call(*arguments)  # receives the bytes that are there; if there are none, this method is called again
        else:
            self._end(LATE)

    def _receive_some(self) -> None:
        """Receive the bytes that have come, at most about TURN_BYTES_MAX."""
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
                break  # no more bytes are there
        if self._can_wait and (self._long_bytes or self._wakes_at > 1):
            self._wake_at(min(self._reader.missing, WAKE_BYTES) or 1)

    def _wake_at(self, count: int) -> None:
        """Let the system wake this process once ``count`` bytes have come, or as many as its buffer holds. This is not
        used with TLS, where OpenSSL may hold some of the bytes, nor on unix sockets, which have no packets."""
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
        """Queue messages to send, until there are none or _QUEUED_BYTES wait."""
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
