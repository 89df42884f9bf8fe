# SPDX-License-Identifier: Apache-2.0
"""Limits of a micro-batch over many sources: kept, shared, and nobody starves; and waiting for enough entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.options.selection import LedgerSource, LogSource, Source
from bk_spark.plan.packing import Span, bytes_between
from bk_spark.stream.admission import Backlog, HoldBack, TriggerLimits, admit_all
from tests.kit.amount import examples

A, B, C = LogSource("a"), LogSource("b"), LogSource("c")
NO_LIMITS = TriggerLimits(None, None)


def backlog(entries: int, entry_bytes: int = 10, begin: int = 0) -> Backlog:
    return Backlog(begin, begin + entries, (Span(0, begin + entries, (begin + entries) * entry_bytes),))


def taken(backlogs: dict[Source, Backlog], limits: TriggerLimits, after: Source | None = None) -> dict[str, int]:
    admission = admit_all(backlogs, limits, after)
    return {source.key: end - backlogs[source].begin for source, end in admission.ends.items()}


def test_without_limits_everything_is_taken() -> None:
    assert taken({A: backlog(5), B: backlog(7, begin=3)}, NO_LIMITS) == {"a": 5, "b": 7}


def test_entries_are_shared_by_backlog() -> None:
    assert taken({A: backlog(900), B: backlog(100), C: backlog(0)}, TriggerLimits(100, None)) == {
        "a": 90,
        "b": 10,
        "c": 0,
    }


def test_bytes_are_shared_by_backlog() -> None:
    found = taken({A: backlog(1000, 30), B: backlog(1000, 10)}, TriggerLimits(None, 4000))
    assert found == {"a": 100, "b": 100}


def test_both_limits_hold() -> None:
    assert taken({A: backlog(1000), B: backlog(1000)}, TriggerLimits(100, 200)) == {"a": 10, "b": 10}
    assert taken({A: backlog(1000), B: backlog(1000)}, TriggerLimits(10, 2000)) == {"a": 5, "b": 5}


def test_one_entry_above_the_limit_is_taken_all_the_same_but_only_one() -> None:
    assert taken({A: backlog(3, 1000)}, TriggerLimits(None, 10)) == {"a": 1}
    assert taken({A: backlog(3, 1000), B: backlog(3, 1000)}, TriggerLimits(None, 10)) == {"a": 1, "b": 0}


def test_an_end_below_the_begin_takes_nothing_and_makes_no_room_for_others() -> None:
    assert taken({A: Backlog(10, 4), B: backlog(10)}, TriggerLimits(5, None)) == {"a": 0, "b": 5}


def test_more_sources_than_room_take_turns() -> None:
    sources: dict[Source, Backlog] = {LedgerSource(i): backlog(100) for i in range(7)}
    after, served = None, dict.fromkeys(sources, 0)
    for _ in range(7):
        admission = admit_all(sources, TriggerLimits(3, None), after)
        after = admission.first
        for source, end in admission.ends.items():
            served[source] += end
    assert set(served.values()) == {3}


def test_a_source_of_large_entries_gets_its_turn_beside_small_ones() -> None:
    sources: dict[Source, Backlog] = {A: backlog(10_000, 10), B: backlog(5, 500)}
    after, large = None, 0
    for _ in range(4):
        admission = admit_all(sources, TriggerLimits(None, 100), after)
        after = admission.first
        large += admission.ends[B]
    assert large == 2


backlogs_of = st.dictionaries(
    st.builds(LedgerSource, st.integers(0, 50)),
    st.builds(
        lambda begin, sizes: Backlog(begin, begin + len(sizes), _spans(begin, sizes)),
        st.integers(0, 20),
        st.lists(st.integers(0, 60), max_size=15),
    ),
    max_size=12,
)


def _spans(begin: int, sizes: list[int]) -> tuple[Span, ...]:
    return tuple(Span(begin + i, begin + i + 1, size) for i, size in enumerate(sizes))


@examples(3)
@given(backlogs_of, st.none() | st.integers(1, 40), st.none() | st.integers(1, 400))
def test_limits_hold_and_there_is_always_progress(
    backlogs: dict[Source, Backlog], entries_max: int | None, bytes_max: int | None
) -> None:
    ends = admit_all(backlogs, TriggerLimits(entries_max, bytes_max)).ends
    assert ends.keys() == backlogs.keys()
    assert all(each.begin <= ends[source] <= max(each.begin, each.end) for source, each in backlogs.items())
    entries = sum(ends[source] - each.begin for source, each in backlogs.items())
    size = sum(bytes_between(each.spans, each.begin, ends[source]) for source, each in backlogs.items())
    assert entries >= min(1, sum(each.entries for each in backlogs.values()))
    assert entries_max is None or entries <= entries_max
    large = [bytes_between(each.spans, each.begin, ends[source]) for source, each in backlogs.items()]
    assert bytes_max is None or size <= bytes_max or sum(1 for each in large if each) == 1


@examples(3)
@given(backlogs_of, st.integers(1, 40))
def test_entries_fill_the_limit_and_everybody_has_one_while_there_is_room(
    backlogs: dict[Source, Backlog], entries_max: int
) -> None:
    ends = admit_all(backlogs, TriggerLimits(entries_max, None)).ends
    took = {source: ends[source] - each.begin for source, each in backlogs.items() if each.entries}
    assert sum(took.values()) == min(entries_max, sum(each.entries for each in backlogs.values()))
    assert sum(1 for each in took.values() if each) == min(entries_max, len(took))


def test_a_batch_waits_for_enough_entries_or_the_delay() -> None:
    hold = HoldBack(100, 60.0)
    assert not hold.holds(3, 0.0)  # the first of a run
    assert hold.holds(99, 1.0)
    assert not hold.holds(100, 2.0)
    assert hold.holds(99, 61.9)
    assert not hold.holds(99, 62.0)
    assert hold.holds(1, 63.0)


def test_the_delay_counts_from_the_last_batch_with_entries() -> None:
    hold = HoldBack(100, 60.0)
    assert not hold.holds(100, 0.0)
    assert not hold.holds(0, 59.0)
    assert not hold.holds(1, 60.0)


def test_without_a_minimum_nothing_waits() -> None:
    hold = HoldBack(None, 60.0)
    assert not hold.holds(1, 0.0)
    assert not hold.holds(1, 0.1)


def stream(**given: str) -> BkOptions:
    return parse_options({"metadataserviceuri": "zk://h/ledgers", "path": "events", **given}, Use.STREAM)


def test_options_of_a_trigger_have_kafkas_names_too() -> None:
    ours = stream(minentriespertrigger="5", maxtriggerdelay="2h")
    assert (ours.min_entries_per_trigger, ours.max_trigger_delay_ms) == (5, 7_200_000)
    assert stream(minoffsetspertrigger="5").min_entries_per_trigger == 5
    assert stream().max_trigger_delay_ms == 15 * 60 * 1000
    assert stream().on_overwrite == "fail"


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("30 s", 30_000), ("500ms", 500), ("1d", 86_400_000), ("7", 7), ("1min", 60_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert stream(maxtriggerdelay=text).max_trigger_delay_ms == ms


@pytest.mark.parametrize("text", ["", "soon", "1.5h", "-1s", "5 parsecs"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="maxTriggerDelay has a bad value"):
        stream(maxtriggerdelay=text)


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="minEntriesPerTrigger ≤ maxEntriesPerTrigger"):
        stream(minentriespertrigger="5", maxoffsetspertrigger="4")
