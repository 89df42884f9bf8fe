# SPDX-License-Identifier: Apache-2.0
"""The read path of the bookie's machine: reads with trailers, LAC evidence, watches, comparisons.

Three answers: FOUND, ABSENT, UNKNOWN (MUST 4). ABSENT is said only of a healthy ledger, where no frame covers the id,
not even one that is accepted but not yet durable (RULES S1). A fencing request looks up after its fence is durable. An
answer is made in parts of about a mebibyte, at most two of one request in memory at once.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from bk_core.entries.frame import FrameExtent, decode_frame, slice_frame
from bk_core.errors import IntegrityError
from bk_core.model import EntryId, LedgerId
from bk_core.transport.port import EntryRange, LacEvidence, ReadTrailer
from bk_core.wire.lane import Reason
from bookie_server.machine_core import Core, Refusal
from bookie_server.machine_events import (
    CancelTimer,
    FramesRead,
    Piece,
    ReadFrames,
    ReadRequested,
    RequestId,
    SendLac,
    SendPart,
    SendReply,
    SendTrailer,
    SetTimer,
    StreamId,
    WatchLacRequested,
)
from bookie_server.machine_state import LedgerFacts, Pending, Plan, Session

_ID_MAX = (1 << 63) - 1
_PARTS_AHEAD = 2  # one being sent, one being read
_EMPTY = b""


class Purpose(enum.Enum):
    READ = "read"
    LAC = "lac"
    WATCH = "watch"
    COMPARE = "compare"


class Request:
    """One request under way."""

    __slots__ = (
        "absent",
        "budget",
        "fencing",
        "frame",
        "last",
        "ledger_id",
        "next",
        "pieces",
        "plan",
        "purpose",
        "request",
        "session",
        "unknown",
        "unsent",
        "waiting",
    )  # fmt: skip

    def __init__(self, request: RequestId, ledger_id: LedgerId, purpose: Purpose, fencing: bool = False) -> None:
        self.request, self.ledger_id, self.purpose, self.fencing = request, ledger_id, purpose, fencing
        self.next: EntryId = 0  # first id not yet planned for
        self.last: EntryId = -1
        self.budget = 0  # bytes that may still be answered
        self.absent: list[EntryRange] = []
        self.unknown: list[EntryRange] = []
        self.plan: Plan | None = None  # being read
        self.pieces: Sequence[Piece] | None = None  # being read
        self.unsent = 0  # parts given to the driver and not yet sent
        self.waiting = False  # stands in the queue for a turn
        self.session: Session | None = None
        self.frame: memoryview | None = None


class Reads:
    """All requests. ``compared`` hears how a comparison with stored entries ended (RULES P6)."""

    def __init__(self, core: Core, compared: Callable[[Session, bool], None]) -> None:
        self._core, self._compared = core, compared
        self._requests: dict[RequestId, Request] = {}
        self._of_stream: dict[StreamId, dict[RequestId, None]] = {}
        self._unsent: dict[RequestId, int] = {}  # parts of requests, ended ones included: what they hold in memory
        self._active_of: dict[StreamId, int] = {}
        self._active = 0
        self._turns: deque[Request] = deque()
        self._watches = 0

    # --- beginnings ---

    def read(self, event: ReadRequested) -> None:
        request = Request(event.request, event.ledger_id, Purpose.READ, event.fence_key is not None)
        request.next, request.last = event.first, min(event.last, _ID_MAX - 1)
        most = self._core.limits.read_bytes_max
        request.budget = min(event.bytes_max or most, most)
        if event.ledger_id < 0 or not 0 <= event.first <= event.last:
            problem: Refusal | None = (Reason.BAD_REQUEST, f"entries {event.first} to {event.last}")
        else:
            problem = self._admit(request)
        if problem:
            self._core.effects.append(SendTrailer(event.request, ReadTrailer(event.first - 1), *problem))
        else:
            self._begin(request, event.fence_key)

    def lac(self, request_id: RequestId, ledger_id: LedgerId, fence_key: bytes | None = None) -> None:
        """A fence or a LAC read."""
        request = Request(request_id, ledger_id, Purpose.LAC, fence_key is not None)
        problem = (Reason.BAD_REQUEST, f"ledger id {ledger_id}") if ledger_id < 0 else self._admit(request)
        if problem:
            self._core.effects.append(SendReply(request_id, *problem))
        else:
            self._begin(request, fence_key)

    def watch(self, event: WatchLacRequested) -> None:
        request = Request(event.request, event.ledger_id, Purpose.LAC)
        problem = (Reason.BAD_REQUEST, f"ledger id {event.ledger_id}") if event.ledger_id < 0 else self._admit(request)
        if not problem and self._watches >= self._core.limits.watches_max:
            self._forget(request)
            problem = (Reason.OVERLOADED, f"{self._watches} watches")
        if problem:
            self._core.effects.append(SendReply(event.request, *problem))
        elif event.timeout_ms <= 0 or self._core.greatest_lac(event.ledger_id) > event.previous_lac:
            self._run(request)
        else:
            request.purpose = Purpose.WATCH
            self._watches += 1
            self._core.ledger(event.ledger_id).watches[event.request] = event.previous_lac
            self._core.effects.append(SetTimer(event.request, event.timeout_ms))

    def compare(self, session: Session, extent: FrameExtent, frame: memoryview) -> None:
        """Compare a frame with what stands at its ids, once nothing over them is pending."""
        assert session.ledger is not None
        request_id = (session.stream.stream_id, session.number)
        request = Request(request_id, session.ledger.ledger_id, Purpose.COMPARE)
        request.next, request.last, request.session, request.frame = extent.first, extent.last, session, frame
        self._remember(request)
        self._run(request)

    def _admit(self, request: Request) -> Refusal | None:
        if request.request in self._requests:
            return Reason.BAD_REQUEST, f"request {request.request[1]} is under way"
        if len(self._requests) >= self._core.limits.requests_max + self._watches and not request.fencing:
            return Reason.OVERLOADED, f"{len(self._requests)} requests are under way"
        self._remember(request)
        return None

    def _begin(self, request: Request, fence_key: bytes | None) -> None:
        if fence_key is not None:
            fenced = self._core.fence(request.ledger_id, fence_key)
            if not isinstance(fenced, int):
                self._refuse(request, fenced)
                return
        self._run(request)

    # --- the turn of a request ---

    def resume(self, request_id: RequestId) -> None:
        """What this request was parked for is settled."""
        request = self._requests.get(request_id)
        if request:
            self._run(request)

    def _run(self, request: Request) -> None:
        if request.pieces is not None:
            return
        problem = self._problem(request)
        if problem:
            self._refuse(request, problem)
        elif self._waits_for_fence(request):
            return
        elif request.purpose is Purpose.READ:
            self._run_read(request)
        elif request.purpose is Purpose.COMPARE:
            self._run_compare(request)
        else:
            self._run_lac(request)

    def _problem(self, request: Request) -> Refusal | None:
        if self._core.failed:
            return self._core.failed
        facts = self._core.holdings.facts(request.ledger_id)
        if facts and facts.deleted:
            return Reason.DELETED, f"ledger {request.ledger_id} is deleted"
        ledger = self._core.ledgers.get(request.ledger_id)
        if request.fencing and not (ledger.fence_sequence is not None if ledger else facts and facts.fenced):
            return Reason.IO_ERROR, "the fence could not be written"
        return None

    def _waits_for_fence(self, request: Request) -> bool:
        """Every answer to a fencing request, a negative one too, waits for the fence's durability (MUST 3)."""
        ledger = self._core.ledgers.get(request.ledger_id) if request.fencing else None
        if ledger is None or ledger.fence_sequence is None or ledger.fence_sequence <= self._core.durable:
            return False
        self._core.park(request.request, ledger.fence_sequence)
        return True

    # --- reads ---

    def _run_read(self, request: Request) -> None:
        """Plan and read the next part, or end the answer. Never two parts of a request being read at once."""
        while request.unsent < _PARTS_AHEAD:
            if request.next > request.last or request.budget <= 0:
                self._end_read(request)
                return
            if not self._take_turn(request):
                return
            plan = self._plan(request)
            if plan is None:
                self._give_turn_back(request.request[0])
                return
            self._note_gaps(request, plan)
            request.next = plan.answered_through + 1
            if plan.pieces:
                request.plan, request.pieces = plan, plan.pieces
                self._core.effects.append(ReadFrames(request.request, plan.pieces))
                return
            self._give_turn_back(request.request[0])

    def _plan(self, request: Request) -> Plan | None:
        """The next stretch of the answer; None after parking the request behind a pending frame (RULES S1)."""
        core = self._core
        size = min(core.limits.read_part_bytes, request.budget)
        plan = core.holdings.plan(request.ledger_id, request.next, request.last, size)
        ledger = core.ledgers.get(request.ledger_id)
        if ledger is None or not ledger.pending:
            return plan
        for first, last in plan.absent:
            over = ledger.pending_over(first, last)
            if over:
                sequence, least = over
                if least == request.next:
                    core.park(request.request, sequence)
                    return None
                return _cut(plan, least - 1)
        return plan

    def _note_gaps(self, request: Request, plan: Plan) -> None:
        facts = self._core.holdings.facts(request.ledger_id) or LedgerFacts()
        gaps, reason = request.absent, Reason.REASON_NONE
        if facts.limbo or facts.copy_dropped:
            gaps, reason = request.unknown, Reason.COPY_DROPPED if facts.copy_dropped else Reason.LIMBO
        _extend(gaps, plan.absent, reason)
        _extend(request.unknown, plan.damaged, Reason.DAMAGED)

    def _end_read(self, request: Request) -> None:
        ledger = self._core.ledgers.get(request.ledger_id)
        facts = self._core.holdings.facts(request.ledger_id)
        fenced = ledger.fenced if ledger else bool(facts and facts.fenced)
        trailer = ReadTrailer(request.next - 1, tuple(request.absent), tuple(request.unknown), fenced)
        self._forget(request)
        self._core.effects.append(SendTrailer(request.request, trailer))

    def _part_read(self, request: Request, frames: Sequence[bytes | memoryview | None]) -> None:
        plan, pieces = request.plan, request.pieces or ()
        request.plan = request.pieces = None
        assert plan is not None
        stream = request.request[0]
        if self._mark_damaged(request, pieces, frames):
            first = request.next = _plan_start(request, plan)
            request.absent = [gap for gap in request.absent if gap.first < first]
            request.unknown = [gap for gap in request.unknown if gap.first < first]
            self._give_turn_back(stream)
        else:
            part = [frame for frame in frames if frame is not None]
            request.budget -= sum(map(len, part))
            request.unsent += 1
            self._unsent[request.request] = self._unsent.get(request.request, 0) + 1
            self._core.effects.append(SendPart(request.request, part))
        self._run(request)

    def sent(self, request_id: RequestId) -> None:
        """A part has left; its memory is free."""
        parts = self._unsent.pop(request_id, 0)
        if not parts:
            return
        if parts > 1:
            self._unsent[request_id] = parts - 1
        self._give_turn_back(request_id[0])
        request = self._requests.get(request_id)
        if request:
            request.unsent -= 1
            self._run(request)

    # --- turns: how much of answers is in memory at once ---

    def _take_turn(self, request: Request) -> bool:
        stream, limits = request.request[0], self._core.limits
        if self._active < limits.reads_active_max and self._active_of.get(stream, 0) < limits.reads_per_stream_max:
            self._active += 1
            self._active_of[stream] = self._active_of.get(stream, 0) + 1
            return True
        if not request.waiting:
            request.waiting = True
            (self._turns.appendleft if request.fencing else self._turns.append)(request)
        return False

    def _give_turn_back(self, stream: StreamId) -> None:
        self._active -= 1
        left = self._active_of.get(stream, 0) - 1
        if left > 0:
            self._active_of[stream] = left
        else:
            self._active_of.pop(stream, None)

    def next_turns(self) -> None:
        """Let waiting requests run while there is room; once around the queue."""
        for _ in range(len(self._turns)):
            if self._active >= self._core.limits.reads_active_max:
                return
            request = self._turns.popleft()
            request.waiting = False
            if self._requests.get(request.request) is request:
                self._run(request)

    # --- LAC evidence (RULES P5) ---

    def _run_lac(self, request: Request) -> None:
        pieces = tuple(piece for piece in self._core.holdings.tail(request.ledger_id) if piece)
        if pieces:
            request.pieces = pieces
            self._core.effects.append(ReadFrames(request.request, pieces))
        else:
            self._send_lac(request, -1, _EMPTY, _EMPTY)

    def _lac_read(self, request: Request, frames: Sequence[bytes | memoryview | None]) -> None:
        pieces = request.pieces or ()
        request.pieces = None
        if self._mark_damaged(request, pieces, frames):
            self._run(request)
            return
        last, lac_frame = frames[0] or _EMPTY, (frames[1] if len(frames) > 1 else None) or _EMPTY
        self._send_lac(request, pieces[0].last, last, lac_frame)

    def _send_lac(
        self, request: Request, last: EntryId, frame: bytes | memoryview, lac_frame: bytes | memoryview
    ) -> None:
        ledger = self._core.ledgers.get(request.ledger_id)
        facts = self._core.holdings.facts(request.ledger_id)
        body = ledger.hint_body if ledger else (facts.lac_body if facts else _EMPTY)
        fenced = ledger.fenced if ledger else bool(facts and facts.fenced)
        known = facts is not None or bool(ledger and ledger.known)
        self._forget(request)
        self._core.effects.append(SendLac(request.request, LacEvidence(last, frame, body, lac_frame, fenced, known)))

    # --- watches (RULES P9, P10) ---

    def committed(self, newest: dict[LedgerId, Pending]) -> None:
        """Entries with these extents are durable; each is the newest of its ledger, which is watched. What has just
        been written is answered from memory."""
        for ledger_id, pending in newest.items():
            extent, holdings = pending.extent, self._core.holdings
            if extent.last == holdings.last_entry_id(ledger_id) and extent.max_lac >= holdings.lac(ledger_id):
                self.wake(ledger_id, pending)
            else:
                self.wake(ledger_id)

    def wake(self, ledger_id: LedgerId, newest: Pending | None = None) -> None:
        """Answer the watches of a ledger whose LAC they have not seen."""
        ledger = self._core.ledgers.get(ledger_id)
        if ledger is None or not ledger.watches:
            return
        lac = self._core.greatest_lac(ledger_id)
        ripe = [request for request, previous in ledger.watches.items() if lac > previous]
        if not ripe:
            return
        frame = slice_frame(newest.frame, newest.extent.last, newest.extent.last) if newest else None
        for request_id in ripe:
            request = self._unwatch(request_id)
            if request and frame is not None and newest:
                self._send_lac(request, newest.extent.last, _view(frame), _EMPTY)
            elif request:
                self._run(request)

    def timer_fired(self, request_id: RequestId) -> None:
        """A watch has waited long enough: it gets what is known."""
        request = self._requests.get(request_id)
        if request and request.purpose is Purpose.WATCH:
            self._unwatch(request_id)
            self._run(request)

    def _unwatch(self, request_id: RequestId) -> Request | None:
        request = self._requests.get(request_id)
        if request is None or request.purpose is not Purpose.WATCH:
            return None
        request.purpose = Purpose.LAC
        self._watches -= 1
        self._core.effects.append(CancelTimer(request_id))
        ledger = self._core.ledgers.get(request.ledger_id)
        if ledger:
            ledger.watches.pop(request_id, None)
            self._core.forget_if_idle(ledger)
        return request

    # --- comparisons (RULES P6) ---

    def _run_compare(self, request: Request) -> None:
        core = self._core
        session = request.session
        assert session is not None
        if session.gone or session.held is None:
            self._forget(request)
            return
        over = core.ledger(request.ledger_id).pending_over(request.next, request.last)
        if over:
            core.park(request.request, over[0])
            return
        plan = core.holdings.plan(request.ledger_id, request.next, request.last, 1 << 62)
        if plan.pieces:
            request.pieces = plan.pieces
            core.effects.append(ReadFrames(request.request, plan.pieces))
        else:
            self._forget(request)
            self._compared(session, True)

    def _compare_read(self, request: Request, frames: Sequence[bytes | memoryview | None]) -> None:
        pieces, session, frame = request.pieces or (), request.session, request.frame
        request.pieces = None
        assert session is not None
        assert frame is not None
        if self._mark_damaged(request, pieces, frames):
            self._run(request)  # a damaged copy yields to any intact one
            return
        same = all(_agree(stored, frame) for stored in frames if stored is not None)
        self._forget(request)
        self._compared(session, same)

    # --- common ends ---

    def frames_read(self, event: FramesRead) -> None:
        """The storage has read, or found damage."""
        request = self._requests.get(event.request)
        if request is None or request.pieces is None:
            return
        problem = self._core.failed
        if problem:
            self._refuse(request, problem)
        elif request.purpose is Purpose.READ:
            self._part_read(request, event.frames)
        elif request.purpose is Purpose.COMPARE:
            self._compare_read(request, event.frames)
        else:
            self._lac_read(request, event.frames)

    def _mark_damaged(
        self, request: Request, pieces: Sequence[Piece], frames: Sequence[bytes | memoryview | None]
    ) -> bool:
        damaged = [piece.place for piece, frame in zip(pieces, frames, strict=True) if frame is None]
        for place in damaged:
            self._core.holdings.mark_damaged(request.ledger_id, place)
        return bool(damaged)

    def _refuse(self, request: Request, problem: Refusal) -> None:
        if request.purpose is Purpose.WATCH:
            self._unwatch(request.request)
        self._forget(request)
        if request.purpose is Purpose.READ:
            self._core.effects.append(SendTrailer(request.request, ReadTrailer(request.next - 1), *problem))
        elif request.purpose is Purpose.COMPARE:
            assert request.session is not None
            self._compared(request.session, True)  # the add path knows the problem too
        else:
            self._core.effects.append(SendReply(request.request, *problem))

    def refuse_all(self, problem: Refusal) -> None:
        """Nothing is answered any more (RULES S6)."""
        for request in list(self._requests.values()):
            self._refuse(request, problem)

    def cancel(self, request_id: RequestId) -> None:
        """Nobody waits for it any more."""
        request = self._requests.get(request_id)
        if request:
            self._unwatch(request_id)
            self._forget(request)

    def close(self, stream: StreamId) -> None:
        """The stream is gone with all its requests."""
        for request_id in list(self._of_stream.get(stream, ())):
            self.cancel(request_id)
        for request_id in [r for r in self._unsent if r[0] == stream]:
            for _ in range(self._unsent.pop(request_id)):
                self._give_turn_back(stream)

    def _remember(self, request: Request) -> None:
        self._requests[request.request] = request
        self._of_stream.setdefault(request.request[0], {})[request.request] = None

    def _forget(self, request: Request) -> None:
        stream = request.request[0]
        if request.purpose is Purpose.READ and request.pieces is not None:
            request.pieces = None
            self._give_turn_back(stream)
        self._requests.pop(request.request, None)
        of_stream = self._of_stream.get(stream)
        if of_stream is not None:
            of_stream.pop(request.request, None)
            if not of_stream:
                del self._of_stream[stream]


def _view(frame: bytes | bytearray | memoryview) -> memoryview:
    return memoryview(frame)


def _plan_start(request: Request, plan: Plan) -> EntryId:
    """The first id that this plan spoke of."""
    starts = [piece.first for piece in plan.pieces] + [first for first, _ in (*plan.absent, *plan.damaged)]
    return min(starts)


def _cut(plan: Plan, through: EntryId) -> Plan:
    """The part of a plan up to ``through``, which lies in one of its absent ranges."""
    return Plan(
        tuple(piece for piece in plan.pieces if piece.first <= through),
        tuple((first, min(last, through)) for first, last in plan.absent if first <= through),
        tuple((first, min(last, through)) for first, last in plan.damaged if first <= through),
        through,
    )


def _extend(gaps: list[EntryRange], ranges: Sequence[tuple[EntryId, EntryId]], reason: Reason) -> None:
    """Append ranges, each joined to its neighbour where they touch."""
    for first, last in ranges:
        if gaps and gaps[-1].last + 1 == first and gaps[-1].reason is reason:
            gaps[-1] = EntryRange(gaps[-1].first, last, reason)
        else:
            gaps.append(EntryRange(first, last, reason))


def _agree(stored: bytes | memoryview, offered: memoryview) -> bool:
    """Whether both frames have the same length and payload for each id that both hold (RULES P6)."""
    try:
        left, right = decode_frame(stored), decode_frame(offered)
    except IntegrityError:
        return False
    _, at_left, at_right = np.intersect1d(left.entry_ids(), right.entry_ids(), assume_unique=True, return_indices=True)
    left, right = left.select(at_left), right.select(at_right)
    if not np.array_equal(left.lengths, right.lengths):
        return False
    return np.array_equal(np.frombuffer(left.payload, np.uint8), np.frombuffer(right.payload, np.uint8))
