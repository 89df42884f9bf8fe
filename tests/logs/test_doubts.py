# SPDX-License-Identifier: Apache-2.0
"""What an error says of a change whose compare-and-set got no answer: certainly not applied, or perhaps."""

from __future__ import annotations

import pytest

from bk_core.errors import (
    BookKeeperError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
    TransactionVersionRegressedError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.publication import Transaction, recorded
from bk_core.logs.machines.upkeep import Compact, Trim
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import LogHead, Published, PublishId
from bk_core.model import Versioned
from tests.kit.sequences import Told
from tests.logs.change_kit import (
    EMPTY,
    LOG,
    LOST,
    NONCE,
    changing,
    extent,
    head_read,
    publication,
    published,
    run,
    vacuuming,
    writing,
)


@pytest.mark.rule("N4", "N5")
def test_a_refused_version_is_certain_while_the_record_would_remember_it() -> None:
    later = recorded(None, Transaction("app", 5), PublishId.txn("app", 5), 1, 1)
    for moved, outcome in ((1, Outcome.NOT_APPLIED), (127, Outcome.NOT_APPLIED), (128, Outcome.UNKNOWN)):
        told = writing(publication(1, transaction=Transaction("app", 4)), 7)
        read = head_read(published(EMPTY, 9, "other"), 7 + moved, Versioned(later, 3))
        error = run(told, LOST, None, read)
        assert isinstance(error, TransactionVersionRegressedError)
        assert error.outcome is outcome, moved


@pytest.mark.rule("N7")
def test_a_compaction_whose_answer_was_lost_may_have_been_there_and_be_gone_again() -> None:
    head = published(EMPTY, 1, "a")
    (old,) = head.tail
    compact = Compact((old,), extent(2), NONCE)
    told = changing(compact)
    write = run(told, head_read(head, 7), None)
    assert isinstance(write, ask.WriteHead)
    replaced = commit.replace_extents(write.head, write.head.tail, extent(3), nonce=NONCE).head
    assert run(told, LOST, None, head_read(replaced, 9)).outcome is Outcome.UNKNOWN

    told = changing(compact)
    run(told, head_read(head, 7), None)
    run(told, LOST, None, head_read(head, 8), None)
    assert run(told, BookKeeperError("broken")).outcome is Outcome.NOT_APPLIED, "the first one was not applied"


def compacting(head: LogHead, version: int = 7) -> Told:
    """The answer of its compare-and-set with this head was lost."""
    told = changing(Compact(head.sealed_tail[:1], extent(2), NONCE))
    run(told, head_read(head, version), None, LOST, None)
    assert told.request == ask.ForLogs({LOG: ask.ReadHead()}, sync=True)
    return told


@pytest.mark.rule("N7")
def test_a_compaction_is_certain_only_after_it_saw_its_run_there_in_a_later_head() -> None:
    head = published(EMPTY, 1, "a")
    gone = PublishConflictError("the new ledger does not exist")
    for version, outcome in ((7, Outcome.UNKNOWN), (8, Outcome.NOT_APPLIED)):
        assert run(compacting(head), head_read(head, version), gone).outcome is outcome, version
    trimmed = commit.trim(published(head, 5, "b"), 2, nonce=NONCE).head
    assert run(compacting(head), head_read(trimmed, 10)).outcome is Outcome.UNKNOWN


@pytest.mark.rule("N7")
def test_a_trim_to_beyond_the_end_may_have_been_done_though_the_end_moved_on() -> None:
    head = published(EMPTY, 1, "a")
    grown = published(head, 2, "b")
    done = commit.trim(head, 100, nonce=NONCE).head
    assert done.start_offset == 2
    for later, outcome in ((published(done, 2, "b"), Outcome.UNKNOWN), (grown, Outcome.NOT_APPLIED)):
        told = changing(Trim(100, NONCE))
        write = run(told, head_read(head, 7), LOST, None, head_read(later, 9))
        assert isinstance(write, ask.WriteHead)
        assert write.head.start_offset == 4, "it is wanted still"
        assert run(told.copy(), BookKeeperError("broken")).outcome is outcome
        run(told, LOST, None, head_read(published(later, 3, "c"), 10))  # the second was not applied
        assert run(told, BookKeeperError("broken")).outcome is outcome


@pytest.mark.rule("N4", "N6")
def test_a_publish_whose_ledgers_are_gone_is_certain_once_the_head_moved_on() -> None:
    gone = NoSuchLedgerError("vacuumed")
    for read, outcome in (
        (head_read(EMPTY, 7), Outcome.UNKNOWN),
        (head_read(published(EMPTY, 9, "other"), 8), Outcome.NOT_APPLIED),
    ):
        told = writing(publication(1), 7)
        run(told, LOST, None, read)
        assert run(told, gone).outcome is outcome


@pytest.mark.rule("N4")
def test_a_publish_that_was_overwritten_before_its_answer_was_looked_for_is_done() -> None:
    told = writing(publication(1), 7)
    ours = published(EMPTY, 1, "j")
    over = commit.overwrite(ours, [extent(9)], PublishId.job("other"), now_ms=1, nonce=NONCE).head
    done = run(told, LOST, None, head_read(over, 9))
    assert isinstance(done, Published)
    assert (done.base_offset, done.rows) == (0, 2)


@pytest.mark.rule("N4", "N5")
def test_the_record_of_a_transaction_tells_for_longer_than_the_head_but_only_if_it_is_there() -> None:
    earlier = recorded(None, Transaction("app", 3), PublishId.txn("app", 3), 1, 1)
    wanted = Transaction("app", 4)
    for record, kind in ((Versioned(earlier, 3), ask.CheckLedgers), (None, BookKeeperError)):
        told = writing(publication(1, transaction=wanted), 7)
        then = run(told, LOST, None, head_read(published(EMPTY, 9, "other"), 7 + 128, record))
        assert isinstance(then, kind)
        if isinstance(then, BookKeeperError):
            assert then.outcome is Outcome.UNKNOWN, "a vacuum may have deleted the record"


@pytest.mark.rule("N6")
def test_a_vacuum_that_fails_says_whether_it_did_anything() -> None:
    broken = BookKeeperError("broken", outcome=Outcome.UNKNOWN)
    told = vacuuming()
    told.tell((2,))
    assert run(told.copy(), broken).outcome is Outcome.NOT_APPLIED
    run(told, head_read(EMPTY, 5), (), None)
    broken = BookKeeperError("broken", outcome=Outcome.NOT_APPLIED)
    assert run(told, broken).outcome is Outcome.UNKNOWN, "it is condemned"
