# SPDX-License-Identifier: Apache-2.0
"""Known defects put back into the production machines, for the exhaustive search to find.

Each mutant replaces a function or two of the product while its context lasts; the product has no switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect, the rule it breaks, and the scope that shows it. ``loss``: the search finds what a user loses by it
    even if it does not look at the promises of single machines."""

    name: str
    rule: str
    scope: str
    planted: Callable[[], AbstractContextManager[None]]
    loss: bool = True


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes and put them back."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


# --- recovery --------------------------------------------------------------------------------------------------------


def reads_do_not_fence() -> AbstractContextManager[None]:
    """D1."""
    step = LedgerRecovery.step

    def mutant(self: LedgerRecovery, event: Any) -> list[Any]:
        return [replace(e, fence=False) if isinstance(e, ev.SendRead) else e for e in step(self, event)]

    return patched((LedgerRecovery, "step", mutant))


def one_negative_is_enough() -> AbstractContextManager[None]:
    """D28."""
    return patched((quorum, "negatives_needed", lambda write_quorum, ack_quorum: 1))


def silence_is_absence() -> AbstractContextManager[None]:
    """D28: what timed out counts as a negative answer."""

    def mutant(self: Window, request: int, problem: str) -> None:
        answer = self.answers[request]
        answer.through, answer.absent = self.last, (EntryRange(answer.first, self.last),)

    return patched((Window, "fail", mutant))


def close_before_write_back() -> AbstractContextManager[None]:
    """D27."""
    return patched((WriteBack, "finished", property(lambda self: self._complete)))


def recovery_moves_the_lac() -> AbstractContextManager[None]:
    """D17: recovered entries are digested anew, with the recoverer's own LAC."""

    def mutant(batch: Any, *, ensemble_size: int, write_quorum: int, session: int) -> Any:
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

    return patched((write_back, "verbatim_packet", mutant))


# --- the bookie ------------------------------------------------------------------------------------------------------


def fence_is_not_logged() -> AbstractContextManager[None]:
    """D5: the fence lives in memory only."""
    fence = Core.fence

    def mutant(self: Core, ledger_id: int, key: bytes) -> Any:
        ledger = self.ledger(ledger_id)
        if ledger.fence_sequence is None:
            ledger.fence_sequence = 0
        return fence(self, ledger_id, key)

    return patched((Core, "fence", mutant))


def fence_is_not_replayed() -> AbstractContextManager[None]:
    """D5: after a restart nobody looks for fences in the log."""
    make = Core.ledger

    def mutant(self: Core, ledger_id: int) -> Any:
        known = ledger_id in self.ledgers
        ledger = make(self, ledger_id)
        if not known:
            ledger.fenced, ledger.fence_sequence = False, None
        return ledger

    return patched((Core, "ledger", mutant))


def negative_before_the_fence_is_durable() -> AbstractContextManager[None]:
    """D6."""
    waits = Requests._waits_for_fence

    def mutant(self: Requests, request: Any) -> bool:
        if isinstance(request, Read) and not self._core.holdings.overlaps(
            request.ledger_id, request.next, request.last
        ):
            return False
        return waits(self, request)

    return patched((Requests, "_waits_for_fence", mutant))


def fence_answered_before_it_is_durable() -> AbstractContextManager[None]:
    """MUST 3, for the fence itself."""
    waits = Requests._waits_for_fence
    return patched((Requests, "_waits_for_fence", lambda self, r: not isinstance(r, LacRequest) and waits(self, r)))


def ack_before_durable() -> AbstractContextManager[None]:
    """D7: an add is confirmed when it is given to the log."""
    accept = Adds._accept

    def accepted(self: Adds, session: Any, *args: Any) -> None:
        accept(self, session, *args)
        session.durable += 1
        self._to_ack[session] = None

    def committed(self: Adds, pending: Any) -> None:
        self._released(pending.session.stream, pending.header.size)

    return patched((Adds, "_accept", accepted), (Adds, "committed", committed))


def unknown_ledgers_are_not_fenced() -> AbstractContextManager[None]:
    """D19."""
    fence = Core.fence

    def mutant(self: Core, ledger_id: int, key: bytes) -> Any:
        known = ledger_id in self.ledgers or self.holdings.facts(ledger_id).known
        return fence(self, ledger_id, key) if known else 0

    problem = Requests._problem
    return patched(
        (Core, "fence", mutant),
        (Requests, "_problem", lambda self, r: None if r.fencing else problem(self, r)),
    )


def recovery_adds_stop_at_the_fence() -> AbstractContextManager[None]:
    """D16."""
    problem = Adds._state_problem

    def mutant(self: Adds, session: Any, ledger: Any) -> Any:
        return (Reason.FENCED, "fenced") if ledger.fenced else problem(self, session, ledger)

    return patched((Adds, "_state_problem", mutant))


def adds_pass_the_fence() -> AbstractContextManager[None]:
    """MUST 2: a session that was attached before the fence goes on."""
    problem = Adds._state_problem

    def mutant(self: Adds, session: Any, ledger: Any) -> Any:
        found = problem(self, session, ledger)
        return None if found is not None and found[0] is Reason.FENCED and session.accepted == 0 else found

    return patched((Adds, "_state_problem", mutant))


# --- the writer ------------------------------------------------------------------------------------------------------


def lac_moves_during_a_change() -> AbstractContextManager[None]:
    """D12."""
    evaluate = LedgerWrite._evaluate

    def mutant(self: LedgerWrite) -> list[Any]:
        change, self.change = self.change, None
        try:
            return evaluate(self)
        finally:
            self.change = self.change or change

    return patched((LedgerWrite, "_evaluate", mutant))


def acks_of_the_replaced_survive() -> AbstractContextManager[None]:
    """D13."""
    replaced = Delivery.replace

    def mutant(self: Delivery, index: int, bookie: str, confirmed: EntryId) -> None:
        watermark = self.lanes[index].watermark
        replaced(self, index, bookie, confirmed)
        lane: Lane = self.lanes[index]
        lane.watermark = max(lane.watermark, watermark)

    return patched((Delivery, "replace", mutant))


def evaluated_before_unacked() -> AbstractContextManager[None]:
    """D13: acks are counted after the change and before those of the replaced bookie are taken back."""
    written = LedgerWrite._change_written

    def mutant(self: LedgerWrite, metadata: Any) -> list[Any]:
        change, self.change = self.change, None
        early = self._evaluate()
        self.change = change
        return [*early, *written(self, metadata)]

    return patched((LedgerWrite, "_change_written", mutant))


def nothing_is_sent_again() -> AbstractContextManager[None]:
    """D14: the new bookie is never given what the old one had."""

    def mutant(self: SessionKeeper, index: int) -> list[Any]:
        return [effect for effect in self.delivery.attach(index) if not isinstance(effect, ev.SendFrame)]

    return patched((SessionKeeper, "replaced", mutant))


def lost_answer_is_a_conflict() -> AbstractContextManager[None]:
    """D22: the writer takes its own write, whose answer was lost, for another client's."""
    reread = LedgerWrite._reread

    def mutant(self: LedgerWrite, metadata: Any) -> list[Any]:
        if metadata.version != self.metadata.version:
            return self._fail(fenced_error(self.ledger_id, "conflict", self.lac, self.lap))
        return reread(self, metadata)

    return patched((LedgerWrite, "_reread", mutant))


def counted_before_the_store_has_it() -> AbstractContextManager[None]:
    """D11: the new bookie is used as soon as it is chosen."""
    write = LedgerWrite._write_change

    def mutant(self: LedgerWrite, change: Any) -> list[Any]:
        effects = write(self, change)
        intent, self.change = self.metadata.value, None
        for index in change.indices:
            self.delivery.replace(index, change.ensemble[index], change.first_entry_id - 1)
            effects += self._keeper.replaced(index)
        self.failed = []
        assert intent is not None
        return effects

    event = LedgerWrite._metadata_event

    def heard(self: LedgerWrite, found: Any) -> list[Any]:
        if isinstance(found, ev.MetadataWritten) and self._close_intent is None and self.change is None:
            self.metadata = found.metadata
            return []
        return event(self, found)

    return patched((LedgerWrite, "_write_change", mutant), (LedgerWrite, "_metadata_event", heard))


def close_at_the_last_pushed() -> AbstractContextManager[None]:
    """D26: the writer closes at the last entry it sent."""
    begin = LedgerWrite._begin_close

    def close(self: LedgerWrite) -> list[Any]:
        lac, self.lac = self.lac, self.lap
        try:
            return begin(self)
        finally:
            self.lac = lac

    return patched((LedgerWrite, "_continue_close", lambda self: []), (LedgerWrite, "_close", close))


def one_ack_fewer() -> AbstractContextManager[None]:
    """MUST 1: an entry counts as confirmed with Qa − 1 copies."""
    confirmed = quorum.confirmed_id
    return patched((quorum, "confirmed_id", lambda marks, qw, qa, last: confirmed(marks, qw, max(qa - 1, 1), last)))


MUTANTS: tuple[Mutant, ...] = (
    Mutant("D1", "recovery reads fence", "pair", reads_do_not_fence),
    Mutant("D5-not-logged", "fences are durable", "pair-crash", fence_is_not_logged),
    Mutant("D5-not-replayed", "fences outlive a crash", "pair-crash", fence_is_not_replayed),
    Mutant("D6", "a negative answer waits for its fence", "pair-crash", negative_before_the_fence_is_durable),
    Mutant(
        "D6-fence", "a fence is answered when durable", "pair-crash", fence_answered_before_it_is_durable, loss=False
    ),
    Mutant("D7", "acks follow durability", "pair-crash", ack_before_durable),
    Mutant("D11", "nothing is counted before the store names it", "change", counted_before_the_store_has_it),
    Mutant("D12", "the LAC stands still in a change", "change", lac_moves_during_a_change),
    Mutant("D13", "acks of a replaced bookie are void", "change", acks_of_the_replaced_survive),
    Mutant("D13-order", "un-ack before evaluation", "change", evaluated_before_unacked),
    Mutant("D14", "a replacement is sent what is owed", "change", nothing_is_sent_again, loss=False),
    Mutant("D16", "recovery passes the fence", "one-recovery", recovery_adds_stop_at_the_fence, loss=False),
    Mutant("D17", "recovery adds carry a frozen LAC", "two-entries", recovery_moves_the_lac, loss=False),
    Mutant("D19", "unknown ledgers are fenced", "one-recovery", unknown_ledgers_are_not_fenced),
    Mutant("D22", "a lost answer is looked up", "change-lost", lost_answer_is_a_conflict, loss=False),
    Mutant("D26", "a close ends at the LAC", "close-and-recovery", close_at_the_last_pushed),
    Mutant("D27", "write-back before close", "one-recovery", close_before_write_back),
    Mutant("D28-one", "an end needs Qw − Qa + 1 denials", "one-recovery", one_negative_is_enough),
    Mutant("D28-silence", "silence is no denial", "timeout", silence_is_absence),
    Mutant("MUST1", "Qa copies before an ack", "one-recovery", one_ack_fewer),
    Mutant("MUST2", "no normal add after a fence", "one-recovery", adds_pass_the_fence),
)


def mutant(name: str) -> Mutant:
    return next(found for found in MUTANTS if found.name == name)
