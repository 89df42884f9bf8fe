# SPDX-License-Identifier: Apache-2.0
"""Every event in every state of the writer: where it leads, and that nothing else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from bk_core.errors import MetadataUnavailableError, NoSuchLedgerError
from bk_core.model import Fragment, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.config import WriterConfig
from bk_core.protocol.writer import LedgerWrite, WriterEffect, WriterEvent, WriterState
from bk_core.wire.lane.reasons import Reason
from tests.kit.transitions import NoRandom, Numbers, as_table, members, sweep, twin_of
from tests.protocol.kit import LEDGER, batch, digester, metadata

SPARES = ev.BookiesRead(("b0", "b1", "b2", "b3", "b4"))
NO_SPARES = ev.BookiesRead(("b0", "b1", "b2"))
AWAY = ev.MetadataCallFailed(MetadataUnavailableError("the store is away"))
GONE = ev.MetadataCallFailed(NoSuchLedgerError("deleted"))

FENCED = Reason.FENCED

TABLE = {
    ("OPEN", "BookiesRead"): "OPEN FAILED impossible",
    ("OPEN", "Close"): "CLOSING",
    ("OPEN", "ForceFailed"): "OPEN FAILED",
    ("OPEN", "FramesAcked"): "OPEN FAILED",
    ("OPEN", "MetadataCallFailed"): "OPEN FAILED impossible",
    ("OPEN", "MetadataConflicted"): "OPEN FAILED impossible",
    ("OPEN", "MetadataRead"): "OPEN FAILED impossible",
    ("OPEN", "MetadataWritten"): "OPEN impossible",
    ("OPEN", "SessionEnded"): "OPEN FAILED",
    ("OPEN", "TimerFired"): "OPEN FAILED",
    ("CLOSING", "Append"): "impossible",
    ("CLOSING", "BookiesRead"): "CLOSING FAILED impossible",
    ("CLOSING", "ForceFailed"): "CLOSING FAILED",
    ("CLOSING", "FramesAcked"): "CLOSING FAILED",
    ("CLOSING", "MetadataCallFailed"): "CLOSING FAILED impossible",
    ("CLOSING", "MetadataConflicted"): "CLOSING FAILED impossible",
    ("CLOSING", "MetadataRead"): "CLOSING CLOSED FAILED impossible",
    ("CLOSING", "MetadataWritten"): "CLOSING CLOSED impossible",
    ("CLOSING", "SessionEnded"): "CLOSING FAILED",
    ("CLOSING", "TimerFired"): "CLOSING FAILED",
}
"""The moves of docs/protocol.md; a pair that is missing leads nowhere."""


def new(*, deferred_sync: bool = False, **options: object) -> LedgerWrite:
    machine = LedgerWrite(
        LEDGER,
        metadata(),
        digester(),
        config=WriterConfig(**options),
        new_session=Numbers(),
        random=NoRandom(),
        deferred_sync=deferred_sync,
    )
    machine.start()
    return machine


def session(machine: LedgerWrite, index: int) -> int:
    return machine.delivery.lanes[index].session


def after(*steps: Callable[[LedgerWrite], WriterEvent], **options: object) -> Callable[[], LedgerWrite]:
    def build() -> LedgerWrite:
        machine = new(**options)
        for step in steps:
            machine.step(step(machine))
        return machine

    return build


def append(machine: LedgerWrite) -> WriterEvent:
    return ev.Append(batch(b"a", b"bb"))


def close(machine: LedgerWrite) -> WriterEvent:
    return ev.Close()


def ack(index: int, frames: int = 1) -> Callable[[LedgerWrite], WriterEvent]:
    return lambda machine: ev.FramesAcked(index, session(machine, index), frames)


def refused(index: int, reason: Reason = Reason.IO_ERROR) -> Callable[[LedgerWrite], WriterEvent]:
    return lambda machine: ev.SessionEnded(index, session(machine, index), 0, reason)


def broken(index: int) -> Callable[[LedgerWrite], WriterEvent]:
    return lambda machine: ev.SessionBroken(index, session(machine, index))


def forced(index: int) -> Callable[[LedgerWrite], WriterEvent]:
    return lambda machine: ev.Forced(index, session(machine, index))


def just(event: WriterEvent) -> Callable[[LedgerWrite], WriterEvent]:
    return lambda machine: event


def intended(machine: LedgerWrite) -> LedgerMetadata | None:
    """What its compare-and-set wants, as a store would have it."""
    return machine._close_intent or (machine.change and machine.change.intent)


def written(machine: LedgerWrite) -> WriterEvent:
    return ev.MetadataWritten(Versioned(intended(machine) or machine.metadata.value, machine.metadata.version + 1))


ALL_ACKED = (append, ack(0), ack(1), ack(2))
CONFLICT = just(ev.MetadataConflicted())
DEGRADED = {"allow_degraded_writes": True}
DEFERRED = {"deferred_sync": True}

SITUATIONS: dict[str, Callable[[], LedgerWrite]] = {
    "nothing appended": after(),
    "entries in flight": after(append),
    "confirmed, one copy owed": after(append, ack(0), ack(1)),
    "confirmed everywhere": after(*ALL_ACKED),
    "a lane waits to be attached again": after(append, broken(1)),
    "a change asks for bookies": after(append, refused(2)),
    "a change is being written": after(append, refused(2), just(SPARES)),
    "a change is being written, one more ack would confirm": after(append, ack(0), refused(2), just(SPARES)),
    "a change met a conflict": after(append, refused(2), just(SPARES), CONFLICT),
    "a change has to wait for the store": after(append, refused(2), just(SPARES), just(AWAY)),
    "another bookie failed meanwhile": after(append, refused(2), just(SPARES), refused(1)),
    "a change is through": after(append, refused(2), just(SPARES), written),
    "no spare, going on": after(append, refused(2), just(NO_SPARES), **DEGRADED),
    "a change is delayed": after(append, refused(2), delay_ensemble_change=True),
    "too little is left for a delay": after(append, refused(2), refused(1), delay_ensemble_change=True),
    "the last change allowed": after(append, refused(2), just(SPARES), written, ensemble_changes_max=1),
    "the last retry allowed": after(append, refused(2), just(SPARES), just(AWAY), metadata_retries_max=1),
    "no ack for long": after(append, *[just(ev.TimerFired("adds"))] * 3),
    "closing, entries in flight": after(append, close),
    "closing, lingering": after(append, ack(0), ack(1), close),
    "closing, a change is being written": after(append, close, refused(2), just(SPARES)),
    "closing, a change asks for bookies": after(append, close, refused(2)),
    "closing, the close is being written": after(*ALL_ACKED, close),
    "closing an empty ledger": after(close),
    "closing, met a conflict": after(*ALL_ACKED, close, CONFLICT),
    "closing, met a second conflict": after(*ALL_ACKED, close, CONFLICT, CONFLICT),
    "closing, the answer was lost": after(*ALL_ACKED, close, just(AWAY)),
    "closing, the last retry allowed": after(*ALL_ACKED, close, just(AWAY), metadata_retries_max=1),
    "no ack quorum for long": after(append, just(ev.TimerFired("adds")), add_quorum_timeout_ms=2_500),
    "closing, no ack quorum for long": after(append, just(ev.TimerFired("adds")), close, add_quorum_timeout_ms=2_500),
    "closing, the last change allowed": after(append, refused(2), just(SPARES), written, close, ensemble_changes_max=1),
    "closed": after(*ALL_ACKED, close, written),
    "fenced": after(append, refused(1, Reason.FENCED)),
    "without bookies": after(append, refused(2), just(NO_SPARES)),
    "fenced while closing": after(append, close, refused(1, Reason.FENCED)),
    "deferred, acked and not forced": after(append, ack(0), ack(1), **DEFERRED),
    "deferred, forces under way": after(append, ack(0), ack(1), just(ev.Force()), **DEFERRED),
    "deferred, one force would confirm": after(append, ack(0), ack(1), just(ev.Force()), forced(0), **DEFERRED),
    "deferred, closing": after(*ALL_ACKED, close, **DEFERRED),
    "deferred, closing, one force is owed": after(*ALL_ACKED, close, forced(0), forced(1), **DEFERRED),
}


def records(machine: LedgerWrite) -> Iterable[Versioned[LedgerMetadata]]:
    """What the store may show: as known, as wanted, repaired, taken over, closed here or elsewhere."""
    known, later = machine.metadata.value, machine.metadata.version + 1
    yield machine.metadata
    intent = intended(machine)
    if intent is not None:
        yield Versioned(intent, later)
    yield Versioned(replace(known, custom_metadata={"repaired": b"1"}), later)
    yield Versioned(known.in_recovery(), later)
    yield Versioned(known.closed_at(machine.lac, machine.length), later)
    yield Versioned(known.closed_at(machine.lac + 1, machine.length), later)
    strange = Fragment(machine.lac + 7, ("b3", "b4", "b5"))
    yield Versioned(replace(known, fragments=(*known.fragments, strange)), later)


def events(machine: LedgerWrite) -> Iterable[WriterEvent]:
    yield from (append(machine), close(machine), ev.Force(), SPARES, NO_SPARES, AWAY, GONE, ev.MetadataConflicted())
    for record in records(machine):
        yield ev.MetadataRead(record)
    yield written(machine)
    names = (
        "lac",
        "linger",
        "metadata",
        "spares",
        "adds",
        *(f"{n}:{i}" for n in ("retry", "budget") for i in range(3)),
    )
    yield from (ev.TimerFired(name) for name in names)
    for index in range(3):
        own = session(machine, index)
        yield from (ev.FramesAcked(index, own, frames) for frames in (0, 1, 2))
        yield from (ev.SessionBroken(index, own), ev.Forced(index, own), ev.ForceFailed(index, own))
        yield ev.SessionEnded(index, own, 1, Reason.IO_ERROR)
    own = session(machine, 1)
    yield from (ev.FramesAcked(1, own, frames) for frames in (-1, 50))
    yield from (ev.SessionEnded(1, own, 0, reason) for reason in Reason)
    yield ev.SessionEnded(1, own, 9, Reason.IO_ERROR)
    foreign = own + 100  # no session of this lane, or not yet
    yield from (ev.FramesAcked(1, foreign, 1), ev.SessionBroken(1, foreign), ev.SessionEnded(1, foreign, 0, FENCED))


def state_of(machine: LedgerWrite) -> str:
    return machine.state.name


@pytest.mark.long
def test_every_event_in_every_state_leads_where_the_table_says() -> None:
    seen = sweep(
        SITUATIONS,
        events,
        state_of,
        effects_known=members(*members(WriterEffect)),
        ends=("CLOSED", "FAILED"),
        told=lambda machine: str(machine.state),
    )
    kinds = {cls.__name__ for cls in members(WriterEvent)}
    assert set(seen) == {(state.name, kind) for state in WriterState for kind in kinds}
    assert as_table(seen, WriterState.__members__) == TABLE


@pytest.mark.rule("MUST6")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_nothing_but_an_ack_moves_the_lac_and_nothing_at_all_during_a_change(situation: str) -> None:
    for event in events(SITUATIONS[situation]()):
        machine = SITUATIONS[situation]()
        before, changing = machine.lac, machine.change is not None
        effects = machine.step(event) if _possible(machine, event) else []
        if event == ev.TimerFired("metadata") and not changing and machine._close_intent is None:
            assert effects == [], "nobody waits for it"
        if isinstance(event, ev.MetadataRead) and event.metadata.value.state is LedgerState.IN_RECOVERY and effects:
            assert machine.state is WriterState.FAILED
        confirmed = [effect.lac for effect in effects if isinstance(effect, ev.Confirm)]
        assert confirmed == ([machine.lac] if machine.lac > before else [])
        assert machine.lac <= machine.lap
        if machine.lac > before and changing:
            assert machine.change is None, event
            assert isinstance(event, (ev.MetadataWritten, ev.MetadataRead, ev.BookiesRead)), event
        if machine.state is WriterState.FAILED:
            assert confirmed == [] or effects.index(ev.Confirm(machine.lac)) == 0, "after the end nobody is told"


@pytest.mark.rule("MUST11")
@pytest.mark.parametrize("situation", [name for name, build in SITUATIONS.items() if state_of(build()) != "FAILED"])
def test_whoever_ends_says_so_once_and_last_and_stops_every_session(situation: str) -> None:
    for event in events(SITUATIONS[situation]()):
        machine = SITUATIONS[situation]()
        if not _possible(machine, event) or machine.state is WriterState.CLOSED:
            continue
        closing = machine.state is WriterState.CLOSING
        attached = {lane.session for lane in machine.delivery.lanes if lane.state.name == "ATTACHED"}
        effects = machine.step(event)
        ends = [effect for effect in effects if isinstance(effect, (ev.Fail, ev.FailClose, ev.FinishClose))]
        if machine.state is WriterState.FAILED:
            wanted = [ev.Fail, ev.FailClose] if closing else [ev.Fail]
            assert [type(effect) for effect in ends] == wanted
        elif machine.state is WriterState.CLOSED:
            assert [type(effect) for effect in ends] == [ev.FinishClose]
            assert machine.metadata.value.last_entry_id == machine.lac == machine.lap
        else:
            assert ends == []
            continue
        assert effects[-len(ends) :] == ends
        detached = {effect.session for effect in effects if isinstance(effect, ev.DetachSession)}
        over = {event.session} if isinstance(event, (ev.SessionEnded, ev.SessionBroken)) else set()
        assert detached >= attached - over


def _possible(machine: LedgerWrite, event: WriterEvent) -> bool:
    try:
        twin_of(machine).step(event)
    except AssertionError:
        return False
    return True
