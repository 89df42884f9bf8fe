# SPDX-License-Identifier: Apache-2.0
"""What a writer does where bookies or answers are missing: delayed changes, degraded writes, and every wait's end."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import (
    BookKeeperError,
    MetadataConflictError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    Outcome,
    QuorumTimeoutError,
)
from bk_core.model import Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.writer import LedgerWrite
from bk_core.wire.lane.reasons import Reason
from tests.protocol.kit import acked, append, batch, metadata, of, writer


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
