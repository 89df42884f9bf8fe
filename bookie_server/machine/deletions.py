# SPDX-License-Identifier: Apache-2.0
"""The path of the bookie's machine that deletes ledgers, by a record in the log that is kept for good (RULES S4, S9).
By another record it gives up copies of ledgers that live on other bookies.

The collector decides whether a ledger is deleted (:mod:`bookie_server.garbage.collector`); a client's hint only says
where to look. From LedgersDeleted on the ledger takes no frame, and the deletion record follows all its earlier frames
in the log. Reads are answered DELETED only once the record is durable. So every acknowledged add is older than the
record, and no reader sees a deletion that a crash may undo.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from bk_core.entries.frame import FrameKind
from bk_core.model import LEDGER_ID_MAX, LedgerId
from bk_core.wire.lane.reasons import HINT_IDS_MAX, Reason
from bookie_server.machine.core import Core, Refusal
from bookie_server.machine.events import (
    CopiesUnwanted,
    DeleteHintRequested,
    LedgersDeleted,
    LookForDeletion,
    SendReply,
)
from bookie_server.machine.requests import Requests
from bookie_server.machine.state import Ledger, Pending


class Deletions:
    """The path for deletions. ``end_sessions`` ends the sessions of all ledgers in a set."""

    __slots__ = ("_core", "_end_sessions", "_requests")

    def __init__(self, core: Core, requests: Requests, end_sessions: Callable[[Container[LedgerId]], None]) -> None:
        self._core, self._requests, self._end_sessions = core, requests, end_sessions

    def hint(self, event: DeleteHintRequested) -> None:
        """Ask the collector to look up those of the ledgers that are held here. The answer only says that the hint
        arrived."""
        problem: Refusal | None = self._core.failed
        if not problem and len(event.ledger_ids) > HINT_IDS_MAX:
            problem = Reason.TOO_LARGE, f"{len(event.ledger_ids)} ledgers in one hint, at most {HINT_IDS_MAX}"
        if not problem:
            held = tuple(dict.fromkeys(ledger_id for ledger_id in event.ledger_ids if self._holds(ledger_id)))
            if held:
                self._core.effects.append(LookForDeletion(held))
        self._core.effects.append(SendReply(event.request, *(problem or ())))

    def _holds(self, ledger_id: LedgerId) -> bool:
        if not 0 <= ledger_id <= LEDGER_ID_MAX:
            return False
        ledger = self._core.ledgers.get(ledger_id)
        if ledger and (ledger.deleted or ledger.in_log):
            return not ledger.deleted
        facts = self._core.holdings.facts(ledger_id)
        return facts.known and not facts.deleted

    def delete(self, event: LedgersDeleted) -> None:
        """Refuse further adds to these ledgers and give their deletion records to the log. Skip ledgers that are not
        held, or that are deleted already."""
        core = self._core
        if core.failed:
            return
        doomed: set[LedgerId] = set()
        for ledger_id in event.ledger_ids:
            if self._holds(ledger_id):
                ledger = core.ledger(ledger_id)
                ledger.deleted = True
                doomed.add(ledger_id)
                core.record(FrameKind.DELETED, ledger)
        if doomed:
            self._end_sessions(doomed)

    def drop(self, event: CopiesUnwanted) -> None:
        """Give up the copies of these ledgers in sealed segments; the collector finds the remaining frames again once
        they are sealed. Skip a ledger with an open session or with frames on their way to the log."""
        core = self._core
        if core.failed:
            return
        for ledger_id in event.ledger_ids:
            generation = core.holdings.sealed_through(ledger_id) if self._holds(ledger_id) else 0
            if not generation:
                continue
            ledger = core.ledger(ledger_id)
            if not ledger.sessions and not ledger.in_log:
                core.record(FrameKind.COPY_DROPPED, ledger, generation.to_bytes(8, "little"))

    def committed(self, record: Pending) -> None:
        """Handle a record that has become durable. After a deletion record, refuse the ledger's watches at once; its
        reads are refused when they next run."""
        if record.header.kind != FrameKind.DELETED:
            return
        for request_id in list(record.ledger.watches):
            request = self._requests.get(request_id)
            assert request is not None
            self._requests.refuse(request, _gone(record.ledger))

    def dropped(self, frames: Iterable[Pending]) -> None:
        """Handle frames that will never be durable. The collector looks up again the ledgers whose deletion records are
        among them."""
        kept = tuple(one.ledger.ledger_id for one in frames if one.header.kind == FrameKind.DELETED)
        if kept and not self._core.failed:
            self._core.effects.append(LookForDeletion(kept))


def _gone(ledger: Ledger) -> Refusal:
    return Reason.DELETED, f"ledger {ledger.ledger_id} is deleted"
