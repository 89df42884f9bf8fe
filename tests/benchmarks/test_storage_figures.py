# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the storage table: shares, limits, the page that keeps results."""

from __future__ import annotations

import json

import pytest

from benchmarks.report.figures import number
from benchmarks.storage import compaction
from benchmarks.storage.figures import StorageFigure, row
from benchmarks.storage.memory import figures_of


def rate(ours: list[float], raw: list[float]) -> StorageFigure:
    return StorageFigure("commit_1mb", "MB/s", ours, wanted=0.7, of_raw=True, peer="bare", peer_values=raw)


def test_the_share_is_the_median_of_the_runs_own_shares() -> None:
    figure = rate([100.0, 300.0, 800.0], [200.0, 1000.0, 1000.0])
    assert figure.shares == [0.5, 0.3, 0.8]
    assert figure.share == 0.5
    assert figure.median / 1000.0 != figure.share, "the ratio of the medians would hide that runs belong together"


def test_a_limit_of_the_raw_disk_is_for_the_share_and_not_for_the_value() -> None:
    assert rate([70.0], [100.0]).meets is True
    assert rate([69.0], [100.0]).meets is False
    slow = StorageFigure(
        "single_add", "ms", [0.16], wanted=1.5, of_raw=True, less_is_better=True, peer="bare", peer_values=[0.1]
    )
    assert slow.meets is False


def test_a_limit_of_the_value_ignores_the_raw_figure() -> None:
    figure = StorageFigure("start_up", "s", [9.0], wanted=10, less_is_better=True, peer="reads", peer_values=[0.1])
    assert (figure.meets, round(figure.share or 0)) == (True, 90)
    assert StorageFigure("start_up", "s", [10.5], wanted=10, less_is_better=True).meets is False


def test_a_figure_without_a_limit_neither_meets_nor_misses() -> None:
    assert StorageFigure("time", "ms", [1.0]).meets is None


def test_runs_of_ours_and_of_the_raw_disk_come_in_pairs() -> None:
    with pytest.raises(AssertionError, match="pairs"):
        rate([1.0, 2.0], [1.0])
    with pytest.raises(AssertionError, match="lacks"):
        StorageFigure("x", "s", [1.0], wanted=1, of_raw=True)
    with pytest.raises(AssertionError, match="not measured"):
        StorageFigure("x", "s", [])


def test_the_object_of_a_line_has_the_names_of_all_groups_and_more() -> None:
    told = json.loads(rate([50.0, 100.0, 75.0], [100.0, 100.0, 100.0]).as_json())
    assert told["name"] == "commit_1mb"
    assert (told["value"], told["runs"], told["peer_value"]) == (75.0, [50.0, 100.0, 75.0], 100.0)
    assert (told["ratio"], told["share"], told["min"], told["max"]) == (0.75, 0.75, 50.0, 100.0)
    less = StorageFigure("add", "ms", [0.2], less_is_better=True, peer="bare", peer_values=[0.1])
    assert (json.loads(less.as_json())["ratio"], less.share) == (0.5, 2.0)


def test_a_row_says_what_is_wanted_of_what() -> None:
    assert row(rate([70.0], [100.0]).as_record()) == (
        "commit_1mb", "MB/s", "70.00", "70.00", "70.00", "100.0", "0.70", "≥ 0.7 × raw", "✓",
    )  # fmt: skip
    figure = StorageFigure("start_up", "s", [10.5], wanted=10, less_is_better=True)
    assert row(figure.as_record())[5:] == ("", "", "≤ 10 s", "✗")
    assert row(StorageFigure("time", "ms", [1.0]).as_record())[7:] == ("", "")


@pytest.mark.parametrize(
    ("value", "shown"), [(0.1854, "0.185"), (4.1934, "4.193"), (72.77, "72.77"), (788.44, "788.4"), (2040.2, "2,040")]
)
def test_numbers_have_four_digits_and_no_exponent(value: float, shown: str) -> None:
    assert number(value) == shown


def test_growth_of_memory_is_from_the_second_segment_to_the_last() -> None:
    lines = [
        {"frames": 100.0, "index": 50.0, "resident": 10.0, "left": 5.0, "peak": 90.0},
        {"frames": 100.0, "index": 100.0, "resident": 200.0, "left": 10.0, "peak": 400.0},
        {"frames": 100.0, "index": 120.0, "resident": 210.0, "left": 24.0, "peak": 2e9},
    ]
    found = {figure.name.removeprefix("one_entry_frames_"): figure for figure in figures_of(lines, 1 << 20)}
    assert found["index_growth"].values == [1.2]
    assert found["index_growth"].meets is False
    assert (found["resident_growth"].values, found["resident_growth"].meets) == ([1.05], True)
    assert found["left_by_sealing"].values == [0.1, 0.1, 0.2]
    assert (found["memory"].values, found["memory"].meets) == ([2000.0], False)


def test_what_comes_back_is_less_what_the_copies_took() -> None:
    outcome = compaction.Outcome(
        alone=500.0, meanwhile=450.0, dead_bytes=75, back_bytes=100 - 30, seconds=3.0, copied_bytes=30
    )
    back, rate = compaction.figures_of([outcome])
    assert back.values == [pytest.approx(70 / 75)]
    assert (back.meets, rate.share, rate.meets) == (True, 0.9, True)
    slow = compaction.Outcome(alone=500.0, meanwhile=390.0, dead_bytes=75, back_bytes=60, seconds=3.0, copied_bytes=40)
    assert [figure.meets for figure in compaction.figures_of([slow])] == [False, False]
