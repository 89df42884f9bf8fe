# SPDX-License-Identifier: Apache-2.0
"""Requests under way in the bookie's machine, whatever they ask: admission, fencing first, one ending each.

A request belongs to a *path* (reads, LAC, comparisons), which plans it and hears what the storage read. What all have
in common is here: it may have to wait for a sequence number of the log, for the storage, or for its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bk_core.model import LedgerId
from bk_core.wire.lane import Reason
from bookie_server.machine_core import Core, Refusal
from bookie_server.machine_events import (
    FramesRead,
    MembershipsRead,
    Piece,
    Place,
    ReadFrames,
    ReadMemberships,
    RequestId,
    StreamId,
)

LEDGER_ID_MAX: LedgerId = (1 << 63) - 2  # the last one is the storage's own


class Path(Protocol):
    """One kind of request."""

    def run(self, request: Request) -> None:
        """Go on: the request is neither waiting for the log nor for the storage."""
        ...

    def frames_read(self, request: Request, pieces: Sequence[Piece], frames: Sequence[Frame | None]) -> None:
        """The storage read these pieces; none of them is damaged."""
        ...

    def damaged(self, request: Request) -> None:
        """Some of what was read is damaged and has been marked so: plan again."""
        ...

    def refuse(self, request: Request, problem: Refusal) -> None:
        """End it without an answer; it is forgotten already."""
        ...

    def forgotten(self, request: Request) -> None:
        """It is gone, answered or not: release what this path keeps for it."""
        ...


Frame = bytes | bytearray | memoryview


class Request:
    """One request under way. Paths make subclasses with what they need."""

    __slots__ = ("fencing", "ledger_id", "path", "pieces", "request_id", "resolved", "resolving")

    def __init__(self, request_id: RequestId, ledger_id: LedgerId, path: Path, *, fencing: bool = False) -> None:
        self.request_id, self.ledger_id, self.path, self.fencing = request_id, ledger_id, path, fencing
        self.pieces: Sequence[Piece] | None = None  # being read
        self.resolving: Sequence[Place] | None = None  # frames whose members are being read
        self.resolved: dict[Place, object] = {}

    @property
    def stream(self) -> StreamId:
        return self.request_id[0]


class Requests:
    """All requests of the machine."""

    __slots__ = ("_by_id", "_core", "_of_stream", "_owed", "waiting_for_ever")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_id: dict[RequestId, Request] = {}
        self._of_stream: dict[StreamId, dict[RequestId, None]] = {}
        self._owed: set[RequestId] = set()  # the storage was asked for them, cancelled ones too, and will answer
        self.waiting_for_ever = 0  # watches: bounded apart

    def get(self, request_id: RequestId) -> Request | None:
        return self._by_id.get(request_id)

    def is_under_way(self, request: Request) -> bool:
        return self._by_id.get(request.request_id) is request

    # --- beginnings and ends ---

    def begin(self, request: Request, fence_key: bytes | None = None, *, admit: bool = True) -> None:
        """Take a request up, fence if it says so, and run it; or refuse it."""
        problem = self._admission_problem(request) if admit else None
        if problem:
            request.path.refuse(request, problem)
            return
        self._by_id[request.request_id] = request
        self._of_stream.setdefault(request.stream, {})[request.request_id] = None
        if fence_key is not None:
            fenced = self._core.fence(request.ledger_id, fence_key)
            if not isinstance(fenced, int):
                self.refuse(request, fenced)
                return
        self.run(request)

    def _admission_problem(self, request: Request) -> Refusal | None:
        if not 0 <= request.ledger_id <= LEDGER_ID_MAX:
            return Reason.BAD_REQUEST, f"ledger id {request.ledger_id}"
        if request.request_id in self._by_id or request.request_id in self._owed:
            return Reason.BAD_REQUEST, f"request {request.request_id[1]} is under way"
        under_way = len(self._by_id) - self.waiting_for_ever
        if under_way >= self._core.limits.requests_max and not request.fencing:
            return Reason.OVERLOADED, f"{under_way} requests are under way"
        return None

    def forget(self, request: Request) -> None:
        """The request is over."""
        self._by_id.pop(request.request_id, None)
        of_stream = self._of_stream.get(request.stream)
        if of_stream is not None:
            of_stream.pop(request.request_id, None)
            if not of_stream:
                del self._of_stream[request.stream]
        request.path.forgotten(request)

    def refuse(self, request: Request, problem: Refusal) -> None:
        self.forget(request)
        request.path.refuse(request, problem)

    def refuse_all(self, problem: Refusal) -> None:
        """Nothing is answered any more (RULES S6)."""
        for request in list(self._by_id.values()):
            self.refuse(request, problem)

    def cancel(self, request_id: RequestId) -> None:
        """Nobody waits for it any more."""
        request = self._by_id.get(request_id)
        if request:
            self.forget(request)

    def close(self, stream: StreamId) -> None:
        for request_id in list(self._of_stream.get(stream, ())):
            self.cancel(request_id)

    # --- going on ---

    def resume(self, request_id: RequestId) -> None:
        """What this request was parked for is settled."""
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
        """Every answer to a fencing request, a negative one too, waits for the fence's durability (MUST 3)."""
        ledger = self._core.ledgers.get(request.ledger_id) if request.fencing else None
        if ledger is None or ledger.fence_sequence is None or ledger.fence_sequence <= self._core.durable:
            return False
        self._core.park(request.request_id, ledger.fence_sequence)
        return True

    # --- the storage ---

    def read(self, request: Request, pieces: Sequence[Piece]) -> None:
        """Have these pieces read; ``frames_read`` or ``damaged`` of the path follows."""
        request.pieces = pieces
        self._owed.add(request.request_id)
        self._core.effects.append(ReadFrames(request.request_id, pieces))

    def resolve(self, request: Request, places: Sequence[Place]) -> None:
        """Have the members of these frames read; then the request runs again."""
        request.resolving = places
        self._owed.add(request.request_id)
        self._core.effects.append(ReadMemberships(request.request_id, places))

    def frames_read(self, event: FramesRead) -> None:
        self._owed.discard(event.request)
        request = self._by_id.get(event.request)
        if request is None or request.pieces is None:
            return
        pieces, request.pieces = request.pieces, None
        if self._mark_damaged(request, [piece.place for piece in pieces], event.frames):
            request.path.damaged(request)
        else:
            request.path.frames_read(request, pieces, event.frames)

    def memberships_read(self, event: MembershipsRead) -> None:
        self._owed.discard(event.request)
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

    def _mark_damaged(self, request: Request, places: Sequence[Place], found: Sequence[object | None]) -> bool:
        damaged = [place for place, thing in zip(places, found, strict=True) if thing is None]
        for place in damaged:
            self._core.holdings.mark_damaged(request.ledger_id, place)
        return bool(damaged)
