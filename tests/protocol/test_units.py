# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as people write them, for the command line and for Spark's options."""

from __future__ import annotations

import pytest

from bk_core import units


@pytest.mark.parametrize(
    ("text", "size", "time_ms"),
    [
        ("5", 5, 5),
        ("2k", 2048, None),
        ("1 MiB", 1 << 20, None),
        ("3m", 3 << 20, 180_000),
        ("128m", 128 << 20, 7_680_000),
        ("1g", 1 << 30, None),
        ("64 KiB", 64 << 10, None),
        ("2MB", 2 << 20, None),
        ("2 min", None, 120_000),
        ("1w", None, 604_800_000),
        ("7D", None, 604_800_000),
        (" 12h ", None, 43_200_000),
        ("5ms", None, 5),
        ("-1", None, None),
        ("", None, None),
        ("1.5g", None, None),
    ],
)
def test_sizes_are_powers_of_1024_and_times_are_milliseconds(text: str, size: int | None, time_ms: int | None) -> None:
    assert units.parse_size(text) == size
    assert units.parse_time_ms(text) == time_ms


def test_times_are_told_in_the_largest_unit_that_is_exact() -> None:
    told = [units.time_in_words(n) for n in (604_800_000, 5_400_000, 90_000, 1500, 0)]
    assert told == ["7 d", "90 min", "90 s", "1500 ms", "0 ms"]
