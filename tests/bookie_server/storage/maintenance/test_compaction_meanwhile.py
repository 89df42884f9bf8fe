# SPDX-License-Identifier: Apache-2.0
"""Whatever happens while a segment is compacted: nothing is lost, nothing comes back (RULES S4, I5, I6, I9)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from bk_core.entries.frame import parse_header
from tests.kit.compaction_world import CompactionWorld, deleted, prepared
from tests.kit.segment_world import assert_honest, entries, limbo_record

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


# --- whole lives ------------------------------------------------------------------------------------------------------
