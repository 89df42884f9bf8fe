# SPDX-License-Identifier: Apache-2.0
"""QuorumEnd counts an entry above the LAC only if Qa bookies of its write set returned it twice (P15)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.model import ENTRY_ID_MAX, Fragment, LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.ends.quorum_end import ANSWERS_MAX, EndPhase, QuorumEnd
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX, EntryRange
from tests.protocol.kit import digester, frame, metadata

pytestmark = pytest.mark.rule("P15")
Record = Versioned[LedgerMetadata]


def frames(*ids: int, payload: bytes = b"value") -> memoryview:
    """Frames of these entries, one each."""
    return memoryview(b"".join(frame(entry, payload, length_before=5 * entry, session=1) for entry in ids))


def machine_of(record: Record, lac: int = -1, **options: int) -> tuple[QuorumEnd, list[object]]:
    """A machine that has read the record, and its reads."""
    machine = QuorumEnd(digester(), lac, settle_ms=60_000, **{"bytes_max": 1 << 20, "entries_max": 10, **options})
    assert machine.start() == [ev.ReadMetadata(fresh=True)]
    return machine, list(machine.step(ev.MetadataRead(record)))


def answer(machine: QuorumEnd, asked: list[object], *holds: tuple[int, ...] | None) -> list[object]:
    """The bookies hold these ids, None: does not answer; the effects of the last answer."""
    effects: list[object] = []
    for read, ids in zip(asked, holds, strict=True):
        assert isinstance(read, ev.SendRead)
        assert not read.fence
        if ids is None:
            effects += machine.step(ev.ReadFailed(read.request, "hangs"))
            continue
        here = [entry for entry in ids if read.first <= entry <= read.last]
        if here:
            effects += machine.step(ev.FramesRead(read.request, frames(*here)))
        effects += machine.step(ev.ReadAnswered(read.request, read.last, (EntryRange(read.first, read.last),)))
    return effects


def end_of(record: Record, *holds: tuple[int, ...] | None, lac: int = -1) -> int:
    """The end where the bookies hold the same before and after the wait."""
    machine, asked = machine_of(record, lac)
    effects = answer(machine, asked, *holds)
    if machine.phase is EndPhase.SETTLE:
        assert effects == [ev.SetTimer("settle", 60_000)]
        asked = list(machine.step(ev.TimerFired("settle")))
        assert answer(machine, asked, *holds) == [ev.ReadMetadata(fresh=True)]
        effects = list(machine.step(ev.MetadataRead(record)))
    (finished,) = effects
    assert isinstance(finished, ev.FinishEnd)
    assert finished.metadata == record
    return finished.last


def test_an_entry_that_an_ack_quorum_holds_is_the_end() -> None:
    assert end_of(metadata(), (0, 1), (0, 1), (0,)) == 1
    assert end_of(metadata(), (0, 1), (0,), (0,)) == 0
    assert end_of(metadata(), (0, 1), (0, 1), None) == 1


def test_fewer_copies_than_an_ack_quorum_give_the_lac() -> None:
    assert end_of(metadata(), (0,), (), ()) == -1
    assert end_of(metadata(), (3,), None, None, lac=2) == 2
    assert end_of(metadata(3, 3, 3), (0,), (0,), ()) == -1
    assert end_of(metadata(3, 3, 1), (0,), (), ()) == 0


def test_an_entry_above_a_hole_does_not_count() -> None:
    assert end_of(metadata(), (0, 2), (0, 2), (0, 2)) == 0


def test_only_members_of_the_write_set_count() -> None:
    striped = metadata(4, 2, 2)  # entry 0 is on b0 and b1, entry 1 on b1 and b2
    assert end_of(striped, (0,), (0, 1), (1,), ()) == 1
    assert end_of(striped, (0,), (0, 1), (), (1,)) == 0
    assert end_of(striped, (), (), (0,), (0,)) == -1


def test_unknown_limbo_and_denials_count_for_nothing() -> None:
    machine, asked = machine_of(metadata())
    requests = [read.request for read in asked if isinstance(read, ev.SendRead)]
    machine.step(ev.FramesRead(requests[0], frames(0)))
    machine.step(ev.ReadAnswered(requests[0], 9, (EntryRange(1, 9),)))
    machine.step(ev.ReadAnswered(requests[1], 9, unknown=(EntryRange(0, 9),), detail="LIMBO"))
    assert machine.step(ev.ReadAnswered(requests[2], 9, (EntryRange(0, 9),))) == [ev.FinishEnd(metadata(), -1)]


@pytest.mark.rule("P5")
def test_a_copy_with_a_bad_digest_counts_for_nothing() -> None:
    machine, asked = machine_of(metadata())
    requests = [read.request for read in asked if isinstance(read, ev.SendRead)]
    flipped = bytearray(frames(0))
    flipped[-1] ^= 1
    assert machine.step(ev.FramesRead(requests[0], memoryview(bytes(flipped)))) == [ev.CancelRead(requests[0])]
    assert machine.step(ev.FramesRead(requests[1], frames(11))) == [ev.CancelRead(requests[1])], "nobody asked for it"
    machine.step(ev.FramesRead(requests[2], frames(0)))
    assert machine.step(ev.ReadFailed(requests[2], "breaks off")) == [ev.FinishEnd(metadata(), -1)]


def test_an_answer_that_is_too_long_is_cut() -> None:
    machine, asked = machine_of(metadata(), bytes_max=10)
    request = next(read.request for read in asked if isinstance(read, ev.SendRead))
    large = frames(0, payload=bytes(FRAME_BYTES_MAX // 2))
    assert machine.step(ev.FramesRead(request, large)) == []
    assert machine.step(ev.FramesRead(request, frames(1, payload=bytes(FRAME_BYTES_MAX // 2)))) == [
        ev.CancelRead(request)
    ]


def test_a_bookie_that_stops_early_is_asked_for_the_rest_but_not_for_ever() -> None:
    machine, asked = machine_of(metadata(1, 1, 1), entries_max=100)
    (read,) = asked
    for entry in range(ANSWERS_MAX):
        assert isinstance(read, ev.SendRead)
        assert (read.first, read.last) == (entry, 99)
        machine.step(ev.FramesRead(read.request, frames(entry)))
        (read,) = machine.step(ev.ReadAnswered(read.request, entry))
    assert read == ev.SetTimer("settle", 60_000)
    (again,) = machine.step(ev.TimerFired("settle"))
    assert isinstance(again, ev.SendRead)
    assert (again.first, again.last) == (0, ANSWERS_MAX - 1)


def test_an_answer_without_progress_ends_the_bookie() -> None:
    machine, asked = machine_of(metadata(1, 1, 1))
    (read,) = asked
    assert isinstance(read, ev.SendRead)
    assert machine.step(ev.ReadAnswered(read.request, -1)) == [ev.FinishEnd(metadata(1, 1, 1), -1)]


def checked(record: Record, **options: int) -> QuorumEnd:
    """A machine that waits for the record after the wait."""
    machine, asked = machine_of(record, **options)
    answer(machine, asked, (0,), (0,), ())
    answer(machine, list(machine.step(ev.TimerFired("settle"))), (0,), (0,), ())
    assert machine.phase is EndPhase.CHECK
    return machine


def test_a_record_that_changes_in_every_round_gives_the_lac() -> None:
    machine = checked(metadata(), rounds_max=1)
    moved = replace(metadata(), version=1)
    assert machine.step(ev.MetadataRead(moved)) == [ev.FinishEnd(moved, -1)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_ledger_that_was_closed_ends_at_its_last_entry_and_one_in_recovery_at_its_lac(when: str) -> None:
    closed, recovered = metadata().value.closed_at(7, 70), metadata().value.in_recovery()
    for value, last in ((closed, 7), (recovered, -1)):
        record = Versioned(value, 2)
        effects = machine_of(record)[1] if when == "before" else checked(metadata()).step(ev.MetadataRead(record))
        assert effects == [ev.FinishEnd(record, last)]


def test_there_is_nothing_above_the_greatest_id() -> None:
    assert machine_of(metadata(), ENTRY_ID_MAX)[1] == [ev.FinishEnd(metadata(), ENTRY_ID_MAX)]


def test_entries_below_the_last_fragment_are_confirmed() -> None:
    fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(5, ("b3", "b1", "b2")))
    record = Versioned(replace(metadata().value, fragments=fragments), 4)
    machine, asked = machine_of(record)
    assert [(read.bookie, read.first) for read in asked if isinstance(read, ev.SendRead)] == [
        ("b3", 5),
        ("b1", 5),
        ("b2", 5),
    ]
    assert answer(machine, asked, (), (), ()) == [ev.FinishEnd(record, 4)]


def test_an_entry_that_is_not_there_after_the_wait_is_not_shown() -> None:
    machine, asked = machine_of(metadata())
    answer(machine, asked, (0, 1), (0, 1), ())
    asked = list(machine.step(ev.TimerFired("settle")))
    assert answer(machine, asked, (0, 1), (0,), ()) == [ev.ReadMetadata(fresh=True)]
    assert machine.step(ev.MetadataRead(metadata())) == [ev.FinishEnd(metadata(), 0)]
