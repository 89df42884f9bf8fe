# SPDX-License-Identifier: Apache-2.0
"""Bookies of a new ledger are chosen from what was seen of them, which costs no request while nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.client import BookKeeper
from bk_core.errors import NotEnoughBookiesError
from tests.kit.memory_cluster import memory_cluster
from tests.kit.memory_store import MemoryStore


def requests_of(client: BookKeeper) -> list[str]:
    """The names of the calls that the client makes to its store from now on."""
    assert isinstance(client.store, MemoryStore)
    tree, seen = client.store.tree, list[str]()

    def counted(name: str) -> Any:
        real = getattr(tree, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            seen.append(name)
            return real(*arguments, **keywords)

        return call

    for name in ("get", "get_many", "exists", "children", "sync", "create", "delete", "set", "multi"):
        setattr(tree, name, counted(name))
    return seen


async def ensemble(client: BookKeeper) -> set[str]:
    async with await client.create_ledger() as writer:
        await writer.append(b"a")
        return set(writer.metadata.last_fragment.ensemble)


async def test_another_ledger_costs_three_requests() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        await ensemble(client)
        requests = requests_of(client)
        await ensemble(client)
        assert requests == ["create", "multi", "set"], "the id; the record, without the node of the id; the close"


async def test_bookies_that_come_and_go_are_seen_by_the_next_ledger() -> None:
    async with memory_cluster(3) as cluster:
        client = cluster.client()
        assert await ensemble(client) == {"b0", "b1", "b2"}
        cluster.network.add("b7")
        cluster.register("b7")
        cluster.kill("b0")
        assert await ensemble(client) == {"b1", "b2", "b7"}
        cluster.kill("b1")
        with pytest.raises(NotEnoughBookiesError):
            await ensemble(client)
