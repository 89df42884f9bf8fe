# SPDX-License-Identifier: Apache-2.0
"""Look-ups over sealed segments, whose index is read block by block, and the copies that it knows, against a model
(RULES S2, S4, S7)."""

from __future__ import annotations

import pytest

from bookie_server.storage.index.index import LedgerIndex
from tests.kit.amount import some
from tests.kit.index_world import DROPPABLE, IDS_MAX, World

QUESTIONS = 25


def ask_around(world: World) -> None:
    random = world.random
    for _ in range(QUESTIONS):
        ledger = random.choice(world.ledgers[:4]) if random.random() < 0.9 else random.choice([*world.ledgers, 999])
        first = random.randrange(IDS_MAX + 5)
        last = first + random.choice([0, 0, 5, 60, 1 << 40])
        world.check(ledger, first, last, random.choice([1, 3, 64]), random.choice([1, 2_000, 1 << 40]))
        world.check_end(ledger)
        assert world.index.greatest_lac(ledger) == world.index.carried_lac(ledger)[0]


def live_through(world: World) -> None:
    """Segments are filled, sealed and compacted, copies dropped, ledgers deleted, in any order."""
    random = world.random
    for _ in range(random.randint(2, 6)):
        world.fill(random.choice([0, 5, 40, 150]))
        for generation in list(world.segments):
            if not world.is_sealed(generation) and random.random() < 0.6:
                world.seal(generation)
            elif world.is_sealed(generation) and random.random() < 0.15:
                world.compact(generation)
        if random.random() < 0.2:
            world.drop_copy(DROPPABLE)
        if random.random() < 0.1:
            world.delete(random.choice(world.ledgers[1:]))


@pytest.mark.rule("S2", "S7")
@pytest.mark.parametrize("seed", range(some(40, few=12)))
def test_lookups_over_sealed_and_unsealed_segments_agree_with_a_model(seed: int) -> None:
    world = World(seed)
    live_through(world)
    ask_around(world)
    world.check_live_bytes()


@pytest.mark.long
@pytest.mark.rule("S2", "S5")
@pytest.mark.parametrize("seed", range(1000, 1000 + some(40, few=12)))
def test_no_damage_to_frames_runs_or_indexes_makes_a_denial(seed: int) -> None:
    world = World(seed)
    live_through(world)
    world.damage(world.random.choice([0.01, 0.05, 0.3]))
    ask_around(world)
    for generation in list(world.segments):
        if not world.is_sealed(generation):
            world.seal(generation)  # what was found damaged in memory is not served from the index either
    world.damage(0.02)
    ask_around(world)
    world.mend_index()
    ask_around(world)


@pytest.mark.rule("S5")
def test_what_was_found_damaged_in_memory_is_not_read_again_when_its_segment_is_sealed() -> None:
    world = World(0)
    world.fill(0)
    for k in range(6):
        world.put(world.segments[world.generation], 1, (k,), None, -1)
    frames = world.segments[world.generation].frames
    world.bad_frames.add(frames[3].place)
    world.check(1, 0, 9, 64)
    world.seal(world.generation)
    resolved = {}
    while (found := world.index.lookup(1, 0, 9, resolved=resolved)).unresolved:
        resolved |= {place: world.answer(place) for place in found.unresolved}
    assert frames[3].place not in [piece.place for piece in found.pieces]
    assert [(gap.first, gap.last) for gap in found.unknown] == [(3, 3)]
    assert found.absent == ((6, 9),)


@pytest.mark.rule("S7")
def test_what_is_remembered_of_indexes_keeps_to_its_bound() -> None:
    world = World(3)
    world.index = LedgerIndex(20_000)
    for _ in range(4):
        world.fill(300)
        world.seal(world.generation)
    largest = 0
    for first in range(0, IDS_MAX, 7):
        world.check(1, first, first + 3, 64)
        largest = max(largest, world.index.cache.memory_bytes())
    assert 10_000 < largest <= 20_000


@pytest.mark.rule("S7")
def test_nothing_is_remembered_of_an_index_that_was_made_anew_or_is_gone() -> None:
    world = World(4)
    world.index = LedgerIndex()
    world.fill(200)
    world.seal(world.generation)
    for again in (True, False):
        for first in range(0, IDS_MAX, 50):
            world.check(1, first, first + 50, 64)
        assert len(world.index.cache)
        if again:
            world.index.damaged_indexes.add(world.generation)
            world.mend_index()
        else:
            world.index.drop_segment(world.generation)
        assert not len(world.index.cache)
    assert world.index.lookup(1, 0, 9).absent == ((0, 9),)


# --- copies ---


def bounds(world: World) -> set[tuple[int, int, int, int, int]]:
    """Ledger, first and last id, size and generation of every frame."""
    return {(each.ledger, each.ids[0], each.ids[-1], each.place.size, each.place.generation) for each in world.frames()}


@pytest.mark.rule("S4")
@pytest.mark.parametrize("seed", range(some(30, few=10)))
def test_a_copy_is_known_only_if_a_newer_segment_has_a_frame_of_the_same_bounds(seed: int) -> None:
    world = World(seed)
    for _ in range(4):
        world.fill(world.random.choice([1, 3, 20]))
        if world.random.random() < 0.7:
            world.seal(world.generation)
    frames = bounds(world)
    asked = 0
    for ledger, first, last, size, generation in sorted(frames):
        for question in (
            (first, last, size), (first - 1, last, size), (first + 1, last + 1, size), (first, last + 1, size),
            (first, last, size + 64), (first, last, size - 1),
        ):  # fmt: skip
            for above in (generation - 1, generation, world.generation):
                is_there = any((ledger, *question, newer) in frames for newer in range(above + 1, world.generation + 1))
                if world.index.has_copy(ledger, *question, above):
                    assert is_there, (ledger, question, above)
                    asked += 1
    assert asked


@pytest.mark.rule("S4")
@pytest.mark.parametrize("is_sealed", [False, True], ids=["open", "sealed"])
def test_the_only_frame_of_a_ledger_in_a_segment_is_known_as_a_copy(is_sealed: bool) -> None:
    world = World(0)
    world.fill(0)
    segment = world.segments[world.generation]
    world.put(segment, 1, (7, 8, 9), None, 6)
    world.put(segment, 2, (0,), None, -1)
    (place,) = (each.place for each in segment.frames if each.ledger == 1)
    if is_sealed:
        world.seal(world.generation)
    assert world.index.has_copy(1, 7, 9, place.size, place.generation - 1)
    assert not world.index.has_copy(1, 7, 9, place.size, place.generation)
    assert not world.index.has_copy(2, 7, 9, place.size, place.generation - 1)
    assert not world.index.has_copy(3, 7, 9, place.size, place.generation - 1)
