# SPDX-License-Identifier: Apache-2.0
"""Compaction: what the machine answers to trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import (
    BookKeeperError,
    IntegrityError,
    LogRecreatedError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.compaction import (
    CompactionLimits,
    Content,
    content_problem,
)
from bk_core.logs.head import NewExtent
from bk_core.logs.machines import compaction as machine
from tests.kit.snapshot import fingerprint_of
from tests.kit.transitions import members
from tests.logs.test_compaction_runs import UUID, extents_of
from tests.logs.test_transitions import Search, table_of

RUN = tuple(extents_of(3, 4))
NEW = NewExtent(
    ledger_id=9, entry_count=2, size_bytes=7, created_ms=1, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
)
GOOD = Content(2, 7, 1, 2)
LISTED = machine.ExtentsListed(UUID, RUN, CompactionLimits())


def failed(error: BookKeeperError) -> machine.RequestFailed:
    return machine.RequestFailed(error)


def steps(compaction: machine.Compaction, *events: machine.Event) -> machine.Effects:
    """The effects of the last event."""
    effects: machine.Effects = []
    for event in events:
        effects = compaction.step(event)
    return effects


def begun(*events: machine.Event) -> machine.Compaction:
    compaction = machine.Compaction(CompactionLimits())
    steps(compaction, machine.Start(), LISTED, *events)
    return compaction


def test_a_run_is_copied_verified_listed_and_the_log_is_looked_at_again() -> None:
    compaction = machine.Compaction(CompactionLimits())
    assert steps(compaction, machine.Start()) == [machine.ListExtents()]
    assert steps(compaction, LISTED) == [machine.CopyRun(RUN, 1)]
    assert steps(compaction, machine.RunCopied(NEW, GOOD)) == [machine.VerifyCopy(NEW)]
    assert steps(compaction, machine.CopyVerified(GOOD)) == [machine.ListCopy(RUN, NEW)]
    merged = replace(RUN[0], ledger_id=9, entry_count=2, size_bytes=7)
    assert steps(compaction, machine.CopyListed(merged)) == [machine.ListExtents()]
    done = machine.Compacted((9,), 2, 2, 7)
    assert steps(compaction, replace(LISTED, extents=[merged])) == [machine.Finish(done)]
    assert steps(compaction, LISTED) == []


@pytest.mark.rule("N7")
@pytest.mark.parametrize("content", [Content(1, 7, 1, 2), Content(2, 6, 1, 2)])
def test_a_copy_of_other_entries_than_the_log_lists_is_dropped(content: Content) -> None:
    drop, fail = steps(begun(), machine.RunCopied(NEW, content))
    assert drop == machine.DropCopy(9)
    assert isinstance(fail, machine.Fail)
    assert isinstance(fail.error, IntegrityError)


@pytest.mark.rule("N7")
@pytest.mark.parametrize("content", [Content(2, 7, 1, 3), Content(2, 7, 0, 2), Content(1, 7, 1, 2)])
def test_a_copy_that_reads_back_differently_is_dropped(content: Content) -> None:
    drop, fail = steps(begun(machine.RunCopied(NEW, GOOD)), machine.CopyVerified(content))
    assert drop == machine.DropCopy(9)
    assert isinstance(fail, machine.Fail)
    assert isinstance(fail.error, IntegrityError)


def test_the_bytes_of_a_part_of_a_ledger_are_not_compared() -> None:
    part = (replace(RUN[0], first_entry_id=5), RUN[1])
    assert content_problem(part, Content(2, 99)) is None
    assert content_problem(part, Content(3, 7)) is not None


@pytest.mark.rule("N4")
def test_a_copy_is_never_deleted_once_it_may_be_listed() -> None:
    for outcome in Outcome:
        conflict = PublishConflictError("others were faster", outcome=outcome)
        effects = steps(begun(machine.RunCopied(NEW, GOOD), machine.CopyVerified(GOOD)), failed(conflict))
        if outcome is Outcome.NOT_APPLIED:
            assert effects == [machine.ListExtents()]  # vacuum finds the copy
        else:
            assert effects == [machine.Fail(conflict)]


def test_ledgers_that_vanish_during_the_copy_are_looked_for_in_the_log_before_they_count_as_lost() -> None:
    gone = NoSuchLedgerError("gone")
    compaction = begun()
    assert steps(compaction, failed(gone)) == [machine.ListExtents()]
    assert steps(compaction.copy(), replace(LISTED, extents=[])) == [machine.Finish(machine.Compacted())]
    assert steps(compaction, LISTED, failed(gone)) == [machine.Fail(gone)]


def test_others_may_change_the_log_so_often_and_no_more() -> None:
    conflict = PublishConflictError("others were faster")
    compaction = begun()
    for _ in range(machine.DISTURBANCES_MAX):
        steps(compaction, machine.RunCopied(NEW, GOOD), machine.CopyVerified(GOOD))
        assert steps(compaction, failed(conflict)) == [machine.ListExtents()]
        steps(compaction, LISTED)
    steps(compaction, machine.RunCopied(NEW, GOOD), machine.CopyVerified(GOOD))
    assert steps(compaction, failed(conflict)) == [machine.Fail(conflict)]


def test_another_log_of_the_same_name_ends_it() -> None:
    compaction = begun(failed(NoSuchLedgerError("gone")))
    (fail,) = steps(compaction, replace(LISTED, log_uuid="another"))
    assert isinstance(fail, machine.Fail)
    assert isinstance(fail.error, LogRecreatedError)


def every_event(compaction: machine.Compaction) -> list[machine.Event]:
    """One of each kind and more where what it carries matters."""
    merged = replace(RUN[0], ledger_id=9, entry_count=2, size_bytes=7)
    others = extents_of(3, 4, 600, 3, 4, first=20)
    return [
        machine.Start(),
        LISTED,
        replace(LISTED, extents=()),
        replace(LISTED, extents=others, limits=CompactionLimits(ledger_bytes_max=1200)),  # two runs
        replace(LISTED, log_uuid="another"),
        machine.RunCopied(NEW, GOOD),
        machine.RunCopied(NEW, Content(1)),
        machine.CopyVerified(GOOD),
        machine.CopyVerified(Content(1)),
        machine.CopyListed(merged),
        *(
            machine.RequestFailed(kind("away", outcome=outcome))
            for kind in (NoSuchLedgerError, PublishConflictError, MetadataCorruptError, MetadataUnavailableError)
            for outcome in Outcome
        ),
    ]


@pytest.mark.rule("N4")
def test_every_event_in_every_state_leads_where_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DISTURBANCES_MAX", 1)
    firsts = [machine.Compaction(CompactionLimits()), machine.Compaction(CompactionLimits(copy_bytes_max=1))]

    def decides(compaction: machine.Compaction) -> object:
        """What the next step depends on; what was done and counted does not matter."""
        values = {**vars(compaction), "result": None, "_copies": 0, "_weight": compaction._weight > 0}
        return fingerprint_of(list(values.values()))

    found = Search(firsts, every_event, members(machine.Effect), ("DONE", "FAILED"), key=decides)
    kinds = {cls.__name__ for cls in members(machine.Event)}
    assert {(state, kind) for state, kind, _ in found.moves} == {
        (s.name, kind) for s in machine.MOVES for kind in kinds
    }
    assert found.pairs() == table_of(machine.MOVES)


def test_a_compaction_stops_after_the_bytes_it_may_copy() -> None:
    limits = CompactionLimits(ledger_bytes_max=200, copy_bytes_max=80)
    extents = extents_of(*[40] * 12)  # of 72: two runs of two fit
    compaction = machine.Compaction(limits)
    listed = replace(LISTED, extents=extents, limits=limits)
    (copying,) = steps(compaction, machine.Start(), listed)
    assert isinstance(copying, machine.CopyRun)
    content = Content(2, 80)
    steps(compaction, machine.RunCopied(NEW, content), machine.CopyVerified(content))
    (effect,) = steps(compaction, machine.CopyListed(replace(extents[0], entry_count=2)))
    assert isinstance(effect, machine.Finish)
