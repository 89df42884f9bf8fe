# SPDX-License-Identifier: Apache-2.0
"""Every event in every state of a range read and of a follower: where it leads, and that nothing else happens.

Neither has an enum of states: what it waits for is its state, and is named here and in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from bk_core.entries.apache import lac_body
from bk_core.errors import MetadataUnavailableError, NoSuchLedgerError
from bk_core.model import Fragment, LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.ends.follower import FollowEffect, FollowEvent, LedgerFollower
from bk_core.protocol.reader import PASSES, RangeRead, ReadEffect, ReadEvent
from bk_core.wire.lane.reasons import EntryRange, Reason
from tests.kit.transitions import as_table, members, sweep
from tests.protocol.kit import digester, metadata, values_frame

READ_STATES = ("ASKING", "LATE", "PAUSED", "DONE")
FOLLOW_STATES = ("NEW", "WATCHING", "RECORD", "QUORUM", "ENDED")

READ_TABLE: dict[tuple[str, str], str] = {
    ("ASKING", "FramesRead"): "ASKING LATE PAUSED DONE",
    ("ASKING", "ReadAnswered"): "ASKING LATE PAUSED DONE",
    ("ASKING", "ReadFailed"): "ASKING LATE PAUSED DONE",
    ("ASKING", "TimerFired"): "ASKING LATE DONE",
    ("LATE", "FramesRead"): "LATE PAUSED DONE",
    ("LATE", "ReadAnswered"): "LATE PAUSED DONE",
    ("LATE", "ReadFailed"): "LATE PAUSED DONE",
    ("LATE", "TimerFired"): "LATE DONE",
    ("PAUSED", "TimerFired"): "ASKING PAUSED",
}
"""The moves of a range read."""

TABLE: dict[tuple[str, str], str] = {
    ("NEW", "MetadataChanged"): "NEW ENDED",
    ("NEW", "MetadataWatched"): "NEW RECORD ENDED",
    ("NEW", "RefreshLac"): "RECORD",
    ("NEW", "TimerFired"): "NEW RECORD",
    ("WATCHING", "MetadataChanged"): "WATCHING ENDED",
    ("WATCHING", "MetadataWatched"): "WATCHING RECORD ENDED",
    ("WATCHING", "RefreshLac"): "RECORD",
    ("WATCHING", "TimerFired"): "WATCHING RECORD",
    ("RECORD", "MetadataCallFailed"): "QUORUM ENDED",
    ("RECORD", "MetadataChanged"): "RECORD ENDED",
    ("RECORD", "MetadataRead"): "QUORUM ENDED",
    ("RECORD", "MetadataWatched"): "RECORD ENDED",
    ("QUORUM", "LacAnswered"): "WATCHING QUORUM",
    ("QUORUM", "LacFailed"): "WATCHING QUORUM",
    ("QUORUM", "MetadataChanged"): "QUORUM ENDED",
    ("QUORUM", "MetadataWatched"): "QUORUM ENDED",
}
"""The moves of a follower."""

# --- a range read: 0 to 5 of a ledger with three copies ---

LAST = 5


def gave(request: int, first: int = 0, last: int = LAST) -> ReadEvent:
    return ev.FramesRead(request, values_frame(first, last))


def denied(request: int, first: int = 0) -> ReadEvent:
    return ev.ReadAnswered(request, LAST, absent=(EntryRange(first, LAST),))


def failed(request: int) -> ReadEvent:
    return ev.ReadFailed(request, "hangs")


def read_after(*events: ReadEvent) -> Callable[[], RangeRead]:
    def build() -> RangeRead:
        machine = RangeRead(metadata().value, digester(), 0, LAST, bytes_max=1 << 20)
        machine.start()
        for event in events:
            machine.step(event)
        return machine

    return build


LATE, AGAIN = ev.TimerFired("late"), ev.TimerFired("again")
ALL_FAIL = tuple(failed(request) for request in (1, 2, 3))
SECOND = (*ALL_FAIL, AGAIN, *(failed(request) for request in (4, 5, 6)))

READ_SITUATIONS: dict[str, Callable[[], RangeRead]] = {
    "asked one": read_after(),
    "some came": read_after(gave(1, 0, 2)),
    "all came, the end did not": read_after(gave(1)),
    "the first failed": read_after(failed(1)),
    "one denies": read_after(denied(1)),
    "two deny": read_after(denied(1), denied(2)),
    "two failed": read_after(failed(1), failed(2)),
    "one is late": read_after(LATE),
    "two are late": read_after(LATE, LATE),
    "all are late": read_after(LATE, LATE, LATE),
    "all are late, and all came": read_after(LATE, LATE, LATE, gave(1)),
    "one is late, two failed": read_after(LATE, failed(2), failed(3)),
    "one is late for the third time": read_after(*SECOND, AGAIN, failed(7), failed(8), LATE),
    "one is late, two deny": read_after(LATE, denied(2), denied(3)),
    "one is late, one failed": read_after(LATE, failed(2)),
    "all failed": read_after(*ALL_FAIL),
    "all failed twice": read_after(*SECOND),
    "all are asked for the third time": read_after(*SECOND, AGAIN, failed(7), failed(8)),
    "all there": read_after(gave(1), ev.ReadAnswered(1, LAST)),
    "lost": read_after(*(denied(request) for request in (1, 2, 3))),
}


def read_state_of(machine: RangeRead) -> str:
    window = machine._window
    if machine.done:
        return "DONE"
    pending = [answer for _, answer in window.pending()] if window is not None else []
    if not pending:
        return "PAUSED"
    return "LATE" if all(answer.late for answer in pending) else "ASKING"


def read_events(machine: RangeRead) -> Iterable[ReadEvent]:
    yield from (LATE, AGAIN)
    flipped = bytearray(values_frame(0, LAST))
    flipped[-1] ^= 1
    for request in range(10):  # of no window, of an earlier one, of this one, ended or not, and to come
        yield from (gave(request), gave(request, 0, 2), gave(request, 3), gave(request, LAST + 1, LAST + 1))
        yield ev.FramesRead(request, memoryview(bytes(flipped)))
        yield ev.ReadAnswered(request, LAST)
        yield ev.ReadAnswered(request, 2)
        yield ev.ReadAnswered(request, -1)
        yield ev.ReadAnswered(request, LAST + 9)
        yield ev.ReadAnswered(request, LAST, unknown=(EntryRange(0, LAST),), detail="LIMBO")
        yield from (denied(request), denied(request, 3), failed(request))


@pytest.mark.long
def test_every_event_in_every_state_of_a_range_read_leads_where_the_table_says() -> None:
    assert PASSES == 3
    seen = sweep(
        READ_SITUATIONS,
        read_events,
        read_state_of,
        effects_known=members(*members(ReadEffect)),
        ends=("DONE",),
    )
    assert set(seen) == {(state, cls.__name__) for state in READ_STATES for cls in members(ReadEvent)}
    assert as_table(seen, READ_STATES) == READ_TABLE


@pytest.mark.rule("MUST14")
@pytest.mark.parametrize("situation", READ_SITUATIONS)
def test_whatever_comes_entries_are_delivered_once_in_order_and_an_end_is_told_once(situation: str) -> None:
    for event in read_events(READ_SITUATIONS[situation]()):
        machine = READ_SITUATIONS[situation]()
        was, wanted = machine.done, machine.next
        answer = None if isinstance(event, ev.TimerFired) else machine._window.answers.get(event.request)
        is_over = not isinstance(event, ev.TimerFired) and (answer is None or answer.finished)
        effects = machine.step(event)
        assert effects == [] or not is_over, "nobody waits for it"
        for effect in effects:
            if isinstance(effect, ev.DeliverBatch):
                assert len(machine._window.pending()) <= 1, "the first good answer wins"
                assert effect.batch.entry_ids().tolist() == list(range(wanted, effect.batch.last_entry_id + 1))
                wanted = effect.batch.last_entry_id + 1
        assert machine.next == wanted
        ends = [effect for effect in effects if isinstance(effect, (ev.FinishRead, ev.Fail))]
        assert len(ends) == (machine.done and not was)
        if ends:
            assert effects[-1] is ends[0]
            assert isinstance(ends[0], ev.Fail) or wanted == LAST + 1
        elif not machine.done:
            pending = machine._window is not None and machine._window.pending()
            timers = any(isinstance(effect, ev.SetTimer) for effect in effects)
            assert pending or timers or read_state_of(machine) == "PAUSED", "nothing will ever happen"


# --- following a ledger that is open ---

OPEN = metadata(version=3)
CALLER = 77


def proof(request: int, lac: int) -> FollowEvent:
    return ev.LacAnswered(request, lac_body=lac_body(lac, digester()))


def following(*events: FollowEvent, started: bool = True) -> Callable[[], LedgerFollower]:
    def build() -> LedgerFollower:
        machine = LedgerFollower(OPEN, 4, digester())
        if started:
            machine.start()
        for event in events:
            machine.step(event)
        return machine

    return build


RECORD = ev.MetadataRead(OPEN)
CLOSED = Versioned(OPEN.value.closed_at(9, 90), 8)
MOVED = Versioned(replace(OPEN.value, fragments=(Fragment(0, ("b0", "b1", "b2")), Fragment(6, ("b0", "b4", "b2")))), 4)
AWAY = ev.MetadataCallFailed(MetadataUnavailableError("the store is away"))
GONE = ev.MetadataCallFailed(NoSuchLedgerError("deleted"))
REFRESH = ev.RefreshLac(CALLER)
STALL = ev.TimerFired("stall")

FOLLOW_SITUATIONS: dict[str, Callable[[], LedgerFollower]] = {
    "not started": following(started=False),
    "not started, asked for the record": following(REFRESH, started=False),
    "watches": following(),
    "a watch pauses": following(proof(0, 4)),
    "a watch failed": following(ev.LacFailed(1, "hangs")),
    "a stall is looked into": following(STALL, STALL),
    "somebody waits": following(REFRESH),
    "somebody came too late for this round": following(REFRESH, ev.RefreshLac(78)),
    "the record is there": following(REFRESH, RECORD),
    "the record is not": following(REFRESH, AWAY),
    "one of the quorum answered": following(REFRESH, RECORD, proof(3, 4)),
    "two of the quorum failed": following(REFRESH, RECORD, ev.LacFailed(3, "hangs"), ev.LacFailed(4, "hangs")),
    "one waits for the next round": following(REFRESH, RECORD, ev.RefreshLac(78)),
    "the ensemble changed": following(ev.MetadataChanged(MOVED)),
    "closed": following(ev.MetadataChanged(CLOSED)),
    "deleted": following(ev.MetadataChanged(None)),
}


def follow_state_of(machine: LedgerFollower) -> str:
    if machine.ended:
        return "ENDED"
    if machine._reading:
        return "RECORD"
    if machine._quorum is not None:
        return "QUORUM"
    return "WATCHING" if machine.started else "NEW"


def records() -> Iterable[Versioned[LedgerMetadata]]:
    yield from (OPEN, MOVED, CLOSED)
    yield Versioned(OPEN.value, OPEN.version - 1)
    yield Versioned(OPEN.value.in_recovery(), OPEN.version + 1)
    yield Versioned(OPEN.value.closed_at(2, 20), OPEN.version + 5)  # below what was proven


def follow_events(machine: LedgerFollower) -> Iterable[FollowEvent]:
    yield from (REFRESH, AWAY, GONE, ev.MetadataChanged(None), ev.MetadataWatched())
    yield ev.MetadataWatched(MetadataUnavailableError("the store is away"))
    yield ev.MetadataWatched(NoSuchLedgerError("deleted"))
    for record in records():
        yield from (ev.MetadataRead(record), ev.MetadataChanged(record))
    yield from (ev.TimerFired(name) for name in ("stall", "watch", "bookie b0", "bookie b1", "bookie b9"))
    damaged = bytearray(lac_body(10**12, digester()))
    damaged[15] ^= 1
    for request in (-1, 0, 1, 3, 4, 5, 50):
        yield from (proof(request, 4), proof(request, 8), ev.LacAnswered(request), ev.LacFailed(request, "hangs"))
        yield ev.LacAnswered(request, lac_body=bytes(damaged))
        yield ev.LacFailed(request, "no", Reason.UNAUTHORIZED)


def test_every_event_in_every_state_of_a_follower_leads_where_the_table_says() -> None:
    seen = sweep(
        FOLLOW_SITUATIONS,
        follow_events,
        follow_state_of,
        effects_known=members(*members(FollowEffect)),
        ends=(),
    )
    assert set(seen) == {(state, cls.__name__) for state in FOLLOW_STATES for cls in members(FollowEvent)}
    assert as_table(seen, FOLLOW_STATES) == TABLE


@pytest.mark.rule("MUST14", "P5")
@pytest.mark.parametrize("situation", FOLLOW_SITUATIONS)
def test_whatever_comes_the_lac_never_falls_and_only_evidence_moves_it(situation: str) -> None:
    for event in follow_events(FOLLOW_SITUATIONS[situation]()):
        machine = FOLLOW_SITUATIONS[situation]()
        lac, was, version = machine.lac, machine.ended, machine.metadata.version
        effects = machine.step(event)
        told = [effect.lac for effect in effects if isinstance(effect, ev.Confirm)]
        if machine.error is None:
            assert machine.lac >= lac
            assert all(value >= lac for value in told)
            assert machine.lac == (told[-1] if told else lac)
        assert machine.lac in (lac, 2, 5, 8, 9), "what a flipped bit says"
        assert machine.metadata.version >= version
        if was:
            allowed = (ev.FinishRefresh,) if isinstance(event, ev.RefreshLac) else ()
            assert all(isinstance(effect, allowed) for effect in effects)
        if machine.ended:
            assert not machine._callers
            assert not machine._late_callers
