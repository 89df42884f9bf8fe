# SPDX-License-Identifier: Apache-2.0
"""Chooses which stream is served when room is short: streams take turns, and fences and recovery reads go first (RULES
L3).

It is used twice. Each log's *storage* is asked for few things at once, so that a new read does not wait behind all
earlier ones. And the *parts* of answers in memory are bounded, in number and in bytes: a stream's first part may use
all the room for its kind, further parts only half of it, and a share is kept for recovery. If others wait for room, a
stream whose client takes nothing of its answers is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from bookie_server.machine.events import RequestId, StreamId
from bookie_server.machine.owners import Owners
from bookie_server.machine.state import MachineLimits

T = TypeVar("T")

URGENT_IN_A_ROW_MAX = 3
"""After so many urgent ones in a row another one is served."""


class FairQueue(Generic[T]):
    """A queue of things in which streams take turns; urgent things have a line of their own."""

    __slots__ = ("_in_a_row", "lines")

    def __init__(self) -> None:
        self.lines: tuple[dict[StreamId, deque[T]], dict[StreamId, deque[T]]] = ({}, {})
        """The urgent one and the other; to be looked at only."""
        self._in_a_row = 0

    def put(self, stream: StreamId, thing: T, *, urgent: bool) -> None:
        """Queue a thing behind all others of its stream; a new stream comes behind all other streams."""
        self.lines[0 if urgent else 1].setdefault(stream, deque()).append(thing)

    def remove(self, stream: StreamId, thing: T) -> None:
        """Remove a thing that is in the queue."""
        for line in self.lines:
            things = line.get(stream)
            if things and thing in things:
                things.remove(thing)
                if not things:
                    del line[stream]
                return

    def take(self, may: Callable[[StreamId | None, bool], bool]) -> T | None:
        """The next thing whose stream ``may`` go on; None if there is none. ``may`` is called with a stream and whether
        the thing is urgent; with None instead of a stream it says whether any stream may."""
        order = (1, 0) if self._in_a_row >= URGENT_IN_A_ROW_MAX and self.lines[1] else (0, 1)
        for number in order:
            line, urgent = self.lines[number], number == 0
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
        return bool(self.lines[0] or self.lines[1])

    def streams(self) -> Iterator[StreamId]:
        """The streams that have something in the queue."""
        return (stream for line in self.lines for stream in line)


class Turns:
    """Room for parts of answers. A turn is one part that is being planned, read or sent."""

    __slots__ = (
        "_active",
        "_bytes",
        "_ending",
        "_limits",
        "_of_stream",
        "_owners",
        "_parts",
        "_sizes",
        "_unread_max",
        "stalled",
    )

    def __init__(self, limits: MachineLimits, logs: int, owners: Owners | None = None) -> None:
        self._limits, self._owners = limits, Owners() if owners is None else owners
        self._unread_max = limits.storage_reads_max * logs
        self._active = 0
        self._parts = 0  # turns whose part is with the driver; the others are being planned or read
        self._of_stream: dict[StreamId, int] = {}
        self._bytes = 0  # of parts in the driver's hands
        self._sizes: dict[RequestId, deque[int]] = {}  # sizes of those parts, also of ended requests
        self.stalled: dict[StreamId, None] = {}  # streams that take nothing, the longest stalled first
        self._ending: StreamId | None = None  # the stalled stream that was told to end

    @property
    def held(self) -> tuple[int, int]:
        """Parts being planned, read or sent, and the bytes of those that were read."""
        return self._active, self._bytes

    def may(self, stream: StreamId | None, urgent: bool) -> bool:
        """Whether there is room for one more turn of this stream, or of any."""
        if self._active - self._parts >= self._unread_max or self._is_full(urgent):
            return False  # the size of parts being read is not known yet
        held = self._of_stream.get(stream, 0) if stream is not None else 0
        if held >= self._limits.reads_per_stream_max:
            return False
        if stream is not None and not urgent and any(o.answers >= o.bytes_max for o in self._owners.of(stream)):
            return False
        return not held or urgent or not self._is_full(urgent, further=True)

    def _is_full(self, urgent: bool, *, further: bool = False) -> bool:
        """Whether the share of urgent turns, or of all others, is used up; ``further``: half of that share."""
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
        """A turn's part of ``size`` bytes was given to the driver."""
        self._sizes.setdefault(request, deque()).append(size)
        self._bytes += size
        self._parts += 1
        self._owned(request, size)

    def _owned(self, request: RequestId, size: int) -> None:
        for owner in self._owners.of(request[0]):
            owner.answers += size

    def sent(self, request: RequestId) -> bool:
        """The oldest part of this request was sent; False if there is none."""
        sizes = self._sizes.get(request)
        if not sizes:
            return False
        size = sizes.popleft()
        self._bytes -= size
        self._parts -= 1
        self._owned(request, -size)
        if not sizes:
            del self._sizes[request]
        self.stalled.pop(request[0], None)
        self.give_back(request[0])
        return True

    def close(self, stream: StreamId) -> None:
        """The stream is gone, and with it the parts that were to be sent on it."""
        self.stalled.pop(stream, None)
        if self._ending == stream:
            self._ending = None
        for request in [request for request in self._sizes if request[0] == stream]:
            while self.sent(request):
                pass

    def stall(self, stream: StreamId) -> None:
        """For a while the client of this stream has taken nothing of its answers."""
        if stream in self._of_stream:
            self.stalled[stream] = None

    def to_end(self, waiting: Iterable[StreamId]) -> StreamId | None:
        """The stalled stream to end now, because a waiting stream has no room at all. One at a time; None if there is
        none."""
        if self._ending is not None or not self.stalled or not self._is_full(False):
            return None
        if all(stream in self._of_stream for stream in waiting):
            return None
        stream = self._ending = next(iter(self.stalled))
        del self.stalled[stream]
        return stream
