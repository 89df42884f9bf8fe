# SPDX-License-Identifier: Apache-2.0
"""The order of tasks, and how long a task waits after it had no work or failed."""

from __future__ import annotations

import pytest

from bk_core.errors import StorageFailedError
from bookie_server.storage.maintenance.schedule import STEP_BYTES
from bookie_server.storage.maintenance.tasks import LOOK_S, RETRY_S, TaskSchedule


class World:
    """A schedule, a clock, and what was done."""

    def __init__(self) -> None:
        self.now_s, self.done = 100.0, list[str]()
        self.schedule = TaskSchedule(lambda: self.now_s)

    def urgent(self, name: str, *answers: float | Exception) -> None:
        """A task whose pieces of work answer so, the last one again and again."""
        left = list(answers)

        def run() -> float:
            self.done.append(name)
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.schedule.add_urgent(name, run)


def test_the_most_urgent_task_with_work_is_done_first_and_one_piece_a_step() -> None:
    world = World()
    world.urgent("first", 0.0, 5.0)
    world.urgent("second", 0.0, 9.0)
    assert [world.schedule.step() for _ in range(3)] == [True, True, False]
    assert world.done == ["first", "first", "second", "second"]
    assert world.schedule.wait_s() == 5.0
    world.schedule.soon("second")
    assert world.schedule.wait_s() == 0.0


def test_a_task_that_fails_waits_longer_each_time_and_cannot_be_hurried() -> None:
    world = World()
    world.urgent("failing", OSError("no"), OSError("no"), 1.0)
    for number in range(2):
        assert not world.schedule.step()
        assert world.schedule.wait_s() == RETRY_S * 2**number
        world.schedule.soon("failing")
        assert not world.schedule.step(), "it waits"
        world.now_s += RETRY_S * 2**number
    assert world.schedule.errors == 2
    assert not world.schedule.step()
    assert world.schedule.wait_s() == 1.0


@pytest.mark.rule("S6")
def test_a_failed_disk_ends_the_work() -> None:
    world = World()
    world.urgent("failing", StorageFailedError("a sync failed"))
    with pytest.raises(StorageFailedError):
        world.schedule.step()
    assert world.schedule.errors == 0


def test_paced_tasks_take_turns_within_their_rates_and_look_again_when_idle() -> None:
    world = World()
    for name in ("one", "other"):
        world.schedule.add_paced(name, lambda size, name=name: world.done.append(name) or size, STEP_BYTES)
    assert [world.schedule.step() for _ in range(3)] == [True, True, False]
    assert world.done == ["one", "other"]
    assert world.schedule.wait_s() == pytest.approx(1.0), "a second's worth is used"
    idle = World()
    idle.schedule.add_paced("idle", lambda size: 0, STEP_BYTES)
    assert not idle.schedule.step()
    assert idle.schedule.wait_s() == LOOK_S
