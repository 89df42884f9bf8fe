# SPDX-License-Identifier: Apache-2.0
"""What upkeep does next, in which order, and what waits and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import InvalidArgumentError, MetadataCorruptError
from bk_core.logs.model.compaction import Run, weight_of
from bk_core.logs.model.head import Extent
from bk_core.logs.model.upkeep_plan import (
    DAY_MS,
    DeletedFacts,
    Garbage,
    LogFacts,
    StepKind,
    UpkeepConfig,
    is_vacuum_due,
    plan,
    spent,
    vacuumed,
)
from bk_core.logs.model.upkeep_record import (
    WINDOW_MS,
    UpkeepRecord,
    decode_upkeep_record,
    encode_upkeep_record,
)

NOW = 100 * DAY_MS
RECORD = UpkeepRecord(window_ms=NOW - 1000, vacuumed_ms=NOW - 1000)
CONFIG = UpkeepConfig(extents_min=2, copy_bytes_per_hour=0, ledgers_per_hour=0)
TRIM, VACUUM, COMPACT = StepKind.TRIM, StepKind.VACUUM, StepKind.COMPACT


def run_of(extents: int, size: int = 1000) -> Run:
    return tuple(
        Extent(
            ledger_id=n,
            entry_count=1,
            size_bytes=size,
            base_offset=n,
            created_ms=1,
            ensemble_size=3,
            write_quorum_size=3,
            ack_quorum_size=2,
        )
        for n in range(extents)
    )


WEIGHT = weight_of(run_of(1)[0])


def small(name: str, *extents: int) -> LogFacts:
    return LogFacts(name=name, runs=tuple(map(run_of, extents)))


def dirty(name: str, ledgers: int) -> LogFacts:
    return LogFacts(name=name, garbage=Garbage(ledgers=tuple(range(ledgers))))


EXPIRED = LogFacts(name="a", start_offset=5, expired_offset=9, expired_ledgers=2, expired_bytes=70, runs=(run_of(3),))


@pytest.mark.parametrize(
    ("logs", "record", "config", "steps", "waits"),
    [
        pytest.param([], RECORD, CONFIG, [], [], id="no logs"),
        pytest.param([LogFacts(name="a", trouble="password")], RECORD, CONFIG, [], [("a", "password")], id="trouble"),
        pytest.param(
            [small("b", 2), EXPIRED, dirty("c", 3)],
            RECORD,
            CONFIG,
            [(TRIM, "a", 2), (VACUUM, "c", 3), (COMPACT, "a", 3), (COMPACT, "b", 2)],
            [],
            id="retention, deletion, compaction",
        ),
        pytest.param(
            [small("a", 2), small("b", 2), small("c", 2)],
            replace(RECORD, turn="a"),
            CONFIG,
            [(COMPACT, "b", 2), (COMPACT, "c", 2), (COMPACT, "a", 2)],
            [("", "done recently")],
            id="each log has its turn",
        ),
        pytest.param(
            [small("a", 2, 2, 2)],
            RECORD,
            replace(CONFIG, copy_bytes_per_hour=3 * WEIGHT),
            [(COMPACT, "a", 4)],
            [("a", "copy_bytes_per_hour is spent"), ("", "done recently")],
            id="a run is not cut at the budget",
        ),
        pytest.param(
            [small("a", 2), small("b", 2)],
            replace(RECORD, copied_bytes=10),
            replace(CONFIG, copy_bytes_per_hour=10),
            [],
            [("a", "copy_bytes_per_hour is spent"), ("b", "copy_bytes_per_hour is spent"), ("", "done recently")],
            id="the bytes of this hour are spent",
        ),
        pytest.param(
            [small("a", 2)],
            replace(RECORD, copied_bytes=10, window_ms=NOW - WINDOW_MS),
            replace(CONFIG, copy_bytes_per_hour=10),
            [(COMPACT, "a", 2)],
            [("", "done recently")],
            id="a new hour",
        ),
        pytest.param(
            [small("a", 2)],
            replace(RECORD, copied_bytes=10, window_ms=NOW + 5 * WINDOW_MS),
            replace(CONFIG, copy_bytes_per_hour=10),
            [(COMPACT, "a", 2)],
            [("", "done recently")],
            id="an hour of a clock that was wrong",
        ),
        pytest.param(
            [dirty("a", 7), dirty("b", 7), dirty("c", 7)],
            replace(RECORD, ledgers=4),
            replace(CONFIG, ledgers_per_hour=14),
            [(VACUUM, "a", 7), (VACUUM, "b", 3)],
            [("b", "ledgers_per_hour is spent"), ("c", "ledgers_per_hour is spent")],
            id="ledgers of this hour",
        ),
        pytest.param(
            [LogFacts(name="a", garbage=Garbage(pages=2))],
            RECORD,
            CONFIG,
            [(VACUUM, "a", 0)],
            [],
            id="pages alone are garbage",
        ),
        pytest.param(
            [small("a", 3, 3)],
            RECORD,
            replace(CONFIG, extents_min=7),
            [],
            [("a", "fewer than extents_min=7"), ("", "done recently")],
            id="too few to be worth it",
        ),
        pytest.param(
            [small("a", 2, 2, 2)],
            RECORD,
            replace(CONFIG, step_bytes=3 * WEIGHT),
            [(COMPACT, "a", 4), (COMPACT, "a", 2)],
            [("", "done recently")],
            id="a step has a size",
        ),
        pytest.param(
            [LogFacts(name="a", unlinked=3, unlinked_until_ms=NOW + 5, garbage=Garbage())],
            RECORD,
            CONFIG,
            [],
            [("a", "was unlinked less than 7 days ago: readers may still need it")],
            id="N6",
            marks=pytest.mark.rule("N6"),
        ),
    ],
)
def test_plan(
    logs: list[LogFacts],
    record: UpkeepRecord,
    config: UpkeepConfig,
    steps: list[tuple[StepKind, str, int]],
    waits: list[tuple[str, str]],
) -> None:
    found = plan(logs, record, NOW, config)
    assert [(step.kind, step.log, step.ledgers) for step in found.steps] == steps
    assert [(each.log, each.why) for each in found.waits] == waits


def test_steps_that_are_planned_fit_the_budget_they_then_spend() -> None:
    config = replace(CONFIG, copy_bytes_per_hour=5 * WEIGHT, ledgers_per_hour=9)
    logs = [small("a", 2, 2), small("b", 2, 2), dirty("c", 3)]
    record = RECORD
    for step in plan(logs, record, NOW, config).steps:
        record = spent(record, step, NOW)
    assert (record.turn, record.ledgers, record.copied_bytes) == ("b", 9, 6 * WEIGHT)
    assert plan(logs, record, NOW, config).steps == ()
    assert plan(logs, record, NOW + WINDOW_MS, config).steps[0].kind is VACUUM


def test_search_that_left_something_over_comes_again_in_an_hour() -> None:
    assert is_vacuum_due(UpkeepRecord(), NOW, CONFIG)
    rid = vacuumed(RECORD, NOW, CONFIG, is_rid=True)
    assert [is_vacuum_due(rid, NOW + at, CONFIG) for at in (0, DAY_MS - 1, DAY_MS)] == [False, False, True]
    left = vacuumed(RECORD, NOW, CONFIG, is_rid=False)
    assert [is_vacuum_due(left, NOW + at, CONFIG) for at in (WINDOW_MS - 1, WINDOW_MS)] == [False, True]
    assert is_vacuum_due(replace(rid, vacuumed_ms=NOW + DAY_MS), NOW, CONFIG), "a clock that was wrong"
    assert plan([dirty("a", 3)], RECORD, NOW, CONFIG).is_rid
    assert not plan([dirty("a", 3)], RECORD, NOW, replace(CONFIG, ledgers_per_hour=2)).is_rid


@pytest.mark.rule("N6")
def test_delay_of_what_runs_unattended_cannot_be_shortened() -> None:
    with pytest.raises(InvalidArgumentError, match="delete_delay_ms"):
        UpkeepConfig(delete_delay_ms=7 * DAY_MS - 1)
    with pytest.raises(InvalidArgumentError, match="txn_retention_ms"):
        UpkeepConfig(txn_retention_ms=30 * DAY_MS - 1)


def test_record_is_canonical_json_and_later_fields_are_ignored() -> None:
    record = UpkeepRecord(owner="h:1", session=7, window_ms=3, copied_bytes=4, ledgers=5, turn="a", vacuumed_ms=6)
    data = encode_upkeep_record(record)
    assert data == (
        b'{"copied_bytes":4,"ledgers":5,"owner":"h:1","session":7,"turn":"a","v":1,"vacuumed_ms":6,"window_ms":3}'
    )
    assert decode_upkeep_record(data) == record
    assert decode_upkeep_record(b'{"owner":"x","more":1}') == UpkeepRecord(owner="x")
    for bad in (b"", b"[]", b'{"ledgers":"5"}', b'{"ledgers":true}', b"\xff"):
        with pytest.raises(MetadataCorruptError):
            decode_upkeep_record(bad)


def test_ledgers_of_deleted_logs_share_the_budget_of_an_hour() -> None:
    deleted = [DeletedFacts(name=name, uuid=name, ledgers=tuple(range(5))) for name in ("a", "b", "c")]
    found = plan([], RECORD, NOW, replace(CONFIG, ledgers_per_hour=8), deleted)
    assert [(step.kind, step.log, step.doomed) for step in found.steps if step.kind is StepKind.DELETE] == [
        (StepKind.DELETE, "a", (0, 1, 2, 3, 4)),
        (StepKind.DELETE, "b", (0, 1, 2)),
    ]
    assert [(each.log, each.why) for each in found.waits if each.log] == [
        ("b", "ledgers_per_hour is spent"),
        ("c", "ledgers_per_hour is spent"),
    ]
