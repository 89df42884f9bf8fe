# SPDX-License-Identifier: Apache-2.0
"""The sequences of a log, given every answer to every request: a search from the first request on, over heads as
friends and rivals may write them. What may follow what stands in tables, which are those of docs/protocol.md: each row
is seen, and nothing else.

A sequence cannot be copied. It is run again with the answers so far, and two runs are at the same point if all
functions that wait are at the same line with the same values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from bk_core.errors import (
    BookKeeperError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines import compaction as compaction_sequence
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.compaction import Compaction
from bk_core.logs.machines.deletion import DeleteLog, VacuumDeleted
from bk_core.logs.machines.publication import Publish, PublishAmong, PublishOptions, fan_out_id
from bk_core.logs.machines.upkeep import Compact, Condemn, Trim, Vacuum
from bk_core.logs.model import paging
from bk_core.logs.model.compaction import CompactionLimits, Content
from bk_core.logs.model.deleted import DeletedLog, mark_of
from bk_core.logs.model.head import LogHead, LogTransactions, NewExtent, PublishId, Unlinked
from bk_core.logs.model.next_head import LedgerEnd, add_open_extent, condemn, publish
from bk_core.logs.model.unlinking import UnlinkedRecord
from bk_core.model import Fragment, Versioned
from tests.kit.extents import new_extent, open_extent
from tests.kit.sequences import Told
from tests.kit.transitions import members
from tests.logs.change_kit import AWAY, CONFLICT, EMPTY, LOG, LOST, head_read, publication, run
from tests.logs.test_compaction_runs import extents_of

Follows = Mapping[str, str]
"""Request → the requests that may come next, in any order; ``done`` and ``fails`` are the ends."""

CHANGE: Follows = {
    "ReadHead": "ReadPages ReadUnlinked CheckLedgers RecoverLedgers CreatePages WriteHeads Wait done fails",
    "ReadPages": "ReadPages CheckLedgers CreatePages WriteHeads Wait done fails",
    "ReadUnlinked": "ReadPages WriteHeads Wait done fails",
    "CheckLedgers": "ReadPages CreatePages WriteHeads Wait fails",
    "RecoverLedgers": "CheckLedgers Wait fails",
    "CreatePages": "WriteHeads Wait fails",
    "WriteHeads": "DropPages Wait done fails",
    "DropPages": "Wait fails",
    "Wait": "ReadHead",
}
VACUUM: Follows = {
    "ListOrphans": "ReadHead fails",
    "ReadHead": "ReadHead ReadUnlinked WriteHeads DeleteLedgers ListPages Wait fails",
    "ReadUnlinked": "WriteHeads DeleteLedgers ListPages DeleteUnlinked ListTransactions Wait done fails",
    "WriteHeads": "DeleteLedgers ListPages ReadHead DeleteUnlinked DeletePages Wait fails",
    "DeleteLedgers": "ReadHead ListPages fails",
    "ListPages": "ReadHead fails",
    "DeleteUnlinked": "DeletePages ListTransactions done fails",
    "DeletePages": "ListTransactions done fails",
    "ListTransactions": "ReadTransactions done fails",
    "ReadTransactions": "DeleteTransactions done fails",
    "DeleteTransactions": "ReadTransactions done fails",
    "Wait": "ReadHead",
}
DELETION: Follows = {
    "ReadHead": "RecoverLedgers WriteHeads RecordDeleted Wait fails",
    "RecoverLedgers": "WriteHeads Wait fails",
    "WriteHeads": "RecordDeleted Wait fails",
    "RecordDeleted": "RemoveMark done fails",
    "RemoveMark": "done fails",
    "Wait": "ReadHead",
    "ListOrphans": "DeleteLedgers ForgetDeleted done fails",
    "DeleteLedgers": "ForgetDeleted done fails",
    "ForgetDeleted": "done fails",
}
COMPACTION: Follows = {
    "ListExtents": "ListExtents CopyRun done fails",
    "CopyRun": "ReadCopy DropCopy ListExtents fails",
    "ReadCopy": "ReadHead DropCopy ListExtents fails",
    "DropCopy": "fails",
    "ReadHead": "CheckLedgers WriteHeads ListExtents Wait fails",
    "CheckLedgers": "WriteHeads ListExtents Wait fails",
    "WriteHeads": "CopyRun ListExtents Wait done fails",
    "Wait": "ReadHead",
}


def no_nonce() -> int:
    """Let all pages have names that are alike."""
    return 5


GONE = NoSuchLedgerError("deleted")


class Sweep:
    """Every answer that ``answers`` has, breadth first, up to a bound. ``ignored``: local values and attributes that
    decide nothing."""

    def __init__(
        self,
        firsts: Iterable[Told],
        answers: Callable[[Told], Iterable[Any]],
        *,
        ignored: tuple[str, ...] = (),
        states_max: int = 900,
    ) -> None:
        self.follows: dict[str, set[str]] = {}
        self.ends: list[Told] = []
        self._ignored = ("self", *ignored)
        todo = deque(firsts)
        seen = {self._where(first) for first in todo}
        known = members(ask.Request)
        while todo and states_max:
            told = todo.popleft()
            states_max -= 1
            for answer in answers(told):
                twin = told.copy()
                twin.tell(answer)
                for name in names_of(told):
                    self.follows.setdefault(name, set()).update(names_of(twin))
                if twin.is_done:
                    self.ends.append(twin)
                    continue
                assert isinstance(twin.request, known)
                if (where := self._where(twin)) not in seen:
                    seen.add(where)
                    todo.append(twin)
            told.drop()

    def _where(self, told: Told) -> object:
        made = {name: value for name, value in vars(told.made).items() if name not in self._ignored}
        lines = [(name, line, self._known(values)) for name, line, values in told.where()]
        return self._known((made, names_of(told), lines))

    def _known(self, value: Any) -> object:
        """What can be compared: equal for equal values."""
        if isinstance(value, BookKeeperError):
            return type(value).__name__, value.what, value.outcome
        if isinstance(value, dict):
            kept = [(name, each) for name, each in value.items() if name not in self._ignored]
            return tuple((name, self._known(each)) for name, each in sorted(kept, key=repr))
        if isinstance(value, list | tuple | ItemsView):
            return tuple(map(self._known, value))
        try:
            hash(value)
        except TypeError:
            assert is_dataclass(value), value
            return tuple(self._known(getattr(value, each.name)) for each in fields(value))
        return value


def names_of(told: Told) -> tuple[str, ...]:
    """What it asks for, of each log; or how it ended."""
    if isinstance(told.request, ask.ForLogs):
        return tuple(type(each).__name__ for each in told.request.requests.values())
    return (type(told.request).__name__ if told.request is not None else "fails" if told.error else "done",)


def check(found: Sweep, table: Follows) -> None:
    assert {name: set(following.split()) for name, following in table.items()} == found.follows
    for end in found.ends:
        check_end(end)


def check_end(end: Told) -> None:
    """Done only after a write that was answered, or after a look; unknown only after a write."""
    last, answer = end.asked[-1], end.answers[-1]
    if isinstance(last, ask.WriteHeads) and isinstance(answer, BookKeeperError):
        assert end.error is not None, "whatever else came, the heads have to be looked at"
    is_attempted = any(isinstance(each, CHANGING) for each in end.asked)
    if end.error is not None and isinstance(end.made, HeadChange | Vacuum) and not is_attempted:
        assert end.error.outcome is Outcome.NOT_APPLIED


CHANGING = (ask.WriteHeads, ask.DeleteLedgers, ask.DeleteUnlinked, ask.DeletePages, ask.DeleteTransactions)


# --- what is answered -------------------------------------------------------------------------------------------------


def extent(ledger_id: int) -> NewExtent:
    return new_extent(ledger_id, 10, 10, 2, fragments=(Fragment(0, ("b1", "b2", "b3")),))


def published(head: LogHead, *ledgers: int, job: str = "other") -> LogHead:
    extents = [extent(ledger) for ledger in ledgers]
    return publish(head, extents, PublishId.job(job), now_ms=3, nonce=no_nonce, pages={}).head


def end(count: int) -> LedgerEnd:
    return LedgerEnd(entry_count=count, size_bytes=count)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages after a few extents."""
    monkeypatch.setattr(paging, "TAIL_EXTENTS_MAX", 3)
    monkeypatch.setattr(paging, "TAIL_EXTENTS_KEPT", 1)
    monkeypatch.setattr(paging, "MERGE_PARTS_MAX", 2)
    monkeypatch.setattr(paging, "REFS_MAX", 1)


def _spilled() -> tuple[LogHead, dict[str, paging.LogPage]]:
    """A log whose older extents stand in pages, and some of those below another."""
    head, pages = EMPTY, dict[str, paging.LogPage]()
    for each in range(100, 107):
        job = PublishId.job(str(each))
        change = publish(head, [extent(each)], job, now_ms=3, nonce=no_nonce, pages=pages)
        head = change.head
        pages.update((new.name, new.page) for new in change.new_pages)
    assert any(ref.level for ref in head.pages)
    return head, pages


JOB = PublishId.job("a")
OPENED = open_extent(20)
OTHER = add_open_extent(EMPTY, OPENED, nonce=no_nonce).head  # a rival leads
REBORN = replace(EMPTY, uuid="aaaaaaaa-9abc-def0-1234-56789abcdef0")
CONDEMNED = condemn(EMPTY, (30,), nonce=no_nonce, pages={}).head
UNUSED = LogTransactions(app_id="app", last_used_ms=5)


def version_of(told: Told, log: str) -> int:
    """Of the head that was read last."""
    heads = [answer[log] for answer in told.answers if isinstance(answer, dict) and log in answer]
    return max([each.head.version for each in heads if isinstance(each, ask.HeadRead)], default=0)


def last_read(told: Told, log: str) -> list[ask.HeadRead]:
    heads = [answer[log] for answer in told.answers if isinstance(answer, dict) and log in answer]
    return [each for each in heads if isinstance(each, ask.HeadRead)][-1:]


def of_one_log(told: Told, log: str, heads: Iterable[LogHead], pages: Mapping[str, paging.LogPage]) -> Iterator[Any]:
    """Answers of one log, errors too."""
    match told.log_requests[log]:
        case ask.ReadHead():
            yield from (ask.HeadRead(Versioned(head, version_of(told, log) + 1)) for head in heads)
            yield from last_read(told, log)
        case ask.ReadPages(names):
            yield {name: pages[name] for name in names}
        case ask.RecoverLedgers(ledgers):
            yield ask.LedgersRecovered(dict.fromkeys(ledgers, end(5)))
            yield ask.LedgersRecovered({}, frozenset(ledgers))
        case ask.ReadUnlinked():
            yield from ((), UNLINKED)
        case ask.CheckLedgers():
            yield from (None, PublishConflictError("a ledger is gone"))
        case _:
            yield None
    yield from (GONE, AWAY)


UNLINKED = (
    UnlinkedRecord("old", 999, Unlinked(names=("p-lost",), ledgers=(30,))),
    UnlinkedRecord("young", 1000, Unlinked(ledgers=(31,))),
)


def errors_of(request: Any) -> Iterator[BookKeeperError]:
    """Of what is not asked of each log by itself. A pause does not fail."""
    if not isinstance(request, ask.Wait):
        yield from (GONE, AWAY)
    if isinstance(request, ask.WriteHeads | ask.DeleteTransactions):
        yield from (CONFLICT, LOST)


# --- changes of one head and of several -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.rule("N3", "N4")
def test_every_answer_to_every_request_of_a_change_is_followed_by_what_its_table_says() -> None:
    spilled, pages = _spilled()
    led = add_open_extent(spilled, OPENED, nonce=no_nonce).head
    heads = (spilled, led, published(spilled, 3, 4), EMPTY, OTHER, REBORN, published(EMPTY, 9, job="a"))

    def answers(told: Told) -> Iterator[Any]:
        if isinstance(told.request, ask.ForLogs):
            yield from ({LOG: answer} for answer in of_one_log(told, LOG, heads, pages))
        else:
            yield None
        yield from errors_of(told.request)

    first = next(page.extents[0] for page in pages.values() if page.extents)
    intents = (
        Publish((extent(9),), JOB, 5, no_nonce, PublishOptions(takeover=True)),
        Compact((first,), extent(first.ledger_id), no_nonce),  # done already
        Compact((first,), extent(200), no_nonce),
        Trim(15, no_nonce),
        Condemn((31,), 1000, EMPTY.uuid, no_nonce),
    )
    firsts = [
        Told(lambda intent=intent: HeadChange({LOG: intent}, attempts_max=2, failures_max=2)) for intent in intents
    ]
    check(Sweep(firsts, answers), CHANGE)


@pytest.mark.long
@pytest.mark.rule("K10", "N4")
def test_a_change_of_two_logs_asks_for_nothing_else() -> None:
    spilled, pages = _spilled()
    among = fan_out_id(JOB, {"a": 10, "b": 10})
    there = publish(EMPTY, [extent(10)], among, now_ms=3, nonce=no_nonce, pages={}).head
    heads = (published(spilled, 3, 4), OTHER, REBORN, published(EMPTY, 3), there)

    def answers(told: Told) -> Iterator[Any]:
        """Those of the second log vary."""
        if isinstance(told.request, ask.ForLogs):
            first = {"a": next(of_one_log(told, "a", (EMPTY,), pages))} if "a" in told.log_requests else {}
            if "b" in told.log_requests:
                yield from (first | {"b": answer} for answer in of_one_log(told, "b", heads, pages))
            else:
                yield first
        else:
            yield None
        yield from errors_of(told.request)

    def make() -> HeadChange[Any]:
        intents = {log: PublishAmong((extent(each),), among, 5, no_nonce) for log, each in (("a", 9), ("b", 10))}
        return HeadChange(intents, attempts_max=2, failures_max=2)

    found = Sweep([Told(make)], answers)
    assert found.follows.keys() == CHANGE.keys() - {"RecoverLedgers", "ReadUnlinked"}
    for name, following in found.follows.items():
        assert following <= set(CHANGE[name].split()), name
    for each in found.ends:
        check_end(each)


# --- vacuum and compaction --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.rule("N6")
def test_every_answer_to_every_request_of_a_vacuum_is_followed_by_what_its_table_says() -> None:
    heads = (EMPTY, CONDEMNED, REBORN)

    def answers(told: Told) -> Iterator[Any]:
        match told.request:
            case ask.ForLogs():
                yield from ({LOG: answer} for answer in of_one_log(told, LOG, heads, {}))
            case ask.ListOrphans():
                yield from ((), (31,), (30, 31))
            case ask.DeleteLedgers(ledgers):
                yield from ((), ledgers[:1], ledgers)
            case ask.ListPages():
                yield from ((), ("p-lost",))
            case ask.ListTransactions():
                yield from ((), (UNUSED.key,))
            case ask.ReadTransactions():
                for records in ({}, {UNUSED.key: Versioned(UNUSED, 1)}):
                    yield ask.TransactionsRead(Versioned(EMPTY, 1), records)
                yield ask.TransactionsRead(Versioned(REBORN, 1), {})
            case _:
                yield None
        if not isinstance(told.request, ask.ForLogs) and ask.Wait(1) not in told.asked:
            yield from errors_of(told.request)

    read = {LOG: ask.HeadRead(Versioned(EMPTY, 1))}
    deleted = ((30, 31), read, {LOG: ()}, None, (30,), {LOG: ask.HeadRead(Versioned(CONDEMNED, 2))})
    firsts = [
        Told(lambda at=at: Vacuum(LOG, EMPTY.uuid, 1000, no_nonce, txns_before_ms=at), begun)
        for at in (0, 10)
        for begun in ((), ((), read), deleted)
    ]
    check(Sweep(firsts, answers, ignored=("_done",), states_max=1200), VACUUM)


@pytest.mark.long
@pytest.mark.rule("N6")
def test_every_answer_to_every_request_of_a_deletion_is_followed_by_what_its_table_says() -> None:
    deleted = DeletedLog(name=LOG, uuid=EMPTY.uuid, deleted_ms=7)
    gone = NoSuchLogError("there is no log")

    def answers(told: Told) -> Iterator[Any]:
        match told.request:
            case ask.ForLogs():
                yield from ({LOG: answer} for answer in of_one_log(told, LOG, (EMPTY, OTHER, REBORN), {}))
                if isinstance(told.log_requests[LOG], ask.ReadHead):
                    yield {LOG: gone}
            case ask.RecordDeleted():
                yield from (deleted, gone)
            case ask.ListOrphans():
                yield from ((), (30, 31))
            case ask.DeleteLedgers(ledgers):
                yield from ((), ledgers[:1], ledgers)
            case _:
                yield None
        if not isinstance(told.request, ask.ForLogs):
            yield from errors_of(told.request)

    firsts = [
        *(Told(lambda each=each: DeleteLog(LOG, EMPTY.uuid, takeover=each)) for each in (False, True)),
        *(Told(lambda each=each: VacuumDeleted(EMPTY.uuid, forget=each)) for each in (False, True)),
    ]
    found = Sweep(firsts, answers, states_max=3000)
    check(found, DELETION)
    for each in found.ends:
        if isinstance(each.made, DeleteLog):
            check_deleted(each, deleted)


def check_deleted(end: Told, deleted: DeletedLog) -> None:
    """No error denies that the log is gone, and none says so without a reason."""
    is_marked = any(
        isinstance(request, ask.WriteHeads) and not isinstance(answer, BookKeeperError)
        for request, answer in zip(end.asked, end.answers, strict=True)
    )
    if end.error is not None:
        assert not is_marked or end.error.outcome is Outcome.UNKNOWN
    else:
        assert is_marked or end.result == deleted


@pytest.mark.long
@pytest.mark.rule("N7")
def test_every_answer_to_every_request_of_a_compaction_is_followed_by_what_its_table_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction_sequence, "DISTURBANCES_MAX", 1)
    run, good = tuple(extents_of(3, 4)), Content(2, 7, 1, 2)
    new = replace(extent(9), entry_count=2, size_bytes=7)
    listed = ask.ExtentsListed(EMPTY.uuid, run, CompactionLimits())
    two_runs = replace(listed, extents=extents_of(3, 4, 600, 3, 4), limits=CompactionLimits(ledger_bytes_max=1200))
    heads = (replace(EMPTY, tail=run, next_offset=2), EMPTY)

    def answers(told: Told) -> Iterator[Any]:
        match told.request:
            case ask.ForLogs():
                yield from ({LOG: answer} for answer in of_one_log(told, LOG, heads, {}))
            case ask.ListExtents():
                yield from (listed, two_runs, replace(listed, extents=()), replace(listed, log_uuid="another"))
                yield from (MetadataCorruptError("a page is gone"), PublishConflictError("a page is gone"))
            case ask.CopyRun():
                yield from (ask.RunCopied(new, content) for content in (good, Content(1)))
            case ask.ReadCopy():
                yield from (good, Content(1))
            case _:
                yield None
        if not isinstance(told.request, ask.ForLogs) and ask.Wait(1) not in told.asked:
            yield from errors_of(told.request)

    limits = (CompactionLimits(), CompactionLimits(copy_bytes_max=1))
    firsts = [Told(lambda each=each: Compaction(LOG, each, no_nonce)) for each in limits]
    check(Sweep(firsts, answers, ignored=("_done", "_copies"), states_max=600), COMPACTION)


def copying() -> tuple[Told, tuple[Any, ...]]:
    """A compaction that has asked for the extents, and answers up to the list of the copy in place of its run."""
    run, good = tuple(extents_of(3, 4)), Content(2, 7, 1, 2)
    copied = ask.RunCopied(replace(extent(9), entry_count=2, size_bytes=7), good)
    listed = ask.ExtentsListed(EMPTY.uuid, run, CompactionLimits())
    head = head_read(replace(EMPTY, tail=run, next_offset=2))
    return Told(lambda: Compaction(LOG, CompactionLimits(), no_nonce)), (
        listed,
        copied,
        good,
        {LOG: head},
        {LOG: None},
    )


def test_a_listed_copy_ends_a_row_of_disturbances() -> None:
    told, answers = copying()
    for _ in range(compaction_sequence.DISTURBANCES_MAX + 1):
        assert told.tell(MetadataCorruptError("a page is gone")) == ask.ListExtents()
        for answer in answers:
            told.tell(answer)
        assert told.tell(None) == ask.ListExtents()


@pytest.mark.rule("N4")
def test_a_copy_that_cannot_be_read_back_is_dropped_and_one_that_may_be_listed_is_not() -> None:
    told, (listed, copied, good, *listing) = copying()
    told.tell(listed)
    told.tell(copied)
    read_back = told.copy()
    assert read_back.tell(BookKeeperError("away")) == ask.DropCopy(9)
    assert read_back.tell(None).what == "away"
    for answer in (good, *listing):
        told.tell(answer)
    error = told.tell(MetadataUnavailableError("away", outcome=Outcome.UNKNOWN))
    while not told.is_done:
        assert not isinstance(told.request, ask.DropCopy)
        error = told.tell(MetadataUnavailableError("away"))
    assert error.outcome is Outcome.UNKNOWN


@pytest.mark.rule("N2", "MUST15")
@pytest.mark.parametrize("publishes", [False, True], ids=["a deletion", "a publish"])
def test_a_leader_is_fenced_with_the_last_two_ledgers_before_the_head_is_written(publishes: bool) -> None:
    led = add_open_extent(published(EMPTY, 3), OPENED, nonce=no_nonce).head
    told = publication(9, takeover=True) if publishes else Told(lambda: DeleteLog(LOG, EMPTY.uuid, takeover=True))
    asked = run(told, head_read(led))
    while not isinstance(asked, ask.RecoverLedgers):
        assert not isinstance(asked, ask.WriteHead)
        asked = run(told, None)
    assert asked == ask.RecoverLedgers((20, 3))
    if not publishes:
        assert run(told, ask.LedgersRecovered({20: end(1)}, frozenset({3}))).head == mark_of(led)
