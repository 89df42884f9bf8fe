# SPDX-License-Identifier: Apache-2.0
"""Tracks the requests under way in the bookie's machine, of all kinds. Each request is admitted, fences first if it
must, and ends once.

A request belongs to a *path* (reads, LAC, comparisons), which plans it and gets the results of storage. This file has
the code that all kinds share. A request may wait for a sequence number of the log, for storage, or for its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bk_core.model import LEDGER_ID_MAX, LedgerId
from bk_core.wire.lane.reasons import Cut, Reason
from bookie_server.machine.core import Core, Refusal
from bookie_server.machine.disk_places import Unresolved
from bookie_server.machine.events import (
    FramesRead,
    MembershipsRead,
    PauseStream,
    Piece,
    ReadFrames,
    ReadMemberships,
    RequestId,
    ResumeStream,
    StreamId,
)
from bookie_server.machine.turns import FairQueue

_FEW = 16
"""The number of requests under way below which a stream may use twice ``requests_max``, so that streams with many
requests do not shut it out."""


class Path:
    """The handling of one kind of requests."""

    def run(self, request: Request) -> None:
        """Continue a request that waits neither for the log nor for storage."""
        raise NotImplementedError

    def frames_read(self, request: Request, pieces: Sequence[Piece], frames: Sequence[Frame | None]) -> None:
        """Take the frames that storage has read for these pieces; none of them is damaged."""
        raise NotImplementedError

    def damaged(self, request: Request) -> None:
        """Prepare a request to plan again, because some of the bytes read are damaged and have been marked so.
        :meth:`run` follows."""

    def refuse(self, request: Request, problem: Refusal) -> None:
        """Send the refusal of a request. The request is already forgotten, or never began."""
        raise NotImplementedError

    def forgotten(self, request: Request) -> None:
        """Release what this path keeps for a request that is over, answered or not."""


Frame = bytes | bytearray | memoryview


class Request:
    """One request under way. Each path has a subclass with its own state."""

    __slots__ = ("asking", "fencing", "ledger_id", "path", "pieces", "request_id", "resolved", "resolving", "urgent")

    def __init__(
        self, request_id: RequestId, ledger_id: LedgerId, path: Path, *, fencing: bool = False, urgent: bool = False
    ) -> None:
        self.request_id, self.ledger_id, self.path, self.fencing = request_id, ledger_id, path, fencing
        self.urgent = fencing or urgent  # is served before other requests
        self.asking: ReadFrames | ReadMemberships | None = None  # the effect that waits until storage may be asked
        self.pieces: Sequence[Piece] | None = None  # pieces being read
        self.resolving: Sequence[Unresolved] | None = None  # frames whose memberships are being read
        self.resolved: dict[Unresolved, object] = {}

    @property
    def stream(self) -> StreamId:
        return self.request_id[0]


class Requests:
    __slots__ = ("_asked", "_asked_of", "_asking", "_by_id", "_core", "_of_stream", "_paused", "_watches", "watches")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_id: dict[RequestId, Request] = {}
        self._of_stream: dict[StreamId, dict[RequestId, None]] = {}
        self._paused: set[StreamId] = set()
        self.watches = 0  # waiting watches; they may wait long, so they have their own bound
        self._watches: dict[StreamId, int] = {}
        self._asking: tuple[FairQueue[Request], ...] = tuple(FairQueue() for _ in core.logs)
        self._asked = [0] * len(core.logs)  # reads under way in each log's storage
        self._asked_of: dict[RequestId, deque[int]] = {}  # logs that requests, perhaps forgotten ones, wait for

    def get(self, request_id: RequestId) -> Request | None:
        return self._by_id.get(request_id)

    # --- beginnings and ends ---

    def begin(self, request: Request, fence_key: bytes | None = None, *, admit: bool = True) -> None:
        """Begin a request, or refuse it. If a key is given, fence first; then run it."""
        problem = self._admission_problem(request) if admit else None
        if problem:
            request.path.refuse(request, problem)
            return
        self._by_id[request.request_id] = request
        self._of_stream.setdefault(request.stream, {})[request.request_id] = None
        if admit:
            self._pause(request.stream)
        if fence_key is not None:
            fenced = self._core.fence(request.ledger_id, fence_key)
            if not isinstance(fenced, int):
                self.refuse(request, fenced)
                return
        self.run(request)

    def _admission_problem(self, request: Request) -> Refusal | None:
        if not 0 <= request.ledger_id <= LEDGER_ID_MAX:
            return Reason.BAD_REQUEST, f"ledger id {request.ledger_id}"
        if self.uses(request.request_id):
            return Reason.BAD_REQUEST, f"request {request.request_id[1]} is under way"
        limits, under_way = self._core.limits, len(self._by_id) - self.watches
        first = request.fencing or self._under_way_of(request.stream) < _FEW
        if under_way >= (2 if first else 1) * limits.requests_max:
            return Reason.OVERLOADED, f"{under_way} requests are under way"
        return None

    def has_room(self) -> bool:
        """Return whether few enough requests are under way for one of any stream, and no sync has failed."""
        return self._core.failed is None and len(self._by_id) - self.watches < self._core.limits.requests_max

    def uses(self, request_id: RequestId) -> bool:
        """Return whether a request with this id is under way, or a read in storage for an earlier one."""
        return request_id in self._by_id or request_id in self._asked_of

    def _under_way_of(self, stream: StreamId) -> int:
        return len(self._of_stream.get(stream, ())) - self._watches.get(stream, 0)

    def _pause(self, stream: StreamId) -> None:
        """Pause a stream that has many requests under way."""
        if stream not in self._paused and self._under_way_of(stream) >= self._core.limits.requests_per_stream_max:
            self._paused.add(stream)
            self._core.effects.append(PauseStream(stream))

    def _resume(self, stream: StreamId) -> None:
        if self._under_way_of(stream) <= self._core.limits.requests_per_stream_max // 2:
            self._paused.discard(stream)
            self._core.effects.append(ResumeStream(stream))

    def too_many_watches(self, stream: StreamId) -> Refusal | None:
        """Return why this stream may not watch another ledger, or None if it may."""
        limits = self._core.limits
        if self.watches >= limits.watches_max or self._watches.get(stream, 0) >= limits.watches_per_stream_max:
            return Reason.OVERLOADED, f"{self.watches} watches, {self._watches.get(stream, 0)} of this stream"
        return None

    def watching(self, request: Request) -> None:
        """Count the request as a waiting watch instead of as under way."""
        self.watches += 1
        self._watches[request.stream] = self._watches.get(request.stream, 0) + 1
        if request.stream in self._paused:
            self._resume(request.stream)

    def watched(self, request: Request) -> None:
        """Count the end of a waiting watch."""
        self.watches -= 1
        left = self._watches.pop(request.stream) - 1
        if left:
            self._watches[request.stream] = left

    def forget(self, request: Request) -> None:
        """Remove a request that is over."""
        self._by_id.pop(request.request_id, None)
        of_stream = self._of_stream.get(request.stream)
        if of_stream is not None:
            of_stream.pop(request.request_id, None)
            if not of_stream:
                del self._of_stream[request.stream]
        if request.asking:
            self._asking[request.asking.log].remove(request.stream, request)
        request.path.forgotten(request)
        if request.stream in self._paused:
            self._resume(request.stream)

    def refuse(self, request: Request, problem: Refusal) -> None:
        self.forget(request)
        request.path.refuse(request, problem)

    def refuse_all(self, problem: Refusal) -> None:
        """Refuse all requests, because after a failed sync nothing is answered (RULES S6)."""
        for request in list(self._by_id.values()):
            self.refuse(request, problem)

    def cancel(self, request_id: RequestId) -> None:
        """Forget a request whose client no longer waits for it."""
        request = self._by_id.get(request_id)
        if request:
            self.forget(request)

    def close(self, stream: StreamId) -> None:
        self._paused.discard(stream)
        for request_id in list(self._of_stream.get(stream, ())):
            self.cancel(request_id)

    # --- going on ---

    def resume(self, request_id: RequestId) -> None:
        """Run a request again, because the frame that it waited for is durable, or never will be."""
        request = self._by_id.get(request_id)
        if request:
            self.run(request)

    def run(self, request: Request) -> None:
        if request.pieces is not None or request.resolving is not None:
            return
        problem = self._problem(request)
        if problem:
            self.refuse(request, problem)
        elif not self._waits_for_fence(request):
            request.path.run(request)

    def _problem(self, request: Request) -> Refusal | None:
        if self._core.failed:
            return self._core.failed
        facts = self._core.holdings.facts(request.ledger_id)
        if facts.deleted:
            return Reason.DELETED, f"ledger {request.ledger_id} is deleted"
        ledger = self._core.ledgers.get(request.ledger_id)
        logged = ledger.fence_sequence is not None if ledger else facts.fenced
        if request.fencing and not logged:
            return Reason.IO_ERROR, "the fence could not be written"
        return None

    def _waits_for_fence(self, request: Request) -> bool:
        """Return whether the request must wait for its fence. The fence is durable before any answer, even a negative
        one (MUST 3)."""
        ledger = self._core.ledgers.get(request.ledger_id) if request.fencing else None
        if ledger is None or ledger.fence_sequence is None or ledger.fence_sequence <= ledger.log.durable:
            return False
        ledger.log.park(request.request_id, ledger.fence_sequence)
        return True

    # --- the storage ---

    def read(self, request: Request, pieces: Sequence[Piece], cut: Cut | None = None) -> None:
        """Ask storage for these pieces. The path's ``frames_read`` follows, or ``damaged`` and ``run``."""
        request.pieces = pieces
        self._ask(request, ReadFrames(request.request_id, pieces, self._core.log_of(request.ledger_id), cut))

    def resolve(self, request: Request, places: Sequence[Unresolved]) -> None:
        """Ask storage for the memberships of these frames. Then the request runs again."""
        request.resolving = places
        self._ask(request, ReadMemberships(request.request_id, places, self._core.log_of(request.ledger_id)))

    def _ask(self, request: Request, effect: ReadFrames | ReadMemberships) -> None:
        log = effect.log
        if self._asked[log] < self._core.limits.storage_reads_max and self._asking[log].pass_by(request.urgent):
            self._send(effect)
            return
        request.asking = effect
        self._asking[log].put(request.stream, request, urgent=request.urgent)

    def _ask_next(self, log: int) -> None:
        asking = self._asking[log]
        while asking and self._asked[log] < self._core.limits.storage_reads_max:
            request = asking.take(lambda *_: True)
            assert request is not None
            assert request.asking is not None
            effect, request.asking = request.asking, None
            self._send(effect)

    def _send(self, effect: ReadFrames | ReadMemberships) -> None:
        self._asked[effect.log] += 1
        self._asked_of.setdefault(effect.request, deque()).append(effect.log)
        self._core.effects.append(effect)

    def _answered(self, request_id: RequestId) -> None:
        """Count an answer of storage, whether or not the request is still under way, and ask it for the next read."""
        logs = self._asked_of.get(request_id)
        if not logs:
            return
        log = logs.popleft()
        if not logs:
            del self._asked_of[request_id]
        self._asked[log] -= 1
        self._ask_next(log)

    def frames_read(self, event: FramesRead) -> None:
        self._answered(event.request)
        request = self._by_id.get(event.request)
        if request is None or request.pieces is None:
            return
        pieces, request.pieces = request.pieces, None
        if self._mark_damaged(request, [piece.place for piece in pieces], event.frames):
            request.path.damaged(request)
            self.run(request)
        else:
            request.path.frames_read(request, pieces, event.frames)

    def memberships_read(self, event: MembershipsRead) -> None:
        self._answered(event.request)
        request = self._by_id.get(event.request)
        if request is None or request.resolving is None:
            return
        places, request.resolving = request.resolving, None
        self._mark_damaged(request, places, event.memberships)
        for place, membership in zip(places, event.memberships, strict=True):
            if membership is not None:
                request.resolved[place] = membership
                self._core.holdings.learn(request.ledger_id, place, membership)
        self.run(request)

    def _mark_damaged(self, request: Request, places: Sequence[Unresolved], found: Sequence[object | None]) -> bool:
        damaged = [place for place, thing in zip(places, found, strict=True) if thing is None]
        for place in damaged:
            self._core.holdings.mark_damaged(request.ledger_id, place)
        return bool(damaged)
