# SPDX-License-Identifier: Apache-2.0
"""The answers of one connection of Apache's wire that wait to be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bk_core.wire.bookie_rpc.frames import Buffer
from bookie_server.machine import events
from bookie_server.ports.bounds.memory_bounds import AnswerRoom

MESSAGE_BYTES = 1 << 20
"""The approximate size of one message to the socket, in bytes. A message ends with the buffer that reaches this
size."""

COUNTED_BYTES_MAX = 16 << 20
"""The maximum size of the counted answers of a connection, in bytes. Above it, further counted answers are refused.
Answers with LAC evidence are counted, because each may be as large as two entries."""


class AnswerQueue:
    """Buffers in the order in which the client gets them.

    - ``waiting``: each buffer, the machine's request whose part it ends, or None, and whether the buffer is counted.
      Other objects only read it.
    - ``_counted_bytes``: the bytes of the counted buffers. They also count in ``_room``, which all connections share.
    - ``_leaving``: the requests whose parts end in the last message.
    - ``is_stalled``: the client reads nothing.

    ``wake`` is called when the empty queue gets a buffer.
    """

    def __init__(self, room: AnswerRoom, feed: Callable[[events.Event], None], wake: Callable[[], None]) -> None:
        self._room, self._feed, self._wake = room, feed, wake
        self.waiting: deque[tuple[Buffer, events.RequestId | None, bool]] = deque()
        self._counted_bytes = 0
        self._leaving: list[events.RequestId] = []
        self.is_stalled = False

    def send(self, buffer: Buffer, request: events.RequestId | None = None, *, counted: bool = False) -> None:
        """Queue a buffer. If ``request`` is given, the machine gets ``PartSent`` for it once the buffer has left."""
        if not self.waiting:
            self._wake()
        self.waiting.append((buffer, request, counted))
        if counted:
            self._count(len(buffer))

    def is_full(self, *, fence: bool) -> bool:
        """Return whether no further counted answer may be queued. The room for answers to fences is a little larger."""
        return self._counted_bytes > COUNTED_BYTES_MAX or self._room.refuses(fence=fence)

    def next_message(self) -> list[Buffer]:
        """Take the next buffers off the queue, about MESSAGE_BYTES in all. The list is empty if nothing waits."""
        message: list[Buffer] = []
        size = 0
        while self.waiting and size < MESSAGE_BYTES:
            buffer, request, counted = self.waiting.popleft()
            size += len(buffer)
            if counted:
                self._count(-len(buffer))
            if request is not None:
                self._leaving.append(request)
            message.append(buffer)
        return message

    def message_left(self) -> None:
        """Note that the socket has taken the last message, and give the machine ``PartSent`` for the parts in it."""
        self.is_stalled = False
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            for request in leaving:
                self._feed(events.PartSent(request))

    def drop(self) -> None:
        """Forget all answers, because the connection is gone."""
        while self.waiting:
            self.next_message()

    def _count(self, size: int) -> None:
        self._counted_bytes += size
        self._room.bytes += size
