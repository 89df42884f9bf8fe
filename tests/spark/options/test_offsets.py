# SPDX-License-Identifier: Apache-2.0
"""Offsets of a read: those of a checkpoint are always the same text, and only ours is accepted; where a read begins is
by time never later than it must, and never outside of what there is."""

from __future__ import annotations

import json

import pytest

from bk_core.errors import InvalidArgumentError, NoSuchEntryError
from bk_core.logs.model.head import Extent, LogHead, Published
from bk_core.logs.model.position import LogPosition, StreamOffset
from bk_spark.options.offsets import (
    EARLIEST,
    LATEST,
    check_bounds,
    from_json,
    offset_at,
    resolve_bound,
    sources_in,
    to_json,
)
from bk_spark.options.selection import LedgerSource, LogSource

LOG = StreamOffset("c-1", logs={"events": LogPosition("u-1", 0, 1000234)})
LEDGER = StreamOffset("c-1", ledgers={17: 24})


@pytest.mark.rule("N7")
def test_keys_come_in_one_order_because_spark_compares_text() -> None:
    one = StreamOffset("c", ledgers={10: 1, 9: 2}, logs={"b": LogPosition("u", 0, 1), "a": LogPosition("v", 0, 2)})
    two = StreamOffset("c", ledgers={9: 2, 10: 1}, logs={"a": LogPosition("v", 0, 2), "b": LogPosition("u", 0, 1)})
    assert json.dumps(to_json(one)) == json.dumps(to_json(two)) == json.dumps(to_json(one), sort_keys=True)


def test_offsets_survive_json() -> None:
    for offset in (LOG, LEDGER, StreamOffset("c", ledgers={2**62: 2**62 + 1})):
        assert from_json(json.loads(json.dumps(to_json(offset)))) == offset


@pytest.mark.parametrize(
    "data", [{}, {"v": 1}, {"v": 1, "cluster": "c", "ledgers": 3}, {"partition": 0}, {"v": 2, "cluster": "c"}]
)
def test_a_foreign_or_newer_offset_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="another checkpointLocation"):
        from_json(data)


def test_sources_stand_in_the_order_in_which_they_are_read() -> None:
    logs = {name: LogPosition("u", 0, 1) for name in ("b", "a")}
    assert sources_in(StreamOffset("c", logs=logs)) == (LogSource("a"), LogSource("b"))
    assert sources_in(StreamOffset("c", ledgers={10: 1, 9: 2})) == (LedgerSource(9), LedgerSource(10))


def test_sentinels_become_numbers() -> None:
    assert [resolve_bound(b, 5, 9) for b in (EARLIEST, LATEST, 7)] == [5, 9, 7]


NOW = 10**12
UUID = "6a3f9e52-7a0a-4f0e-9f57-0a6c3f3c9b11"


def extents(*created_ms: int, open_ones: int = 0) -> list[Extent]:
    """Extents of ten entries made at these times, the last of them open."""
    sealed = len(created_ms) - open_ones
    return [
        Extent(ledger_id=i, entry_count=10 if i < sealed else 0, base_offset=min(i, sealed) * 10, created_ms=at)
        for i, at in enumerate(created_ms)
    ]


def head(published: dict[int, int] | None = None, *, start: int = 0, end: int = 40) -> LogHead:
    """A head that remembers publishes: base offset → time."""
    remembered = [Published(publish_id=b"x", base_offset=o, rows=10, time_ms=t) for o, t in (published or {}).items()]
    return LogHead(uuid=UUID, start_offset=start, next_offset=end, published=tuple(remembered))


@pytest.mark.parametrize(
    ("at_ms", "offset"),
    [(0, 0), (100, 0), (150, 0), (200, 0), (300, 0), (301, 10), (400, 10), (401, 20), (NOW, 20), (NOW + 1, LATEST)],
)
def test_a_leaders_log_begins_with_the_first_ledger_that_may_have_been_open(at_ms: int, offset: int) -> None:
    """The last two may be open: a ledger got its last row before the next but one was made."""
    assert offset_at(head(), extents(100, 200, 300, 400), at_ms, NOW) == offset
    assert offset_at(head(end=30), extents(100, 200, 300, 400, open_ones=1), at_ms, NOW) == offset


def test_no_ledger_that_was_made_later_is_left_out_though_times_run_backwards() -> None:
    assert offset_at(head(), extents(100, 500, 200, 300), 250, NOW) == 0
    assert offset_at(head(), extents(100, 110, 120, 500, 200), 250, NOW) == 10


def test_rows_of_a_job_came_when_it_was_published() -> None:
    """Ledgers of a job are made long before it ends."""
    made = extents(100, 110, 120, 130)
    assert offset_at(head({0: 900, 10: 1000}), made, 950, NOW) == 10
    assert offset_at(head({0: 900, 10: 1000}), made, 900, NOW) == 0
    assert offset_at(head({0: 900, 10: 1000}), made, 1001, NOW) == 20


def test_a_time_never_leads_to_what_was_trimmed_and_an_empty_log_begins_at_its_end() -> None:
    assert offset_at(head({0: 900}, start=15), extents(100, 200, 300), 50, NOW) == 15
    assert offset_at(head(start=40), [], 50, NOW) == LATEST


def bounds(start: int, end: int, *, fail: bool = True) -> tuple[int, int]:
    return check_bounds(LogSource("events"), 10, 40, start, end, fail_on_data_loss=fail)


def test_bounds_are_within_what_there_is() -> None:
    assert bounds(EARLIEST, LATEST) == (10, 40)
    assert bounds(40, 40) == (40, 40)
    assert bounds(12, LATEST) == (12, 40)
    for start, end in ((41, LATEST), (EARLIEST, 41)):
        with pytest.raises(InvalidArgumentError, match=r"log events holds 10 to 40 \(exclusive\)"):
            bounds(start, end)
    with pytest.raises(InvalidArgumentError, match="ends before it starts"):
        bounds(20, 19)


def test_what_was_trimmed_is_an_error_or_left_out() -> None:
    with pytest.raises(NoSuchEntryError, match="failOnDataLoss=false"):
        bounds(9, LATEST)
    assert bounds(9, LATEST, fail=False) == (10, 40)
    assert bounds(3, 5, fail=False) == (10, 10)
