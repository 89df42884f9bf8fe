# SPDX-License-Identifier: Apache-2.0
"""How large a group commit may be, from what the disk was seen to do."""

from __future__ import annotations

import pytest

from bookie_server.engine.group_size import GROUP_BYTES_MIN, GroupSize

MB = 1_000_000


def heard(write_rate: float, sync_s: float, *, bytes_max: int = 16 << 20) -> GroupSize:
    """After groups of a megabyte on a disk of so many bytes a second."""
    size = GroupSize(bytes_max)
    for _ in range(100):
        size.heard(MB, MB / write_rate, sync_s)
    return size


def test_an_unknown_disk_gets_groups_of_a_usual_frame() -> None:
    assert GroupSize(16 << 20).bytes == GROUP_BYTES_MIN
    assert GroupSize(1000).bytes == 1000, "what the operator allows is never exceeded"


def test_where_syncs_are_fast_a_large_group_gains_nothing() -> None:
    assert heard(1_000 * MB, 0.0001).bytes == GROUP_BYTES_MIN


@pytest.mark.parametrize(("rate", "expected"), [(1_000 * MB, 10 * MB), (200 * MB, 2 * MB)])
def test_syncs_of_a_slow_disk_take_a_third_of_its_time(rate: float, expected: int) -> None:
    assert heard(rate, 0.005).bytes == pytest.approx(expected, rel=0.01)


def test_a_group_never_exceeds_what_the_operator_allows() -> None:
    assert heard(1_000 * MB, 1.0).bytes == 16 << 20


def test_a_sync_that_waited_for_something_else_changes_little_and_a_disk_that_turned_slow_much() -> None:
    size = heard(1_000 * MB, 0.0005)
    usual = size.bytes
    size.heard(MB, 0.001, 0.5)
    assert size.bytes <= usual * 1.05
    for _ in range(200):
        size.heard(MB, 0.001, 0.005)
    assert size.bytes == pytest.approx(10 * MB, rel=0.01)


def test_small_writes_say_nothing_of_the_rate() -> None:
    size = heard(1_000 * MB, 0.005)
    before = size.bytes
    for _ in range(100):
        size.heard(4096, 0.001, 0.005)
    assert size.bytes == before
