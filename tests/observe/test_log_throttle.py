# SPDX-License-Identifier: Apache-2.0
"""A line is logged once in a while, whoever causes it how often."""

from __future__ import annotations

from bk_core.observe.log_throttle import KEYS_MAX, LogThrottle


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_same_line_is_allowed_once_in_its_time_and_another_line_at_once() -> None:
    clock = Clock()
    throttle = LogThrottle(10.0, clock)
    assert throttle.allows("10.0.0.1", "refused")
    assert throttle.allows("10.0.0.1", "slow")
    assert throttle.allows("10.0.0.2", "refused")
    clock.now_s += 9.9
    assert not throttle.allows("10.0.0.1", "refused")
    clock.now_s += 0.1
    assert throttle.allows("10.0.0.1", "refused")
    assert not throttle.allows("10.0.0.1", "refused")


def test_a_refused_line_does_not_put_off_the_next_one() -> None:
    clock = Clock()
    throttle = LogThrottle(10.0, clock)
    assert throttle.allows("a")
    for _ in range(9):
        clock.now_s += 1.0
        assert not throttle.allows("a")
    clock.now_s += 1.0
    assert throttle.allows("a")


def test_a_forgotten_line_is_allowed_at_once() -> None:
    throttle = LogThrottle(10.0, Clock())
    assert throttle.allows("a")
    throttle.forget("a")
    throttle.forget("never allowed")
    assert throttle.allows("a")


def test_it_remembers_so_many_lines_and_no_more() -> None:
    throttle = LogThrottle(10.0, Clock())
    assert all(throttle.allows(number) for number in range(KEYS_MAX))
    assert not throttle.allows(0)
    assert throttle.allows("one more")
    assert throttle.allows(0), "all were forgotten, so that memory stays bounded"
    assert not throttle.allows("one more")
