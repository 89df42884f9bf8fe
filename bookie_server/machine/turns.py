# SPDX-License-Identifier: Apache-2.0
"""Who is next, where there is not room for all: streams take turns, and what cannot wait goes before (RULES L3).

Two places use it. The *storage* of a log is asked for few things at once, so that what comes last is not behind all
that anybody ever asked for. And *parts* of answers that are in memory are bounded, in number and in bytes: a stream's
first part may use all the room there is for its kind, further ones only half of it, and a share is kept for recovery.
Whoever takes nothing of what is ready for it gives its room up, when others wait for room: its stream is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from bookie_server.machine.events import RequestId, StreamId
from bookie_server.machine.state import MachineLimits

T = TypeVar("T")

URGENT_IN_A_ROW_MAX = 3
"""Urgent ones go before others, but not for ever."""


class FairQueue(Generic[T]):
    """Things that wait, of streams that take turns; the urgent ones in a line of their own."""

    __slots__ = ("_in_a_row", "_lines")

    def __init__(self) -> None:
        self._lines: tuple[dict[StreamId, deque[T]], dict[StreamId, deque[T]]] = ({}, {})
        self._in_a_row = 0

    def put(self, stream: StreamId, thing: T, *, urgent: bool) -> None:
        """Behind all others of this stream, and the stream behind all others."""
        self._lines[0 if urgent else 1].setdefault(stream, deque()).append(thing)

    def remove(self, stream: StreamId, thing: T) -> None:
        """It waits no more; it is there."""
        for line in self._lines:
            things = line.get(stream)
            if things and thing in things:
                things.remove(thing)
                if not things:
                    del line[stream]
                return

    def take(self, may: Callable[[StreamId | None, bool], bool]) -> T | None:
        """The next thing whose stream ``may`` go on (asked with the stream and whether the thing is urgent; without a
        stream: whether any may); None if there is none."""
        order = (1, 0) if self._in_a_row >= URGENT_IN_A_ROW_MAX and self._lines[1] else (0, 1)
        for number in order:
            line, urgent = self._lines[number], number == 0
            if not line or not may(None, urgent):
                continue
            stream = next((stream for stream in line if may(stream, urgent)), None)
            if stream is not None:
                self._in_a_row = self._in_a_row + 1 if urgent else 0
                return self._pop(line, stream)
        return None

    def _pop(self, line: dict[StreamId, deque[T]], stream: StreamId) -> T:
        things = line.pop(stream)
        thing = things.popleft()
        if things:
            line[stream] = things  # behind the other streams
        return thing

    def __bool__(self) -> bool:
        return any(self._lines)

    def streams(self) -> Iterator[StreamId]:
        """Those of which something waits."""
        return (stream for line in self._lines for stream in line)


class Turns:
    """Room for parts of answers: a turn is a part that is planned, read, or on its way out."""

    __slots__ = ("_active", "_bytes", "_ending", "_limits", "_of_stream", "_parts", "_sizes", "_stalled", "_unread_max")

    def __init__(self, limits: MachineLimits, logs: int) -> None:
        self._limits = limits
        self._unread_max = limits.storage_reads_max * logs
        self._active = 0
        self._parts = 0  # of them, in the driver's hands; the others are planned or read
        self._of_stream: dict[StreamId, int] = {}
        self._bytes = 0  # of parts in the driver's hands
        self._sizes: dict[RequestId, deque[int]] = {}  # those parts, of ended requests too
        self._stalled: dict[StreamId, None] = {}  # streams that take nothing, longest first
        self._ending: StreamId | None = None  # the one of them that was told to end

    def may(self, stream: StreamId | None, urgent: bool) -> bool:
        """Whether there is room for one more turn of this stream, or of any."""
        if self._active - self._parts >= self._unread_max or self._is_full(urgent):
            return False  # what those being read will take is not known yet
        held = self._of_stream.get(stream, 0) if stream is not None else 0
        if held >= self._limits.reads_per_stream_max:
            return False
        return not held or urgent or not self._is_full(urgent, further=True)

    def _is_full(self, urgent: bool, *, further: bool = False) -> bool:
        """Whether the share of the urgent, or of all others, is used up; ``further``: half of it."""
        turns, size = self._limits.reads_active_max, self._limits.reads_bytes_max
        if not urgent:
            turns, size = turns - turns // 4, size - size // 4
        if further:
            turns, size = (turns + 1) // 2, size // 2
        return self._active >= turns or self._bytes >= size

    def take(self, stream: StreamId) -> None:
        self._active += 1
        self._of_stream[stream] = self._of_stream.get(stream, 0) + 1

    def give_back(self, stream: StreamId) -> None:
        self._active -= 1
        left = self._of_stream.pop(stream) - 1
        if left:
            self._of_stream[stream] = left

    def fill(self, request: RequestId, size: int) -> None:
        """A turn has become a part of that many bytes, given to the driver."""
        self._sizes.setdefault(request, deque()).append(size)
        self._bytes += size
        self._parts += 1

    def sent(self, request: RequestId) -> bool:
        """The oldest part of this request has left; False if there is none."""
        sizes = self._sizes.get(request)
        if not sizes:
            return False
        self._bytes -= sizes.popleft()
        self._parts -= 1
        if not sizes:
            del self._sizes[request]
        self._stalled.pop(request[0], None)
        self.give_back(request[0])
        return True

    def close(self, stream: StreamId) -> None:
        """The stream is gone, and with it what was to be sent on it."""
        self._stalled.pop(stream, None)
        if self._ending == stream:
            self._ending = None
        for request in [request for request in self._sizes if request[0] == stream]:
            while self.sent(request):
                pass

    def stall(self, stream: StreamId) -> None:
        """The stream has taken nothing for a while of what is ready for it."""
        if stream in self._of_stream:
            self._stalled[stream] = None

    def to_end(self, waiting: Iterable[StreamId]) -> StreamId | None:
        """The stream that is to give up its room, because a waiting one has none at all; one at a time."""
        if self._ending is not None or not self._stalled or not self._is_full(False):
            return None
        if all(stream in self._of_stream for stream in waiting):
            return None
        stream = self._ending = next(iter(self._stalled))
        del self._stalled[stream]
        return stream
