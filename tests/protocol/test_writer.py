# SPDX-License-Identifier: Apache-2.0
"""The writer machine, event by event: also where bookies or answers are missing, with delayed changes, degraded writes,
and the end of every wait."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.entries.frame import decode_frame
from bk_core.errors import (
    BookKeeperError,
    MetadataConflictError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    Outcome,
    QuorumTimeoutError,
)
from bk_core.model import Fragment, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.writer import LedgerWrite
from bk_core.wire.lane.reasons import Reason
from tests.protocol.kit import acked, append, batch, digester, metadata, of, writer


def test_each_frame_carries_the_lac_and_length_of_its_moment() -> None:
    machine = writer()
    append(machine, b"aa", b"bbb")
    acked(machine, 0, 1)
    acked(machine, 1, 1)
    second = decode_frame(append(machine, b"c")[0].frame, digester=digester(), verify_digests=True)
    assert (second.first_entry_id, second.lac, second.length_before) == (2, 1, 5)


def fail_bookie(machine: LedgerWrite, index: int) -> list[object]:
    session = machine.delivery.lanes[index].session
    return list(machine.step(ev.SessionEnded(index, session, 0, Reason.READ_ONLY)))


def hinted(machine: LedgerWrite) -> list[str]:
    return [hint.bookie for hint in of(machine.step(ev.TimerFired("lac")), ev.SendLac)]


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
    written = of(machine.step(ev.BookiesRead(("b0", "b1", "b2", "b3"))), ev.WriteMetadata)[0]
    assert written.metadata.fragments == (Fragment(0, ("b0", "b1", "b2")), Fragment(1, ("b0", "b3", "b2")))
    machine.step(ev.MetadataWritten(Versioned(written.metadata, 1)))
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
    machine.step(ev.SessionBroken(2, session))
    machine.step(ev.TimerFired("budget:2"))
    written = of(machine.step(ev.BookiesRead(("b0", "b1", "b2", "b3"))), ev.WriteMetadata)[0]
    assert written.metadata.fragments == (Fragment(0, ("b0", "b1", "b2")), Fragment(1, ("b0", "b1", "b3")))
    machine.step(ev.MetadataWritten(Versioned(written.metadata, 1)))
    assert hinted(machine) == ["b0", "b1"]


def test_an_idle_broken_session_costs_nothing_until_the_next_append() -> None:
    machine = writer()
    session = machine.delivery.lanes[0].session
    assert machine.step(ev.SessionBroken(0, session)) == []
    frames = append(machine, b"0")
    assert [frame.index for frame in frames] == [0, 1, 2]


@pytest.mark.rule("P9")
def test_an_idle_writer_hints_its_lac_once() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 0, 1)
    assert ev.SetTimer("lac", 5) in acked(machine, 1, 1)
    assert [hint.bookie for hint in of(machine.step(ev.TimerFired("lac")), ev.SendLac)] == ["b0", "b1", "b2"]
    assert machine.step(ev.TimerFired("lac")) == []


def fails(machine: LedgerWrite, index: int, reason: Reason = Reason.STORAGE_FAILED) -> list[Any]:
    lane = machine.delivery.lanes[index]
    return list(machine.step(ev.SessionEnded(index, lane.session, lane.acked, reason)))


def change_is_written(machine: LedgerWrite, effects: list[Any]) -> list[Any]:
    (write,) = of(effects, ev.WriteMetadata)
    return list(machine.step(ev.MetadataWritten(Versioned(write.metadata, write.version + 1))))


def error_of(effects: list[Any]) -> BookKeeperError:
    (failed,) = of(effects, ev.Fail)
    assert isinstance(failed.error, BookKeeperError)
    return failed.error


ALL = ("b0", "b1", "b2", "b3", "b4", "b5")


def test_a_bookie_that_became_read_only_is_replaced_without_delay() -> None:
    machine = writer(delay_ensemble_change=True)
    append(machine, b"0")
    assert of(fails(machine, 0, Reason.READ_ONLY), ev.ReadBookies)


def test_a_striped_ledger_needs_its_change_as_soon_as_one_write_set_does() -> None:
    machine = writer(3, 2, 2, delay_ensemble_change=True)
    append(machine, b"0")
    assert of(fails(machine, 0), ev.ReadBookies)


def test_a_degraded_writer_ends_when_an_ack_quorum_is_lost() -> None:
    machine = writer(allow_degraded_writes=True)
    append(machine, b"0")
    fails(machine, 0)
    machine.step(ev.BookiesRead(()))
    assert of(fails(machine, 1), ev.ReadBookies), "it looks at once, whatever it waits for"
    assert isinstance(error_of(list(machine.step(ev.BookiesRead(())))), NotEnoughBookiesError)


def test_a_degraded_writer_takes_the_spares_there_are() -> None:
    machine = writer(5, 5, 2, allow_degraded_writes=True)
    append(machine, b"0")
    fails(machine, 0)
    fails(machine, 1)
    effects = change_is_written(machine, list(machine.step(ev.BookiesRead(ALL))))
    assert of(effects, ev.ReadBookies), "the second failure came during the first change"
    machine.step(ev.BookiesRead(ALL[1:]))
    assert machine.delivery.ensemble == ("b5", "b1", "b2", "b3", "b4")
    assert machine.change is None
    acked(machine, 0, 1)
    assert of(acked(machine, 2, 1), ev.Confirm) == [ev.Confirm(0)]


def test_bookies_that_stall_together_are_replaced_in_one_change() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 2, 1)
    effects: list[Any] = []
    for _ in range(4):
        effects += machine.step(ev.TimerFired("adds"))
    assert of(effects, ev.ReadBookies) == [ev.ReadBookies()]
    assert machine.change is not None
    assert machine.change.indices == (0, 1)


def test_a_bookie_that_fails_during_a_change_is_replaced_once_however_long_that_takes() -> None:
    machine = writer()
    append(machine, b"0")
    fails(machine, 0)
    fails(machine, 1)
    acked(machine, 2, 1)
    for _ in range(10):
        machine.step(ev.TimerFired("adds"))
    effects = change_is_written(machine, list(machine.step(ev.BookiesRead(ALL))))
    assert of(effects, ev.ReadBookies), "the second failure came during the first change"
    assert of(machine.step(ev.BookiesRead(ALL)), ev.WriteMetadata), "one spare is enough for one bookie"


def test_quarantined_bookies_are_taken_when_nothing_else_is_left() -> None:
    machine = writer()
    append(machine, b"0")
    fails(machine, 0)
    effects = list(machine.step(ev.BookiesRead(ALL, quarantined=("b0", "b3", "b4"))))
    assert of(effects, ev.WriteMetadata)[0].metadata.last_fragment.ensemble == ("b5", "b1", "b2")
    machine = writer()
    append(machine, b"0")
    fails(machine, 0)
    effects = list(machine.step(ev.BookiesRead(ALL[:4], quarantined=("b0", "b3"))))
    assert of(effects, ev.WriteMetadata)[0].metadata.last_fragment.ensemble == ("b3", "b1", "b2")


@pytest.mark.rule("P8")
def test_a_replaced_bookie_that_lacks_entries_of_its_own_fragment_is_marked() -> None:
    machine = writer()
    append(machine, b"0")
    acked(machine, 1, 1)
    acked(machine, 2, 1)
    append(machine, b"1")
    fails(machine, 0)
    change_is_written(machine, list(machine.step(ev.BookiesRead(ALL))))
    for index, frames in ((0, 1), (1, 2), (2, 2)):
        acked(machine, index, frames)
    assert ev.MarkUnderreplicated(("b0",)) in machine.step(ev.Close())


@pytest.mark.rule("MUST12")
def test_an_entry_that_finds_no_quorum_in_time_ends_the_writer_though_metadata_never_answers() -> None:
    machine = writer(add_timeout_ms=400, add_quorum_timeout_ms=1_000)  # a tick is 100 ms
    append(machine, b"0")
    fails(machine, 0)
    for _ in range(10):
        assert of(machine.step(ev.TimerFired("adds")), ev.Fail) == []
    error = error_of(list(machine.step(ev.TimerFired("adds"))))
    assert isinstance(error, QuorumTimeoutError)
    assert error.outcome is Outcome.UNKNOWN
    assert "add_quorum_timeout_ms=1000" in str(error)
    assert machine.step(ev.BookiesRead(ALL)) == []


@pytest.mark.rule("MUST12")
def test_the_deadline_is_that_of_each_entry_and_not_of_all() -> None:
    machine = writer(add_timeout_ms=400, add_quorum_timeout_ms=1_000)
    for turn in range(40):
        append(machine, b"0")
        for index in (1, 2):
            if turn >= 2:
                acked(machine, index, turn - 1)  # never all that was pushed
        assert of(machine.step(ev.TimerFired("adds")), ev.Fail) == []
        acked(machine, 0, turn + 1)


@pytest.mark.rule("MUST12")
def test_ensemble_changes_without_a_confirmed_entry_are_bounded() -> None:
    machine = writer(ensemble_changes_max=3)
    append(machine, b"0")
    effects = fails(machine, 0)
    for _ in range(3):
        assert of(effects, ev.ReadBookies)
        change_is_written(machine, list(machine.step(ev.BookiesRead(tuple(f"c{i}" for i in range(9))))))
        effects = fails(machine, 0)
    assert isinstance(error_of(effects), QuorumTimeoutError)


@pytest.mark.rule("MUST12")
def test_a_record_that_always_changes_meanwhile_ends_the_close() -> None:
    machine = writer(metadata_retries_max=3)
    effects = list(machine.step(ev.Close()))
    assert of(effects, ev.WriteMetadata)
    for turn in range(3):
        effects = list(machine.step(ev.MetadataConflicted()))
        assert effects == ([ev.ReadMetadata()] if turn == 0 else [ev.SetTimer("metadata", 250)])
        assert of(machine.step(ev.MetadataRead(metadata(version=turn + 1))), ev.WriteMetadata)
    assert isinstance(error_of(list(machine.step(ev.MetadataConflicted()))), MetadataConflictError)


def test_a_ledger_deleted_while_it_is_written_ends_its_writer() -> None:
    machine = writer()
    append(machine, b"0")
    assert isinstance(error_of(fails(machine, 0, Reason.DELETED)), NoSuchLedgerError)
    machine = writer()
    machine.step(ev.Close())
    effects = list(machine.step(ev.MetadataCallFailed(NoSuchLedgerError("gone"))))
    assert isinstance(error_of(effects), NoSuchLedgerError)
    assert of(effects, ev.FailClose)


@pytest.mark.parametrize("frames", [3, 0])
def test_a_bookie_that_acks_what_it_was_not_sent_or_takes_acks_back_is_replaced(frames: int) -> None:
    machine = writer()
    append(machine, b"0")
    append(machine, b"1")
    acked(machine, 0, 1)
    effects = acked(machine, 0, frames)
    assert of(effects, ev.DetachSession)
    assert of(effects, ev.ReadBookies)
    assert of(effects, ev.Confirm) == []
    assert acked(machine, 0, 2) == [], "nothing it says counts any more"


def test_changes_with_confirmed_entries_in_between_are_not_counted_and_the_next_delay_holds_again() -> None:
    machine = writer(ensemble_changes_max=1, delay_ensemble_change=True)
    for turn in range(3):
        append(machine, b"0")
        assert of(fails(machine, 0, Reason.READ_ONLY), ev.ReadBookies)
        change_is_written(machine, list(machine.step(ev.BookiesRead((f"c{turn}",)))))
        for index in range(3):
            acked(machine, index, machine.delivery.lanes[index].acked + 1)
        assert machine.idle
    assert of(fails(machine, 0), ev.ReadBookies) == []


def test_a_bookie_that_was_just_replaced_is_not_taken_back_before_an_entry_is_confirmed() -> None:
    machine = writer()
    append(machine, b"0")
    fails(machine, 0)
    change_is_written(machine, list(machine.step(ev.BookiesRead(ALL[:4]))))
    fails(machine, 0)
    assert isinstance(error_of(list(machine.step(ev.BookiesRead(ALL[:4])))), NotEnoughBookiesError)


def test_a_delayed_change_waits_until_an_ack_quorum_needs_it() -> None:
    machine = writer(delay_ensemble_change=True)
    append(machine, b"0")
    assert of(fails(machine, 0), ev.ReadBookies) == []
    acked(machine, 1, 1)
    assert of(acked(machine, 2, 1), ev.Confirm) == [ev.Confirm(0)]
    assert machine.retained_bytes == 0, "nothing is kept for a bookie that is not replaced"
    append(machine, b"1")
    assert of(fails(machine, 1), ev.ReadBookies) == [ev.ReadBookies()]
    effects = list(machine.step(ev.BookiesRead(ALL)))
    fragment = of(effects, ev.WriteMetadata)[0].metadata.last_fragment
    assert fragment.first_entry_id == 1
    assert not {"b0", "b1"} & set(fragment.ensemble), "both are replaced in one change"
    sent = of(change_is_written(machine, effects), ev.SendFrame)
    assert [frame.index for frame in sent] == [0, 1]


def test_a_degraded_writer_goes_on_looks_again_later_and_marks_what_is_missing() -> None:
    machine = writer(allow_degraded_writes=True)
    append(machine, b"0")
    fails(machine, 0)
    effects = list(machine.step(ev.BookiesRead(("b1", "b2"))))
    assert ev.SetTimer("spares", 5_000) in effects
    acked(machine, 1, 1)
    assert of(acked(machine, 2, 1), ev.Confirm) == [ev.Confirm(0)]
    assert list(machine.step(ev.TimerFired("spares"))) == [], "an idle writer does not look"
    effects = list(machine.step(ev.Append(batch(b"1"))))
    assert of(effects, ev.ReadBookies), "the next entry does"
    effects = list(machine.step(ev.BookiesRead(ALL[:4])))
    change_is_written(machine, effects)
    assert machine.delivery.ensemble == ("b3", "b1", "b2")
    for index, frames in ((0, 1), (1, 2), (2, 2)):
        acked(machine, index, frames)
    effects = list(machine.step(ev.Close()))
    assert of(effects, ev.MarkUnderreplicated) == [ev.MarkUnderreplicated(("b0",))], "it lacks entry 0"
