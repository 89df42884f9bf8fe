# SPDX-License-Identifier: Apache-2.0
"""A bookie's audit log: each fence, recovery, deletion, drain, grant and refusal with its actor, on the logger
``bookie_server.audit`` and, if a file is named, there.

A flood of events writes few lines, and loses none in silence. The same event again within a minute is counted, and told
with its number afterwards. So are all events beyond ``LINES_PER_S``, or of more kinds than are remembered: then by what
was done alone. Refusals have a rate of their own, and half of the kinds: a client that is refused as often as it
like would hide what was done."""

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
logger.setLevel(logging.INFO)  # whatever the level of all others is

AGAIN_S = 60.0
"""The same event is told once in so long."""
KINDS_MAX = 8192
LINES_PER_S = 200.0
BURST = 2000.0

_LOOK_S = 1.0
_IN_DOUBT = frozenset({Reason.TIMEOUT, Reason.IO_ERROR, Reason.STORAGE_FAILED, Reason.SHUTTING_DOWN})


@dataclass(slots=True)
class _Kind:
    """An event, and how often it came since it was told last. ``about`` is what it is told with."""

    about: dict[str, object]
    told_s: float
    since_s: float = 0.0
    again: int = 0


class _Room:
    """How many events are told one by one."""

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
    """What became of what was answered so. After a timeout, or a failed write, a fence may hold."""
    return DONE if not reason else UNKNOWN if reason in _IN_DOUBT else REFUSED


class AuditLog:
    """Any thread may call. ``clock_s`` is the time since 1970."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self.file: AuditFile | None = None
        self.bookie_id = ""
        self._lock = threading.Lock()
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._rooms = _Room(clock_s(), KINDS_MAX), _Room(clock_s(), KINDS_MAX // 2)  # refusals have the second
        self._looked_s = clock_s()

    def say(self, did: str, outcome: str = DONE, *, address: object = "", **about: object) -> None:
        """``about`` has the actor, the place, the object and the reason of a refusal, all hashable; ``address`` is the
        client's host and port, of which the host tells events apart."""
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
        """As :meth:`say`, of many ledgers at once."""
        self.say(did, ledgers=tuple(ledger_ids[:LEDGERS_MAX]), count=len(ledger_ids), why=why)

    def flush(self, *, all_of_them: bool = False) -> None:
        """Tell what came again, if it is time for that."""
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
