# SPDX-License-Identifier: Apache-2.0
"""The recovery machine, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.entries.apache import lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.frame import decode_frame, encode_frame
from bk_core.errors import MetadataUnavailableError, RecoveryInconclusiveError, WrongPasswordError
from bk_core.model import Fragment, LedgerState, Versioned
from bk_core.protocol.events import (
    BackOff,
    BookiesRead,
    Fail,
    FinishRecovery,
    FramesAcked,
    FramesRead,
    LacAnswered,
    LacFailed,
    MarkUnderreplicated,
    MetadataCallFailed,
    MetadataConflicted,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
    ReadBookies,
    ReadFailed,
    ReadMetadata,
    SendFence,
    SendFrame,
    SendRead,
    SessionEnded,
    SetTimer,
    TimerFired,
    WriteMetadata,
)
from bk_core.protocol.recovery import LedgerRecovery, Phase
from bk_core.wire.lane.reasons import EntryRange, Reason
from tests.kit.flagged import with_flags
from tests.protocol.kit import LEDGER, digester, metadata, recovery


def of(effects: list[object], kind: type) -> list[object]:
    return [effect for effect in effects if isinstance(effect, kind)]


def frame(first: int, *payloads: bytes, lac: int = -1, length_before: int = 0) -> bytes:
    made = EntryBatch.from_list(list(payloads))
    return bytes(
        encode_frame(
            made,
            digester=digester(),
            ledger_id=LEDGER,
            first_entry_id=first,
            lac=lac,
            length_before=length_before,
        )
    )


def claimed(e: int = 3, qw: int = 3, qa: int = 2, **changes: object) -> tuple[LedgerRecovery, list[object]]:
    """A recovery that claimed the ledger; the effects of that."""
    machine = recovery()
    assert machine.start() == [ReadMetadata()]
    found = metadata(e, qw, qa, **changes)
    claim = of(machine.step(MetadataRead(found)), WriteMetadata)[0]
    assert claim.metadata.state is LedgerState.IN_RECOVERY
    return machine, list(machine.step(MetadataWritten(Versioned(claim.metadata, found.version + 1))))


def fenced(lac: int = -1, answers: int = 2, **shape: object) -> tuple[LedgerRecovery, list[SendRead]]:
    """A recovery that has fenced enough; its first reads."""
    machine, effects = claimed(**shape)
    assert len(of(effects, SendFence)) == 3
    body = lac_body(lac, digester()) if lac >= 0 else b""
    effects = []
    for index in range(answers):
        effects = list(machine.step(LacAnswered(index, lac_body=body)))
    return machine, of(effects, SendRead)


def absent(read: SendRead) -> ReadAnswered:
    return ReadAnswered(read.request, read.last, absent=(EntryRange(read.first, read.last),))


def finish_write_back(machine: LedgerRecovery, effects: list[object]) -> list[object]:
    """Ack every frame that was sent, on every lane."""
    out: list[object] = []
    sent = of(effects, SendFrame)
    for index in sorted({send.index for send in sent}):
        session = machine._write_back.delivery.lanes[index].session
        count = sum((send.index, send.session) == (index, session) for send in sent)
        out += machine.step(FramesAcked(index, session, count))
    return out


@pytest.mark.rule("MUST9")
def test_reading_begins_only_when_no_ack_quorum_is_left_unheard() -> None:
    machine, _ = claimed()
    assert machine.step(LacAnswered(0)) == []
    reads = of(machine.step(LacAnswered(1)), SendRead)
    assert [(r.bookie, r.first, r.fence) for r in reads] == [("b0", 0, True), ("b1", 0, True), ("b2", 0, True)]


@pytest.mark.rule("P5")
def test_a_bookie_whose_lac_fails_its_digest_has_not_been_heard() -> None:
    machine, _ = claimed()
    body = bytearray(lac_body(10, digester()))
    body[9] ^= 1
    machine.step(LacAnswered(0, lac_body=bytes(body)))
    assert machine.step(LacAnswered(1)) == []
    assert of(machine.step(LacAnswered(2)), SendRead) != []


@pytest.mark.rule("MUST9")
def test_recovery_never_starts_below_the_last_fragment() -> None:
    fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(50, ("b3", "b1", "b2")))
    machine, _ = claimed(fragments=fragments)
    machine.step(LacAnswered(0))
    reads = of(machine.step(LacAnswered(1)), SendRead)
    assert {(r.bookie, r.first) for r in reads} == {("b3", 50), ("b1", 50), ("b2", 50)}


def test_an_entry_found_on_one_bookie_is_written_back_unchanged_to_all() -> None:
    machine, reads = fenced()
    stored = frame(0, b"one", b"two")
    effects = machine.step(FramesRead(reads[2].request, memoryview(stored)))
    sent = of(effects, SendFrame)
    assert [s.index for s in sent] == [0, 1, 2]
    assert all(bytes(s.frame)[:60] == stored[:60] for s in sent)
    effects2 = machine.step(ReadAnswered(reads[2].request, reads[2].last, absent=(EntryRange(2, reads[2].last),)))
    assert of(effects2, WriteMetadata) == []
    machine.step(absent(reads[0]))
    closing = finish_write_back(machine, effects)
    assert machine.phase is Phase.CLOSE
    close = of(closing, WriteMetadata)[0]
    assert (close.metadata.last_entry_id, close.metadata.length, close.version) == (1, 6, 1)


@pytest.mark.rule("MUST4")
def test_a_partial_frame_is_no_answer_to_a_recovery_read() -> None:
    machine, reads = fenced()
    effects = machine.step(FramesRead(reads[0].request, memoryview(with_flags(frame(0, b"one")))))
    assert of(effects, SendFrame) == [], "what a bookie has left out is not written back"
    assert of(machine.step(absent(reads[1])), WriteMetadata) == [], "nor is it a denial"
    effects = machine.step(ReadFailed(reads[2].request, "timed out"))
    assert isinstance(of(effects, Fail)[0].error, RecoveryInconclusiveError)


@pytest.mark.rule("P4")
def test_the_end_needs_explicit_denials_not_a_short_answer() -> None:
    machine, reads = fenced()
    machine.step(FramesRead(reads[0].request, memoryview(frame(0, b"x"))))
    machine.step(ReadAnswered(reads[0].request, 0))  # stopped at its byte limit
    machine.step(ReadAnswered(reads[1].request, 0))
    effects = machine.step(ReadAnswered(reads[2].request, 0))
    assert [(r.first, r.fence) for r in of(effects, SendRead)] == [(1, True)] * 3
    assert of(effects, WriteMetadata) == []


@pytest.mark.rule("MUST4")
@pytest.mark.parametrize("unknown", ["failed", "answered unknown"])
def test_unknown_is_not_a_denial_and_an_undecidable_entry_aborts(unknown: str) -> None:
    machine, reads = fenced()
    machine.step(absent(reads[0]))
    for read in reads[1:]:
        if unknown == "failed":
            effects = machine.step(ReadFailed(read.request, "timed out"))
        else:
            answer = ReadAnswered(read.request, read.last, unknown=(EntryRange(read.first, read.last),), detail="LIMBO")
            effects = machine.step(answer)
    error = of(effects, Fail)[0].error
    assert isinstance(error, RecoveryInconclusiveError)
    assert "entry 0" in str(error)
    assert machine.phase is Phase.DONE


def test_an_empty_ledger_closes_at_minus_one() -> None:
    machine, reads = fenced()
    machine.step(absent(reads[0]))
    effects = machine.step(absent(reads[1]))
    close = of(effects, WriteMetadata)[0]
    assert (close.metadata.last_entry_id, close.metadata.length) == (-1, 0)
    done = of(machine.step(MetadataWritten(Versioned(close.metadata, 2))), FinishRecovery)
    assert done[0].recovered_entries == 0


def test_a_ledger_that_ends_at_its_lac_takes_its_length_from_that_entry() -> None:
    machine, reads = fenced(lac=4)
    assert {r.first for r in reads} == {5}
    machine.step(absent(reads[0]))
    effects = machine.step(absent(reads[1]))
    asked = of(effects, SendRead)
    assert [(r.first, r.last) for r in asked] == [(4, 4)] * 3
    effects = machine.step(FramesRead(asked[0].request, memoryview(frame(4, b"tail", lac=3, length_before=40))))
    close = of(effects, WriteMetadata)[0]
    assert (close.metadata.last_entry_id, close.metadata.length) == (4, 44)


@pytest.mark.rule("P7")
def test_a_ledger_in_recovery_is_claimed_anew_by_rewriting_the_same_bytes() -> None:
    machine = recovery()
    machine.start()
    found = metadata(version=5, state=LedgerState.IN_RECOVERY)
    assert machine.step(MetadataRead(found)) == [WriteMetadata(found.value, 5)]


@pytest.mark.rule("P7")
def test_losing_the_close_to_a_newer_recoverer_waits_and_begins_again() -> None:
    machine, reads = fenced()
    machine.step(absent(reads[0]))
    machine.step(absent(reads[1]))
    assert machine.step(MetadataConflicted()) == [ReadMetadata()]
    newer = metadata(version=2, state=LedgerState.IN_RECOVERY)
    back_off = of(machine.step(MetadataRead(newer)), BackOff)[0]
    assert back_off.factor >= 2
    assert machine.step(TimerFired("again")) == [ReadMetadata()]


@pytest.mark.rule("MUST10")
def test_losing_the_close_to_a_closed_ledger_adopts_its_end() -> None:
    machine, reads = fenced()
    machine.step(absent(reads[0]))
    machine.step(absent(reads[1]))
    machine.step(MetadataConflicted())
    closed = metadata(version=3, state=LedgerState.CLOSED, last_entry_id=9, length=90)
    done = of(machine.step(MetadataRead(closed)), FinishRecovery)
    assert done[0].metadata == closed


@pytest.mark.rule("MUST9")
def test_ensemble_changes_of_a_recovery_are_not_published_before_the_close() -> None:
    machine, reads = fenced()
    effects = machine.step(FramesRead(reads[0].request, memoryview(frame(0, b"x"))))
    session = machine._write_back.delivery.lanes[1].session
    machine.step(SessionEnded(1, session, 0, Reason.READ_ONLY))
    changed = machine.step(BookiesRead(("b0", "b2", "b9")))
    assert of(changed, WriteMetadata) == []
    assert [s.bookie for s in of(changed, SendFrame)] == ["b9"]
    assert machine.frozen is not None
    assert machine.frozen.last_fragment.ensemble == ("b0", "b1", "b2")
    for read in reads[:2]:
        machine.step(ReadAnswered(read.request, read.last, absent=(EntryRange(1, read.last),)))
    closing = finish_write_back(machine, [*effects, *changed])
    close = of(closing, WriteMetadata)
    if not close:
        close = of(machine.step(TimerFired("linger")), WriteMetadata)
    assert close[0].metadata.fragments == (Fragment(0, ("b0", "b9", "b2")),)


def test_a_wrong_ledger_key_ends_it_at_once() -> None:
    machine, _ = claimed()
    effects = machine.step(LacFailed(0, "no", Reason.UNAUTHORIZED))
    assert isinstance(of(effects, Fail)[0].error, WrongPasswordError)


def test_too_few_fenced_bookies_abort_with_their_reasons() -> None:
    machine, _ = claimed()
    machine.step(LacAnswered(0))
    machine.step(LacFailed(1, "b1: connection refused"))
    error = of(machine.step(LacFailed(2, "b2: connection refused")), Fail)[0].error
    assert "b1: connection refused" in str(error)


def test_a_striped_ledger_is_put_together_from_all_bookies() -> None:
    machine, reads = fenced(answers=2, e=3, qw=2, qa=2)
    whole = decode_frame(frame(0, b"0", b"1", b"2", b"3"))
    for read, index in zip(reads, range(3), strict=True):
        ids = whole.entry_ids()
        part = whole.select((index - ids) % 3 < 2)
        machine.step(FramesRead(read.request, memoryview(bytes(encode_frame(part, digester=None)))))
    assert machine.recovered == 4
    assert machine._write_back.delivery.last_sent == 3


def test_replaying_the_same_entries_from_three_bookies_writes_them_back_once() -> None:
    machine, reads = fenced()
    stored = frame(0, b"x", b"y")
    sent = [of(machine.step(FramesRead(r.request, memoryview(stored))), SendFrame) for r in reads]
    assert [len(s) for s in sent] == [3, 0, 0]


def test_in_recovery_keeps_everything_else_of_the_metadata() -> None:
    value = metadata(custom_metadata={"a": b"b"}).value
    assert replace(value.in_recovery(), state=LedgerState.OPEN) == value


def written_back_without_a_spare(payload: bytes, entries: int) -> tuple[LedgerRecovery, list[object]]:
    """A recovery whose bookie 2 failed and has no replacement, with so many entries found."""
    machine, reads = fenced()
    effects = machine.step(FramesRead(reads[0].request, memoryview(frame(0, *[payload] * entries))))
    lanes = machine._write_back.delivery.lanes
    machine.step(SessionEnded(2, lanes[2].session, 0, Reason.STORAGE_FAILED, "disk"))
    machine.step(BookiesRead(("b0", "b1", "b2")))
    return machine, list(effects)


def test_a_failed_bookie_without_a_spare_does_not_hold_what_the_others_have() -> None:
    machine, effects = written_back_without_a_spare(b"x" * 1000, 100)
    lanes = machine._write_back.delivery.lanes
    for index in (0, 1):
        sent = sum(send.index == index for send in of(effects, SendFrame))
        machine.step(FramesAcked(index, lanes[index].session, sent))
    assert machine._write_back.delivery.retained_bytes == 0, "recovery stops for ever once this reaches its bound"


def test_a_lost_look_at_the_bookies_is_repeated() -> None:
    machine, reads = fenced()
    machine.step(FramesRead(reads[0].request, memoryview(frame(0, b"0"))))
    lanes = machine._write_back.delivery.lanes
    assert of(machine.step(SessionEnded(2, lanes[2].session, 0, Reason.STORAGE_FAILED, "disk")), ReadBookies)
    assert of(machine.step(MetadataCallFailed(MetadataUnavailableError("away"))), SetTimer)
    assert machine.step(TimerFired("metadata")) == [ReadBookies()]


def test_a_close_that_the_store_never_takes_ends_the_recovery() -> None:
    machine, reads = fenced()
    for read in reads:
        effects = machine.step(absent(read))
        if machine.phase is Phase.CLOSE:
            break
    assert of(effects, WriteMetadata)
    for _ in range(100):
        effects = machine.step(MetadataCallFailed(MetadataUnavailableError("away")))
        if of(effects, Fail):
            return
        machine.step(TimerFired("metadata"))
        assert machine.metadata is not None
        machine.step(MetadataRead(machine.metadata))
    raise AssertionError("it tries for ever")


@pytest.mark.rule("P8")
def test_a_bookie_that_lagged_when_the_writer_died_is_marked_though_late() -> None:
    machine, _ = claimed()
    last, body = frame(1, b"x", lac=0, length_before=1), lac_body(1, digester())
    machine.step(LacAnswered(0, last_entry_frame=last, lac_body=body))
    reads = of(machine.step(LacAnswered(1, last_entry_frame=last)), SendRead)
    assert machine.step(LacAnswered(2)) == []
    machine.step(absent(reads[0]))
    effects = machine.step(absent(reads[1]))
    assert [mark.bookies for mark in of(effects, MarkUnderreplicated)] == [(reads[2].bookie,)]
    assert of(effects, WriteMetadata)
