# SPDX-License-Identifier: Apache-2.0
"""The queue before the log: who may take what, and when (RULES S10, P1). The thread's waits are in
``tests/sim/threads``."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from bookie_server.engine.commits.disk_speed import DiskSpeed
from bookie_server.engine.commits.queue import INLINE_FRAMES, CommitQueue, Copies, Group
from tests.kit.segment_world import entries


def queue(*, fast: bool = True, frames_max: int = 100, bytes_max: int = 1 << 20) -> CommitQueue:
    speed = DiskSpeed(bytes_max)
    speed.took_s = 0.0 if fast else 1.0
    return CommitQueue(speed, lambda: 7.0, frames_max)


def frames(*ids: int) -> list[bytes]:
    return [entries(1, [each]) for each in ids]


def take(made: CommitQueue) -> Group | Copies | None:
    return made.take(lambda: False)


def take_small(made: CommitQueue, *, has_room: bool = True) -> Group | None:
    with made.lock:
        return made.take_small(lambda size, count: has_room)


def test_the_loop_may_take_a_small_queue_of_a_fast_disk_alone() -> None:
    assert queue().put(frames(0, 1), (), False)
    assert not queue(fast=False).put(frames(0), (), False)
    assert not queue().put(frames(*range(INLINE_FRAMES + 1)), (), False)
    made = queue()
    made.is_held = True
    assert not made.put(frames(0), (), False)


def test_what_the_loop_takes_is_held_until_it_is_released() -> None:
    made = queue()
    made.put(frames(0, 1), (), False)
    assert take_small(made, has_room=False) is None
    group = take_small(made)
    assert [header.first_entry_id for header in group.headers] == [0, 1]
    assert group.since == 7.0
    made.put(frames(2), (), False)
    assert take_small(made) is None
    made.release()
    assert take_small(made) is not None
    made.release()
    assert take_small(made) is None, "nothing is queued"


def test_a_group_has_no_more_frames_and_bytes_than_it_may_and_its_reserve_if_one_frame_has_it() -> None:
    made = queue(frames_max=2)
    made.put(frames(0, 1, 2), (), False)
    made.put(frames(3), (), True)
    for ids, reserve in (([0, 1], False), ([2, 3], True)):
        group = take(made)
        assert ([header.first_entry_id for header in group.headers], group.reserve) == (ids, reserve)
        made.release()
    small = queue(bytes_max=1)
    small.put(frames(0, 1), (), False)
    group = take(small)
    assert isinstance(group, Group)
    assert len(group.frames) == 1, "one frame always fits"


@pytest.mark.rule("P1")
def test_nothing_is_taken_after_a_failure_until_the_frames_are_dropped() -> None:
    made = queue()
    made.put(frames(0), (), False)
    made.halt()
    assert take_small(made) is None
    made.drop(resume=True)
    made.put(frames(1), (), False)
    group = take(made)
    assert group.headers[0].first_entry_id == 1


def test_copies_and_groups_take_turns_and_copies_are_cancelled_at_the_end() -> None:
    made = queue(frames_max=1)
    copies = [Copies(frames(9), Future()) for _ in range(3)]
    made.put(frames(0, 1), (), False)
    made.put_copies(copies[0])
    made.put_copies(copies[1])
    taken = []
    for _ in range(4):
        taken.append(isinstance(take(made), Copies))
        made.release()
    assert taken == [False, True, False, True]
    made.put_copies(copies[2])
    made.end()
    assert copies[2].done.cancelled()
    late = Copies(frames(9), Future())
    made.put_copies(late)
    assert late.done.cancelled()
    assert take(made) is None
