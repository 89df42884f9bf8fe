# SPDX-License-Identifier: Apache-2.0
"""The machine that publishes into several logs at once: what it asks, what settles a doubt, what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LogHasLeaderError,
    Outcome,
    PublishConflictError,
    TransactionReplayDiffersError,
)
from bk_core.logs import commit, schemas
from bk_core.logs.head import LogHead, NewExtent, Published, PublishId
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.fan_out import LOGS_MAX, FanOut
from bk_core.logs.machines.fan_out_parts import fan_out_id
from bk_core.logs.machines.publication import FORGOTTEN_OFFSET
from bk_core.logs.machines.transactions import PublishOptions, Transaction
from bk_core.model import Versioned
from tests.logs.change_kit import AWAY, EMPTY, LOST, NONCE, extent, published

pytestmark = [pytest.mark.rule("K10"), pytest.mark.rule("N4")]
JOB = PublishId.job("j")


def machine(**more: object) -> FanOut:
    """Two rows into each of two logs."""
    return FanOut.of({"b": [extent(2)], "a": [extent(1)]}, JOB, now_ms=5, nonce=NONCE, options=PublishOptions(**more))


def read(**heads: LogHead | tuple[LogHead, int]) -> ev.LogsAnswered:
    """Heads, of version 7 unless another is given."""
    found = {log: head if isinstance(head, tuple) else (head, 7) for log, head in heads.items()}
    return ev.LogsAnswered({log: ev.HeadRead(Versioned(head, version)) for log, (head, version) in found.items()})


def checked(*logs: str) -> ev.LogsAnswered:
    return ev.LogsAnswered(dict.fromkeys(logs, ev.LedgersChecked()))


def run(fan_out: FanOut, *events: ev.Event) -> list[ev.Effect]:
    effects: list[ev.Effect] = []
    for event in events:
        effects = fan_out.step(event)
    return effects


def writing(fan_out: FanOut) -> dict[str, ev.WriteHead]:
    (write,) = run(fan_out, ev.Start(), read(a=EMPTY, b=EMPTY), checked("a", "b"))
    assert isinstance(write, ev.WriteHeads)
    return dict(write.writes)


def error_of(effects: list[ev.Effect]) -> BookKeeperError:
    fail = effects[-1]
    assert isinstance(fail, ev.Fail)
    return fail.error


def result_of(effects: list[ev.Effect]) -> Mapping[str, Published]:
    (finish,) = effects
    assert isinstance(finish, ev.Finish)
    found: Mapping[str, Published] = finish.result
    return found


def test_all_logs_are_asked_together_and_written_together() -> None:
    fan_out = machine()
    assert fan_out.step(ev.Start()) == [ev.ForLogs({"a": ev.ReadHead(), "b": ev.ReadHead()}, sync=True)]
    (ask,) = fan_out.step(read(a=EMPTY, b=EMPTY))
    assert isinstance(ask, ev.ForLogs)
    assert [type(request) for request in ask.requests.values()] == [ev.CheckLedgers] * 2
    (write,) = fan_out.step(checked("a", "b"))
    assert isinstance(write, ev.WriteHeads)
    assert {log: (each.version, each.head.next_offset) for log, each in write.writes.items()} == {
        "a": (7, 2),
        "b": (7, 2),
    }
    found = result_of(fan_out.step(ev.HeadWritten()))
    assert {log: (each.base_offset, each.rows) for log, each in found.items()} == {"a": (0, 2), "b": (0, 2)}


def test_the_id_names_the_logs_and_their_rows() -> None:
    ids = {fan_out_id(JOB, rows) for rows in ({"a": 2, "b": 2}, {"a": 2}, {"a": 2, "b": 3}, {"a": 2, "c": 2})}
    assert len(ids) == 4
    assert fan_out_id(JOB, {"a": 2, "b": 2}) == fan_out_id(JOB, {"b": 2, "a": 2})


def test_answers_of_other_logs_or_other_requests_are_not_answers() -> None:
    fan_out = machine()
    fan_out.step(ev.Start())
    for event in (read(a=EMPTY), read(a=EMPTY, b=EMPTY, c=EMPTY), checked("a", "b"), ev.HeadWritten(), ev.WaitEnded()):
        assert fan_out.step(event) == []
    assert len(fan_out.step(read(a=EMPTY, b=EMPTY))) == 1


def test_one_log_that_remembers_tells_that_all_have_it() -> None:
    fan_out = machine()
    made = writing(fan_out)
    run(fan_out, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
    forgot = published(EMPTY, 9, "other")
    found = result_of(fan_out.step(read(a=(forgot, 300), b=(made["b"].head, 8))))
    assert [each.base_offset for each in found.values()] == [FORGOTTEN_OFFSET, 0]


def test_one_log_that_went_on_without_it_rules_it_out_for_all() -> None:
    fan_out = machine()
    writing(fan_out)
    run(fan_out, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
    other = published(EMPTY, 9, "other")
    effects = fan_out.step(read(a=(EMPTY, 7), b=(other, 8)))
    assert isinstance(effects[0], ev.ForLogs), "b would remember it, so it never was and never will be: again"
    assert error_of(fan_out.step(ev.Abort())).outcome is Outcome.NOT_APPLIED


def test_a_log_that_went_on_too_far_to_remember_leaves_the_outcome_unknown() -> None:
    fan_out = machine()
    writing(fan_out)
    run(fan_out, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
    other = published(EMPTY, 9, "other")
    error = error_of(fan_out.step(read(a=(EMPTY, 7), b=(other, 7 + 128))))
    assert error is LOST
    assert error.outcome is Outcome.UNKNOWN


def test_heads_that_stand_still_may_be_written_again_and_say_nothing_of_what_is_in_doubt() -> None:
    fan_out = machine()
    writing(fan_out)
    (asked,) = run(fan_out, ev.HeadWriteUnknown(LOST), ev.WaitEnded())
    assert asked == ev.ForLogs({"a": ev.ReadHead(), "b": ev.ReadHead()}, sync=True)
    (write,) = fan_out.step(read(a=EMPTY, b=EMPTY))
    assert isinstance(write, ev.WriteHeads)
    assert error_of(fan_out.step(ev.RequestFailed(BookKeeperError("broken")))).outcome is Outcome.UNKNOWN


def test_a_conflict_reads_all_of_them_again_and_checks_ledgers_again_where_the_head_is_another() -> None:
    fan_out = machine()
    writing(fan_out)
    assert run(fan_out, ev.HeadConflicted()) == [ev.Wait(1)]
    (ask,) = run(fan_out, ev.WaitEnded(), read(a=EMPTY, b=(published(EMPTY, 9, "other"), 8)))
    assert isinstance(ask, ev.ForLogs)
    assert list(ask.requests) == ["b"]
    (write,) = fan_out.step(checked("b"))
    assert isinstance(write, ev.WriteHeads)
    assert (write.writes["b"].version, write.writes["b"].head.next_offset) == (8, 4)


def test_what_refuses_one_log_refuses_all_and_names_it() -> None:
    led = commit.add_open_extent(
        EMPTY,
        commit.NewOpenExtent(ledger_id=9, created_ms=1, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2),
        nonce=NONCE,
    ).head
    error = error_of(run(machine(), ev.Start(), read(a=EMPTY, b=led)))
    assert isinstance(error, LogHasLeaderError)
    assert "log b" in str(error)
    gone = ev.LogsAnswered({"a": ev.LedgersChecked(), "b": ev.RequestFailed(PublishConflictError("ledger 2 is gone"))})
    error = error_of(run(machine(), ev.Start(), read(a=EMPTY, b=EMPTY), gone))
    assert str(error).startswith("[BK_PUBLISH_CONFLICT] ledger 2 is gone; log b")
    reborn = replace(EMPTY, uuid="aaaaaaaa-9abc-def0-1234-56789abcdef0")
    fan_out = machine()
    writing(fan_out)
    error = error_of(run(fan_out, ev.HeadConflicted(), ev.WaitEnded(), read(a=EMPTY, b=(reborn, 0))))
    assert "made again" in str(error)
    assert "log b" in str(error)


@pytest.mark.rule("N5")
def test_a_version_that_was_published_by_another_id_has_other_logs() -> None:
    txn = Transaction("app", 1)
    first = FanOut.of(
        {"a": [extent(1)], "b": [extent(2)]}, JOB, now_ms=5, nonce=NONCE, options=PublishOptions(transaction=txn)
    )
    write = writing(first)["a"]
    other = FanOut.of(
        {"a": [extent(3)], "c": [extent(4)]}, JOB, now_ms=6, nonce=NONCE, options=PublishOptions(transaction=txn)
    )
    assert write.transactions is not None
    record = Versioned(write.transactions, 0)
    other.step(ev.Start())
    forgot = ev.LogsAnswered({"a": ev.HeadRead(Versioned(EMPTY, 9), record), "c": ev.HeadRead(Versioned(EMPTY, 3))})
    error = error_of(other.step(forgot))
    assert isinstance(error, TransactionReplayDiffersError)
    assert "other logs" in str(error)
    assert error.outcome is Outcome.NOT_APPLIED


def test_an_abort_deletes_the_ledgers_only_if_no_multi_was_sent() -> None:
    fan_out = machine()
    run(fan_out, ev.Start())
    drop, fail = fan_out.step(ev.Abort())
    assert drop == ev.DropLedgers((1, 2))
    assert isinstance(fail, ev.Fail)
    fan_out = machine()
    writing(fan_out)
    error = error_of(effects := fan_out.step(ev.Abort()))
    assert len(effects) == 1
    assert error.outcome is Outcome.UNKNOWN
    assert fan_out.step(ev.HeadWritten()) == []


def test_a_store_that_is_away_is_waited_for_and_pages_of_a_write_that_was_refused_are_dropped() -> None:
    many = [extent(100 + number) for number in range(70)]
    fan_out = FanOut.of({"a": many, "b": [extent(2)]}, JOB, now_ms=5, nonce=NONCE)
    (create,) = run(fan_out, ev.Start(), read(a=EMPTY, b=EMPTY), checked("a", "b"))
    assert isinstance(create, ev.ForLogs)
    assert list(create.requests) == ["a"]
    (write,) = fan_out.step(ev.LogsAnswered({"a": ev.PagesCreated()}))
    assert isinstance(write, ev.WriteHeads)
    dropped, wait = fan_out.step(ev.RequestFailed(AWAY))
    (page,) = write.writes["a"].head.pages
    assert dropped == ev.DropPagesOf({"a": (page.name,)})
    assert wait == ev.Wait(1)


@pytest.mark.rule("K8")
def test_a_schema_is_registered_with_each_log() -> None:
    schema = schemas.encode([{"name": "id", "type": {"name": "int", "bitWidth": 64, "isSigned": True}}])
    fan_out = machine(schema=schema)
    (create,) = run(fan_out, ev.Start(), read(a=EMPTY, b=EMPTY), checked("a", "b"))
    assert isinstance(create, ev.ForLogs)
    (write,) = fan_out.step(ev.LogsAnswered(dict.fromkeys("ab", ev.PagesCreated())))
    assert isinstance(write, ev.WriteHeads)
    for each in write.writes.values():
        assert [schema.number for schema in each.head.schemas] == [1]
        assert each.head.tail[0].schema_number == 1


@pytest.mark.rule("N3")
def test_heads_that_are_too_large_together_keep_the_pages_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schemas.encode([{"name": "id", "type": {"name": "int", "bitWidth": 64, "isSigned": True}}])
    monkeypatch.setattr("bk_core.logs.machines.fan_out.STEP_BYTES_MAX", 1_000)
    many = [[extent(1000 * log + number) for number in range(40)] for log in (1, 2)]
    fan_out = FanOut.of({"a": many[0], "b": many[1]}, JOB, now_ms=5, nonce=NONCE, options=PublishOptions(schema=schema))
    (create,) = run(fan_out, ev.Start(), read(a=EMPTY, b=EMPTY), checked("a", "b"))
    assert isinstance(create, ev.ForLogs)
    (write,) = fan_out.step(ev.LogsAnswered(dict.fromkeys("ab", ev.PagesCreated())))
    assert isinstance(write, ev.WriteHeads)
    for log, request in create.requests.items():
        assert isinstance(request, ev.CreatePages)
        head = write.writes[log].head
        assert (head.tail, len(head.pages)) == ((), 1)
        assert {new.name for new in request.pages} == {head.pages[0].name, head.schemas[0].page}


def test_one_step_holds_a_hundred_logs_at_most() -> None:
    ledgers: dict[str, list[NewExtent]] = {f"log-{number}": [extent(number)] for number in range(LOGS_MAX + 1)}
    with pytest.raises(InvalidArgumentError, match="101 logs"):
        FanOut.of(ledgers, JOB, now_ms=1, nonce=NONCE)
    with pytest.raises(InvalidArgumentError, match="0 logs"):
        FanOut.of({}, JOB, now_ms=1, nonce=NONCE)
