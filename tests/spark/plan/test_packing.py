# SPDX-License-Identifier: Apache-2.0
"""Planning: every entry exactly once, in order, in parts of about the wanted size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_spark.plan.packing import LedgerRange, PartitionLimits, Span, admit, pack

MB = 1 << 20


def ledger(number: int, entries: int, size: int, first: int = 0, offset: int | None = None) -> LedgerRange:
    return LedgerRange(ledger_id=number, first=first, last=first + entries - 1, bytes=size, offset=offset)


def test_small_ledgers_share_a_task() -> None:
    tasks = pack([ledger(i, 10, MB) for i in range(100)], PartitionLimits(50 * MB))
    assert [len(task) for task in tasks] == [50, 50]


def test_a_large_ledger_is_split_evenly() -> None:
    tasks = pack([ledger(7, 1000, 200 * MB, first=5, offset=100)], PartitionLimits(128 * MB))
    assert [(t[0].first, t[0].last, t[0].offset) for t in tasks] == [(5, 504, 100), (505, 1004, 600)]


def test_more_partitions_can_be_asked_for() -> None:
    assert len(pack([ledger(7, 1000, MB)], PartitionLimits(128 * MB, partitions_min=8))) == 8
    assert len(pack([ledger(7, 3, MB)], PartitionLimits(128 * MB, partitions_min=8))) == 3
    assert len(pack([ledger(7, 1000, 0)], PartitionLimits(128 * MB, partitions_min=8))) == 8


def test_each_processor_has_a_task_if_there_is_enough_to_read() -> None:
    ranges = [ledger(number, 100, 45 * MB) for number in (1, 2)]

    def tasks(processors: int, partitions_min: int | None = None) -> list[int]:
        limits = PartitionLimits(128 * MB, partitions_min=partitions_min, processors=processors)
        return [sum(each.bytes for each in task) // MB for task in pack(ranges, limits)]

    assert tasks(1) == [90]
    assert tasks(2) == [45, 45]
    assert tasks(4) == [22, 22, 22, 22]
    assert len(tasks(96)) == 90 // 8, "a task has at least 8 MiB"
    assert tasks(4, partitions_min=1) == [90], "the option has precedence"
    assert len(pack([ledger(7, 100, 15 * MB)], PartitionLimits(128 * MB, processors=4))) == 1
    assert len(pack([ledger(7, 1, 90 * MB)], PartitionLimits(128 * MB, processors=4))) == 1


@settings(derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, MB)), min_size=1, max_size=60), st.integers(1, 300))
def test_there_are_at_least_as_many_partitions_as_asked_for_or_one_for_each_entry(
    ledgers: list[tuple[int, int]], wanted: int
) -> None:
    ranges = [ledger(number, entries, size) for number, (entries, size) in enumerate(ledgers)]
    tasks = pack(ranges, PartitionLimits(128 * MB, partitions_min=wanted, range_bytes=64 << 10))
    assert len(tasks) >= min(wanted, sum(entries for entries, _ in ledgers))
    assert all(task and all(each.entries for each in task) for task in tasks)
    planned = [(r.ledger_id, entry) for task in tasks for r in task for entry in range(r.first, r.last + 1)]
    assert planned == [(number, entry) for number, (entries, _) in enumerate(ledgers) for entry in range(entries)]


def test_entries_bound_a_partition() -> None:
    tasks = pack([ledger(i, 70, MB) for i in range(3)], PartitionLimits(128 * MB, entries_max=100))
    assert all(sum(r.entries for r in task) <= 100 for task in tasks)


def test_nothing_to_read_is_no_task() -> None:
    assert pack([ledger(1, 0, 0)], PartitionLimits(MB, 5, 5)) == []


def test_a_ledger_costs_a_request_so_many_tiny_ones_are_spread() -> None:
    tiny = [ledger(i, 100, 10_000) for i in range(10_000)]
    assert len(pack(tiny, PartitionLimits(128 * MB))) == 1
    assert len(pack(tiny, PartitionLimits(128 * MB, range_bytes=64 << 10))) == 6


def test_entries_that_nobody_reads_count_the_same_whatever_their_size() -> None:
    limits = PartitionLimits(160, range_bytes=64 << 10, entry_bytes=16)
    tasks = pack([ledger(0, 5, 0), ledger(1, 15, 100 * MB)], limits)
    assert [[(r.ledger_id, r.entries) for r in task] for task in tasks] == [[(0, 5), (1, 5)], [(1, 10)]]


def test_a_small_ledger_is_not_split_to_even_tasks_out() -> None:
    tasks = pack([ledger(i, 100, MB) for i in range(30)], PartitionLimits(128 * MB, partitions_min=2))
    assert [len(task) for task in tasks] == [15, 15]
    tasks = pack([ledger(i, 100, MB) for i in range(31)], PartitionLimits(128 * MB, partitions_min=2))
    assert [len(task) for task in tasks] == [15, 16]


SIZES = st.lists(st.tuples(st.integers(50, 400), st.integers(0, 1 << 20)), min_size=1, max_size=40)


@settings(derandomize=True)
@given(SIZES, st.integers(1 << 16, 1 << 21), st.none() | st.integers(2, 20))
def test_no_task_is_above_twice_the_average(
    ledgers: list[tuple[int, int]], bytes_max: int, partitions_min: int | None
) -> None:
    """As far as ledgers can be split: here an entry is a small part of a task."""
    ranges = [ledger(i, entries, size) for i, (entries, size) in enumerate(ledgers)]
    tasks = [sum(r.bytes for r in task) for task in pack(ranges, PartitionLimits(bytes_max, None, partitions_min))]
    assert max(tasks) <= 2 * sum(tasks) / len(tasks)
    assert sum(tasks) == sum(size for _, size in ledgers)


@settings(derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5000)), max_size=30),
    st.integers(1, 3000),
    st.none() | st.integers(1, 200),
    st.none() | st.integers(1, 40),
)
def test_every_entry_is_planned_once_and_in_order(
    ledgers: list[tuple[int, int]], bytes_max: int, entries_max: int | None, partitions_min: int | None
) -> None:
    ranges, offset = [], 0
    for number, (entries, size) in enumerate(ledgers):
        ranges.append(ledger(number, entries, size if entries else 0, first=number, offset=offset))
        offset += entries
    tasks = pack(ranges, PartitionLimits(bytes_max, entries_max, partitions_min))
    planned = [
        (r.ledger_id, e, (r.offset or 0) + e - r.first) for t in tasks for r in t for e in range(r.first, r.last + 1)
    ]
    wanted = [(r.ledger_id, e, (r.offset or 0) + e - r.first) for r in ranges for e in range(r.first, r.last + 1)]
    assert planned == wanted
    for task in tasks:
        assert task
        assert len(task) == 1 or sum(r.bytes for r in task) <= bytes_max
        assert entries_max is None or sum(r.entries for r in task) <= entries_max


SPANS = (Span(0, 100, 1000), Span(100, 150, 5000), Span(150, 160, 0))


@pytest.mark.parametrize(
    ("start", "entries_max", "bytes_max", "end"),
    [
        (0, None, None, 160),
        (0, 30, None, 30),
        (0, None, 500, 50),
        (0, None, 1000, 100),
        (0, None, 1100, 101),
        (0, 20, 500, 20),
        (100, None, 1, 101),
        (120, None, 3000, 160),
        (170, None, 10, 170),
    ],
)
def test_a_trigger_is_bounded_and_takes_at_least_one_entry(
    start: int, entries_max: int | None, bytes_max: int | None, end: int
) -> None:
    assert admit(start, 160, SPANS, entries_max, bytes_max) == end
