# SPDX-License-Identifier: Apache-2.0
"""The budget of a process: never exceeded but by one entry a writer, shared fairly, nobody stands still (RULES P3)."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError
from bk_core.memory.shared_budget import LEFT_FOR_OTHERS, SharedBudget

LARGEST = 400


class World:
    """Writers that want room and get what they hold confirmed in the order they sent it."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = SharedBudget(bytes_max)
        self.sent: dict[int, deque[int]] = {}
        self.spare: dict[int, int] = {}
        self.through: dict[int, int] = {}

    def append(self, writer: int, size: int, *, waits: bool = False) -> bool:
        sent = self.sent.setdefault(writer, deque())
        spare = self.spare.get(writer, 0)
        if not sent and spare:
            self.wake(self.budget.give_back(writer, spare))
            spare = self.spare[writer] = 0
        if size > spare:
            given = self.budget.take(writer, size - spare, spare=50, waits=waits)
            if not given:
                return False
            spare += given
        self.spare[writer] = spare - size
        sent.append(size)
        return True

    def confirm(self, writer: int) -> list[int]:
        sent = self.sent.get(writer)
        if not sent:
            return []
        self.through[writer] = self.through.get(writer, 0) + sent[0]
        back = sent.popleft() + self.spare.get(writer, 0)
        self.spare[writer] = 0
        return self.budget.give_back(writer, back)

    def wake(self, members: list[int]) -> None: ...

    def check(self) -> None:
        held = {writer: sum(sent) + self.spare.get(writer, 0) for writer, sent in self.sent.items()}
        assert {writer: size for writer, size in held.items() if size} == {
            writer: self.budget.held(writer) for writer in held if self.budget.held(writer)
        }
        assert self.budget.bytes == sum(held.values())
        alone = sum(max(sent) for sent in self.sent.values() if sent)
        assert self.budget.bytes <= self.budget.bytes_max + alone


steps = st.lists(
    st.tuples(st.sampled_from(["append", "wait", "confirm", "leave"]), st.integers(0, 6), st.integers(1, LARGEST)),
    max_size=200,
)


@pytest.mark.rule("P3")
@given(bytes_max=st.integers(1, 3000), steps=steps)
def test_it_is_exceeded_by_one_entry_a_writer_at_most_and_who_holds_nothing_is_never_refused(
    bytes_max: int, steps: list[tuple[str, int, int]]
) -> None:
    world = World(bytes_max)
    for what, writer, size in steps:
        holds_nothing = not world.sent.get(writer)
        match what:
            case "append" | "wait":
                assert world.append(writer, size, waits=what == "wait") or not holds_nothing
            case "confirm":
                world.confirm(writer)
            case "leave":
                world.budget.leave(writer)
                world.sent.pop(writer, None)
                world.spare.pop(writer, None)
        world.check()


@pytest.mark.rule("P3")
@given(bytes_max=st.integers(1, 3000), steps=steps, wanted=st.integers(1, LARGEST))
def test_below_its_share_a_writer_is_refused_only_while_another_is_above_its_own(
    bytes_max: int, steps: list[tuple[str, int, int]], wanted: int
) -> None:
    world = World(bytes_max)
    for what, writer, size in steps:
        if what == "confirm":
            world.confirm(writer)
        else:
            world.append(writer, size)
    holding = [writer for writer in range(7) if world.budget.held(writer)]
    share = bytes_max // (len(holding) + 1)
    for writer in holding:
        if world.budget.held(writer) + wanted <= share and not world.budget.take(writer, wanted):
            assert any(world.budget.held(other) > share for other in holding)


@pytest.mark.rule("P3")
def test_one_busy_writer_may_use_what_quiet_ones_leave() -> None:
    budget = SharedBudget(1_000_000)
    for quiet in range(1, 4):
        assert budget.take(quiet, 100)
    while budget.take(0, 1_000):
        pass
    assert budget.held(0) >= 1_000_000 * (1 - 1 / LEFT_FOR_OTHERS) - 1_300


@pytest.mark.long
@pytest.mark.rule("P3")
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "polling"])
@pytest.mark.parametrize("seed", range(5))
def test_writers_that_all_want_more_get_equal_parts_though_one_was_there_first(seed: int, waits: bool) -> None:
    world, chance = World(100_000), random.Random(seed)
    while world.append(0, 100):
        pass
    writers = list(range(10))
    for _ in range(80_000):
        writer = chance.choice(writers + [0] * 10)  # the first one tries ten times as often
        if chance.random() < 0.25:
            world.confirm(chance.choice(writers))
        else:
            world.append(writer, 100, waits=waits)
    held = [world.budget.held(writer) for writer in writers]
    assert min(held) > 0.7 * 100_000 / 11, held
    through = [world.through.get(writer, 0) for writer in writers]
    assert min(through) > 0.6 * max(through), through
    world.check()


@pytest.mark.long
@pytest.mark.rule("P3")
def test_ten_thousand_writers_hold_the_budget_and_not_ten_thousand_windows() -> None:
    budget = SharedBudget(256 << 20)
    used = dict.fromkeys(range(10_000), 0)
    for _ in range(40):
        for writer in used:
            if budget.take(writer, 1_100, spare=256 << 10):
                used[writer] += 1_100
        assert budget.bytes <= (256 << 20) + 10_000 * 1_100
        for writer, size in used.items():  # the first entries of each are confirmed, and what nothing is held for
            budget.give_back(writer, budget.held(writer) - size)
    assert min(used.values()) >= 20_000  # an equal share is 26,840


def test_who_waits_is_named_once_when_room_comes_back_and_not_before() -> None:
    budget = SharedBudget(1_000)
    assert budget.take(1, 500)
    assert budget.take(2, 450)
    assert not budget.take(2, 100, waits=True)
    assert not budget.give_back(1, 10)
    assert budget.give_back(1, 300) == [2]
    assert not budget.give_back(1, 10)
    assert budget.take(2, 40)


def test_who_left_holds_nothing_and_is_not_named() -> None:
    budget = SharedBudget(1_000)
    assert budget.take(1, 500)
    assert budget.take(2, 450)
    assert not budget.take(2, 200, waits=True)
    assert not budget.leave(2)
    assert not budget.give_back(1, 500)
    assert budget.bytes == 0


def test_a_smaller_budget_takes_nothing_away_and_gives_nothing_new() -> None:
    budget = SharedBudget(1_000)
    assert budget.take(1, 800)
    budget.resize(400)
    assert (budget.held(1), budget.take(1, 1)) == (800, 0)
    assert budget.take(2, 100) == 100  # it held nothing
    with pytest.raises(InvalidArgumentError):
        budget.resize(0)
