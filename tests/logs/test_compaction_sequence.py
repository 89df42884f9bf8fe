# SPDX-License-Identifier: Apache-2.0
"""Compaction: what the sequence asks, and how it answers to trouble."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import (
    BookKeeperError,
    IntegrityError,
    LogRecreatedError,
    MetadataCorruptError,
    NoSuchEntryError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines import compaction as sequence
from bk_core.logs.machines.compaction import Compacted, Compaction
from bk_core.logs.model.compaction import (
    CompactionLimits,
    Content,
    content_problem,
)
from bk_core.model import Versioned
from tests.kit.extents import new_extent
from tests.kit.sequences import Told
from tests.logs.change_kit import EMPTY, LOG, LOST, NONCE, head_read
from tests.logs.test_compaction_runs import UUID, extents_of

RUN = tuple(extents_of(3, 4))
NEW = new_extent(9, 2, 7)
GOOD = Content(2, 7, 1, 2)
COPIED = ask.RunCopied(NEW, GOOD)
LISTED = ask.ExtentsListed(UUID, RUN, CompactionLimits())
HEAD = replace(EMPTY, tail=RUN, next_offset=2)
MERGED = replace(RUN[0], ledger_id=9, entry_count=2, size_bytes=7)


def steps(told: Told, *answers: Any) -> Any:
    """What follows the last answer."""
    now: Any = None
    for answer in answers:
        now = told.tell(answer)
    return now


def begun(*answers: Any, limits: CompactionLimits | None = None) -> Told:
    """It copies its first run, or has been answered so since."""
    told = Told(lambda: Compaction(LOG, limits or CompactionLimits(), NONCE))
    steps(told, LISTED, *answers)
    return told


def listing(told: Told) -> Told:
    """Its compare-and-set is under way."""
    steps(told, COPIED, GOOD, {LOG: head_read(HEAD)})
    assert isinstance(told.log_requests[LOG], ask.CheckLedgers)
    assert isinstance(told.tell({LOG: None}), ask.WriteHeads)
    return told


def test_a_run_is_copied_verified_listed_and_the_log_is_looked_at_again() -> None:
    told = Told(lambda: Compaction(LOG, CompactionLimits(), NONCE))
    assert told.request == ask.ListExtents()
    assert told.tell(LISTED) == ask.CopyRun(RUN, 1)
    assert told.tell(COPIED) == ask.ReadCopy(NEW)
    assert told.tell(GOOD) == ask.ForLogs({LOG: ask.ReadHead()}, sync=True)
    told.tell({LOG: head_read(HEAD, 5)})
    write = told.tell({LOG: None})
    assert isinstance(write, ask.WriteHeads)
    assert [(each.ledger_id, each.entry_count) for each in write.writes[LOG].head.tail] == [(9, 2)]
    assert told.tell(None) == ask.ListExtents()
    assert told.tell(replace(LISTED, extents=[MERGED])) == Compacted((9,), 2, 2, 7)


@pytest.mark.rule("N7")
@pytest.mark.parametrize("content", [Content(1, 7, 1, 2), Content(2, 6, 1, 2)])
def test_a_copy_of_other_entries_than_the_log_lists_is_dropped(content: Content) -> None:
    told = begun(ask.RunCopied(NEW, content))
    assert told.request == ask.DropCopy(9)
    assert isinstance(told.tell(None), IntegrityError)


@pytest.mark.rule("N7")
@pytest.mark.parametrize("content", [Content(2, 7, 1, 3), Content(2, 7, 0, 2), Content(1, 7, 1, 2)])
def test_a_copy_that_reads_back_differently_is_dropped(content: Content) -> None:
    told = begun(COPIED)
    assert told.tell(content) == ask.DropCopy(9)
    assert isinstance(told.tell(BookKeeperError("it stays, then")), IntegrityError)


def test_a_copy_that_cannot_be_read_back_is_dropped_unless_it_is_gone() -> None:
    unreadable = BookKeeperError("no bookie answers")
    told = begun(COPIED)
    assert told.tell(unreadable) == ask.DropCopy(9)
    assert told.tell(None).what == unreadable.what
    assert begun(COPIED).tell(NoSuchLedgerError("a vacuum took it for an orphan")) == ask.ListExtents()


def test_the_bytes_of_a_part_of_a_ledger_are_not_compared() -> None:
    part = (replace(RUN[0], first_entry_id=5), RUN[1])
    assert content_problem(part, Content(2, 99)) is None
    assert content_problem(part, Content(3, 7)) is not None


@pytest.mark.rule("N4")
def test_a_copy_is_never_deleted_once_it_may_be_listed() -> None:
    conflict = PublishConflictError("others were faster")
    assert listing(begun()).tell(conflict) == ask.ListExtents()  # vacuum finds the copy
    told = listing(begun())
    steps(told, LOST, None)
    error = told.tell({LOG: conflict})
    assert isinstance(error, PublishConflictError)
    assert error.outcome is Outcome.UNKNOWN


def test_ledgers_that_vanish_during_the_copy_are_looked_for_in_the_log_before_they_count_as_lost() -> None:
    for gone in (NoSuchLedgerError("gone"), NoSuchEntryError("gone")):
        told = begun()
        assert told.tell(gone) == ask.ListExtents()
        assert told.copy().tell(replace(LISTED, extents=[])) == Compacted()
        assert steps(told, LISTED, gone).what == "gone"


def test_a_list_that_others_change_while_it_is_read_is_read_again() -> None:
    told = begun(NoSuchLedgerError("gone"))
    for moved in (MetadataCorruptError("a page is gone"), PublishConflictError("a page is gone")):
        assert told.tell(moved) == ask.ListExtents()
    assert steps(told, BookKeeperError("broken")).what == "broken"


def test_others_may_change_the_log_so_often_and_no_more() -> None:
    conflict = PublishConflictError("others were faster")
    told = begun()
    for _ in range(sequence.DISTURBANCES_MAX):
        assert listing(told).tell(conflict) == ask.ListExtents()
        told.tell(LISTED)
    assert listing(told).tell(conflict).what == conflict.what


def test_a_copy_that_was_listed_begins_the_count_anew() -> None:
    told = begun()
    for _ in range(2 * sequence.DISTURBANCES_MAX):
        assert listing(told).tell(PublishConflictError("others were faster")) == ask.ListExtents()
        told.tell(LISTED)
        assert listing(told).tell(None) == ask.ListExtents()
        told.tell(LISTED)


def test_another_log_of_the_same_name_ends_it() -> None:
    told = begun(NoSuchLedgerError("gone"))
    assert isinstance(told.tell(replace(LISTED, log_uuid="another")), LogRecreatedError)


def test_a_compaction_stops_after_the_bytes_it_may_copy() -> None:
    limits = CompactionLimits(ledger_bytes_max=200, copy_bytes_max=80)
    extents = extents_of(*[40] * 12)  # of 72: two runs of two fit
    told = Told(lambda: Compaction(LOG, limits, NONCE))
    copying = told.tell(replace(LISTED, extents=extents, limits=limits))
    assert isinstance(copying, ask.CopyRun)
    new, content = replace(NEW, size_bytes=80), Content(2, 80)
    head = Versioned(replace(EMPTY, tail=tuple(extents), next_offset=12), 0)
    steps(told, ask.RunCopied(new, content), content, {LOG: ask.HeadRead(head)}, {LOG: None})
    assert told.tell(None) == Compacted((9,), 2, 2, 80)
