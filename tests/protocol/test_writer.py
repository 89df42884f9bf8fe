# SPDX-License-Identifier: Apache-2.0
"""The writer machine, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.entries.frame import decode_frame, frame_tag
from bk_core.errors import LedgerFencedError, MetadataConflictError, MetadataUnavailableError, Outcome
from bk_core.model import Fragment, LedgerState, Versioned
from bk_core.protocol.events import (
    AttachSession,
    BookiesRead,
    Close,
    Confirm,
    Fail,
    FinishClose,
    FramesAcked,
    MarkUnderreplicated,
    MetadataCallFailed,
    MetadataConflicted,
    MetadataRead,
    MetadataWritten,
    ReadBookies,
    ReadMetadata,
    SendFrame,
    SendLac,
    SessionBroken,
    SessionEnded,
    SetTimer,
    TimerFired,
    WriteMetadata,
)
from bk_core.protocol.writer import LedgerWrite, WriterState
from bk_core.wire.lane.reasons import Reason
from tests.protocol.kit import append, digester, metadata, writer


def of(effects: list[object], kind: type) -> list[object]:
    return [effect for effect in effects if isinstance(effect, kind)]


def acked(machine: LedgerWrite, index: int, frames: int) -> list[object]:
    return list(machine.step(FramesAcked(index, machine.delivery.lanes[index].session, frames)))


def test_an_entry_that_reached_its_quorum_early_waits_for_the_one_before_it() -> None:
    machine = writer(3, 2, 2)
    append(machine, b"0", b"1", b"2")
    assert of(acked(machine, 1, 1), Confirm) == []  # entries 0 and 1 are on bookie 1
    assert of(acked(machine, 2, 1), Confirm) == []  # entry 1 is complete, entry 0 is not
    assert of(acked(machine, 0, 1), Confirm) == [Confirm(2)]


def test_each_frame_carries_the_lac_and_length_of_its_moment() -> None:
    machine = writer()
    append(machine, b"aa", b"bbb")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    second = decode_frame(append(machine, b"c")[0].frame, digester=digester(), verify_digests=True)
    assert (second.first_entry_id, second.lac, second.length_before) == (2, 1, 5)


@pytest.mark.rule("P1")
def test_a_new_session_resends_from_the_watermark_and_old_acks_are_void() -> None:
    machine = writer()
    for payload in (b"0", b"1", b"2"):
        append(machine, payload)
    acked(machine, 0, 1)
    old = machine.delivery.lanes[0].session
    assert of(machine.step(SessionBroken(0, old)), SetTimer) != []
    effects = machine.step(TimerFired("retry:0"))
    new = machine.delivery.lanes[0].session
    assert new != old
    assert of(effects, AttachSession) == [AttachSession(0, "b0", new, machine.delivery.mode)]
    frames = [effect.frame for effect in of(effects, SendFrame)]
    assert [decode_frame(frame).first_entry_id for frame in frames] == [1, 2]
    assert {frame_tag(frame) for frame in frames} == {new}
    assert machine.step(FramesAcked(0, old, 3)) == []
    assert machine.delivery.lanes[0].watermark == 0


@pytest.mark.rule("P1")
def test_a_refusal_for_overload_keeps_what_was_acked_before_it_and_sends_the_rest_again() -> None:
    machine = writer()
    for payload in (b"0", b"1", b"2"):
        append(machine, payload)
    session = machine.delivery.lanes[1].session
    machine.step(SessionEnded(1, session, 1, Reason.OVERLOADED))
    assert machine.delivery.lanes[1].watermark == 0
    frames = [effect.frame for effect in of(machine.step(TimerFired("retry:1")), SendFrame)]
    assert [decode_frame(frame).first_entry_id for frame in frames] == [1, 2]


def test_a_fenced_writer_withdraws_and_reports_unknown() -> None:
    machine = writer()
    append(machine, b"0")
    session = machine.delivery.lanes[2].session
    failed = of(machine.step(SessionEnded(2, session, 0, Reason.FENCED)), Fail)
    assert isinstance(failed[0].error, LedgerFencedError)
    assert failed[0].error.outcome is Outcome.UNKNOWN
    assert acked(machine, 0, 1) == []
    assert acked(machine, 1, 1) == []
    assert machine.lac == -1


def fail_bookie(machine: LedgerWrite, index: int) -> list[object]:
    session = machine.delivery.lanes[index].session
    return list(machine.step(SessionEnded(index, session, 0, Reason.READ_ONLY)))


@pytest.mark.rule("MUST6")
def test_the_lac_stands_still_during_an_ensemble_change() -> None:
    machine = writer()
    append(machine, b"0")
    assert of(fail_bookie(machine, 0), ReadBookies) != []
    assert of(acked(machine, 1, 1), Confirm) == []
    assert of(acked(machine, 2, 1), Confirm) == []
    written = of(machine.step(BookiesRead(("b0", "b1", "b2", "b3"))), WriteMetadata)[0]
    assert written.metadata.fragments == (Fragment(0, ("b3", "b1", "b2")),)
    effects = machine.step(MetadataWritten(Versioned(written.metadata, 1)))
    assert of(effects, Confirm) == [Confirm(0)]
    assert [(e.bookie, decode_frame(e.frame).first_entry_id) for e in of(effects, SendFrame)] == [("b3", 0)]


@pytest.mark.rule("MUST6")
def test_acks_of_a_replaced_bookie_do_not_count() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 0, 1)
    append(machine, b"1")
    fail_bookie(machine, 0)
    written = of(machine.step(BookiesRead(("b1", "b2", "b3"))), WriteMetadata)[0]
    effects = machine.step(MetadataWritten(Versioned(written.metadata, 1)))
    assert of(effects, Confirm) == []
    assert of(acked(machine, 1, 1), Confirm) == []  # only b1 has entry 0 now
    assert of(acked(machine, 3 - 1, 1), Confirm) == [Confirm(0)]


def test_a_lost_answer_to_the_ensemble_change_is_compared_with_the_intent() -> None:
    machine = writer()
    append(machine, b"0")
    fail_bookie(machine, 0)
    written = of(machine.step(BookiesRead(("b1", "b2", "b3"))), WriteMetadata)[0]
    lost = MetadataUnavailableError("the answer was lost")
    assert of(machine.step(MetadataCallFailed(lost)), SetTimer)[0].name == "metadata"
    assert machine.step(TimerFired("metadata")) == [ReadMetadata()]
    machine.step(MetadataRead(Versioned(written.metadata, 1)))
    assert machine.metadata.value == written.metadata
    assert machine.change is None


def test_a_writer_that_finds_its_ledger_in_recovery_withdraws() -> None:
    machine = writer()
    append(machine, b"0")
    fail_bookie(machine, 0)
    machine.step(BookiesRead(("b1", "b2", "b3")))
    assert machine.step(MetadataConflicted()) == [ReadMetadata()]
    found = metadata(version=1)
    effects = machine.step(MetadataRead(Versioned(found.value.in_recovery(), 1)))
    assert isinstance(of(effects, Fail)[0].error, LedgerFencedError)


def closed_record(machine: LedgerWrite, last: int, version: int = 2) -> Versioned:
    value = replace(machine.metadata.value, state=LedgerState.CLOSED, last_entry_id=last, length=1)
    return Versioned(value, version)


@pytest.mark.parametrize(("last", "succeeds"), [(0, True), (5, False)])
def test_a_close_that_meets_a_closed_ledger_succeeds_only_at_the_same_end(last: int, succeeds: bool) -> None:
    machine = writer()
    append(machine, b"0")
    for index in range(3):
        acked(machine, index, 1)
    assert of(machine.step(Close()), WriteMetadata) != []
    machine.step(MetadataConflicted())
    effects = machine.step(MetadataRead(closed_record(machine, last)))
    assert bool(of(effects, FinishClose)) is succeeds
    if not succeeds:
        assert isinstance(of(effects, Fail)[0].error, MetadataConflictError)


@pytest.mark.rule("P8")
def test_close_lingers_for_the_third_copy_then_marks_it() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    effects = machine.step(Close())
    assert [timer.name for timer in of(effects, SetTimer)] == ["linger"]
    effects = machine.step(TimerFired("linger"))
    assert of(effects, MarkUnderreplicated) == [MarkUnderreplicated(("b2",))]
    assert of(effects, WriteMetadata)[0].metadata.last_entry_id == 0


@pytest.mark.rule("P9")
def test_an_idle_writer_hints_its_lac_once() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 0, 1)
    assert SetTimer("lac", 5) in acked(machine, 1, 1)
    assert [hint.bookie for hint in of(machine.step(TimerFired("lac")), SendLac)] == ["b0", "b1", "b2"]
    assert machine.step(TimerFired("lac")) == []


def hinted(machine: LedgerWrite) -> list[str]:
    return [hint.bookie for hint in of(machine.step(TimerFired("lac")), SendLac)]


@pytest.mark.rule("P9")
def test_the_lac_of_a_striped_ledger_is_told_to_the_write_set_of_the_entry_that_it_names() -> None:
    machine = writer(5, 3, 2)
    append(machine, b"0")
    for index in (0, 1):
        acked(machine, index, 1)
    assert hinted(machine) == ["b0", "b1", "b2"]
    append(machine, b"1", b"2", b"3")
    for index in (0, 1, 2, 3, 4):
        acked(machine, index, 2 if index < 3 else 1)
    assert machine.lac == 3
    assert hinted(machine) == ["b0", "b3", "b4"]


@pytest.mark.rule("P9")
def test_the_lac_of_a_new_fragment_is_told_to_its_new_bookie_too() -> None:
    machine = writer(3, 3, 2)
    append(machine, b"0")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    append(machine, b"1")
    fail_bookie(machine, 1)
    written = of(machine.step(BookiesRead(("b0", "b1", "b2", "b3"))), WriteMetadata)[0]
    assert written.metadata.fragments == (Fragment(0, ("b0", "b1", "b2")), Fragment(1, ("b0", "b3", "b2")))
    machine.step(MetadataWritten(Versioned(written.metadata, 1)))
    assert hinted(machine) == []  # entry 1 is in flight
    acked(machine, 1, 1)
    acked(machine, 2, 2)
    assert machine.lac == 1
    assert hinted(machine) == ["b0", "b3", "b2"]


@pytest.mark.rule("P9")
def test_after_an_ensemble_change_an_earlier_lac_is_told_to_the_bookies_that_stayed() -> None:
    machine = writer(3, 3, 2)
    append(machine, b"0")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    session = machine.delivery.lanes[2].session
    machine.step(SessionBroken(2, session))
    machine.step(TimerFired("budget:2"))
    written = of(machine.step(BookiesRead(("b0", "b1", "b2", "b3"))), WriteMetadata)[0]
    assert written.metadata.fragments == (Fragment(0, ("b0", "b1", "b2")), Fragment(1, ("b0", "b1", "b3")))
    machine.step(MetadataWritten(Versioned(written.metadata, 1)))
    assert hinted(machine) == ["b0", "b1"]


@pytest.mark.rule("P3")
def test_a_bookie_that_stays_broken_for_the_reconnect_budget_has_failed() -> None:
    machine = writer()
    append(machine, b"0")
    session = machine.delivery.lanes[0].session
    effects = machine.step(SessionBroken(0, session))
    assert {timer.name for timer in of(effects, SetTimer)} == {"retry:0", "budget:0"}
    assert of(machine.step(TimerFired("budget:0")), ReadBookies) == [ReadBookies()]


@pytest.mark.rule("P3")
def test_a_bookie_that_acks_nothing_for_the_add_deadline_has_failed() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 1, 1)
    acked(machine, 2, 1)
    effects: list[object] = []
    for _ in range(4):
        effects = list(machine.step(TimerFired("adds")))
    assert of(effects, ReadBookies) == [ReadBookies()]
    assert machine.failed == [0]


def test_an_idle_broken_session_costs_nothing_until_the_next_append() -> None:
    machine = writer()
    session = machine.delivery.lanes[0].session
    assert machine.step(SessionBroken(0, session)) == []
    frames = append(machine, b"0")
    assert [frame.index for frame in frames] == [0, 1, 2]


def test_nothing_follows_a_failure() -> None:
    machine = writer()
    append(machine, b"0")
    machine.step(SessionEnded(0, machine.delivery.lanes[0].session, 0, Reason.FENCED))
    assert machine.state is WriterState.FAILED
    for event in (Close(), TimerFired("adds"), BookiesRead(()), MetadataConflicted()):
        assert machine.step(event) == []


@pytest.mark.rule("MUST6")
def test_what_the_failed_bookie_acked_above_the_lac_is_sent_to_its_replacement() -> None:
    machine = writer(2, 2, 2)
    append(machine, b"0")
    acked(machine, 1, 1)  # bookie 1 has entry 0, bookie 0 has not: nothing is confirmed
    fail_bookie(machine, 1)
    machine.step(BookiesRead(("b0", "b1", "b2")))
    assert machine.change is not None
    acked(machine, 0, 1)  # while the change that starts at entry 0 is under way
    written = machine.step(MetadataWritten(Versioned(machine.change.intent, 1)))
    assert of(written, Confirm) == [], "confirmed on one bookie of the two that metadata names"
    assert [send.bookie for send in of(written, SendFrame)] == ["b2"]
    assert of(acked(machine, 1, 1), Confirm) == [Confirm(0)]
