# SPDX-License-Identifier: Apache-2.0
"""Committer, engine, reader and maintenance under thousands of orders of their threads (RULES P1, S3, S6, S10)."""

from __future__ import annotations

import pytest

from tests.kit.amount import some
from tests.sim.threads.bookie_world import BookieWorld
from tests.sim.threads.profile import first_violation

pytestmark = pytest.mark.long


@pytest.mark.rule("P1", "S6")
@pytest.mark.parametrize("first", range(1000, some(1120, few=1045), 15))
def test_many_orders_of_a_bookies_threads_keep_its_promises(first: int) -> None:
    assert first_violation(range(first, first + 15), BookieWorld) == ""


def test_a_seed_repeats_the_same_order_of_threads() -> None:
    def once(seed: int) -> tuple[int, int, dict[str, int]]:
        world = BookieWorld(seed)
        world.run()
        return world.turns.digest, world.turns.points, dict(world.sometimes)

    first = [once(seed) for seed in range(10)]
    assert first == [once(seed) for seed in range(10)]
    assert len({digest for digest, _, _ in first}) == 10
