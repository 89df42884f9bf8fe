# SPDX-License-Identifier: Apache-2.0
"""A bookie's audit log: each fence, recovery, deletion, drain, grant and refusal with its actor, on the logger
``bookie_server.audit`` and, if a file is named, there.

A flood of events writes few lines, and no event is lost without a trace. A repetition of an event within a minute is
counted, and one later line gives the count. Events above ``LINES_PER_S``, and events of new kinds once the table of
kinds is full, are counted by action and outcome alone. Refusals have a rate of their own, and new kinds of refusals are
added only while the table is less than half full. Otherwise a client that is refused often enough could keep other
events out of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bk_core.model import LedgerId
from bk_core.observe.audit import DONE, LEDGERS_MAX, REFUSED, TEXT_MAX, UNKNOWN, AuditFile, line_of
from bk_core.wire.lane.reasons import Reason

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # whatever the level of the parent loggers

AGAIN_S = 60.0
"""A repetition of an event within this many seconds is counted instead of written."""
KINDS_MAX = 8192
"""The maximum number of kinds of events that are counted separately. A new kind of refusal is added only below half of
it."""
LINES_PER_S = 200.0
"""The maximum sustained rate of new lines, in lines per second. Refusals and all other events each have this rate."""
BURST = 2000.0
"""The number of lines that may be written at once before ``LINES_PER_S`` applies."""

_LOOK_S = 1.0
_IN_DOUBT = frozenset({Reason.TIMEOUT, Reason.IO_ERROR, Reason.STORAGE_FAILED, Reason.SHUTTING_DOWN})


@dataclass(slots=True)
class _Kind:
    """One kind of event, and how often it was repeated since its last line. ``about`` has the fields of its lines."""

    about: dict[str, object]
    told_s: float
    since_s: float = 0.0
    again: int = 0


class _Room:
    """A token bucket that limits how many new events get a line each."""

    def __init__(self, now_s: float, kinds_max: int) -> None:
        self.kinds_max, self._left, self._at_s = kinds_max, BURST, now_s

    def takes(self, now_s: float) -> bool:
        self._left = min(BURST, self._left + max(0.0, now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


def outcome_of(reason: Reason) -> str:
    """Return the outcome of a request that was answered with ``reason``. It is UNKNOWN after a timeout or a failed
    write, because a fence may hold nevertheless."""
    return DONE if not reason else UNKNOWN if reason in _IN_DOUBT else REFUSED


class AuditLog:
    """The audit log of one bookie. Any thread may call it. ``clock_s`` returns the seconds since 1970."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self.file: AuditFile | None = None
        self.bookie_id = ""
        self._lock = threading.Lock()
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._rooms = _Room(clock_s(), KINDS_MAX), _Room(clock_s(), KINDS_MAX // 2)  # refusals have the second
        self._looked_s = clock_s()

    def say(self, did: str, outcome: str = DONE, *, address: object = "", **about: object) -> None:
        """Write an event, or count it. ``about`` has the actor, the lane, the object and the reason of a refusal; all
        values are hashable. ``address`` is the client's host and port; events that differ only in the port are of one
        kind."""
        host = str(address).rpartition(":")[0] or address
        about = {name: value[:TEXT_MAX] if isinstance(value, str) else value for name, value in about.items()}
        with self._lock:
            now_s = self._clock_s()
            if abs(now_s - self._looked_s) >= _LOOK_S:
                self._tell_again(now_s)
            key = did, outcome, host, *about.items()
            known = self._kinds.get(key)
            room = self._rooms[outcome == REFUSED]
            if known is None and (len(self._kinds) >= room.kinds_max or not room.takes(now_s)):
                key = did, outcome
                known = self._kinds.setdefault(key, _Kind({"did": did, "outcome": outcome, "of": "many"}, now_s))
            if known is None:
                known = self._kinds[key] = _Kind({"did": did, "outcome": outcome, "address": host, **about}, now_s)
                self._tell(now_s, **{**known.about, "address": address})
                return
            known.since_s = known.since_s if known.again else now_s
            known.again += 1

    def ledgers(self, did: str, ledger_ids: list[LedgerId], why: str) -> None:
        """Write one event about several ledgers. It names the first ``LEDGERS_MAX`` of them and counts all."""
        self.say(did, ledgers=tuple(ledger_ids[:LEDGERS_MAX]), count=len(ledger_ids), why=why)

    def flush(self, *, all_of_them: bool = False) -> None:
        """Write the lines for repeated events whose minute is over; with ``all_of_them``, for all repeated events."""
        with self._lock:
            self._tell_again(self._clock_s(), all_of_them=all_of_them)

    def close(self) -> None:
        self.flush(all_of_them=True)
        if self.file is not None:
            self.file.close()

    def _tell_again(self, now_s: float, *, all_of_them: bool = False) -> None:
        self._looked_s = now_s
        due = [key for key, kind in self._kinds.items() if all_of_them or abs(now_s - kind.told_s) >= AGAIN_S]
        for key in due:
            kind = self._kinds.pop(key)
            if kind.again:
                self._tell(now_s, **kind.about, again=kind.again, since=round(kind.since_s, 3))

    def _tell(self, now_s: float, did: object, outcome: object, **about: object) -> None:
        line = line_of(now_s, str(did), str(outcome), bookie=self.bookie_id, **about)
        logger.info("%s", line)
        if self.file is not None:
            self.file.put(line)
