# SPDX-License-Identifier: Apache-2.0
"""What a bookie does, as a pure machine: an event in, effects out. No clock, thread, file or socket.

The driver (``services/``) owns one machine on its loop, feeds it what arrives and carries out what it returns. Two
halves: :mod:`machine_adds` (sessions and acks) and :mod:`machine_reads` (answers); what they share is in
:mod:`machine_core`.

Promises, each for ever: an ack only after its frame is durable (P1); no normal add after a fence, and no answer to a
fencing request before the fence is durable (MUST 2, MUST 3); ABSENT only where nothing durable or pending covers an id
(S1, MUST 4); the ledger key durable before the first ack (L2); nothing at all after a failed sync (S6). Expected
trouble comes in as an event and goes out as a reason; an exception out of :meth:`BookieMachine.step` is a bug.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from bk_core.entries.frame import FrameKind, record_payload
from bk_core.model import LedgerId
from bk_core.wire.lane import Reason
from bookie_server.machine_adds import Adds
from bookie_server.machine_core import Core, Refusal
from bookie_server.machine_events import (
    Commit,
    CommitFailed,
    Effect,
    Event,
    FenceRequested,
    FramesArrived,
    FramesRead,
    GroupCommitted,
    PartSent,
    ReadLacRequested,
    ReadOnlyChanged,
    ReadRequested,
    RequestCancelled,
    SendReply,
    SessionAttached,
    SessionsDetached,
    SetTimer,
    StreamClosed,
    TimerFired,
    WatchLacRequested,
    WriteLacRequested,
)
from bookie_server.machine_reads import Reads
from bookie_server.machine_state import (
    LAC_BODY_BYTES_MIN,
    Holdings,
    Ledger,
    MachineLimits,
    Pending,
    Session,
    lac_of_body,
    ledger_of_body,
)

LAC_TIMER = None
_LAC_DIGEST_BYTES = (0, 4, 8, 20)


class BookieMachine:
    """One bookie. ``holdings`` is the index of what is durable; the machine alone changes it while it lives."""

    def __init__(self, holdings: Holdings, limits: MachineLimits | None = None) -> None:
        self._core = Core(holdings, limits or MachineLimits())
        self._reads = Reads(self._core, self._compared)
        self._adds = Adds(self._core, self._reads.compare)
        adds, reads = self._adds, self._reads
        self._handlers: dict[type, Callable[[Any], None]] = {
            SessionAttached: adds.attach,
            FramesArrived: adds.frames,
            SessionsDetached: lambda event: adds.detach(event.stream, list(event.sessions)),
            StreamClosed: self._on_closed,
            GroupCommitted: self._on_committed,
            CommitFailed: self._on_failed,
            FramesRead: reads.frames_read,
            ReadRequested: reads.read,
            PartSent: lambda event: reads.sent(event.request),
            FenceRequested: lambda event: reads.lac(event.request, event.ledger_id, event.ledger_key),
            ReadLacRequested: lambda event: reads.lac(event.request, event.ledger_id),
            WriteLacRequested: self._on_write_lac,
            WatchLacRequested: reads.watch,
            RequestCancelled: lambda event: reads.cancel(event.request),
            TimerFired: self._on_timer,
            ReadOnlyChanged: self._on_read_only,
        }

    @property
    def pending_frames(self) -> int:
        """Frames given out by Commit effects and not yet reported."""
        return len(self._core.queue)

    def step(self, event: Event) -> list[Effect]:
        """Take one event; returns what is to be done, in this order."""
        core = self._core
        core.effects = []
        self._handlers[type(event)](event)
        self._reads.next_turns()
        self._adds.flush()
        if core.outgoing:
            core.effects.append(Commit(tuple(core.outgoing)))
            core.outgoing.clear()
        return core.effects

    def _compared(self, session: Session, same: bool) -> None:
        self._adds.compared(session, same)

    def _on_closed(self, event: StreamClosed) -> None:
        self._reads.close(event.stream)
        self._adds.close(event.stream)

    def _on_read_only(self, event: ReadOnlyChanged) -> None:
        self._core.read_only = event.read_only

    # --- storage ---

    def _on_committed(self, event: GroupCommitted) -> None:
        core, watched, seen = self._core, dict[LedgerId, Pending](), dict[LedgerId, Ledger]()
        for place in event.places:
            pending = core.queue.popleft()
            core.durable += 1
            ledger, header = pending.ledger, pending.header
            seen[ledger.ledger_id] = ledger
            ledger.known = True
            if header.kind != FrameKind.ENTRIES:
                core.holdings.apply(header, bytes(record_payload(pending.frame, header)), place)
                continue
            core.holdings.add(header, pending.extent, place)
            ledger.pending.popleft()
            self._adds.committed(pending)
            if ledger.watches:
                watched[ledger.ledger_id] = pending
        for request in core.unpark():
            self._reads.resume(request)
        self._reads.committed(watched)
        for ledger in seen.values():
            core.forget_if_idle(ledger)

    def _on_failed(self, event: CommitFailed) -> None:
        core = self._core
        problem: Refusal = (event.reason, event.message)
        if event.final:
            core.failed = problem
        for pending in core.drop_queue():
            if pending.session:
                self._adds.dropped(pending, problem)
        if event.final:
            self._adds.fail_all(problem)
            self._reads.refuse_all(problem)
        for request in core.unpark():
            self._reads.resume(request)

    # --- explicit LAC (RULES P9) ---

    def _on_write_lac(self, event: WriteLacRequested) -> None:
        core, body = self._core, bytes(event.lac_body)
        problem = core.failed or _body_problem(event.ledger_id, body)
        if not problem:
            ledger = core.ledger(event.ledger_id)
            problem = (Reason.DELETED, "the ledger is deleted") if ledger.deleted else None
            problem = problem or core.key_problem(ledger, event.ledger_key)
            if not problem and lac_of_body(body) > ledger.hint_lac:
                self._take_hint(ledger, body)
            core.forget_if_idle(ledger)
        core.effects.append(SendReply(event.request, *(problem or ())))

    def _take_hint(self, ledger: Ledger, body: bytes) -> None:
        """Keep the writer's word in memory and tell who watches; to disk at most once a second."""
        core = self._core
        ledger.hint_lac, ledger.hint_body = lac_of_body(body), body
        if not ledger.hint_dirty:
            ledger.hint_dirty = True
            if not core.dirty_lacs:
                core.effects.append(SetTimer(LAC_TIMER, core.limits.lac_persist_ms))
            core.dirty_lacs[ledger.ledger_id] = ledger
        self._reads.wake(ledger.ledger_id)

    def _on_timer(self, event: TimerFired) -> None:
        if event.timer is not None:
            self._reads.timer_fired(event.timer)
            return
        core = self._core
        ledgers, core.dirty_lacs = core.dirty_lacs, {}
        for ledger in ledgers.values():
            ledger.hint_dirty = False
            if not core.failed:
                core.record(FrameKind.LAC, ledger, ledger.hint_body)


def _body_problem(ledger_id: LedgerId, body: bytes) -> Refusal | None:
    """Why these bytes are no LAC body of this ledger. Where the digest needs no key it is verified, so that a flipped
    bit cannot hide the true LAC behind a great one (RULES P5)."""
    if len(body) - LAC_BODY_BYTES_MIN not in _LAC_DIGEST_BYTES or ledger_id < 0:
        return Reason.BAD_REQUEST, f"a LAC body of {len(body)} bytes"
    if ledger_of_body(body) != ledger_id:
        return Reason.BAD_REQUEST, f"a LAC body of ledger {ledger_of_body(body)}"
    numbers, digest = body[:LAC_BODY_BYTES_MIN], body[LAC_BODY_BYTES_MIN:]
    wanted = {4: crc32c, 8: zlib.crc32}.get(len(digest))
    if wanted and wanted(numbers) != int.from_bytes(digest, "big"):
        return Reason.INTEGRITY, "the digest of the LAC body is wrong"
    return None
