# SPDX-License-Identifier: Apache-2.0
"""When a bookie stops taking new entries, and when it takes them again."""

from __future__ import annotations

import pytest

from bookie_server.storage.disk.space import RETRY_LOOKS, SpaceLimits, SpaceWatch, Usage

MIB = 1 << 20
LIMITS = SpaceLimits(threshold=0.95, low_water=0.90, segment_bytes=256 * MIB)
TOTAL = 1 << 40


def used(share: float, *, kept: int = 0, total: int = TOTAL) -> Usage:
    return Usage(total, round(total * (1 - share)) - kept, kept)


def test_room_is_what_is_free_and_what_is_kept_free() -> None:
    usage = Usage(1000, 50, 150)
    assert usage.usable_bytes == 200
    assert usage.used_share == pytest.approx(0.8)
    assert Usage(0, 0).used_share == 1, "a file system that says nothing is not trusted"


def test_read_only_above_the_threshold_and_writable_at_the_low_water_only() -> None:
    watch = SpaceWatch(LIMITS, used(0.5))
    assert not watch.read_only
    assert not watch.look(used(0.95))
    assert watch.look(used(0.951))
    assert watch.read_only
    assert "95.1%" in watch.why
    assert not watch.look(used(0.949)), "back and forth at the threshold"
    assert not watch.look(used(0.901))
    assert watch.read_only
    assert watch.look(used(0.899))
    assert (watch.read_only, watch.why) == (False, "")


def test_each_start_judges_anew() -> None:
    assert not SpaceWatch(LIMITS, used(0.94)).read_only
    assert SpaceWatch(LIMITS, used(0.96)).read_only


def test_segments_kept_free_are_room() -> None:
    assert not SpaceWatch(LIMITS, used(0.94, kept=TOTAL // 20)).read_only
    full_but_for_spares = Usage(100 << 30, 0, 20 << 30)
    assert not SpaceWatch(LIMITS, full_but_for_spares).read_only


def test_reserve_is_kept_on_a_small_disk_whatever_the_shares_say() -> None:
    small = 2 << 30
    watch = SpaceWatch(LIMITS, Usage(small, 769 * MIB))
    assert not watch.read_only, "one more segment leaves two"
    assert watch.look(Usage(small, 0, 767 * MIB))
    assert "reserve of 768 MiB" in watch.why
    relaxed = SpaceLimits(threshold=0.95, low_water=0.95, segment_bytes=256 * MIB)
    watch = SpaceWatch(relaxed, Usage(small, 767 * MIB))
    assert not watch.look(Usage(small, 1023 * MIB)), "after one segment it would be read-only again"
    assert watch.look(Usage(small, 1024 * MIB))


def test_commit_without_space_counts_at_once_and_until_there_is_more_room() -> None:
    watch = SpaceWatch(LIMITS, used(0.5))
    assert watch.no_space()
    assert not watch.no_space()
    assert "refused" in watch.why
    assert not watch.look(used(0.5)), "the file system says there is room, a commit knew better"
    more = Usage(TOTAL, TOTAL // 2 + 256 * MIB)
    assert watch.look(more)
    assert not watch.read_only


def test_room_that_comes_back_is_measured_against_the_least_there_was() -> None:
    watch = SpaceWatch(LIMITS, used(0.1))  # seen long before the disk filled up
    watch.no_space()
    assert not watch.look(used(0.999))
    assert watch.look(used(0.85))


def test_room_that_was_there_when_a_commit_found_none_is_not_new() -> None:
    watch = SpaceWatch(LIMITS, used(0.9))  # seen before spare segments were made
    watch.no_space()
    assert not watch.look(used(0.5)), "the first look behind the refusal"
    assert watch.read_only
    assert watch.look(used(0.4))


def test_commit_without_space_is_tried_again_after_some_looks() -> None:
    watch = SpaceWatch(LIMITS, used(0.5))
    watch.no_space()
    changes = [watch.look(used(0.5)) for _ in range(RETRY_LOOKS)]
    assert changes == [False] * (RETRY_LOOKS - 1) + [True]
    watch.no_space()
    assert not watch.look(used(0.5)), "the budget of looks begins again"
