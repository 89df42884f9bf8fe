# SPDX-License-Identifier: Apache-2.0
"""The part of the bookie's machine that gives LAC evidence. It serves fences, LAC reads, watches and explicit LACs
(RULES P5, P9, P10).

Evidence consists of data that a client can verify: the last entry, an entry that carries the greatest LAC, and the
writer's LAC body with its digest, all unchanged. A watch is answered as soon as there is evidence of a greater LAC than
the client has seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from bk_core.entries.digest import contradicts
from bk_core.entries.frame import DIGEST_BYTES, FrameKind, slice_frame
from bk_core.model import LEDGER_ID_MAX, EntryId, LedgerId
from bk_core.wire.lane.evidence import LacEvidence
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.core import Core, Refusal
from bookie_server.machine.events import (
    CancelTimer,
    Piece,
    RequestId,
    SendLac,
    SendReply,
    SetTimer,
    TimerFired,
    WatchLacRequested,
    WriteLacRequested,
)
from bookie_server.machine.requests import Frame, Path, Request, Requests
from bookie_server.machine.state import LAC_BODY_BYTES_MIN, Ledger, Pending, lac_of_body, ledger_of_body

LAC_TIMER = None
_EMPTY = b""


class LacRequest(Request):
    """A fence, a LAC read or a watch. In a waiting watch ``previous`` is the greatest LAC that the client has seen;
    otherwise it is None."""

    __slots__ = ("previous",)

    def __init__(
        self,
        request_id: RequestId,
        ledger_id: LedgerId,
        path: Lacs,
        *,
        fencing: bool = False,
        previous: EntryId | None = None,
    ) -> None:
        super().__init__(request_id, ledger_id, path, fencing=fencing, urgent=True)
        self.previous = previous


class Lacs(Path):
    def __init__(self, core: Core, requests: Requests) -> None:
        self._core, self._requests = core, requests
        self._dirty: dict[LedgerId, Ledger] = {}  # ledgers with explicit LACs that are only in memory
        self._given: dict[int, int] = {}  # log → sequence number of the last explicit LAC given to it

    def read(self, request_id: RequestId, ledger_id: LedgerId, fence_key: bytes | None = None) -> None:
        """Begin a LAC read, or a fence if there is a key."""
        request = LacRequest(request_id, ledger_id, self, fencing=fence_key is not None)
        self._requests.begin(request, fence_key)

    def watch(self, event: WatchLacRequested) -> None:
        request = LacRequest(event.request, event.ledger_id, self, previous=event.previous_lac)
        problem = self._requests.too_many_watches(request.stream)
        if problem:
            self.refuse(request, problem)
            return
        if event.timeout_ms <= 0:
            request.previous = None
        self._requests.begin(request)
        if request.previous is not None and self._requests.get(request.request_id) is request:
            self._core.effects.append(SetTimer(event.request, event.timeout_ms))

    # --- one request ---

    def run(self, request: Request) -> None:
        assert isinstance(request, LacRequest)
        if request.previous is not None:
            ledger = self._core.ledger(request.ledger_id)
            if self._core.lac(ledger.ledger_id) <= request.previous:
                if request.request_id not in ledger.watches:
                    ledger.watches[request.request_id] = request.previous
                    self._requests.watching(request)
                return
            self._stop_watching(request)
            self._core.forget_if_idle(ledger)
        pieces = tuple(piece for piece in self._core.holdings.tail(request.ledger_id) if piece)
        if pieces:
            self._requests.read(request, pieces)
        else:
            self._send(request, -1, _EMPTY, _EMPTY)

    def frames_read(self, request: Request, pieces: Sequence[Piece], frames: Sequence[Frame | None]) -> None:
        lac_frame = frames[1] if len(frames) > 1 else None
        self._send(request, pieces[0].last, frames[0] or _EMPTY, lac_frame or _EMPTY)

    def _send(self, request: Request, last: EntryId, frame: Frame, lac_frame: Frame) -> None:
        facts = self._core.holdings.facts(request.ledger_id)
        ledger = self._core.ledgers.get(request.ledger_id)
        body = ledger.hint_body if ledger else facts.lac_body
        fenced = ledger.fenced if ledger else facts.fenced
        known, lac = self._core.is_known(request.ledger_id), self._core.lac(request.ledger_id)
        self._requests.forget(request)
        if ledger:
            self._core.forget_if_idle(ledger)
        evidence = LacEvidence(last, frame, body, lac_frame, fenced, known)
        self._core.effects.append(SendLac(request.request_id, evidence, lac, facts.trouble))

    def refuse(self, request: Request, problem: Refusal) -> None:
        self._core.effects.append(SendReply(request.request_id, *problem))

    def forgotten(self, request: Request) -> None:
        assert isinstance(request, LacRequest)
        self._stop_watching(request)

    def _stop_watching(self, request: LacRequest) -> None:
        if request.previous is None:
            return
        request.previous = None
        ledger = self._core.ledgers.get(request.ledger_id)
        if ledger and ledger.watches.pop(request.request_id, None) is not None:
            self._requests.watched(request)
            self._core.effects.append(CancelTimer(request.request_id))
            self._core.forget_if_idle(ledger)

    # --- what wakes watches ---

    def committed(self, newest: Pending) -> None:
        """Wake the watches of a ledger after a commit. ``newest`` is its last frame of the group. If that has the last
        entry and the greatest LAC, the watches are answered from memory."""
        ledger, extent, holdings = newest.ledger, newest.extent, self._core.holdings
        ledger_id = ledger.ledger_id
        if extent.last == holdings.last_entry_id(ledger_id) and extent.max_lac >= holdings.lac(ledger_id):
            self._wake(ledger, newest)
        else:
            self._wake(ledger)

    def _wake(self, ledger: Ledger, newest: Pending | None = None) -> None:
        """Answer the watches whose clients have not seen the ledger's greatest LAC."""
        lac = self._core.lac(ledger.ledger_id)
        ripe = [request_id for request_id, previous in ledger.watches.items() if lac > previous]
        frame = slice_frame(newest.frame, newest.extent.last, newest.extent.last) if newest and ripe else None
        for request_id in ripe:
            request = self._requests.get(request_id)
            assert request is not None
            if frame is not None and newest is not None:
                self._send(request, newest.extent.last, frame, _EMPTY)
            else:
                self._requests.run(request)

    def timer_fired(self, event: TimerFired) -> None:
        """If the timer of a watch fired, answer the watch with the present evidence. If the timer for explicit LACs
        fired, make them durable."""
        if event.timer is None:
            self._persist()
            return
        request = self._requests.get(event.timer)
        if isinstance(request, LacRequest) and request.previous is not None:
            self._stop_watching(request)
            self._requests.run(request)

    # --- explicit LACs (RULES P9) ---

    def write(self, event: WriteLacRequested) -> None:
        core, body = self._core, bytes(event.lac_body)
        problem = core.failed or _body_problem(event.ledger_id, body)
        if not problem:
            ledger = core.ledger(event.ledger_id)
            problem = (Reason.DELETED, f"ledger {event.ledger_id} is deleted") if ledger.deleted else None
            problem = problem or core.key_problem(ledger, event.ledger_key)
            if not problem and not ledger.hint_dirty and len(self._dirty) >= core.limits.hints_max:
                problem = (Reason.OVERLOADED, f"{len(self._dirty)} explicit LACs are to be made durable")
            if not problem and lac_of_body(body) > ledger.hint_lac:
                self._take_hint(ledger, body)
            core.forget_if_idle(ledger)
        core.effects.append(SendReply(event.request, *(problem or ())))

    def _take_hint(self, ledger: Ledger, body: bytes) -> None:
        """Keep the writer's explicit LAC in memory and answer watches. It goes to disk after ``lac_persist_ms``."""
        ledger.hint_lac, ledger.hint_body = lac_of_body(body), body
        if not ledger.hint_dirty:
            ledger.hint_dirty = True
            if not self._dirty:
                self._core.effects.append(SetTimer(LAC_TIMER, self._core.limits.lac_persist_ms))
            self._dirty[ledger.ledger_id] = ledger
        self._wake(ledger)

    def _persist(self) -> None:
        """Give the new explicit LACs to the log, unless those given a second ago are not durable yet."""
        core = self._core
        if any(core.logs[log].durable < sequence for log, sequence in self._given.items()):
            core.effects.append(SetTimer(LAC_TIMER, core.limits.lac_persist_ms))
            return
        ledgers, self._dirty = self._dirty, {}
        for ledger in ledgers.values():
            ledger.hint_dirty = False
            if not (core.failed or ledger.deleted):
                self._given[ledger.log.number] = core.record(FrameKind.LAC, ledger, ledger.hint_body)


def _body_problem(ledger_id: LedgerId, body: bytes) -> Refusal | None:
    """Return why these bytes are not a valid LAC body of this ledger, or None. A digest that needs no key is verified,
    so that a flipped bit cannot replace the true LAC by a greater one (RULES P5)."""
    if len(body) - LAC_BODY_BYTES_MIN not in DIGEST_BYTES or not 0 <= ledger_id <= LEDGER_ID_MAX:
        return Reason.BAD_REQUEST, f"a LAC body of {len(body)} bytes for ledger {ledger_id}"
    if ledger_of_body(body) != ledger_id:
        return Reason.BAD_REQUEST, f"a LAC body of ledger {ledger_of_body(body)}"
    numbers, digest = body[:LAC_BODY_BYTES_MIN], body[LAC_BODY_BYTES_MIN:]
    if contradicts(digest, numbers):
        return Reason.INTEGRITY, "the digest of the LAC body is wrong"
    return None
