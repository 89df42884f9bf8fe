# SPDX-License-Identifier: Apache-2.0
"""The machines of a log, fed every event in every state that they can be brought into: a search from the first state
on, over heads as friends and rivals may write them. Each move that a machine's table allows is seen, and no other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, replace
from typing import Any

import pytest

from bk_core.errors import MetadataUnavailableError, NoSuchLedgerError
from bk_core.logs import paging
from bk_core.logs.commit import condemn, publish, seal
from bk_core.logs.head import LogHead, LogTransactions, NewExtent, PublishId, Unlinked
from bk_core.logs.machines import change, leadership_states, vacuum
from bk_core.logs.machines import change_events as cev
from bk_core.logs.machines import leadership_events as lev
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.fan_out import FanOut
from bk_core.logs.machines.fan_out_parts import PublishAmong, fan_out_id
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.machines.publication import Publication, Publish
from bk_core.logs.machines.transactions import PublishOptions
from bk_core.logs.machines.upkeep import Absolve, Compact
from bk_core.logs.machines.vacuum import Vacuum
from bk_core.logs.paging import TAIL_EXTENTS_MAX
from bk_core.logs.unlinking import UnlinkedRecord
from bk_core.model import Fragment, Versioned
from tests.kit.transitions import members, printed, words
from tests.logs.leadership_kit import BOTH, EMPTY, NONCE, end, listed, opened, rolling, run, serving


class NoNonce:
    """Names pages all alike, so that copies stay alike."""

    def __call__(self) -> int:
        return 5

    def copy(self) -> NoNonce:
        return self

    def fingerprint(self) -> object:
        return "nonce"


Moves = set[tuple[str, str, str]]
AWAY = MetadataUnavailableError("the store is away")
GONE = NoSuchLedgerError("deleted")


class Search:
    """Every state that events lead to, breadth first, up to a bound; ``moves`` are the (state, event, state) seen."""

    def __init__(
        self,
        firsts: Iterable[Any],
        events: Callable[[Any], Iterable[Any]],
        effects_known: tuple[type, ...],
        ends: tuple[str, ...],
        *,
        key: Callable[[Any], object] = printed,
        states_max: int = 900,
    ) -> None:
        self.moves: Moves = set()
        self.states = 0
        todo = deque(firsts)
        seen = {key(first) for first in todo}
        while todo and self.states < states_max:
            machine = todo.popleft()
            self.states += 1
            for event in events(machine):
                twin = machine.copy()
                state, was = machine.state.name, words(event)
                effects = twin.step(event)
                assert words(event) == was, event
                assert all(isinstance(effect, effects_known) for effect in effects), effects
                if event == lev.LeaderAnswered(False) and state in ("ASKING", "ROLL_ASKING"):
                    assert twin.state.name == "LOST"
                self.moves.add((state, type(event).__name__, twin.state.name))
                if state in ends:
                    assert twin.state is machine.state
                    self.check_after_the_end(event, effects)
                elif twin.state.name in ends:
                    assert sum(type(effect).__name__ in ENDINGS for effect in effects) == 1
                    assert type(effects[-1]).__name__ in ENDINGS
                else:
                    assert all(type(effect).__name__ not in ENDINGS for effect in effects)
                print_of_it = key(twin)
                if print_of_it not in seen:
                    seen.add(print_of_it)
                    todo.append(twin)

    def check_after_the_end(self, event: Any, effects: list[Any]) -> None:
        """Nothing follows; but a ledger that was under way is deleted when it comes."""
        assert effects == [] or (type(event).__name__, *map(type, effects)) == ("LedgerCreated", lev.DeleteLedger)

    def pairs(self) -> set[tuple[str, str]]:
        """Moves between different states."""
        return {(before, after) for before, _, after in self.moves if before != after}


ENDINGS = ("Finish", "Fail", "FinishLeadership", "LoseLeadership")


def table_of(moves: dict[Any, tuple[Any, ...]]) -> set[tuple[str, str]]:
    return {(state.name, target.name) for state, targets in moves.items() for target in targets if target is not state}


# --- leadership ---

OTHER = listed(EMPTY, 20)  # a rival leads
OURS = listed(EMPTY, 7)
SEALED = seal(OURS, {7: end(5)}, nonce=NONCE).head
ROLLED = seal(BOTH, {7: end(5)}, nonce=NONCE).head
REBORN = replace(EMPTY, uuid="aaaaaaaa-9abc-def0-1234-56789abcdef0")


def leadership_key(machine: LogLeadership) -> object:
    """Of a head what it decides: which ledgers are open. Its version counts only beside that of the next one."""
    opened = machine._head and tuple(extent.ledger_id for extent in machine._head.value.open_extents)
    rest = [getattr(machine, each.name) for each in fields(machine) if each.name != "_head"]
    return (opened, *rest)


def leaderships() -> Iterable[LogLeadership]:
    """A new one, and one that comes back with a ledger in hand to a log whose ledgers are all sealed."""
    yield LogLeadership(attempts_max=2)
    machine = LogLeadership(attempts_max=2)
    sealed = lev.HeadRead(Versioned(EMPTY, 1), last_ledgers=(3,))
    run(machine, lev.TakeOver(), sealed, lev.LedgerRecovered(3, end(5)), lev.LedgerCreated(opened(7)))
    run(machine, lev.HeadConflicted(), lev.LeaderAnswered(True), lev.WaitEnded())
    yield machine
    for state in ("SERVING", "ROLL_LISTING", "ROLL_CLOSING"):
        machine = serving() if state == "SERVING" else rolling()
        machine.attempts_max = 2
        if state == "ROLL_CLOSING":
            machine.step(lev.HeadWritten(Versioned(BOTH, 2)))
        assert machine.state.name == state
        yield machine


def leadership_events(machine: LogLeadership) -> Iterable[lev.LeadershipEvent]:
    yield from (lev.TakeOver(), lev.Roll(), lev.GiveUp(), lev.HeadConflicted(), lev.HeadWriteUnknown(), lev.WaitEnded())
    yield from (lev.LeaderAnswered(True), lev.LeaderAnswered(False), lev.RequestFailed(AWAY))
    known = machine._head.version if machine._head is not None else 0
    for head in (EMPTY, OTHER, OURS, BOTH, SEALED, ROLLED):
        yield lev.HeadRead(Versioned(head, known + 1))
        yield lev.HeadWritten(Versioned(head, known + 1))
    yield lev.HeadRead(Versioned(OURS, known))
    yield lev.HeadRead(Versioned(EMPTY, known), last_ledgers=(3,))
    yield lev.HeadRead(Versioned(REBORN, known))
    for ledger in (3, 7, 8, 20):  # sealed, ours, ours after a roll, a rival's
        yield lev.LedgerRecovered(ledger, end(5))
        yield lev.LedgerMissing(ledger)
        yield lev.LedgerClosed(ledger, end(5))
        yield lev.WriterFailed(ledger, AWAY)
    yield from (lev.LedgerCreated(opened(ledger)) for ledger in (7, 8))


@pytest.mark.rule("MUST15")
def test_every_event_in_every_state_of_a_leadership_leads_where_its_table_says() -> None:
    found = Search(
        leaderships(),
        leadership_events,
        members(*members(lev.LeadershipEffect)),
        ("ENDED", "LOST"),
        key=leadership_key,
    )
    kinds = {cls.__name__ for cls in members(lev.LeadershipEvent)}
    states = leadership_states.State.__members__
    assert {(state, kind) for state, kind, _ in found.moves} == {(state, kind) for state in states for kind in kinds}
    assert found.pairs() == table_of(leadership_states.MOVES)


# --- changes of the head, publishing, vacuum ---


def extent(ledger_id: int) -> NewExtent:
    return NewExtent(
        ledger_id=ledger_id,
        entry_count=10,
        size_bytes=10,
        created_ms=2,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        fragments=(Fragment(0, ("b1", "b2", "b3")),),
    )


JOB = PublishId.job("a")
UNUSED = LogTransactions(app_id="app", last_used_ms=5)


def published(head: LogHead, *ledgers: int, job: str = "other") -> LogHead:
    return publish(
        head, [extent(ledger) for ledger in ledgers], PublishId.job(job), now_ms=3, nonce=NONCE, pages={}
    ).head


def change_events(machine: HeadChange[Any] | Vacuum) -> Iterable[cev.Event]:
    inner = machine._change if isinstance(machine, Vacuum) else machine
    found = inner._found if isinstance(inner, HeadChange) else None
    known = found.version if found is not None else 0
    yield from (
        cev.Start(),
        cev.Abort(),
        cev.LedgersChecked(),
        cev.PagesCreated(),
        cev.PagesRead(PAGES),
        cev.HeadWritten(),
    )
    yield from (cev.HeadConflicted(), cev.HeadWriteUnknown(AWAY), cev.WaitEnded(), cev.PagesDeleted())
    yield from (cev.RequestFailed(AWAY), cev.RequestFailed(GONE))
    for head in HEADS:
        yield cev.HeadRead(Versioned(head, known + 1))
    yield cev.HeadRead(Versioned(found.value if found is not None else EMPTY, known))
    yield cev.LedgersRecovered({20: end(5), 3: end(5)})
    yield cev.LedgersRecovered({}, frozenset({20}))
    yield from (cev.OrphansListed(ledgers) for ledgers in ((), (30,), (30, 31)))
    yield from (cev.LedgersDeleted(ledgers) for ledgers in ((), (30,), (30, 31)))
    yield from (cev.PagesListed(names) for names in ((), ("p-lost",), tuple(PAGES)))
    yield from (cev.UnlinkedRead(records) for records in ((), UNLINKED))
    yield cev.UnlinkedDeleted()
    yield cev.TransactionsDeleted()
    yield cev.LogsAnswered({"a": cev.PagesCreated()})
    yield from (cev.TransactionsListed(keys) for keys in ((), (UNUSED.key,)))
    for records in ({}, {UNUSED.key: Versioned(UNUSED, known)}):
        yield cev.TransactionsRead(Versioned(EMPTY, known), records)


_SPILLED = publish(
    EMPTY,
    [extent(100 + each) for each in range(TAIL_EXTENTS_MAX + 1)],
    PublishId.job("big"),
    now_ms=3,
    nonce=NONCE,
    pages={},
)
PAGES = {new.name: new.page for new in _SPILLED.new_pages}
assert PAGES
UNLINKED = (
    UnlinkedRecord("old", 999, Unlinked(names=("p-lost",), ledgers=(30,))),
    UnlinkedRecord("young", 1000, Unlinked(pages=_SPILLED.head.pages, ledgers=(31,))),
)

HEADS = (
    _SPILLED.head,
    EMPTY,
    OTHER,
    REBORN,
    published(EMPTY, 3),
    published(EMPTY, 3, 4, 5),
    published(EMPTY, 9, job="a"),
    condemn(EMPTY, (30,), nonce=NONCE, pages={}).head,
)


def change_key(machine: HeadChange[Any] | Vacuum) -> object:
    """What decides: which head it knows, what it knows beside it, and how often it tried."""
    own: tuple[object, ...] = (type(machine).__name__, machine.state)
    inner: HeadChange[Any] | None
    if isinstance(machine, Vacuum):
        inner, own = machine._change, (*own, machine._candidates, machine.result, machine._keys, machine._looks)
        own = (*own, machine.txns_before_ms, machine._unneeded, inner and inner._facts.unlinked)
    else:
        inner = machine
    if inner is None:
        return own
    head = next((place for place, head in enumerate(HEADS) if inner._found and inner._found.value is head), None)
    facts = inner._facts
    known = (facts.is_checked, *sorted(facts.pages), *sorted(facts.ends), facts.missing)
    doubt = {inner._found.version - each.version for each in inner._doubts if inner._found}
    tried = (inner._attempts, inner._failures, inner.was_attempted, *sorted(doubt))
    names = getattr(inner.intent, "names", ())
    return (*own, type(inner.intent).__name__, names, inner.state, head, known, tried, inner.result is None)


def check_change(found: Search, moves: Any, kinds: set[str], without: Collection[tuple[str, str]] = ()) -> None:
    states = {state.name for state in moves}
    assert {(state, kind) for state, kind, _ in found.moves} == {(state, kind) for state in states for kind in kinds}
    assert found.pairs() == table_of(moves).difference(without)
    done_by = {kind for state, kind, after in found.moves if (state, after) == ("WRITING", "DONE")}
    assert done_by <= {"HeadWritten"}, "whatever else came, the head has to be looked at"


@pytest.mark.rule("N4")
def test_every_event_in_every_state_of_a_publish_leads_where_its_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "TAIL_EXTENTS_MAX", 3)
    monkeypatch.setattr(paging, "TAIL_EXTENTS_KEPT", 1)
    first = next(page.extents[0] for page in PAGES.values() if page.extents)
    intent = Publish((extent(9),), JOB, 5, NoNonce(), PublishOptions(takeover=True))
    firsts = [
        Publication(intent, attempts_max=2, failures_max=2),
        HeadChange(Compact((first,), extent(first.ledger_id), NoNonce()), attempts_max=2, failures_max=2),
    ]
    known = members(*members(cev.Effect))
    found = Search(firsts, change_events, known, ("DONE", "FAILED"), key=change_key)
    check_change(found, change.MOVES, {cls.__name__ for cls in members(cev.Event)})


def fan_out_events(machine: FanOut) -> Iterable[cev.Event]:
    """Two logs' answers, of which the second's vary, and everything that is no answer of several logs."""
    found = machine._parts["b"].found
    known = found.version if found is not None else 0
    yield from (each for each in change_events(HeadChange(Absolve((), NoNonce()))) if type(each) not in BULKY)
    yield from BULKY.values()
    same = (cev.PagesCreated(), cev.PagesRead(PAGES), cev.LedgersChecked())
    for answer in (*same, cev.RequestFailed(GONE), cev.RequestFailed(AWAY)):
        yield cev.LogsAnswered({"b": answer})
        yield cev.LogsAnswered({"a": cev.LedgersChecked(), "b": answer})
    yield cev.LogsAnswered({"a": cev.LedgersChecked(), "b": cev.LedgersRecovered({20: end(5)})})
    for head in FAN_HEADS:
        read = cev.HeadRead(Versioned(head, known + 1))
        yield cev.LogsAnswered({"a": cev.HeadRead(Versioned(EMPTY, known + 1)), "b": read})
    again = {log: part.found or Versioned(EMPTY, 0) for log, part in machine._parts.items()}
    yield cev.LogsAnswered({log: cev.HeadRead(head) for log, head in again.items()})


BULKY: dict[type, cev.Event] = {
    cev.HeadRead: cev.HeadRead(Versioned(EMPTY, 1)),
    cev.PagesRead: cev.PagesRead({}),
    cev.PagesListed: cev.PagesListed(()),
    cev.UnlinkedRead: cev.UnlinkedRead(()),
    cev.TransactionsRead: cev.TransactionsRead(Versioned(EMPTY, 1), {}),
}
FAN_ID = fan_out_id(JOB, {"a": 10, "b": 10})
FAN_HEADS = (
    _SPILLED.head,
    OTHER,
    REBORN,
    published(EMPTY, 3),
    publish(EMPTY, [extent(9)], FAN_ID, now_ms=3, nonce=NONCE, pages={}).head,
)


def fan_out_key(machine: FanOut) -> object:
    """What decides: which heads it knows, what it knows beside them, and how often it tried."""
    parts: list[object] = []
    for part in machine._parts.values():
        head = next((place for place, head in enumerate(FAN_HEADS) if part.found and part.found.value is head), None)
        facts = (part.facts.is_checked, *sorted(part.facts.pages), *sorted(part.facts.ends), part.facts.missing)
        doubt = {part.read.version - each.made[log].version for each in machine._doubts for log in "ab" if part.found}
        parts.append((head, facts, *sorted(doubt)))
    tried = (machine._attempts, machine._failures, machine.was_attempted)
    return (machine.state, tuple(parts), tried, tuple(machine._asked))


@pytest.mark.rule("K10")
@pytest.mark.rule("N4")
def test_every_event_in_every_state_of_a_fan_out_leads_where_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "TAIL_EXTENTS_MAX", 2)
    monkeypatch.setattr(paging, "TAIL_EXTENTS_KEPT", 1)
    intents = {log: PublishAmong((extent(number),), FAN_ID, 5, NoNonce()) for log, number in (("a", 9), ("b", 10))}
    first = FanOut(intents, attempts_max=2, failures_max=2)
    known = members(*members(cev.Effect))
    found = Search([first], fan_out_events, known, ("DONE", "FAILED"), key=fan_out_key, states_max=300)
    no_page_tells = {("ASKING", "DONE")}  # of a publish the head does
    check_change(found, change.MOVES, {cls.__name__ for cls in members(cev.Event)}, no_page_tells)


@pytest.mark.rule("N6")
def test_every_event_in_every_state_of_a_vacuum_leads_where_its_table_says() -> None:
    without_ledgers = Vacuum(EMPTY.uuid, 1000, NoNonce(), txns_before_ms=10)
    for event in (cev.Start(), cev.OrphansListed(()), cev.HeadRead(Versioned(EMPTY, 0))):
        without_ledgers.step(event)
    for_ever = without_ledgers.copy()
    for_ever.txns_before_ms = 0  # transactions are kept
    firsts = [Vacuum(EMPTY.uuid, 1000, NoNonce()), for_ever, without_ledgers]
    nothing_more = (cev.HeadRead(Versioned(EMPTY, 0)), cev.UnlinkedRead(()))
    for events in ((cev.PagesListed(()), *nothing_more), (cev.TransactionsListed((UNUSED.key,)),)):
        firsts.append(firsts[-1].copy())
        for event in events:
            firsts[-1].step(event)
    for each, records in ((for_ever, ()), (without_ledgers, UNLINKED[:1])):  # and where a page is about to go
        firsts.append(each.copy())
        for event in (cev.PagesListed(("p-lost",)), nothing_more[0], cev.UnlinkedRead(records)):
            firsts[-1].step(event)
    condemned = (cev.HeadRead(Versioned(EMPTY, 0)), cev.UnlinkedRead(()), cev.HeadWritten())
    firsts.append(Vacuum(EMPTY.uuid, 1000, NoNonce()))
    for event in (cev.Start(), cev.OrphansListed((30, 31)), *condemned, cev.LedgersDeleted((30,))):
        firsts[-1].step(event)
    known = members(*members(cev.Effect))
    found = Search(firsts, change_events, known, ("DONE", "FAILED"), key=change_key)
    check_change(found, vacuum.MOVES, {cls.__name__ for cls in members(cev.Event)})
