# SPDX-License-Identifier: Apache-2.0
"""Every event in every phase of the search for an end above the LAC: where it leads, and that nothing else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from bk_core.errors import MetadataUnavailableError
from bk_core.model import Fragment, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.ends.quorum_end import EndEffect, EndEvent, EndPhase, QuorumEnd
from bk_core.wire.lane.reasons import EntryRange
from tests.kit.transitions import as_table, members, sweep
from tests.protocol.kit import digester, metadata, values_frame

LAC, LAST = 4, 8
"""The proven LAC, and the last id that is looked at."""

TABLE: dict[tuple[str, str], str] = {
    ("RECORD", "MetadataCallFailed"): "DONE",
    ("RECORD", "MetadataRead"): "ASK DONE",
    ("ASK", "FramesRead"): "ASK SETTLE DONE",
    ("ASK", "ReadAnswered"): "ASK SETTLE DONE",
    ("ASK", "ReadFailed"): "ASK SETTLE DONE",
    ("SETTLE", "TimerFired"): "SETTLE ASK_AGAIN",
    ("ASK_AGAIN", "FramesRead"): "ASK_AGAIN CHECK DONE",
    ("ASK_AGAIN", "ReadAnswered"): "ASK_AGAIN CHECK DONE",
    ("ASK_AGAIN", "ReadFailed"): "ASK_AGAIN CHECK DONE",
    ("CHECK", "MetadataCallFailed"): "DONE",
    ("CHECK", "MetadataRead"): "ASK DONE",
}

OPEN = metadata(version=3)
MOVED = Versioned(replace(OPEN.value, fragments=(Fragment(0, ("b0", "b1", "b2")), Fragment(5, ("b0", "b4", "b2")))), 4)
CLOSED = Versioned(OPEN.value.closed_at(6, 60), 5)
IN_RECOVERY = Versioned(OPEN.value.in_recovery(), 4)
SETTLED = ev.TimerFired("settle")
AWAY = ev.MetadataCallFailed(MetadataUnavailableError("the store is away"))


def gave(request: int, first: int = 5, last: int = 6) -> EndEvent:
    return ev.FramesRead(request, values_frame(first, last, LAC))


def end(request: int, through: int = LAST) -> EndEvent:
    return ev.ReadAnswered(request, through, absent=(EntryRange(7, LAST),))


def failed(request: int) -> EndEvent:
    return ev.ReadFailed(request, "hangs")


def after(*events: EndEvent) -> Callable[[], QuorumEnd]:
    def build() -> QuorumEnd:
        machine = QuorumEnd(digester(), LAC, settle_ms=60_000, bytes_max=1 << 20, entries_max=LAST - LAC, rounds_max=2)
        machine.start()
        for event in events:
            machine.step(event)
        return machine

    return build


RECORD = ev.MetadataRead(OPEN)
TWO_HOLD = (gave(1), end(1), gave(2), end(2))
HELD = (RECORD, *TWO_HOLD, end(3))
AGAIN = (*HELD, SETTLED)
CHECKED = (*AGAIN, gave(4), ev.ReadAnswered(4, 6), gave(5), ev.ReadAnswered(5, 6), failed(6))
SECOND_ROUND = (*CHECKED, ev.MetadataRead(MOVED))
SECOND_CHECK = (
    *SECOND_ROUND,
    *(gave(7), end(7), gave(8), end(8), failed(9), SETTLED),
    *(gave(10), ev.ReadAnswered(10, 6), gave(11), ev.ReadAnswered(11, 6), failed(12)),
)

SITUATIONS: dict[str, Callable[[], QuorumEnd]] = {
    "begun": after(),
    "asked all": after(RECORD),
    "one holds": after(RECORD, gave(1), end(1)),
    "one holds, one failed": after(RECORD, gave(1), end(1), failed(2)),
    "two hold": after(RECORD, *TWO_HOLD),
    "two hold, the answer of one is not whole": after(RECORD, gave(1), end(1), gave(2), ev.ReadAnswered(2, 5), end(3)),
    "nobody has anything, one is to answer": after(RECORD, end(1), failed(2)),
    "waits": after(*HELD),
    "asked all again": after(*AGAIN),
    "one holds it still": after(*AGAIN, gave(4), end(4), failed(5)),
    "two hold it still": after(*AGAIN, gave(4), ev.ReadAnswered(4, 6), gave(5), ev.ReadAnswered(5, 6)),
    "reads the record again": after(*CHECKED),
    "the second round": after(*SECOND_ROUND),
    "the second round reads the record again": after(*SECOND_CHECK),
    "shown": after(*CHECKED, ev.MetadataRead(OPEN)),
    "nothing above the LAC": after(RECORD, end(1), end(2), end(3)),
    "failed": after(AWAY),
}


def events(machine: QuorumEnd) -> Iterable[EndEvent]:
    yield from (AWAY, SETTLED, ev.TimerFired("another"))
    yield from (ev.MetadataRead(record) for record in (OPEN, MOVED, CLOSED, IN_RECOVERY, replace(OPEN, version=9)))
    flipped = bytearray(values_frame(5, 6, LAC))
    flipped[-1] ^= 1
    for request in range(14):
        yield from (gave(request), gave(request, 6, 6), gave(request, 4, 6), gave(request, LAST + 1, LAST + 1))
        yield ev.FramesRead(request, memoryview(bytes(flipped)))
        yield from (end(request), end(request, 5), end(request, 4), end(request, LAST + 9), failed(request))
        yield ev.ReadAnswered(request, LAST, unknown=(EntryRange(5, LAST),), detail="LIMBO")


@pytest.mark.long
def test_every_event_in_every_phase_leads_where_the_table_says() -> None:
    seen = sweep(
        SITUATIONS,
        events,
        lambda machine: machine.phase.name,
        effects_known=members(*members(EndEffect)),
        ends=("DONE",),
    )
    assert set(seen) == {(phase, cls.__name__) for phase in EndPhase.__members__ for cls in members(EndEvent)}
    assert as_table(seen, EndPhase.__members__) == TABLE


@pytest.mark.rule("P15")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_whatever_comes_nothing_is_fenced_or_shown_twice_and_something_always_follows(situation: str) -> None:
    for event in events(SITUATIONS[situation]()):
        machine = SITUATIONS[situation]()
        was = machine.phase
        effects = machine.step(event)
        ends = [effect for effect in effects if isinstance(effect, (ev.FinishEnd, ev.Fail))]
        assert len(ends) == (machine.phase is EndPhase.DONE and was is not EndPhase.DONE)
        assert not any(effect.fence for effect in effects if isinstance(effect, ev.SendRead))
        shown = [effect.last for effect in ends if isinstance(effect, ev.FinishEnd)]
        closed = isinstance(event, ev.MetadataRead) and event.metadata.value.is_closed
        assert shown in ([], [6]) if closed else shown in ([], [LAC], [6])
        if shown == [6] and not closed:
            assert was is EndPhase.CHECK, "nothing above the LAC is shown before the record was read again"
        if machine.phase in (EndPhase.ASK, EndPhase.ASK_AGAIN):
            assert machine._window is not None
            assert machine._window.pending(), "nothing will ever happen"
