# SPDX-License-Identifier: Apache-2.0
"""How many bookies serve a range: one joins while the consumer waits, and stays only if the sum is faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from bk_core.client.reading.sharing import PERIOD_S, PERIODS, REST_S, WORTH_S, Sharing

STEP_S = PERIOD_S / 8
MEGABYTE = 1_000_000


class Range:
    """A range whose bookies serve as soon as they are wanted. ``rate`` gives the bytes a second of so many bookies."""

    def __init__(self, rate: Callable[[int], float], most: int = 3, own_share: float = 0.05) -> None:
        self.sharing, self.rate, self.own_share = Sharing(most), rate, own_share
        self.left = 1_000 * MEGABYTE
        self.now = 100.0
        self.processor_s = 7.0
        self.wanted: list[int] = []

    def run(self, seconds: float, *, waited_share: float = 1.0) -> list[int]:
        """Let time pass; the numbers of bookies that were wanted, each change once."""
        until, seen = self.now + seconds, [self.sharing.wanted]
        while self.now < until:
            self.sharing.serves(self.sharing.wanted)
            self.sharing.arrived(int(self.rate(self.sharing.wanted) * STEP_S), self.left)
            self.now += STEP_S
            self.processor_s += self.own_share * STEP_S
            self.sharing.waited(self.now, STEP_S * waited_share, self.processor_s)
            if self.sharing.wanted != seen[-1]:
                seen.append(self.sharing.wanted)
        return seen


def each_adds(count: int) -> float:
    return count * 10 * MEGABYTE


def none_adds(count: int) -> float:
    return 100 * MEGABYTE


def test_bookies_join_one_by_one_while_each_of_them_adds() -> None:
    assert Range(each_adds).run(5) == [1, 2, 3]
    assert Range(each_adds, most=2).run(5) == [1, 2]
    assert Range(each_adds, most=1).run(5) == [1]


def test_a_read_that_is_shorter_than_a_period_has_one_bookie() -> None:
    assert Range(each_adds).run(PERIOD_S) == [1]


def test_no_bookie_joins_when_too_little_is_left_to_gain_from_it() -> None:
    one = Range(each_adds)
    one.left = int(WORTH_S * 10 * MEGABYTE * 0.99)
    assert one.run(60) == [1]
    one.left = int(WORTH_S * 10 * MEGABYTE * 1.01)
    assert one.run(60) == [1, 2], "the third would have to gain from the rate of two"


def test_no_bookie_joins_while_the_client_itself_needs_the_time() -> None:
    assert Range(each_adds, own_share=0.35).run(60) == [1], "receiving, which happens while the consumer waits"
    assert Range(each_adds).run(60, waited_share=0.6) == [1], "the consumer"


def test_a_bookie_that_adds_nothing_leaves_and_the_next_try_is_twice_as_late() -> None:
    one = Range(none_adds)
    tried, was = [], 1
    while one.now < 160:
        one.run(STEP_S)
        if one.sharing.wanted > was:
            tried.append(one.now)
        assert one.sharing.wanted <= 2
        was = one.sharing.wanted
    assert len(tried) == 5
    rests = [later - earlier for earlier, later in itertools.pairwise(tried)]
    for number, rest in enumerate(rests):
        assert 0 <= rest - REST_S * 2**number <= 5 * PERIOD_S


@pytest.mark.parametrize(("loss", "periods"), [(0.9, 2), (0.6, 1)])
def test_a_trial_without_a_gain_ends_after_two_periods_and_one_that_harms_after_one(loss: float, periods: int) -> None:
    one = Range(lambda count: 10 * MEGABYTE * (loss if count > 1 else 1))
    one.run(PERIOD_S + STEP_S)
    assert one.sharing.wanted == 2
    one.run((periods - 1) * PERIOD_S + STEP_S)
    assert one.sharing.wanted == 2
    one.run(PERIOD_S)
    assert one.sharing.wanted == 1


def test_a_third_bookie_that_adds_nothing_leaves_and_the_second_stays() -> None:
    assert Range(lambda count: min(count, 2) * 10 * MEGABYTE).run(1.9) == [1, 2, 3, 2]


def test_all_but_one_leave_when_the_consumer_gets_slow() -> None:
    one = Range(each_adds)
    assert one.run(3) == [1, 2, 3]
    assert one.run(1, waited_share=0.2) == [3, 1]


def test_a_bookie_leaves_when_all_are_slower_than_fewer_were() -> None:
    one = Range(each_adds)
    assert one.run(3) == [1, 2, 3]
    one.rate = lambda count: 15 * MEGABYTE
    assert one.run(1) == [3, 2]
    one.rate = lambda count: 9 * MEGABYTE
    assert one.run(1) == [2, 1]


def test_one_slow_period_makes_no_bookie_leave() -> None:
    one = Range(each_adds)
    one.run(3)
    for _ in range(5):
        one.rate = lambda count: 5 * MEGABYTE
        one.run(PERIOD_S)
        one.rate = each_adds
        assert one.run(2 * PERIOD_S) == [3]


def test_no_more_bookies_are_wanted_than_there_are() -> None:
    one = Range(each_adds)
    one.run(3)
    one.sharing.limit(2)
    assert one.run(3) == [2]
    one.sharing.limit(0)
    assert one.run(3) == [1]


def test_until_a_bookie_serves_the_rate_of_one_is_measured_on() -> None:
    sharing, now = Sharing(3), 0.0
    sharing.waited(now, 0, 0)
    for size in (4, 8, 8, 8):
        sharing.arrived(size * MEGABYTE, 1_000 * MEGABYTE)
        now += PERIOD_S
        sharing.waited(now, PERIOD_S, 0)
        assert sharing.wanted == 2
    sharing.serves(2)
    sharing.waited(now, 0, 0)
    for _ in range(PERIODS):  # twice the first period, but no gain over the later ones
        sharing.arrived(8 * MEGABYTE, 1_000 * MEGABYTE)
        now += PERIOD_S
        sharing.waited(now, PERIOD_S, 0)
    assert sharing.wanted == 1
