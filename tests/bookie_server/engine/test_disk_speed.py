# SPDX-License-Identifier: Apache-2.0
"""How large a group commit may be, from what the disk was seen to do."""

from __future__ import annotations

import pytest

from bookie_server.engine.commits.disk_speed import GROUP_BYTES_MIN, DiskSpeed

MB = 1_000_000


def measured(write_rate: float, sync_s: float, *, bytes_max: int = 16 << 20) -> DiskSpeed:
    """After groups of a megabyte on a disk of so many bytes a second."""
    speed = DiskSpeed(bytes_max)
    for _ in range(100):
        speed.note(sync_s, MB, MB / write_rate, sync_s)
    return speed


def test_an_unknown_disk_gets_groups_of_a_usual_frame() -> None:
    assert DiskSpeed(16 << 20).group_bytes == GROUP_BYTES_MIN
    assert DiskSpeed(1000).group_bytes == 1000, "what the operator allows is never exceeded"


def test_where_syncs_are_fast_a_large_group_gains_nothing() -> None:
    assert measured(1_000 * MB, 0.0001).group_bytes == GROUP_BYTES_MIN


@pytest.mark.parametrize(("rate", "expected"), [(1_000 * MB, 10 * MB), (200 * MB, 2 * MB)])
def test_syncs_of_a_slow_disk_take_a_third_of_its_time(rate: float, expected: int) -> None:
    assert measured(rate, 0.005).group_bytes == pytest.approx(expected, rel=0.01)


def test_a_group_never_exceeds_what_the_operator_allows() -> None:
    assert measured(1_000 * MB, 1.0).group_bytes == 16 << 20


def test_a_sync_that_waited_for_something_else_changes_little_and_a_disk_that_turned_slow_much() -> None:
    speed = measured(1_000 * MB, 0.0005)
    usual = speed.group_bytes
    speed.note(0.5, MB, 0.001, 0.5)
    assert speed.group_bytes <= usual * 1.05
    for _ in range(200):
        speed.note(0.005, MB, 0.001, 0.005)
    assert speed.group_bytes == pytest.approx(10 * MB, rel=0.01)


def test_small_writes_say_nothing_of_the_rate() -> None:
    speed = measured(1_000 * MB, 0.005)
    before = speed.group_bytes
    for _ in range(100):
        speed.note(0.005, 4096, 0.001, 0.005)
    assert speed.group_bytes == before
