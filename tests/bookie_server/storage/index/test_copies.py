# SPDX-License-Identifier: Apache-2.0
"""Compaction drops a frame only if the index knows a copy of exactly this frame in a newer segment (RULES S4)."""

from __future__ import annotations

import pytest

from tests.kit.amount import some
from tests.kit.index_world import World


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
