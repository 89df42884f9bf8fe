# SPDX-License-Identifier: Apache-2.0
"""The state that all paths of the bookie's machine share: ledgers, the queues to the logs, fencing.

A ledger belongs to one of the logs (``LogQueue``) and stays there, so all its frames have the order of that log's
queue.
"""

from __future__ import annotations

import hmac

from bk_core.entries.frame import FrameExtent, FrameKind, encode_record, parse_header
from bk_core.model import LEDGER_KEY_BYTES, EntryId, LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.events import Effect
from bookie_server.machine.owners import Owners
from bookie_server.machine.state import Holdings, Ledger, LogQueue, MachineLimits, Pending, lac_of_body

Refusal = tuple[Reason, str]

_NO_EXTENT = FrameExtent(-1, -1, False, 0, -1)


class Counts:
    """Counters since the start, for metrics; the machine itself never reads them. Bytes are those of frames; added
    entries and bytes count once they are durable. ``refused`` counts sessions that a refusal ended, by its reason.
    ``held`` counts how often a stream was paused because its owner had too much in flight."""

    __slots__ = ("added_bytes", "added_entries", "held", "read_bytes", "read_parts", "refused")

    def __init__(self) -> None:
        self.added_bytes = self.added_entries = self.read_bytes = self.read_parts = 0
        self.refused: dict[Reason, int] = {}
        self.held = 0


class Core:
    """The state shared by all paths. ``effects`` collects the effects of the current step."""

    __slots__ = ("counts", "effects", "failed", "holdings", "ledgers", "limits", "logs", "owners")

    def __init__(self, holdings: Holdings, limits: MachineLimits, logs: int) -> None:
        self.holdings, self.limits, self.counts = holdings, limits, Counts()
        self.owners = Owners()
        self.effects: list[Effect] = []
        self.ledgers: dict[LedgerId, Ledger] = {}
        self.logs = tuple(LogQueue(number) for number in range(logs))
        self.failed: Refusal | None = None  # a sync of any log failed: final (RULES S6)

    # --- ledgers ---

    def ledger(self, ledger_id: LedgerId) -> Ledger:
        """Return the volatile state of a ledger; at first use it is made from the durable state."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            facts = self.holdings.facts(ledger_id)
            log = self.logs[self.holdings.log_of(ledger_id)]
            ledger = Ledger(ledger_id, facts, self.holdings.last_entry_id(ledger_id), log)
            self.ledgers[ledger_id] = ledger
        return ledger

    def forget_if_idle(self, ledger: Ledger) -> None:
        if ledger.idle and self.ledgers.get(ledger.ledger_id) is ledger:
            del self.ledgers[ledger.ledger_id]

    def key_problem(self, ledger: Ledger, key: bytes) -> Refusal | None:
        """Return why this key does not open the ledger, or None if it does. The first key that arrives becomes the
        ledger's key (RULES L2)."""
        if len(key) != LEDGER_KEY_BYTES:
            return Reason.BAD_REQUEST, f"a ledger key of {len(key)} bytes"
        if ledger.key is None:
            ledger.key = key
        elif not hmac.compare_digest(ledger.key, key):
            return Reason.UNAUTHORIZED, f"the key is not that of ledger {ledger.ledger_id}"
        return None

    def log_of(self, ledger_id: LedgerId) -> int:
        """Return the number of the ledger's log, whether the ledger is in memory or not."""
        ledger = self.ledgers.get(ledger_id)
        return ledger.log.number if ledger else self.holdings.log_of(ledger_id)

    # --- the queue to the log ---

    def enqueue(self, pending: Pending) -> int:
        """Append a frame to the queue of its ledger's log, and return its sequence number there."""
        ledger = pending.ledger
        sequence = ledger.log.enqueue(pending)
        ledger.in_log += 1
        if pending.session is not None:  # a frame of entries, not a record
            first, last, *_ = pending.extent
            ledger.pending.append((sequence, first, last))
            if last > ledger.top:
                ledger.top = last
        return sequence

    def record(self, kind: FrameKind, ledger: Ledger, payload: bytes = b"") -> int:
        """Append a record to the queue of the log, and return its sequence number. The ledger's key is logged before
        its first other frame (RULES L2)."""
        keyless = kind in (FrameKind.LEDGER_KEY, FrameKind.DELETED)
        if not ledger.key_logged and ledger.key is not None and not keyless:
            self.log_key(ledger)
        frame = encode_record(kind, ledger.ledger_id, payload)
        return self.enqueue(Pending(parse_header(frame), _NO_EXTENT, frame, ledger, None))

    def log_key(self, ledger: Ledger) -> None:
        assert ledger.key is not None
        ledger.key_logged = True
        self.record(FrameKind.LEDGER_KEY, ledger, ledger.key)

    def fence(self, ledger_id: LedgerId, key: bytes) -> Refusal | int:
        """Fence a ledger, even one of which this bookie has nothing. Return the sequence number of the fence record in
        the ledger's log; no answer may be sent before that record is durable. Return a refusal if nothing was
        changed."""
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

    def drop_queue(self, log: LogQueue) -> list[Pending]:
        """Drop the queue of this log, because none of it will ever be durable; return the dropped frames."""
        dropped = log.drop()
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
                ledger.deleted = False  # the collector will find the deleted ledger again
        for ledger in dict.fromkeys(pending.ledger for pending in dropped):
            self._choose_anew(ledger)
        return dropped

    def _choose_anew(self, ledger: Ledger) -> None:
        """Choose the log of a ledger again, because its log may have no room, unless some of the ledger is durable or
        on its way."""
        if not ledger.in_log and not self.holdings.facts(ledger.ledger_id).known:
            ledger.log = self.logs[self.holdings.log_of(ledger.ledger_id)]

    def is_fenced(self, ledger_id: LedgerId) -> bool:
        ledger = self.ledgers.get(ledger_id)
        return ledger.fenced if ledger else self.holdings.facts(ledger_id).fenced

    def is_known(self, ledger_id: LedgerId) -> bool:
        """Return whether this bookie has an entry, the key, or an explicit LAC of the ledger."""
        ledger = self.ledgers.get(ledger_id)
        return self.holdings.facts(ledger_id).known or bool(ledger and (ledger.key_logged or ledger.hint_body))

    def lac(self, ledger_id: LedgerId) -> EntryId:
        """Return the greatest LAC for which this bookie has evidence."""
        return self.fence_and_lac(ledger_id)[1]

    def fence_and_lac(self, ledger_id: LedgerId) -> tuple[bool, EntryId]:
        """Return the results of :meth:`is_fenced` and :meth:`lac`."""
        ledger = self.ledgers.get(ledger_id)
        if ledger:
            fenced, body = ledger.fenced, ledger.hint_body
        else:
            facts = self.holdings.facts(ledger_id)
            fenced, body = facts.fenced, facts.lac_body
        carried = self.holdings.lac(ledger_id)
        return fenced, max(carried, lac_of_body(body)) if body else carried
