# SPDX-License-Identifier: Apache-2.0
"""Compaction: what is chosen, that nothing is lost or comes back whatever happens meanwhile (RULES S4, I5, I6, I9)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from bk_core.entries.frame import parse_header
from bk_core.errors import BookKeeperError, DataDirectoryError, StorageFailedError
from bookie_server.storage.maintenance import compaction
from bookie_server.storage.maintenance.compaction import choose
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from tests.kit.compaction_world import SEGMENT, CompactionWorld, deleted, prepared
from tests.kit.segment_world import assert_honest, entries, limbo_record

# --- choice -----------------------------------------------------------------------------------------------------------


def test_the_segment_with_the_least_live_share_is_chosen_the_oldest_of_several() -> None:
    assert choose({5: 40, 3: 30, 4: 30, 6: 31}, 100, 0.5) == 3
    assert choose({5: 50, 3: 80}, 100, 0.5) is None
    assert choose({5: 50, 3: 80}, 100, 0.8) == 5
    assert choose({3: 80, 4: 79}, 100, 0.8) == 4
    assert choose({}, 100, 0.8) is None


def test_what_is_left_out_is_not_chosen() -> None:
    assert choose({3: 10, 4: 20}, 100, 0.5, {3}) == 4
    assert choose({3: 10}, 100, 0.5, {3}) is None


def test_a_segment_that_a_restart_left_nearly_empty_is_chosen_and_its_few_bytes_move() -> None:
    world = CompactionWorld()
    frames = [entries(1, [k]) for k in range(5)]
    for frame in frames:
        world.append(frame)
        world.restart(crash=False)
    sealed = world.storage.index.sealed_generations()
    assert world.compact() == 5
    assert not set(sealed) & set(world.storage.index.sealed_generations())
    assert world.compactor.take_drained() == sealed
    assert_honest(world.storage, frames, healthy=True)


# --- what it does -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("S4", "S7")
def test_everything_live_is_served_as_before_and_the_old_segments_are_given_up() -> None:
    world, live = prepared()
    before = {ledger_id: world.storage.read(ledger_id, 0, 250).found for ledger_id in range(1, 8)}
    sealed, bytes_live = world.storage.index.sealed_generations(), sum(world.storage.index.live_bytes().values())
    assert world.compact() >= 3
    gone = world.compactor.take_drained()
    assert set(sealed) <= set(gone)
    assert not set(gone) & set(world.storage.index.sealed_generations())
    assert_honest(world.storage, live, healthy=True)
    assert {ledger_id: world.storage.read(ledger_id, 0, 250).found for ledger_id in range(1, 8)} == before
    stats = world.compactor.stats
    assert stats.copied_bytes < bytes_live
    assert stats.joined_frames > 50
    world.restart()
    assert_honest(world.storage, live, healthy=True)


def test_nine_tenths_of_the_dead_bytes_come_back() -> None:
    world, _ = prepared()
    index = world.storage.index
    dead = sum(SEGMENT - live for live in index.live_bytes().values())
    world.compact()
    given = len(world.compactor.take_drained()) * SEGMENT - world.compactor.stats.copied_bytes
    assert given >= 0.9 * dead


def test_a_segment_without_a_live_frame_is_given_up_unread() -> None:
    world = CompactionWorld()
    world.append(*(entries(1, range(10 * k, 10 * k + 10), size=1000) for k in range(12)))
    world.append(*deleted(1))
    dead = world.storage.index.sealed_generations()
    assert world.compact() == 0
    assert world.compactor.take_drained() == dead
    assert world.compactor.stats.read_bytes == 0


def test_a_step_does_about_its_budget() -> None:
    world, _ = prepared()
    done = [world.compactor.step(4096) for _ in range(5)]
    assert all(4096 <= size <= 3 * SEGMENT for size in done)
    assert world.compactor.generation is not None


def test_small_frames_that_cannot_be_packed_closer_are_left_alone() -> None:
    world = CompactionWorld()
    world.compactor = world.make(MaintenanceLimits(major_compaction_threshold=0.7))
    frames = [entries(1000 + k, [k], size=1) for k in range(440)]  # about 80 bytes in 128
    for k in range(0, 440, 110):
        world.append(*frames[k : k + 110])
    world.append(*(entries(2, [k], size=9000) for k in range(10)))
    world.append(*deleted(2))
    full = min(world.storage.index.sealed_generations())
    assert world.storage.index.live_bytes()[full] < 0.6 * SEGMENT
    world.compact(major=True)
    assert full in world.storage.index.sealed_generations()
    assert world.compactor.step(1, major=True) == 0
    world.append(*deleted(*range(1000, 1300)))
    assert world.compact() == 1
    assert_honest(world.storage, frames[300:], healthy=True)


# --- dropped copies ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("S4")
def test_dropped_copies_are_not_copied_and_later_entries_are() -> None:
    world = CompactionWorld()
    world.append(*(entries(1, [k], size=900) for k in range(10)), entries(2, range(10), size=900))
    world.roll()
    world.drop(1)
    world.append(*(entries(1, [k], size=900) for k in range(5)))
    world.roll()
    world.compact()
    assert world.compactor.stats.copied_bytes < 17 * 1000
    for _ in range(2):
        assert world.found(1, 20) == set(range(5))
        assert world.found(2, 20) == set(range(10))
        world.restart()


@pytest.mark.rule("S4")
def test_a_segment_of_which_all_dies_while_it_is_under_way_is_let_go() -> None:
    world, _ = prepared()
    world.compactor.step(1)
    generation = world.compactor.generation
    world.append(*deleted(*range(1, 8)))
    world.storage.index.drop_segment(generation)
    world.disk.lose_file(world.segment(generation))
    world.compact()
    assert world.compactor.stats.damaged_segments == 0
    assert generation not in world.compactor.take_drained()


# --- no room ----------------------------------------------------------------------------------------------------------


def test_one_spare_segment_is_enough() -> None:
    """Each segment that is compacted gives the room for the next, as long as its file comes back."""
    world, live = prepared()
    world.disk.faults.no_space = True
    given = 0
    while world.compactor.step(1 << 20) or world.compactor.starved:
        for generation in world.compactor.take_drained():
            world.storage.reader.release(generation)
            world.storage.log.pool.recycle(generation)
            given += 1
        assert not world.compactor.starved
        world.look_after()
    assert given >= 3
    assert_honest(world.storage, live, healthy=True)


def test_a_full_disk_is_given_up_to_and_the_rest_copied_when_there_is_room() -> None:
    world, live = prepared()
    world.refuse = DataDirectoryError("no new segment can be made")
    while world.compactor.step(1 << 20):
        pass
    assert world.compactor.starved
    under_way = world.compactor.generation
    assert under_way in world.storage.index.sealed_generations()
    assert world.compactor.step(1 << 20) == 0
    assert_honest(world.storage, live, healthy=True)
    world.refuse = None
    assert world.compact()
    assert not world.compactor.starved
    assert under_way not in world.storage.index.sealed_generations()
    assert_honest(world.storage, live, healthy=True)


def test_dead_segments_are_given_up_on_a_full_disk() -> None:
    world, _ = prepared()
    world.refuse = DataDirectoryError("no new segment can be made")
    while world.compactor.step(1 << 20):
        pass
    world.compactor.take_drained()
    world.append(*(entries(70, range(10 * k, 10 * k + 10), size=1000) for k in range(9)))
    full = max(world.storage.index.sealed_generations())
    world.append(*deleted(70))
    assert world.compactor.step(1 << 20) == 0
    assert full in world.compactor.take_drained()


def test_a_failure_lets_go_and_loses_nothing() -> None:
    world, live = prepared()
    for error in (BookKeeperError("the commit thread does not answer"), StorageFailedError("a group commit failed")):
        world.refuse = error
        with pytest.raises(type(error)):
            world.compact()
        assert world.compactor.generation is None
        assert_honest(world.storage, live, healthy=True)
    world.refuse = None
    assert world.compact()
    assert_honest(world.storage, live, healthy=True)


def test_its_bounds_fit_together() -> None:
    assert compaction.COPY_BYTES_MAX <= compaction.PART_BYTES
    limits = MaintenanceLimits()
    assert limits.compaction_threshold < limits.major_compaction_threshold < 1


# --- what happens meanwhile -------------------------------------------------------------------------------------------

Meanwhile = Callable[[CompactionWorld], None]


def delete(world: CompactionWorld) -> None:
    world.append(*deleted(1))


def drop(world: CompactionWorld) -> None:
    world.drop(1)


def drop_and_add_some_again(world: CompactionWorld) -> None:
    world.drop(1)
    world.append(entries(1, range(5), lac=-1, size=100))


def limbo(world: CompactionWorld) -> None:
    world.append(limbo_record(1), entries(1, range(16, 18), size=100))


def add_again(world: CompactionWorld) -> None:
    world.append(entries(1, range(12), lac=3, size=100))


def fill_the_segment(world: CompactionWorld) -> None:
    for k in range(9):
        world.append(entries(50, range(8 * k, 8 * k + 8), size=1000))


def begin_anew(world: CompactionWorld) -> None:
    """The maintenance thread lets go and the next step begins anew."""
    world.compactor.close()


ALL = set(range(16))
MEANWHILE: dict[str, tuple[Meanwhile, set[int]]] = {
    "nothing": (lambda world: None, ALL),
    "the ledger is deleted": (delete, set()),
    "it is in limbo from then on": (limbo, ALL | {16, 17}),
    "entries are added again": (add_again, ALL),
    "the segment of the copies is full and sealed": (fill_the_segment, ALL),
    "it is let go": (begin_anew, ALL),
}


def happens(world: CompactionWorld, act: Meanwhile, when: int, where: str) -> bool:
    """Compact, and do ``act`` at the ``when``-th moment: ``between`` two pieces of work, or with a call of ``copy``
    under way. Whether there was such a moment."""
    moments = count(1)
    done = False

    def moment() -> None:
        nonlocal done
        if not done and next(moments) == when:
            done = True
            act(world)

    if where == "before the copies are written":
        world.before_write = moment
    elif where == "before the index learns":
        world.before_learn = moment
    for _ in world.steps():
        if where == "between":
            moment()
        world.look_after()
    world.before_write = world.before_learn = lambda: None
    return done


@pytest.mark.rule("S4", "I5", "I9")
@pytest.mark.parametrize(
    "where",
    [pytest.param("between", marks=pytest.mark.long), "before the copies are written", "before the index learns"],
)
@pytest.mark.parametrize("what", MEANWHILE)
def test_whatever_happens_meanwhile_what_is_dead_stays_dead_and_what_lives_is_served(what: str, where: str) -> None:
    act, expected = MEANWHILE[what]
    for when in range(1, 200):
        world, live = prepared()
        live = [frame for frame in live if parse_header(frame).ledger_id != 1]
        if not happens(world, act, when, where):
            break
        assert world.found(1, 40) == expected, when
        assert_honest(world.storage, live, healthy=True)
        index = world.storage.index
        assert not set(index.sealed_generations()) & set(index.unsealed_generations()), "a checkpoint would wait for it"
        world.restart()
        assert world.found(1, 40) == expected, when
        assert_honest(world.storage, live, healthy=True)
        world.compact()
        assert world.found(1, 40) == expected, when
    assert when > 3


@pytest.mark.rule("S4")
@pytest.mark.parametrize("where", ["before the copies are written", "before the index learns"])
@pytest.mark.parametrize(("act", "stays"), [(drop, set()), (drop_and_add_some_again, set(range(5)))])
def test_what_is_dropped_meanwhile_may_come_back_whole_and_is_dropped_again(
    act: Meanwhile, stays: set[int], where: str
) -> None:
    came_back = False
    for when in range(1, 200):
        world, _ = prepared()
        if not happens(world, act, when, where):
            break
        for _ in range(2):
            answer = world.storage.read(1, 0, 40)
            assert stays <= set(answer.found) <= ALL, when
            assert not answer.absent
            came_back |= set(answer.found) > stays
            world.restart()
        world.roll()
        world.drop(1)
        for _ in range(2):
            assert world.found(1, 40) == set(), when
            world.compact()
            world.restart()
    assert when > 3
    assert came_back, "or this would prove nothing"
