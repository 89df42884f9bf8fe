# SPDX-License-Identifier: Apache-2.0
"""How many ids a client reserves, and what that saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bk_core.metadata.layout import Layout
from bk_core.metadata.tree.ids import RESERVED_MAX, IdGenerator
from tests.kit.memory_store import MemoryCluster, MemoryTree


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tree() -> Iterator[MemoryTree]:
    opened = MemoryTree(MemoryCluster(), timeout_s=1, session_timeout_s=1)
    opened.create("/ledgers")
    yield opened
    opened.close()


def take(generator: IdGenerator, count: int, layout: Layout = Layout.HIERARCHICAL) -> list[int]:
    taken = []
    for _ in range(count):
        made = generator.next(layout)
        generator.release(made)
        taken.append(made.number)
    return taken


def reserved(tree: MemoryTree) -> int:
    return len(tree.children("/ledgers/idgen"))


def test_client_that_makes_few_ledgers_reserves_nothing(tree: MemoryTree, clock: Clock) -> None:
    generator = IdGenerator(tree, "/ledgers", clock)
    for number in range(20):
        assert take(generator, 1) == [number]
        assert reserved(tree) == 0
        clock.now += 0.5


def test_client_that_makes_many_reserves_ids_for_a_quarter_of_a_second(tree: MemoryTree, clock: Clock) -> None:
    generator, asked = IdGenerator(tree, "/ledgers", clock), 0
    write: Any = tree._write

    def counted(path: str, *arguments: Any) -> None:
        nonlocal asked
        asked += path.endswith("/ID-")
        write(path, *arguments)

    tree._write = counted  # type: ignore[method-assign]  # counted
    for _ in range(200):
        take(generator, 1)
        clock.now += 0.01
    assert asked < 50, "most ids were reserved by an earlier request"
    assert reserved(tree) <= RESERVED_MAX
    assert take(generator, 1) == [200], "in their order, and none twice"


def test_reserve_is_bounded_at_any_rate(tree: MemoryTree, clock: Clock) -> None:
    generator = IdGenerator(tree, "/ledgers", clock)
    assert take(generator, 5000) == list(range(5000))
    assert 0 < reserved(tree) < RESERVED_MAX


@pytest.mark.parametrize("layout", [Layout.FLAT, Layout.LONG_HIERARCHICAL])
def test_ids_are_reserved_in_every_layout(tree: MemoryTree, clock: Clock, layout: Layout) -> None:
    first = 1 << 32 if layout is Layout.LONG_HIERARCHICAL else 0
    taken = take(IdGenerator(tree, "/ledgers", clock), 200, layout)
    assert taken == sorted(set(taken))
    assert taken[0] == first
