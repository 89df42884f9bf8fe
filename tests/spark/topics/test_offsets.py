# SPDX-License-Identifier: Apache-2.0
"""Offsets of streams of topics, and how ranges are counted, cut and joined: pure functions, for all inputs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError
from bk_core.model import Fragment, LedgerMetadata
from bk_core.pulsar.model.managed_ledger import Cursor, ManagedLedger, TopicLedger
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import TopicRange, clipped
from bk_core.pulsar.model.topic_name import TopicName
from bk_spark.options.selection import TopicSelection
from bk_spark.plan.packing import LedgerRange
from bk_spark.topics import bounds, offsets
from bk_spark.topics.offsets import BEGIN, PartSeen, TopicOffset
from bk_spark.topics.task_reader import backwards
from bk_spark.topics.tasks import latest

NAME = TopicName.parse("orders")
METADATA = LedgerMetadata(
    ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, fragments=(Fragment(0, ("b",)),), password=b""
)
IDS = st.integers(0, 2**62)
POSITIONS = st.one_of(st.just(BEGIN), st.builds(MessageId, IDS, IDS, st.just(-1), st.integers(-1, 1000)))
NAMES = st.sampled_from(["a", "b-partition-0", "b-partition-10", "t/n/ü", "x%2Fy"]).map(TopicName.parse)


@st.composite
def seen_parts(draw: st.DrawFn) -> PartSeen:
    """A part with ledgers of any sizes, with holes between their ids, that begins within one."""
    ranges, ledger = list[TopicRange](), draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 5))):
        first = draw(st.integers(0, 5)) if not ranges else 0
        count = draw(st.integers(1, 20))
        size = draw(st.integers(0, 1000))
        ranges.append(TopicRange(NAME, ledger, METADATA, first, first + count - 1, size))
        ledger += draw(st.integers(1, 3))
    begin = MessageId(ranges[0].ledger_id, ranges[0].first) if ranges else MessageId(ledger, 3)
    end = draw(st.sampled_from([offsets.end_of(ranges, begin), MessageId(ledger, 0)])) if ranges else begin
    return PartSeen(begin, tuple(ranges), end)


@given(st.dictionaries(NAMES, POSITIONS), st.none() | st.integers(0, 2**50), st.dictionaries(NAMES, IDS))
def test_an_offset_survives_the_checkpoint_and_equal_ones_have_equal_texts(
    topics: dict[TopicName, MessageId], since: int | None, schemas: dict[TopicName, int]
) -> None:
    offset = TopicOffset("cluster", topics, since, schemas)
    text = json.dumps(offsets.to_json(offset))
    assert offsets.from_json(json.loads(text)) == offset
    turned = TopicOffset("cluster", dict(reversed(topics.items())), since, dict(reversed(schemas.items())))
    assert json.dumps(offsets.to_json(turned)) == text
    assert list(json.loads(text)) == sorted(json.loads(text))


@pytest.mark.parametrize(
    "change",
    [
        *({"v": 2}, {"v": None}, {"logs": {}}, {"topics": []}, {"cluster": 5}, {"from": "x"}),
        *({"topics": {"orders": text}} for text in ("", "1", "01:2", "-1:0", "1:2:-1", "a:b", 5)),
        {"topics": {"non-persistent://a/b/c": "1:2"}},
        *({"schemas": {"orders": number}} for number in ("5", 1.5, True, -1, None)),
    ],
)
def test_what_is_no_offset_of_topics_is_refused(change: dict[str, Any]) -> None:
    good = {"cluster": "c", "topics": {"orders": "1:2"}, "v": 1}
    assert offsets.from_json(good).topics == {NAME: MessageId(1, 2)}
    with pytest.raises(InvalidArgumentError, match="checkpoint"):
        offsets.from_json({**good, **change})


@given(seen_parts(), st.data())
def test_a_part_of_the_backlog_ends_behind_as_many_entries(seen: PartSeen, data: st.DataObject) -> None:
    total = sum(map(len, seen.ranges))
    assert seen.backlog.entries == total
    count = data.draw(st.integers(0, total))
    stop = seen.position_after(count)
    assert seen.entries_before(stop) == count
    assert sum(map(len, clipped(list(seen.ranges), stop.entry))) == count
    assert stop >= seen.begin
    assert seen.position_after(total) == (seen.end if total else seen.begin)


def test_a_checkpoint_is_of_the_topics_that_are_read() -> None:
    part = TopicName.parse("orders-partition-0")
    offsets.check_topics(TopicOffset("c", {part: BEGIN}), TopicSelection((str(NAME),)))
    offsets.check_topics(TopicOffset("c", {}), TopicSelection(namespace="public/default", pattern="x"))
    for selection in (TopicSelection((str(NAME), str(NAME) + "2")), TopicSelection(namespace="t/n", pattern=".*")):
        with pytest.raises(InvalidArgumentError, match="something else"):
            offsets.check_topics(TopicOffset("c", {part: BEGIN}), selection)


def record(*closed_ms: int) -> ManagedLedger:
    return ManagedLedger(
        tuple(TopicLedger(10 + n, 5 if at else -1, 500 if at else -1, at) for n, at in enumerate(closed_ms))
    )


@given(st.lists(st.integers(1, 10**12), max_size=6), st.booleans(), st.integers(0, 2 * 10**12))
def test_times_leave_out_only_ledgers_that_are_surely_outside(times: list[int], is_open: bool, at_ms: int) -> None:
    found = record(*sorted(times), *([0] if is_open else []))
    start, end = bounds.start_by_time(found, at_ms), bounds.end_by_time(found, at_ms)
    for ledger in found.ledgers:
        if start is not None and ledger.ledger_id < start.ledger_id:
            assert 0 < ledger.closed_ms < at_ms - bounds.CLOCKS_MS
        if end is not None and ledger.ledger_id == end.ledger_id - 1:
            assert ledger.closed_ms > at_ms + bounds.LATE_MS
    assert (start is None) == (not found.ledgers)


def test_a_subscription_whose_ledger_was_trimmed_begins_at_the_first_that_is_left() -> None:
    def start(ledger_id: int, entry_id: int) -> MessageId | None:
        cursor = Cursor(-1, EntryPosition(ledger_id, entry_id))
        return bounds.start_of_subscription(NAME, record(5, 0), {"s": cursor}, "s")

    assert start(9, 4) is None
    assert start(10, 4) == MessageId(10, 5)
    assert start(10, -1) == MessageId(10, 0)
    with pytest.raises(InvalidArgumentError, match="near names: s"):
        bounds.start_of_subscription(NAME, record(5), {"s": Cursor(-1, EntryPosition(1, 1))}, "t")


RANGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9), st.integers(0, 99)).map(
        lambda row: LedgerRange(ledger_id=row[0], first=row[1], last=row[1] + row[2] - 1, bytes=row[3])
    ),
    max_size=8,
)


@given(RANGES, st.integers(1, 200), st.integers(1, 8))
def test_the_latest_ranges_are_whole_and_in_order(ranges: list[LedgerRange], bytes_max: int, ranges_max: int) -> None:
    found = latest(ranges, bytes_max, ranges_max)
    entries = [(each.ledger_id, at) for each in ranges for at in range(each.first, each.last + 1)]
    kept = [(each.ledger_id, at) for each in found for at in range(each.first, each.last + 1)]
    assert kept == entries[len(entries) - len(kept) :]
    assert bool(found) == bool(ranges)
    if len(kept) < len(entries):
        assert sum(each.bytes for each in found) >= bytes_max or len(found) == ranges_max


@given(RANGES, st.integers(1, 50))
def test_steps_backwards_cover_all_entries_once(ranges: list[LedgerRange], bytes_max: int) -> None:
    steps = list(backwards(ranges, bytes_max))
    walked = [(each.ledger_id, at) for each in reversed(steps) for at in range(each.first, each.last + 1)]
    assert walked == [(each.ledger_id, at) for each in ranges for at in range(each.first, each.last + 1)]
