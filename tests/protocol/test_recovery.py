# SPDX-License-Identifier: Apache-2.0
"""The recovery machine, event by event: also recoveries that meet each other, late answers and bookies that lie.
Nothing of an earlier attempt counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_core.entries.apache import lac_body
from bk_core.entries.frame import decode_frame, encode_frame
from bk_core.errors import MetadataUnavailableError, NoSuchLedgerError, RecoveryInconclusiveError, WrongPasswordError
from bk_core.model import LedgerState, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.recovery import LedgerRecovery, Phase
from bk_core.wire.lane.reasons import EntryRange, Reason
from tests.kit.flagged import with_flags
from tests.protocol.kit import digester, frame, metadata, of, recovery


def claimed(e: int = 3, qw: int = 3, qa: int = 2, **changes: object) -> tuple[LedgerRecovery, list[object]]:
    """A recovery that claimed the ledger; the effects of that."""
    machine = recovery()
    assert machine.start() == [ev.ReadMetadata()]
    found = metadata(e, qw, qa, **changes)
    claim = of(machine.step(ev.MetadataRead(found)), ev.WriteMetadata)[0]
    assert claim.metadata.state is LedgerState.IN_RECOVERY
    return machine, list(machine.step(ev.MetadataWritten(Versioned(claim.metadata, found.version + 1))))


def fenced(lac: int = -1, answers: int = 2, **shape: object) -> tuple[LedgerRecovery, list[ev.SendRead]]:
    """A recovery that has fenced enough; its first reads."""
    machine, effects = claimed(**shape)
    assert len(of(effects, ev.SendFence)) == 3
    body = lac_body(lac, digester()) if lac >= 0 else b""
    effects = []
    for index in range(answers):
        effects = list(machine.step(ev.LacAnswered(index, lac_body=body)))
    return machine, of(effects, ev.SendRead)


def absent(read: ev.SendRead) -> ev.ReadAnswered:
    return ev.ReadAnswered(read.request, read.last, absent=(EntryRange(read.first, read.last),))


def finish_write_back(machine: LedgerRecovery, effects: list[object]) -> list[object]:
    """Ack every frame that was sent, on every lane."""
    out: list[object] = []
    sent = of(effects, ev.SendFrame)
    for index in sorted({send.index for send in sent}):
        session = machine._write_back.delivery.lanes[index].session
        count = sum((send.index, send.session) == (index, session) for send in sent)
        out += machine.step(ev.FramesAcked(index, session, count))
    return out


@pytest.mark.rule("MUST4")
def test_a_partial_frame_is_no_answer_to_a_recovery_read() -> None:
    machine, reads = fenced()
    effects = machine.step(ev.FramesRead(reads[0].request, memoryview(with_flags(bytes(frame(0, b"one"))))))
    assert of(effects, ev.SendFrame) == [], "what a bookie has left out is not written back"
    assert of(machine.step(absent(reads[1])), ev.WriteMetadata) == [], "nor is it a denial"
    effects = machine.step(ev.ReadFailed(reads[2].request, "timed out"))
    assert isinstance(of(effects, ev.Fail)[0].error, RecoveryInconclusiveError)


def test_a_ledger_that_ends_at_its_lac_takes_its_length_from_that_entry() -> None:
    machine, reads = fenced(lac=4)
    assert {r.first for r in reads} == {5}
    machine.step(absent(reads[0]))
    effects = machine.step(absent(reads[1]))
    asked = of(effects, ev.SendRead)
    assert [(r.first, r.last) for r in asked] == [(4, 4)] * 3
    effects = machine.step(ev.FramesRead(asked[0].request, frame(4, b"tail", lac=3, length_before=40)))
    close = of(effects, ev.WriteMetadata)[0]
    assert (close.metadata.last_entry_id, close.metadata.length) == (4, 44)


@pytest.mark.rule("P7")
def test_a_ledger_in_recovery_is_claimed_anew_by_rewriting_the_same_bytes() -> None:
    machine = recovery()
    machine.start()
    found = metadata(version=5, state=LedgerState.IN_RECOVERY)
    assert machine.step(ev.MetadataRead(found)) == [ev.WriteMetadata(found.value, 5)]


def test_a_wrong_ledger_key_ends_it_at_once() -> None:
    machine, _ = claimed()
    effects = machine.step(ev.LacFailed(0, "no", Reason.UNAUTHORIZED))
    assert isinstance(of(effects, ev.Fail)[0].error, WrongPasswordError)


def test_a_striped_ledger_is_put_together_from_all_bookies() -> None:
    machine, reads = fenced(answers=2, e=3, qw=2, qa=2)
    whole = decode_frame(frame(0, b"0", b"1", b"2", b"3"))
    for read, index in zip(reads, range(3), strict=True):
        ids = whole.entry_ids()
        part = whole.select((index - ids) % 3 < 2)
        machine.step(ev.FramesRead(read.request, memoryview(bytes(encode_frame(part, digester=None)))))
    assert machine.recovered == 4
    assert machine._write_back.delivery.last_sent == 3


def test_replaying_the_same_entries_from_three_bookies_writes_them_back_once() -> None:
    machine, reads = fenced()
    stored = frame(0, b"x", b"y")
    sent = [of(machine.step(ev.FramesRead(r.request, stored)), ev.SendFrame) for r in reads]
    assert [len(s) for s in sent] == [3, 0, 0]


def test_in_recovery_keeps_everything_else_of_the_metadata() -> None:
    value = metadata(custom_metadata={"a": b"b"}).value
    assert replace(value.in_recovery(), state=LedgerState.OPEN) == value


def written_back_without_a_spare(payload: bytes, entries: int) -> tuple[LedgerRecovery, list[object]]:
    """A recovery whose bookie 2 failed and has no replacement, with so many entries found."""
    machine, reads = fenced()
    effects = machine.step(ev.FramesRead(reads[0].request, frame(0, *[payload] * entries)))
    lanes = machine._write_back.delivery.lanes
    machine.step(ev.SessionEnded(2, lanes[2].session, 0, Reason.STORAGE_FAILED, "disk"))
    machine.step(ev.BookiesRead(("b0", "b1", "b2")))
    return machine, list(effects)


def test_a_failed_bookie_without_a_spare_does_not_hold_what_the_others_have() -> None:
    machine, effects = written_back_without_a_spare(b"x" * 1000, 100)
    lanes = machine._write_back.delivery.lanes
    for index in (0, 1):
        sent = sum(send.index == index for send in of(effects, ev.SendFrame))
        machine.step(ev.FramesAcked(index, lanes[index].session, sent))
    assert machine._write_back.delivery.retained_bytes == 0, "recovery stops for ever once this reaches its bound"


@pytest.mark.rule("P8")
def test_a_bookie_that_lagged_when_the_writer_died_is_marked_though_late() -> None:
    machine, _ = claimed()
    last, body = frame(1, b"x", lac=0, length_before=1), lac_body(1, digester())
    machine.step(ev.LacAnswered(0, last_entry_frame=last, lac_body=body))
    reads = of(machine.step(ev.LacAnswered(1, last_entry_frame=last)), ev.SendRead)
    assert machine.step(ev.LacAnswered(2)) == []
    machine.step(absent(reads[0]))
    effects = machine.step(absent(reads[1]))
    assert [mark.bookies for mark in of(effects, ev.MarkUnderreplicated)] == [(reads[2].bookie,)]
    assert of(effects, ev.WriteMetadata)


def meets_another(machine: LedgerRecovery, version: int) -> list[Any]:
    """The close conflicts with a newer epoch; after the pause the next attempt claims and fences."""
    machine.step(ev.MetadataConflicted())
    theirs = Versioned(metadata(state=LedgerState.IN_RECOVERY).value, version)
    assert of(machine.step(ev.MetadataRead(theirs)), ev.BackOff)
    machine.step(ev.TimerFired("again"))
    (claim,) = of(machine.step(ev.MetadataRead(theirs)), ev.WriteMetadata)
    return list(machine.step(ev.MetadataWritten(Versioned(claim.metadata, version + 1))))


def closing() -> tuple[LedgerRecovery, list[Any]]:
    """A recovery of one entry that has sent its close; the effects of that."""
    machine, reads = fenced()
    machine.step(ev.FramesRead(reads[0].request, frame(0, b"x")))
    machine.step(ev.ReadAnswered(reads[0].request, reads[0].last, absent=(EntryRange(1, reads[0].last),)))
    sent = list(machine.step(absent_above(reads[1])))
    assert machine.phase is Phase.DRAIN
    write_back = machine._write_back
    assert write_back is not None
    sent = [ev.SendFrame(i, lane.bookie, lane.session, b"") for i, lane in enumerate(write_back.delivery.lanes)]
    effects = finish_write_back(machine, sent)
    assert machine.phase is Phase.CLOSE
    return machine, effects


def absent_above(read: ev.SendRead) -> ev.ReadAnswered:
    return ev.ReadAnswered(read.request, read.last, absent=(EntryRange(1, read.last),))


@pytest.mark.rule("MUST5")
def test_late_answers_to_an_earlier_attempts_fences_are_not_counted() -> None:
    machine, _ = closing()
    numbers = [fence.index for fence in of(meets_another(machine, 5), ev.SendFence)]
    assert numbers == [3, 4, 5]
    assert [machine.step(ev.LacAnswered(index)) for index in (0, 1, 2)] == [[], [], []]
    assert [machine.step(ev.LacFailed(index, "late", Reason.UNAUTHORIZED)) for index in (0, 1, 2)] == [[], [], []]
    assert machine.phase is Phase.FENCE
    machine.step(ev.LacAnswered(3))
    assert of(machine.step(ev.LacAnswered(5)), ev.SendRead)


def test_answers_and_session_events_of_an_earlier_attempt_say_nothing_to_the_next() -> None:
    machine, reads = fenced()
    machine.step(ev.FramesRead(reads[0].request, frame(0, b"x")))
    old = [lane.session for lane in machine._write_back.delivery.lanes]
    machine.step(ev.ReadAnswered(reads[0].request, reads[0].last, absent=(EntryRange(1, reads[0].last),)))
    machine.step(absent_above(reads[1]))
    for index, session in enumerate(old):
        machine.step(ev.FramesAcked(index, session, 1))
    meets_another(machine, 5)
    machine.step(ev.LacAnswered(3))
    again = of(machine.step(ev.LacAnswered(4)), ev.SendRead)
    assert machine.step(ev.FramesRead(reads[2].request, frame(0, b"x"))) == []
    assert machine.step(absent(reads[2])) == []
    sent = of(machine.step(ev.FramesRead(again[0].request, frame(0, b"x"))), ev.SendFrame)
    assert not {send.session for send in sent} & set(old)
    for index, session in enumerate(old):
        assert machine.step(ev.FramesAcked(index, session, 1)) == []
        assert machine.step(ev.SessionBroken(index, session)) == []
        assert machine.step(ev.SessionEnded(index, session, 1, Reason.READ_ONLY)) == []
    assert machine.phase is Phase.READ


def test_a_bookie_that_fails_while_the_close_is_under_way_changes_nothing() -> None:
    machine, effects = closing()
    detached = of(effects, ev.DetachSession)
    assert {effect.index for effect in detached} == {0, 1, 2}, "nothing is sent any more"
    assert of(effects, ev.WriteMetadata)
    for effect in detached:
        assert machine.step(ev.SessionEnded(effect.index, effect.session, 0, Reason.STORAGE_FAILED)) == []
    assert machine.step(ev.TimerFired("adds")) == []


def test_a_close_whose_answer_was_lost_is_written_again_with_the_same_intent() -> None:
    machine, effects = closing()
    (close,) = of(effects, ev.WriteMetadata)
    assert machine.step(ev.MetadataCallFailed(MetadataUnavailableError("lost"))) == [ev.SetTimer("metadata", 250)]
    assert machine.step(ev.TimerFired("metadata")) == [ev.ReadMetadata()]
    ours = Versioned(metadata(state=LedgerState.IN_RECOVERY).value, 1)
    assert machine.step(ev.MetadataRead(ours)) == [close]
    closed = Versioned(close.metadata, 2)
    assert of(machine.step(ev.MetadataRead(closed)), ev.FinishRecovery) == [ev.FinishRecovery(closed, 1)]


def test_a_full_window_ends_the_reads_of_the_one_before() -> None:
    machine, _ = claimed()
    machine.config = type(machine.config)(read_window_entries=2)
    machine.step(ev.LacAnswered(0))
    reads = of(machine.step(ev.LacAnswered(1)), ev.SendRead)
    effects = list(machine.step(ev.FramesRead(reads[0].request, frame(0, b"a", b"b"))))
    assert of(effects, ev.CancelRead) == [ev.CancelRead(read.request) for read in reads]
    assert {read.first for read in of(effects, ev.SendRead)} == {2}


def test_the_reason_of_an_inconclusive_recovery_names_the_entry_and_the_bookies() -> None:
    machine, reads = fenced()
    machine.step(absent(reads[0]))
    machine.step(ev.ReadFailed(reads[1].request, "timed out"))
    (failed,) = of(machine.step(ev.ReadFailed(reads[2].request, "no route")), ev.Fail)
    assert isinstance(failed.error, RecoveryInconclusiveError)
    for said in ("entry 0", "b0: denies it", "b1: timed out", "b2: no route"):
        assert said in str(failed.error)


def test_the_reason_of_a_fence_that_failed_names_the_bookies() -> None:
    machine, _ = claimed()
    machine.step(ev.LacFailed(0, "timed out"))
    assert machine.step(ev.LacFailed(2, "", Reason.LIMBO)) == []
    (failed,) = of(machine.step(ev.LacAnswered(1)), ev.Fail)
    assert "b0: timed out" in str(failed.error)
    assert "b2: LIMBO" in str(failed.error)


@pytest.mark.rule("MUST12")
def test_stale_reads_of_the_record_do_not_keep_a_recovery_going_for_ever() -> None:
    machine, _ = closing()
    for turn in range(20):
        (asked,) = machine.step(ev.MetadataConflicted())
        assert isinstance(asked, ev.ReadMetadata if turn == 0 else ev.SetTimer)
        stale = Versioned(metadata(state=LedgerState.IN_RECOVERY).value, 1)
        assert of(machine.step(ev.MetadataRead(stale)), ev.WriteMetadata)
    (failed,) = of(machine.step(ev.MetadataConflicted()), ev.Fail)
    assert isinstance(failed.error, RecoveryInconclusiveError)


def test_a_ledger_that_is_deleted_under_its_recovery_ends_it() -> None:
    machine, _ = closing()
    (failed,) = of(machine.step(ev.MetadataCallFailed(NoSuchLedgerError("gone"))), ev.Fail)
    assert isinstance(failed.error, NoSuchLedgerError)


@pytest.mark.rule("MUST12")
def test_ensemble_changes_of_a_recovery_are_bounded() -> None:
    machine, reads = fenced()
    machine.step(ev.FramesRead(reads[0].request, frame(0, b"x")))
    for turn in range(100):
        write_back = machine._write_back
        assert write_back is not None
        session = write_back.delivery.lanes[0].session
        effects = list(machine.step(ev.SessionEnded(0, session, 0, Reason.STORAGE_FAILED)))
        if of(effects, ev.Fail):
            break
        assert of(effects, ev.ReadBookies)
        machine.step(ev.BookiesRead((f"c{turn}",)))
    assert turn == machine.config.ensemble_changes_max
    assert isinstance(of(effects, ev.Fail)[0].error, RecoveryInconclusiveError)


def test_a_bookie_that_acks_write_backs_it_never_got_is_replaced() -> None:
    machine, reads = fenced()
    sent = of(machine.step(ev.FramesRead(reads[0].request, frame(0, b"x"))), ev.SendFrame)
    assert of(machine.step(ev.FramesAcked(0, sent[0].session, 2)), ev.ReadBookies)
