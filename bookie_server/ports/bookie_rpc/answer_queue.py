# SPDX-License-Identifier: Apache-2.0
"""The answers of one connection of Apache's wire that wait to be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bk_core.wire.bookie_rpc.frames import Buffer
from bookie_server.machine import events
from bookie_server.ports.bounds.memory_bounds import AnswerRoom

MESSAGE_BYTES = 1 << 20
"""The socket gets about this many bytes at once."""

COUNTED_BYTES_MAX = 16 << 20
"""Answers with LAC evidence may be as large as two entries. They are counted, and no more are taken while the counted
answers of a connection have more bytes than this."""


class AnswerQueue:
    """Buffers in the order in which the client gets them.

    - ``waiting``: each buffer with two marks: the machine's request of which it ends a part, and whether it is counted.
      Other objects only look at it.
    - ``_counted_bytes``: the bytes of the counted buffers. They are part of ``_room``, which all connections share.
    - ``_leaving``: the requests whose parts the last message ends.
    - ``is_stalled``: the client reads nothing.

    ``wake`` is called when the queue was empty and gets a buffer.
    """

    def __init__(self, room: AnswerRoom, feed: Callable[[events.Event], None], wake: Callable[[], None]) -> None:
        self._room, self._feed, self._wake = room, feed, wake
        self.waiting: deque[tuple[Buffer, events.RequestId | None, bool]] = deque()
        self._counted_bytes = 0
        self._leaving: list[events.RequestId] = []
        self.is_stalled = False

    def send(self, buffer: Buffer, request: events.RequestId | None = None, *, counted: bool = False) -> None:
        """Queue a buffer. Once ``request`` is given and the buffer has left, the machine gets ``PartSent``."""
        if not self.waiting:
            self._wake()
        self.waiting.append((buffer, request, counted))
        if counted:
            self._count(len(buffer))

    def is_full(self, *, fence: bool) -> bool:
        """Return whether no further counted answer may be queued. The answer to a fence has some more room."""
        return self._counted_bytes > COUNTED_BYTES_MAX or self._room.refuses(fence=fence)

    def next_message(self) -> list[Buffer]:
        """Take the next buffers off the queue, about MESSAGE_BYTES of them; none if nothing waits."""
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
        """The socket has taken the last message, and takes more."""
        self.is_stalled = False
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            for request in leaving:
                self._feed(events.PartSent(request))

    def drop(self) -> None:
        """Forget all answers: the connection is gone."""
        while self.waiting:
            self.next_message()

    def _count(self, size: int) -> None:
        self._counted_bytes += size
        self._room.bytes += size
