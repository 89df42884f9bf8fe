# SPDX-License-Identifier: Apache-2.0
"""An ack or an entry that is taken without an event does what the event does."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.model import Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.delivery import Lane, LaneState
from bk_core.protocol.writer import LedgerWrite, WriterState
from bk_core.wire.lane.reasons import Reason
from tests.kit.without_events import taken
from tests.protocol.kit import append, batch, writer

Step = tuple[str, int, int]
KINDS = ["append"] * 3 + ["ack"] * 5 + ["excess", "stale", "break", "refuse", "retry", "bookies", "written", "close"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(-1, 3)), min_size=20, max_size=60)
"""What happens, the ensemble index, and the number of frames that an ack covers."""


def event_of(machine: LedgerWrite, step: Step) -> Any:
    """The event of a step, or None if nothing of the kind can happen now."""
    kind, index, count = step
    index %= len(machine.delivery.lanes)
    lane, change = machine.delivery.lanes[index], machine.change
    waiting = [n for n, each in enumerate(machine.delivery.lanes) if each.state is LaneState.WAITING]
    made: dict[str, Any] = {
        "append": ev.Append(batch(*[b"x"] * (1 + max(count, 0)))) if machine.state is WriterState.OPEN else None,
        "ack": ev.FramesAcked(index, lane.session, lane.acked + min(count, len(lane.outstanding))),
        "excess": ev.FramesAcked(index, lane.session, lane.acked + len(lane.outstanding) + count),
        "stale": ev.FramesAcked(index, lane.session - 1, lane.acked + count),
        "break": ev.SessionBroken(index, lane.session),
        "refuse": ev.SessionEnded(index, lane.session, lane.acked, Reason.READ_ONLY),
        "retry": ev.TimerFired(f"retry:{waiting[0]}") if waiting else None,
        "close": ev.Close(),
    }
    if change is not None and change.intent is None:
        made["bookies"] = ev.BookiesRead(("b6", "b7", "b8", "b9"))
    elif change is not None and change.intent is not None:
        made["written"] = ev.MetadataWritten(Versioned(change.intent, machine.metadata.version + 1))
    return made.get(kind)


def state_of(machine: LedgerWrite) -> Any:
    delivery = machine.delivery
    lanes = [{name: copy(getattr(lane, name)) for name in Lane.__slots__} for lane in delivery.lanes]
    sent = machine.lap, machine.length, [*delivery.packets], delivery.retained_bytes, delivery.base
    return machine.state, machine.lac, machine.failed, sent, lanes


@pytest.mark.rule("P1")
@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2), (3, 2, 1), (1, 1, 1)], ids=str)
@given(steps=STEPS)
def test_an_ack_or_an_entry_taken_without_an_event_does_what_its_event_does(
    quorums: tuple[int, int, int], steps: list[Step]
) -> None:
    quick, slow = writer(*quorums), writer(*quorums)
    for step in steps:
        event = event_of(quick, step)
        if event is None:
            continue
        before = state_of(quick)
        effects = taken(quick, event)
        if effects is None:
            assert state_of(quick) == before
            effects = quick.step(event)
        is_ack = isinstance(event, ev.FramesAcked) and slow.state in (WriterState.OPEN, WriterState.CLOSING)
        assert effects == (slow._session_event(event) if is_ack else slow.step(event))
        assert state_of(quick) == state_of(slow)


def test_nearly_every_ack_is_taken_without_an_event() -> None:
    machine = writer()
    append(machine, b"0")
    first, second, third = (
        machine.take_ack(index, lane.session, 1) for index, lane in enumerate(machine.delivery.lanes)
    )
    assert (first, third) == ([], [])
    assert second == [ev.Confirm(0), ev.SetTimer("lac", 5)]
    assert machine.delivery.retained_bytes == 0


@pytest.mark.rule("P9")
def test_the_hint_is_not_due_while_an_entry_in_flight_carries_the_lac() -> None:
    machine = writer()
    append(machine, b"0")
    append(machine, b"1")
    taken = [machine.take_ack(index, machine.delivery.lanes[index].session, 1) for index in range(2)]
    assert taken == [[], [ev.Confirm(0)]]
    assert (machine.acked, machine.idle) == (0, False)


@pytest.mark.rule("P9")
def test_an_append_puts_off_the_hint_that_an_idle_writer_would_send() -> None:
    machine = writer()
    append(machine, b"0")
    for index, lane in enumerate(machine.delivery.lanes):
        machine.take_ack(index, lane.session, 1)
    append(machine, b"1")
    assert machine.step(ev.TimerFired("lac")) == [], "the frame of entry 1 carries the LAC"
    taken = [machine.take_ack(index, machine.delivery.lanes[index].session, 2) for index in range(2)]
    assert taken == [[], [ev.Confirm(1), ev.SetTimer("lac", 5)]]
    assert [type(each) for each in machine.step(ev.TimerFired("lac"))] == [ev.SendLac] * 3


def test_nearly_every_entry_is_taken_without_an_event() -> None:
    machine = writer()
    assert machine.take_entry(b"0") is None, "the first entry starts the check of the add deadline"
    append(machine, b"0")
    assert [type(each) for each in machine.take_entry(b"1") or ()] == [ev.SendFrame] * 3
    assert writer(4, 2, 2).take_entry(b"0") is None, "each bookie gets other entries"


@pytest.mark.rule("P8")
def test_a_new_bookie_lacks_only_entries_that_it_has_to_hold() -> None:
    machine = writer(4, 2, 2)
    for _ in range(3):
        append(machine, b"x")  # entry 2 is the first for the bookie at index 3
    machine.step(ev.SessionEnded(3, machine.delivery.lanes[3].session, 0, Reason.READ_ONLY))
    (write,) = machine.step(ev.BookiesRead(("b9",)))
    assert isinstance(write, ev.WriteMetadata)
    machine.step(ev.MetadataWritten(Versioned(write.metadata, 1)))
    new = machine.delivery.lanes[3]
    assert (new.bookie, len(new.outstanding), new.watermark) == ("b9", 1, 1)
