# SPDX-License-Identifier: Apache-2.0
"""What the add path and the read path of the bookie's machine share: ledgers, the queue to the log, fencing.

Theory: every frame given to the log has a sequence number, and the log is durable up to one such number. So "wait until
this is durable" is one integer, and the order of the queue is the order on disk (RULES S1: a fence record stands behind
every add accepted before it).
"""

from __future__ import annotations

import hmac
from collections import deque

from bk_core.entries.frame import FrameExtent, FrameHeader, FrameKind, encode_record, parse_header
from bk_core.model import LEDGER_KEY_BYTES, LedgerId
from bk_core.wire.lane import Reason
from bookie_server.machine_events import Effect, RequestId
from bookie_server.machine_state import Holdings, Ledger, MachineLimits, Pending, Session

Refusal = tuple[Reason, str]

_NO_RESERVE = (FrameKind.LEDGER_KEY, FrameKind.LAC)
"""Records that come with normal adds. All others, and recovery adds, may use the space that is kept for them."""
_NO_EXTENT = FrameExtent(-1, -1, False, 0, -1)


class Core:
    """State shared by both paths. ``effects`` is what this step wants done; ``outgoing`` the frames of its Commit."""

    __slots__ = (
        "appended",
        "durable",
        "effects",
        "failed",
        "holdings",
        "ledgers",
        "limits",
        "outgoing",
        "outgoing_reserve",
        "parked",
        "queue",
        "read_only",
    )

    def __init__(self, holdings: Holdings, limits: MachineLimits) -> None:
        self.holdings, self.limits = holdings, limits
        self.effects: list[Effect] = []
        self.outgoing: list[bytes | memoryview] = []
        self.outgoing_reserve = False  # one of them may use the space kept for fences and recovery
        self.ledgers: dict[LedgerId, Ledger] = {}
        self.queue: deque[Pending] = deque()  # given to the log, oldest first
        self.appended = 0  # sequence number of the last frame given to the log
        self.durable = 0  # and of the last durable one; appended − durable == len(queue)
        self.parked: dict[int, list[RequestId]] = {}  # requests waiting for a sequence number to be durable
        self.failed: Refusal | None = None  # a sync failed: final (RULES S6)
        self.read_only = False

    # --- ledgers ---

    def ledger(self, ledger_id: LedgerId) -> Ledger:
        """The volatile state of a ledger, made from the durable one on first use."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            facts = self.holdings.facts(ledger_id)
            ledger = Ledger(ledger_id, facts, self.holdings.last_entry_id(ledger_id))
            self.ledgers[ledger_id] = ledger
        return ledger

    def forget_if_idle(self, ledger: Ledger) -> None:
        if ledger.idle and self.ledgers.get(ledger.ledger_id) is ledger:
            del self.ledgers[ledger.ledger_id]

    def key_problem(self, ledger: Ledger, key: bytes) -> Refusal | None:
        """Why this key does not open the ledger. The first key heard becomes the ledger's (RULES L2)."""
        if len(key) != LEDGER_KEY_BYTES:
            return Reason.BAD_REQUEST, f"a ledger key of {len(key)} bytes"
        if ledger.key is None:
            ledger.key = key
        elif not hmac.compare_digest(ledger.key, key):
            return Reason.UNAUTHORIZED, f"another key than that of ledger {ledger.ledger_id}"
        return None

    # --- the queue to the log ---

    def enqueue(
        self,
        header: FrameHeader,
        extent: FrameExtent,
        frame: bytes | memoryview,
        ledger: Ledger,
        session: Session | None,
    ) -> int:
        """Give a frame to the log behind all others; returns its sequence number."""
        self.queue.append(Pending(header, extent, frame, ledger, session))
        self.outgoing.append(frame)
        self.outgoing_reserve |= session.recover if session else header.kind not in _NO_RESERVE
        self.appended += 1
        ledger.in_log += 1
        if header.kind == FrameKind.ENTRIES:
            ledger.pending.append((self.appended, extent.first, extent.last))
            ledger.top = max(ledger.top, extent.last)
        return self.appended

    def record(self, kind: FrameKind, ledger: Ledger, payload: bytes = b"") -> int:
        """Give a record to the log, the ledger's key before its first frame (RULES L2)."""
        keyless = kind in (FrameKind.LEDGER_KEY, FrameKind.DELETED)
        if not ledger.key_logged and ledger.key is not None and not keyless:
            self.log_key(ledger)
        frame = encode_record(kind, ledger.ledger_id, payload)
        return self.enqueue(parse_header(frame), _NO_EXTENT, frame, ledger, None)

    def log_key(self, ledger: Ledger) -> None:
        assert ledger.key is not None
        ledger.key_logged = True
        self.record(FrameKind.LEDGER_KEY, ledger, ledger.key)

    def fence(self, ledger_id: LedgerId, key: bytes) -> Refusal | int:
        """Fence a ledger, known or not; returns the sequence number that must be durable before any answer to this
        request, or why it is refused (then nothing changed)."""
        if self.failed:
            return self.failed
        ledger = self.ledger(ledger_id)
        if ledger.deleted:
            return Reason.DELETED, f"ledger {ledger_id} is deleted"
        problem = self.key_problem(ledger, key)
        if problem:
            self.forget_if_idle(ledger)
            return problem
        ledger.fenced = True  # from here on normal adds are refused (MUST 3)
        if ledger.fence_sequence is None:
            ledger.fence_sequence = self.record(FrameKind.FENCE, ledger)
        return ledger.fence_sequence

    def park(self, request: RequestId, sequence: int) -> None:
        """Have this request run again when the frame of that number is durable, or will never be."""
        self.parked.setdefault(sequence, []).append(request)

    def unpark(self) -> list[RequestId]:
        """Requests whose frame is settled, in order."""
        if not self.parked:
            return []
        ripe = sorted(sequence for sequence in self.parked if sequence <= self.durable)
        return [request for sequence in ripe for request in self.parked.pop(sequence)]

    def drop_queue(self) -> list[Pending]:
        """Nothing in the queue will ever be durable; returns what was in it."""
        dropped = list(self.queue)
        self.queue.clear()
        self.outgoing.clear()
        self.outgoing_reserve = False
        self.durable = self.appended
        for pending in dropped:
            ledger, kind = pending.ledger, pending.header.kind
            ledger.in_log -= 1
            if kind == FrameKind.ENTRIES:
                ledger.pending.popleft()
            elif kind == FrameKind.LEDGER_KEY:
                ledger.key_logged = False
            elif kind == FrameKind.FENCE:
                ledger.fence_sequence = None  # stays fenced in memory; the next fencing request logs it again
            elif kind == FrameKind.DELETED:
                ledger.deleted = False  # until the collector has found it again
        return dropped

    def is_fenced(self, ledger_id: LedgerId) -> bool:
        ledger = self.ledgers.get(ledger_id)
        return ledger.fenced if ledger else self.holdings.facts(ledger_id).fenced
