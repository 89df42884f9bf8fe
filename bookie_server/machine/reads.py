# SPDX-License-Identifier: Apache-2.0
"""The path of the bookie's machine for reads of entries, which it answers with frames and a trailer (RULES P4).

There are three answers about an id: FOUND, ABSENT and UNKNOWN (MUST 4). The machine answers ABSENT only if no frame
covers the id, not even an accepted frame that is not durable yet (RULES S1). A fencing read looks entries up only after
its fence is durable. An answer is sent in parts of about two mebibytes, or of what is cut out of four. At most
two parts of one request are in memory at the same time, and turns bound the memory of all requests together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from bk_core.entries.parts import CUT_ENTRIES_MAX, cut_frames
from bk_core.model import EntryId
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import Cut, EntryRange, Reason
from bookie_server.machine.core import Core, Refusal
from bookie_server.machine.events import (
    CloseStream,
    Piece,
    ReadRequested,
    RequestId,
    SendPart,
    SendTrailer,
    StreamId,
)
from bookie_server.machine.requests import Frame, Path, Request, Requests
from bookie_server.machine.state import LookupPlan
from bookie_server.machine.turns import FairQueue, Turns

ID_MAX = (1 << 63) - 2
"""The greatest entry id that a bookie takes."""
_PARTS_AHEAD = 2  # one being sent, one being read
_GAPS_MAX = 1024
"""The maximum number of ABSENT ranges in a trailer. With more of them, neighbours are joined, so the trailer stays
small."""
_CUT_PARTS = 2
"""The size of the frames that a read with ``cut`` reads from storage at once, as a multiple of ``read_part_bytes``. A
small part would cost a change of threads in both directions and a message, and would send few bytes. The memory for
two parts is needed in any case, because a single frame may have as many bytes."""
_CUT_COST = 64  # of a read with ``cut``: this many bytes of frames use up one byte of its budget


class Read(Request):
    """One read. Each id below ``next`` is in a part given to the driver, in a gap, or being read."""

    __slots__ = (
        "absent",
        "asked_last",
        "budget",
        "cut",
        "ids_only",
        "lac",
        "last",
        "next",
        "planned_from",
        "turn",
        "unknown",
        "unsent",
        "waiting",
    )

    def __init__(self, event: ReadRequested, path: Reads, bytes_max: int) -> None:
        super().__init__(event.request, event.ledger_id, path, fencing=event.fence_key is not None)
        self.next, self.asked_last, self.last = event.first, event.last, min(event.last, ID_MAX)
        self.ids_only, self.cut = event.ids_only, event.cut
        self.budget = min(event.bytes_max or bytes_max, bytes_max)  # bytes that may still be sent
        self.absent: list[EntryRange] = []
        self.unknown: list[EntryRange] = []
        self.planned_from: EntryId = event.first  # first id of the part being read
        self.unsent = 0  # parts given to the driver and not yet sent
        self.turn = False  # holds a turn for the part being planned or read
        self.waiting = False  # is in the queue for a turn
        self.lac: EntryId | None = None  # the ledger's LAC, if this step has looked it up


class Reads(Path):
    def __init__(self, core: Core, requests: Requests) -> None:
        self._core, self._requests = core, requests
        self.turns = Turns(core.limits, len(core.logs), core.owners)
        self._waiting: FairQueue[Read] = FairQueue()

    def begin(self, event: ReadRequested) -> None:
        request = Read(event, self, self._core.limits.read_bytes_max)
        if not 0 <= event.first <= event.last:
            self.refuse(request, (Reason.BAD_REQUEST, f"entries {event.first} to {event.last}"))
        elif event.cut is not None and (problem := _cut_problem(event, event.cut)):
            self.refuse(request, (Reason.BAD_REQUEST, problem))
        else:
            self._requests.begin(request, event.fence_key)

    def run(self, request: Request) -> None:
        """Plan and read the next part, or end the answer."""
        assert isinstance(request, Read)
        while request.next <= request.last and request.budget > 0:
            if request.unsent >= _PARTS_AHEAD or not self._take_turn(request):
                return
            plan = self._plan(request)
            if plan is None:
                return
            _extend(request.absent, plan.absent)
            _extend(request.unknown, plan.unknown)
            request.planned_from, request.next = request.next, plan.answered_through + 1
            request.resolved.clear()
            if request.ids_only:
                break  # the client asks again for the rest, so that no other request waits for a long answer
            if plan.pieces:
                self._requests.read(request, plan.pieces, request.cut)
                return
        self._end(request)

    def _plan(self, request: Read) -> LookupPlan | None:
        """Plan the next stretch of the answer. Return None if the request must wait for a membership, or for a pending
        frame (RULES S1: a read that touches a pending add waits)."""
        core = self._core
        plan = self._looked_up(request)
        if plan.unresolved:
            self._requests.resolve(request, plan.unresolved)
            return None
        ledger = core.ledgers.get(request.ledger_id)
        if ledger is None or not ledger.pending:
            return plan
        for gap in plan.absent:
            over = ledger.pending_over(gap.first, gap.last)
            if over:
                sequence, least = over
                if least == request.next:
                    self._give_turn_back(request)
                    ledger.log.park(request.request_id, sequence)
                    return None
                return _cut(plan, least - 1)
        return plan

    def _looked_up(self, request: Read) -> LookupPlan:
        """Look up one part. A read with ``cut`` has longer parts, except where the longer part would have more entries
        than one frame that is cut: cutting them all would hold up the loop."""
        size = self._core.limits.read_part_bytes
        if request.cut is not None:
            plan = self._look_up(request, _CUT_PARTS * size)
            if sum(piece.last - piece.first + 1 for piece in plan.pieces) <= CUT_ENTRIES_MAX:
                return plan
        return self._look_up(request, size)

    def _look_up(self, request: Read, size: int) -> LookupPlan:
        size = min(size, request.budget)
        return self._core.holdings.plan(request.ledger_id, request.next, request.last, size, request.resolved)

    def frames_read(self, request: Request, pieces: Sequence[Piece], frames: Sequence[Frame | None]) -> None:
        assert isinstance(request, Read)
        part = [frame for frame in frames if frame is not None]
        cost = sum(map(len, part))
        if request.cut is not None:  # storage cuts what it can read in parts, and these whole frames are cut here
            part = [piece for frame in part for piece in cut_frames(frame, request.cut)]
            cost = sum(piece.place.size for piece in pieces) // _CUT_COST
        size = sum(map(len, part))
        self._core.counts.read_parts += 1
        self._core.counts.read_bytes += size
        request.budget -= max(size, cost)
        request.unsent += 1
        request.turn = False  # the turn belongs to the part from here on
        self.turns.fill(request.request_id, size)
        lac = request.lac = self._core.lac(request.ledger_id)
        self._core.effects.append(SendPart(request.request_id, part, lac))
        self._requests.run(request)
        request.lac = None

    def damaged(self, request: Request) -> None:
        """Let the request plan its part again, because another copy may be intact. Otherwise the ids become UNKNOWN."""
        assert isinstance(request, Read)
        first = request.next = request.planned_from
        request.absent = _below(request.absent, first)
        request.unknown = _below(request.unknown, first)

    def sent(self, request_id: RequestId) -> None:
        """Release the room of a part that was sent, and continue its request."""
        request = self._requests.get(request_id)
        if not self.turns.sent(request_id):
            self.turns.entries_sent(request_id[0], 1)
        elif isinstance(request, Read):
            request.unsent -= 1
            self._requests.run(request)

    def _end(self, request: Read) -> None:
        fenced = self._core.is_fenced(request.ledger_id)
        many = len(request.absent) > _GAPS_MAX and not request.ids_only
        absent = _joined(request.absent, request.unknown) if many else request.absent
        through = request.next - 1
        if through == ID_MAX < request.asked_last:  # no bookie takes an add above ID_MAX
            absent, through = [*absent, EntryRange(ID_MAX + 1, request.asked_last)], request.asked_last
        trailer = ReadTrailer(through, tuple(absent), tuple(request.unknown), fenced)
        self._requests.forget(request)
        ledger = self._core.ledgers.get(request.ledger_id)
        if ledger:
            self._core.forget_if_idle(ledger)
        known = self._core.is_known(request.ledger_id)
        lac = self._core.lac(request.ledger_id) if request.lac is None else request.lac
        self._core.effects.append(SendTrailer(request.request_id, trailer, known=known, lac=lac))

    def refuse(self, request: Request, problem: Refusal) -> None:
        assert isinstance(request, Read)
        trailer = ReadTrailer(request.next - 1, fenced=self._core.is_fenced(request.ledger_id))
        self._core.effects.append(SendTrailer(request.request_id, trailer, *problem))

    def forgotten(self, request: Request) -> None:
        assert isinstance(request, Read)
        self._give_turn_back(request)
        if request.waiting:
            request.waiting = False
            self._waiting.remove(request.stream, request)

    def stalled(self, stream: StreamId) -> None:
        """Note that the client of this stream reads none of its answers."""
        self.turns.stall(stream)

    def close(self, stream: StreamId) -> None:
        """Release the room of all parts of a stream that is gone."""
        self.turns.close(stream)

    # --- turns: how much of the answers is in memory at once ---

    def may_pass(self) -> bool:
        """Return whether reads may be answered at once, because no read waits for its turn."""
        return self._waiting.pass_by(False)

    def _take_turn(self, request: Read) -> bool:
        """Return whether the request has a turn. If not, queue it for one."""
        if request.turn or request.waiting:
            return request.turn
        stream, urgent = request.stream, request.fencing
        if self.turns.may(stream, urgent) and self._waiting.pass_by(urgent):
            request.turn = True
            self.turns.take(stream)
            return True
        request.waiting = True
        self._waiting.put(stream, request, urgent=urgent)
        return False

    def _give_turn_back(self, request: Read) -> None:
        if request.turn:
            request.turn = False
            self.turns.give_back(request.stream)

    def next_turns(self) -> None:
        """Run waiting requests while there is room. If there is none, end a stream whose client reads nothing."""
        urgent, others = self._waiting.lines
        if not (urgent or others or self.turns.stalled):  # the usual case; this runs after each step
            return
        while self._waiting and (request := self._waiting.take(self.turns.may)):
            request.waiting, request.turn = False, True
            self.turns.take(request.stream)
            self._requests.run(request)
        idle = self.turns.to_end(self._waiting.streams())
        if idle is not None:
            self._core.effects.append(CloseStream(idle, "the client reads no answers, and other reads wait for room"))


def _cut_problem(event: ReadRequested, cut: Cut) -> str:
    """Return why this read may not have ``cut``, or an empty text if it may. A recovery read never may, because it
    writes whole entries back."""
    return "a recovery read of parts" if event.fence_key is not None else cut.problem(event.first, event.last)


def _cut(plan: LookupPlan, through: EntryId) -> LookupPlan:
    """Return the part of a plan up to ``through``, which lies in one of its absent ranges or just before one."""
    return LookupPlan(
        tuple(Piece(p.place, p.first, min(p.last, through)) for p in plan.pieces if p.first <= through),
        tuple(EntryRange(r.first, min(r.last, through), r.reason) for r in plan.absent if r.first <= through),
        tuple(EntryRange(r.first, min(r.last, through), r.reason) for r in plan.unknown if r.first <= through),
        (),
        through,
    )


def _below(gaps: list[EntryRange], first: EntryId) -> list[EntryRange]:
    return [EntryRange(r.first, min(r.last, first - 1), r.reason, r.message) for r in gaps if r.first < first]


def _extend(gaps: list[EntryRange], ranges: Sequence[EntryRange]) -> None:
    """Append ranges; adjacent ranges with the same reason become one."""
    for new in ranges:
        if gaps and gaps[-1].last + 1 == new.first and gaps[-1].reason is new.reason:
            gaps[-1] = EntryRange(gaps[-1].first, new.last, new.reason)
        else:
            gaps.append(new)


def _joined(absent: list[EntryRange], unknown: list[EntryRange]) -> list[EntryRange]:
    """Join absent ranges into fewer ones, for a finely striped ledger. A joined range may span ids whose frames are in
    this answer, because the client takes an id as absent only if a range covers it and no frame has it. It spans no
    UNKNOWN id."""
    starts = [gap.first for gap in unknown]
    joined = [absent[0]]
    for gap in absent[1:]:
        if bisect_left(starts, joined[-1].first) == bisect_left(starts, gap.first):
            joined[-1] = EntryRange(joined[-1].first, gap.last)
        else:
            joined.append(gap)
    return joined
