# SPDX-License-Identifier: Apache-2.0
"""The recovery machine, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.entries.apache import lac_body
from bk_core.entries.frame import decode_frame, encode_frame
from bk_core.errors import RecoveryInconclusiveError, WrongPasswordError
from bk_core.model import LedgerState, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.recovery import LedgerRecovery
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
