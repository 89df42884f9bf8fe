# SPDX-License-Identifier: Apache-2.0
"""Known defects put back into the production machines, for the exhaustive search to find.

``shown_by`` is the scope to search. The search finds what a user loses even if it does not look at the promises of
single machines, but for D6-fence, D14, D16, D17 and D22."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bk_core import quorum
from bk_core.entries.digest import Digester
from bk_core.entries.packets import encode_packet
from bk_core.model import EntryId
from bk_core.protocol import events as ev
from bk_core.protocol import write_back
from bk_core.protocol.answers import Window
from bk_core.protocol.delivery import Delivery, Lane
from bk_core.protocol.keeper import SessionKeeper
from bk_core.protocol.recovery import LedgerRecovery
from bk_core.protocol.refusals import fenced_error
from bk_core.protocol.write_back import WriteBack
from bk_core.protocol.writer import LedgerWrite
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.machine.adds import Adds
from bookie_server.machine.core import Core
from bookie_server.machine.lac import LacRequest
from bookie_server.machine.reads import Read
from bookie_server.machine.requests import Requests
from tests.sim.exhaustive.parts import DIGESTER
from tests.sim.mutants.mutant import Mutants, changed

MUTANTS = Mutants()


# --- recovery --------------------------------------------------------------------------------------------------------


@MUTANTS.instead(LedgerRecovery, "step", "D1", "recovery reads fence", shown_by="pair")
def reads_do_not_fence(step: Any, self: LedgerRecovery, event: Any) -> list[Any]:
    return [replace(e, fence=False) if isinstance(e, ev.SendRead) else e for e in step(self, event)]


@MUTANTS.instead(Window, "fail", "D28-silence", "silence is no denial", shown_by="timeout")
def silence_is_absence(_: Any, self: Window, request: int, problem: str) -> None:
    """D28: what timed out counts as a negative answer."""
    answer = self.answers[request]
    answer.through, answer.absent = self.last, (EntryRange(answer.first, self.last),)


@MUTANTS.instead(write_back, "verbatim_packet", "D17", "recovery adds carry a frozen LAC", shown_by="two-entries")
def recovery_moves_the_lac(_: Any, batch: Any, *, ensemble_size: int, write_quorum: int, session: int) -> Any:
    """D17: recovered entries are digested anew, with the recoverer's own LAC."""
    digester: Digester = DIGESTER
    return encode_packet(
        batch,
        first=batch.first_entry_id,
        lac=batch.first_entry_id,
        length_before=0,
        digester=digester,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        session=session,
    )


MUTANTS.add(
    "D28-one", "an end needs Qw − Qa + 1 denials",
    (quorum, "negatives_needed", lambda write_quorum, ack_quorum: 1), shown_by="one-recovery",
)  # fmt: skip
MUTANTS.add(
    "D27", "write-back before close",
    (WriteBack, "finished", property(lambda self: self._complete)), shown_by="one-recovery",
)  # fmt: skip


# --- the bookie ------------------------------------------------------------------------------------------------------


@MUTANTS.instead(Core, "fence", "D5-not-logged", "fences are durable", shown_by="pair-crash")
def fence_is_not_logged(fence: Any, self: Core, ledger_id: int, key: bytes) -> Any:
    """D5: the fence lives in memory only."""
    ledger = self.ledger(ledger_id)
    if ledger.fence_sequence is None:
        ledger.fence_sequence = 0
    return fence(self, ledger_id, key)


@MUTANTS.instead(Core, "ledger", "D5-not-replayed", "fences outlive a crash", shown_by="pair-crash")
def fence_is_not_replayed(make: Any, self: Core, ledger_id: int) -> Any:
    """D5: after a restart nobody looks for fences in the log."""
    known = ledger_id in self.ledgers
    ledger = make(self, ledger_id)
    if not known:
        ledger.fenced, ledger.fence_sequence = False, None
    return ledger


@MUTANTS.instead(Requests, "_waits_for_fence", "D6", "a negative answer waits for its fence", shown_by="pair-crash")
def negative_before_the_fence_is_durable(waits: Any, self: Requests, request: Any) -> bool:
    if isinstance(request, Read) and not self._core.holdings.overlaps(request.ledger_id, request.next, request.last):
        return False
    return waits(self, request)


@MUTANTS.instead(Requests, "_waits_for_fence", "D6-fence", "a fence is answered when durable", shown_by="pair-crash")
def fence_answered_before_it_is_durable(waits: Any, self: Any, r: Any) -> Any:
    """MUST 3, for the fence itself."""
    return not isinstance(r, LacRequest) and waits(self, r)


def _committed_already(self: Adds, pending: Any) -> None:
    self._released(pending.session.stream, pending.header.size)


@MUTANTS.instead(
    Adds, "_accept", "D7", "acks follow durability", (Adds, "committed", _committed_already), shown_by="pair-crash"
)
def ack_before_durable(accept: Any, self: Adds, session: Any, *args: Any) -> None:
    """D7: an add is confirmed when it is given to the log."""
    accept(self, session, *args)
    session.durable += 1
    self._to_ack[session] = None


def _no_problem_of_fencing(problem: Any, self: Requests, request: Any) -> Any:
    return None if request.fencing else problem(self, request)


@MUTANTS.instead(
    Core, "fence", "D19", "unknown ledgers are fenced",
    changed(Requests, "_problem", _no_problem_of_fencing), shown_by="one-recovery",
)  # fmt: skip
def unknown_ledgers_are_not_fenced(fence: Any, self: Core, ledger_id: int, key: bytes) -> Any:
    known = ledger_id in self.ledgers or self.holdings.facts(ledger_id).known
    return fence(self, ledger_id, key) if known else 0


@MUTANTS.instead(Adds, "_state_problem", "D16", "recovery passes the fence", shown_by="one-recovery")
def recovery_adds_stop_at_the_fence(problem: Any, self: Adds, session: Any, ledger: Any) -> Any:
    return (Reason.FENCED, "fenced") if ledger.fenced else problem(self, session, ledger)


@MUTANTS.instead(Adds, "_state_problem", "MUST2", "no normal add after a fence", shown_by="one-recovery")
def adds_pass_the_fence(problem: Any, self: Adds, session: Any, ledger: Any) -> Any:
    """MUST 2: a session that was attached before the fence goes on."""
    found = problem(self, session, ledger)
    return None if found is not None and found[0] is Reason.FENCED and session.accepted == 0 else found


# --- the writer ------------------------------------------------------------------------------------------------------


@MUTANTS.instead(LedgerWrite, "_evaluate", "D12", "the LAC stands still in a change", shown_by="change")
def lac_moves_during_a_change(evaluate: Any, self: LedgerWrite) -> list[Any]:
    change, self.change = self.change, None
    try:
        return evaluate(self)
    finally:
        self.change = self.change or change


@MUTANTS.instead(Delivery, "replace", "D13", "acks of a replaced bookie are void", shown_by="change")
def acks_of_the_replaced_survive(replaced: Any, self: Delivery, index: int, bookie: str, confirmed: EntryId) -> None:
    watermark = self.lanes[index].watermark
    replaced(self, index, bookie, confirmed)
    lane: Lane = self.lanes[index]
    lane.watermark = max(lane.watermark, watermark)


@MUTANTS.instead(LedgerWrite, "_change_written", "D13-order", "un-ack before evaluation", shown_by="change")
def evaluated_before_unacked(written: Any, self: LedgerWrite, metadata: Any) -> list[Any]:
    """D13: acks are counted after the change and before those of the replaced bookie are taken back."""
    change, self.change = self.change, None
    early = self._evaluate()
    self.change = change
    return [*early, *written(self, metadata)]


@MUTANTS.instead(SessionKeeper, "replaced", "D14", "a replacement is sent what is owed", shown_by="change")
def nothing_is_sent_again(_: Any, self: SessionKeeper, index: int) -> list[Any]:
    """D14: the new bookie is never given what the old one had."""
    return [effect for effect in self.delivery.attach(index) if not isinstance(effect, ev.SendFrame)]


@MUTANTS.instead(LedgerWrite, "_reread", "D22", "a lost answer is looked up", shown_by="change-lost")
def lost_answer_is_a_conflict(reread: Any, self: LedgerWrite, metadata: Any) -> list[Any]:
    """D22: the writer takes its own write, whose answer was lost, for another client's."""
    if metadata.version != self.metadata.version:
        return self._fail(fenced_error(self.ledger_id, "conflict", self.lac, self.lap))
    return reread(self, metadata)


def _written_meanwhile(hear: Any, self: LedgerWrite, event: Any) -> list[Any]:
    if isinstance(event, ev.MetadataWritten) and self._close_intent is None and self.change is None:
        self.metadata = event.metadata
        return []
    return hear(self, event)


@MUTANTS.instead(
    LedgerWrite, "_write_change", "D11", "nothing is counted before the store names it",
    changed(LedgerWrite, "_metadata_event", _written_meanwhile), shown_by="change",
)  # fmt: skip
def counted_before_the_store_has_it(write: Any, self: LedgerWrite, change: Any) -> list[Any]:
    """D11: the new bookie is used as soon as it is chosen."""
    effects = write(self, change)
    self.change = None
    for index in change.indices:
        self.delivery.replace(index, change.ensemble[index], change.first_entry_id - 1)
        effects += self._keeper.replaced(index)
    self.failed = []
    return effects


@MUTANTS.instead(
    LedgerWrite, "_close", "D26", "a close ends at the LAC",
    (LedgerWrite, "_continue_close", lambda self: []), shown_by="close-and-recovery",
)  # fmt: skip
def close_at_the_last_pushed(_: Any, self: LedgerWrite) -> list[Any]:
    """D26: the writer closes at the last entry it sent."""
    lac, self.lac = self.lac, self.lap
    try:
        return self._begin_close()
    finally:
        self.lac = lac


@MUTANTS.instead(quorum, "confirmed_id", "MUST1", "Qa copies before an ack", shown_by="one-recovery")
def one_ack_fewer(confirmed: Any, marks: Any, qw: Any, qa: Any, last: Any) -> Any:
    """MUST 1: an entry counts as confirmed with Qa − 1 copies."""
    return confirmed(marks, qw, max(qa - 1, 1), last)
