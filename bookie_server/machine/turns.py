# SPDX-License-Identifier: Apache-2.0
"""Chooses the stream that is served when room is short. Streams take turns, and fences and recovery reads go first
(RULES L3).

This is used in two places. The machine asks each log's *storage* for few reads at the same time, so that a new read
does not wait behind all earlier reads. And the *parts* of answers in memory are bounded, in number and in bytes. A
stream's first part may use all the room for its kind, further parts only half of it, and a share is kept for recovery.
If other streams wait for room, a stream whose client reads none of its answers is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from bookie_server.machine.events import RequestId, StreamId
from bookie_server.machine.owners import Owners
from bookie_server.machine.state import MachineLimits

T = TypeVar("T")

WHOLE = 256
"""The weight of a turn whose part is not read yet, and of a part of ``read_part_bytes``. A smaller part weighs its
share, but at least 1. This is the weight of 4 KiB of a mebibyte, which is the memory of the objects that carry a
part."""
URGENT_IN_A_ROW_MAX = 3
"""The maximum number of urgent requests that are served in a row while other requests wait. Without this bound the
others might never be served."""


class FairQueue(Generic[T]):
    """A queue in which streams take turns. Urgent things have a separate line."""

    __slots__ = ("_in_a_row", "lines")

    def __init__(self) -> None:
        self.lines: tuple[dict[StreamId, deque[T]], dict[StreamId, deque[T]]] = ({}, {})
        """The line of urgent things and the line of all others. Callers must not change them."""
        self._in_a_row = 0

    def put(self, stream: StreamId, thing: T, *, urgent: bool) -> None:
        """Append a thing behind all earlier ones of its stream; a new stream comes behind all other streams."""
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
        """Remove and return the next thing whose stream ``may`` be served, or None if there is none. ``may`` is called
        with a stream and whether the thing is urgent. With None instead of a stream, it returns whether any stream may
        be served."""
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

    def pass_by(self, urgent: bool) -> bool:
        """Return whether the queue is empty, so that a thing may be served without waiting in it; count that thing as
        served."""
        if self.lines[0] or self.lines[1]:
            return False
        self._in_a_row = self._in_a_row + 1 if urgent else 0
        return True

    def _pop(self, line: dict[StreamId, deque[T]], stream: StreamId) -> T:
        things = line.pop(stream)
        thing = things.popleft()
        if things:
            line[stream] = things  # behind the other streams
        return thing

    def __bool__(self) -> bool:
        return bool(self.lines[0] or self.lines[1])

    def streams(self) -> Iterator[StreamId]:
        """Return the streams that have something in the queue."""
        return (stream for line in self.lines for stream in line)


class Turns:
    """The room for parts of answers. A turn is one part that is being planned, read or sent. It weighs :data:`WHOLE`
    until its part is read, and then by the bytes of the part, so that many small answers leave together."""

    __slots__ = (
        "_active",
        "_bytes",
        "_ending",
        "_entries",
        "_limits",
        "_of_stream",
        "_owners",
        "_parts",
        "_room",
        "_sizes",
        "_unread_max",
        "_weight",
        "stalled",
    )

    def __init__(self, limits: MachineLimits, logs: int, owners: Owners | None = None) -> None:
        self._limits, self._owners = limits, Owners() if owners is None else owners
        self._unread_max = limits.storage_reads_max * logs
        self._room = {
            (urgent, further): _room(limits, urgent, further) for urgent in (False, True) for further in (False, True)
        }  # weight and bytes
        self._active = 0
        self._parts = 0  # turns whose part is with the driver; the others are being planned or read
        self._weight = 0  # of all turns
        self._of_stream: dict[StreamId, int] = {}  # weights of the turns of each stream
        self._bytes = 0  # sizes of all parts that the driver has, together
        self._sizes: dict[RequestId, deque[int]] = {}  # size of each of these parts, also those of ended requests
        self._entries: dict[StreamId, deque[int]] = {}  # sizes of the parts that :meth:`take_entries` counted
        self.stalled: dict[StreamId, None] = {}  # streams whose clients read nothing, the longest stalled first
        self._ending: StreamId | None = None  # the stalled stream for which CloseStream was sent

    @property
    def held(self) -> tuple[int, int]:
        """The number of parts being planned, read or sent, and the bytes of those that the driver has."""
        return self._active, self._bytes

    def may(self, stream: StreamId | None, urgent: bool) -> bool:
        """Return whether there is room for another turn of this stream, or of any stream if ``stream`` is None."""
        if self._active - self._parts >= self._unread_max or self._is_full(urgent):
            return False  # the size of parts being read is not known yet
        if stream is None:
            return True
        held = self._of_stream.get(stream, 0)
        if held >= self._limits.reads_per_stream_max * WHOLE:
            return False
        if not urgent and (owners := self._owners.of(stream)) and any(o.answers >= o.bytes_max for o in owners):
            return False
        return not held or urgent or not self._is_full(urgent, further=True)

    def _is_full(self, urgent: bool, *, further: bool = False) -> bool:
        """Return whether the share of urgent turns, or of all others, is used up. With ``further``, return whether half
        of that share is used up."""
        weight_max, bytes_max = self._room[urgent, further]
        return self._weight >= weight_max or self._bytes >= bytes_max

    def take(self, stream: StreamId) -> None:
        self._active += 1
        self._weigh(stream, WHOLE)

    def give_back(self, stream: StreamId) -> None:
        """Release the room of a turn whose part was not read."""
        self._active -= 1
        self._weigh(stream, -WHOLE)

    # --- parts of one entry that are read already ---

    def room_for(self, stream: StreamId) -> tuple[int, int]:
        """Return the weight and the bytes of the parts that this stream may take one after the other: it may take
        another one while both are above 0. For each of them :meth:`may` is true before it is taken."""
        if not self.may(stream, False):
            return 0, 0
        held = self._of_stream.get(stream, 0)
        weight_max, bytes_max = self._room[False, True]
        weight = min(weight_max - self._weight, self._limits.reads_per_stream_max * WHOLE - held)
        size = min([bytes_max - self._bytes, *(o.bytes_max - o.answers for o in self._owners.of(stream))])
        return (weight, size) if held else (max(weight, 1), max(size, 1))  # a stream's first part needs less room

    def take_entries(self, stream: StreamId, sizes: list[int]) -> None:
        """Count parts of these sizes, for which there was room, as given to the driver."""
        self._active += len(sizes)
        self._parts += len(sizes)
        entries = self._entries.get(stream)
        if entries is None:
            entries = self._entries[stream] = deque()
        entries.extend(sizes)
        self._change(stream, sum(sizes), sum(map(self.weight_of, sizes)))

    def entries_sent(self, stream: StreamId, count: int) -> None:
        """Release the room of the oldest ``count`` parts that :meth:`take_entries` counted."""
        entries = self._entries.get(stream)
        if entries is None:
            return
        sizes = [entries.popleft() for _ in range(min(count, len(entries)))]
        if not entries:
            del self._entries[stream]
        self._active -= len(sizes)
        self._parts -= len(sizes)
        self._change(stream, -sum(sizes), -sum(map(self.weight_of, sizes)))
        self.stalled.pop(stream, None)

    def _change(self, stream: StreamId, size: int, weight: int) -> None:
        self._bytes += size
        self._weigh(stream, weight)
        self._owned(stream, size)

    # --- parts of any size ---

    def fill(self, request: RequestId, size: int) -> None:
        """Count a part of ``size`` bytes that was given to the driver."""
        self._sizes.setdefault(request, deque()).append(size)
        self._parts += 1
        self._change(request[0], size, self.weight_of(size) - WHOLE)

    def _weigh(self, stream: StreamId, change: int) -> None:
        self._weight += change
        weight = self._of_stream.get(stream, 0) + change
        if weight:
            self._of_stream[stream] = weight
        else:
            del self._of_stream[stream]

    def weight_of(self, size: int) -> int:
        """Return the weight of a part of this size."""
        weight = size * WHOLE // self._limits.read_part_bytes + 1
        return weight if weight < WHOLE else WHOLE

    def _owned(self, stream: StreamId, size: int) -> None:
        for owner in self._owners.of(stream):
            owner.answers += size

    def sent(self, request: RequestId) -> bool:
        """Release the room of this request's oldest part, which was sent. Return False if the driver has no part of
        this request."""
        sizes = self._sizes.get(request)
        if not sizes:
            return False
        size = sizes.popleft()
        self._parts -= 1
        self._active -= 1
        self._change(request[0], -size, -self.weight_of(size))
        if not sizes:
            del self._sizes[request]
        self.stalled.pop(request[0], None)
        return True

    def close(self, stream: StreamId) -> None:
        """Release the room of all parts of a stream that is gone."""
        self.stalled.pop(stream, None)
        if self._ending == stream:
            self._ending = None
        for request in [request for request in self._sizes if request[0] == stream]:
            while self.sent(request):
                pass
        self.entries_sent(stream, len(self._entries.get(stream, ())))

    def stall(self, stream: StreamId) -> None:
        """Note that the client of this stream has read none of its answers for a while."""
        if stream in self._of_stream:
            self.stalled[stream] = None

    def to_end(self, waiting: Iterable[StreamId]) -> StreamId | None:
        """Return the stalled stream to end now, because a waiting stream has no room at all, or None. Only one stream
        is being ended at a time."""
        if self._ending is not None or not self.stalled or not self._is_full(False):
            return None
        if all(stream in self._of_stream for stream in waiting):
            return None
        stream = self._ending = next(iter(self.stalled))
        del self.stalled[stream]
        return stream


def _room(limits: MachineLimits, urgent: bool, further: bool) -> tuple[int, int]:
    """Return the weight and the bytes of all turns from which on there is no room for urgent turns, or for all others.
    With ``further``, return half of them."""
    turns, size = limits.reads_active_max, limits.reads_bytes_max
    if not urgent:
        turns, size = turns - turns // 4, size - size // 4
    if further:
        turns, size = (turns + 1) // 2, size // 2
    return turns * WHOLE, size
