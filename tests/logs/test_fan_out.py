# SPDX-License-Identifier: Apache-2.0
"""A change of several logs at once: what it asks, what settles a doubt, what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LogHasLeaderError,
    MetadataUnavailableError,
    Outcome,
    PublishConflictError,
    TransactionReplayDiffersError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.publication import (
    FORGOTTEN_OFFSET,
    LOGS_MAX,
    PublishOptions,
    Transaction,
    fan_out_id,
    publish_among,
)
from bk_core.logs.model import next_head as commit
from bk_core.logs.model import schemas
from bk_core.logs.model.head import LogHead, NewExtent, PublishId
from bk_core.model import Versioned
from tests.kit.extents import open_extent
from tests.kit.sequences import Told
from tests.logs.change_kit import AWAY, CONFLICT, EMPTY, LOST, NONCE, extent, published

pytestmark = [pytest.mark.rule("K10"), pytest.mark.rule("N4")]
JOB = PublishId.job("j")


def publishing(ledgers: dict[str, list[NewExtent]] | None = None, **more: Any) -> Told:
    """Two rows into each of two logs."""
    ledgers = ledgers or {"b": [extent(2)], "a": [extent(1)]}
    return Told(lambda: HeadChange(publish_among(ledgers, JOB, now_ms=5, nonce=NONCE, options=PublishOptions(**more))))


def read(**heads: LogHead | tuple[LogHead, int]) -> dict[str, ask.HeadRead]:
    """Heads, of version 7 unless another is given."""
    found = {log: head if isinstance(head, tuple) else (head, 7) for log, head in heads.items()}
    return {log: ask.HeadRead(Versioned(head, version)) for log, (head, version) in found.items()}


BOTH = {"a": None, "b": None}


def run(told: Told, *answers: Any) -> Any:
    now: Any = None
    for answer in answers:
        now = told.tell(answer)
    return now


def writing(told: Told) -> dict[str, ask.WriteHead]:
    write = run(told, read(a=EMPTY, b=EMPTY), BOTH)
    assert isinstance(write, ask.WriteHeads)
    return dict(write.writes)


def test_all_logs_are_asked_together_and_written_together() -> None:
    told = publishing()
    assert told.request == ask.ForLogs({"a": ask.ReadHead(), "b": ask.ReadHead()}, sync=True)
    run(told, read(a=EMPTY, b=EMPTY))
    assert [type(request) for request in told.log_requests.values()] == [ask.CheckLedgers] * 2
    write = run(told, BOTH)
    assert isinstance(write, ask.WriteHeads)
    assert {log: (each.version, each.head.next_offset) for log, each in write.writes.items()} == {
        "a": (7, 2),
        "b": (7, 2),
    }
    found = run(told, None)
    assert {log: (each.base_offset, each.rows) for log, each in found.items()} == {"a": (0, 2), "b": (0, 2)}


def test_the_id_names_the_logs_and_their_rows() -> None:
    ids = {fan_out_id(JOB, rows) for rows in ({"a": 2, "b": 2}, {"a": 2}, {"a": 2, "b": 3}, {"a": 2, "c": 2})}
    assert len(ids) == 4
    assert fan_out_id(JOB, {"a": 2, "b": 2}) == fan_out_id(JOB, {"b": 2, "a": 2})


def test_one_log_that_remembers_tells_that_all_have_it() -> None:
    told = publishing()
    made = writing(told)
    forgot = published(EMPTY, 9, "other")
    found = run(told, LOST, None, read(a=(forgot, 300), b=(made["b"].head, 8)))
    assert [each.base_offset for each in found.values()] == [FORGOTTEN_OFFSET, 0]


def test_one_log_that_went_on_without_it_rules_it_out_for_all() -> None:
    told = publishing()
    writing(told)
    other = published(EMPTY, 9, "other")
    again = run(told, LOST, None, read(a=(EMPTY, 7), b=(other, 8)))
    assert isinstance(again, ask.ForLogs), "b would remember it, so it never was and never will be: again"
    assert run(told, {"b": BookKeeperError("broken")}).outcome is Outcome.NOT_APPLIED


def test_a_log_that_went_on_too_far_to_remember_leaves_the_outcome_unknown() -> None:
    told = publishing()
    writing(told)
    other = published(EMPTY, 9, "other")
    error = run(told, LOST, None, read(a=(EMPTY, 7), b=(other, 7 + 128)))
    assert isinstance(error, MetadataUnavailableError)
    assert error.what == LOST.what
    assert error.outcome is Outcome.UNKNOWN


def test_heads_that_stand_still_may_be_written_again_and_say_nothing_of_what_is_in_doubt() -> None:
    told = publishing()
    writing(told)
    asked = run(told, LOST, None)
    assert asked == ask.ForLogs({"a": ask.ReadHead(), "b": ask.ReadHead()}, sync=True)
    assert isinstance(run(told, read(a=EMPTY, b=EMPTY)), ask.WriteHeads)
    assert run(told, BookKeeperError("broken")).outcome is Outcome.UNKNOWN


def test_a_conflict_reads_all_of_them_again_and_checks_ledgers_again_where_the_head_is_another() -> None:
    told = publishing()
    writing(told)
    assert run(told, CONFLICT) == ask.Wait(1)
    run(told, None, read(a=EMPTY, b=(published(EMPTY, 9, "other"), 8)))
    assert list(told.log_requests) == ["b"]
    write = run(told, {"b": None})
    assert isinstance(write, ask.WriteHeads)
    assert (write.writes["b"].version, write.writes["b"].head.next_offset) == (8, 4)


def test_what_refuses_one_log_refuses_all_and_names_it() -> None:
    led = commit.add_open_extent(EMPTY, open_extent(9), nonce=NONCE).head
    error = run(publishing(), read(a=EMPTY, b=led))
    assert isinstance(error, LogHasLeaderError)
    assert "log b" in str(error)
    error = run(publishing(), read(a=EMPTY, b=EMPTY), {"a": None, "b": PublishConflictError("ledger 2 is gone")})
    assert str(error).startswith("[BK_PUBLISH_CONFLICT] ledger 2 is gone; log b")
    reborn = replace(EMPTY, uuid="aaaaaaaa-9abc-def0-1234-56789abcdef0")
    told = publishing()
    writing(told)
    error = run(told, CONFLICT, None, read(a=EMPTY, b=(reborn, 0)))
    assert "made again" in str(error)
    assert "log b" in str(error)


def test_one_log_that_is_away_is_waited_for_with_all_the_others() -> None:
    told = publishing()
    assert run(told, read(a=EMPTY) | {"b": AWAY}) == ask.Wait(1)
    assert run(told, None) == ask.ForLogs({"a": ask.ReadHead(), "b": ask.ReadHead()}, sync=True)


@pytest.mark.rule("N5")
def test_a_version_that_was_published_by_another_id_has_other_logs() -> None:
    txn = Transaction("app", 1)
    write = writing(publishing({"a": [extent(1)], "b": [extent(2)]}, transaction=txn))["a"]
    other = publishing({"a": [extent(3)], "c": [extent(4)]}, transaction=txn)
    assert write.transactions is not None
    record = Versioned(write.transactions, 0)
    error = run(other, {"a": ask.HeadRead(Versioned(EMPTY, 9), record), "c": ask.HeadRead(Versioned(EMPTY, 3))})
    assert isinstance(error, TransactionReplayDiffersError)
    assert "other logs" in str(error)
    assert error.outcome is Outcome.NOT_APPLIED


def test_a_store_that_is_away_is_waited_for_and_pages_of_a_write_that_was_refused_are_dropped() -> None:
    many = [extent(100 + number) for number in range(70)]
    told = publishing({"a": many, "b": [extent(2)]})
    run(told, read(a=EMPTY, b=EMPTY), BOTH)
    assert list(told.log_requests) == ["a"]
    write = run(told, {"a": None})
    assert isinstance(write, ask.WriteHeads)
    (page,) = write.writes["a"].head.pages
    assert run(told, AWAY) == ask.DropPages({"a": (page.name,)})
    assert run(told, None) == ask.Wait(1)


@pytest.mark.rule("K8")
def test_a_schema_is_registered_with_each_log() -> None:
    schema = schemas.encode([{"name": "id", "type": {"name": "int", "bitWidth": 64, "isSigned": True}}])
    told = publishing(schema=schema)
    run(told, read(a=EMPTY, b=EMPTY), BOTH)
    assert [type(request) for request in told.log_requests.values()] == [ask.CreatePages] * 2
    write = run(told, BOTH)
    assert isinstance(write, ask.WriteHeads)
    for each in write.writes.values():
        assert [schema.number for schema in each.head.schemas] == [1]
        assert each.head.tail[0].schema_number == 1


@pytest.mark.rule("N3")
def test_heads_that_are_too_large_together_keep_the_pages_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schemas.encode([{"name": "id", "type": {"name": "int", "bitWidth": 64, "isSigned": True}}])
    monkeypatch.setattr("bk_core.logs.machines.change.STEP_BYTES_MAX", 1_000)
    many = [[extent(1000 * log + number) for number in range(40)] for log in (1, 2)]
    told = publishing({"a": many[0], "b": many[1]}, schema=schema)
    run(told, read(a=EMPTY, b=EMPTY), BOTH)
    creates = told.log_requests
    write = run(told, BOTH)
    assert isinstance(write, ask.WriteHeads)
    for log, request in creates.items():
        assert isinstance(request, ask.CreatePages)
        head = write.writes[log].head
        assert (head.tail, len(head.pages)) == ((), 1)
        assert {new.name for new in request.pages} == {head.pages[0].name, head.schemas[0].page}


@pytest.mark.rule("N3")
def test_logs_that_cannot_fit_one_step_are_refused_with_their_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.logs.machines.change.STEP_BYTES_MAX", 500)
    error = run(publishing(), read(a=EMPTY, b=EMPTY), BOTH)
    assert isinstance(error, InvalidArgumentError)
    assert re.search(r"2 logs, \d+ of 500 bytes", str(error))
    assert error.outcome is Outcome.NOT_APPLIED


def test_one_step_holds_a_hundred_logs_at_most() -> None:
    ledgers: dict[str, list[NewExtent]] = {f"log-{number}": [extent(number)] for number in range(LOGS_MAX + 1)}
    with pytest.raises(InvalidArgumentError, match="101 logs"):
        publish_among(ledgers, JOB, now_ms=1, nonce=NONCE)
    with pytest.raises(InvalidArgumentError, match="0 logs"):
        publish_among({}, JOB, now_ms=1, nonce=NONCE)
