# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does for the worker that keeps the logs: an election of its own."""

from __future__ import annotations

from bk_core.metadata.port import MetadataStore
from tests.kit.metadata_worlds import MetadataWorld, tree_of
from tests.kit.waiting import until


def test_upkeep_has_an_election_of_its_own_beside_apaches_tree(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    second = metadata_world.open()
    assert store.current_upkeep_worker() is None
    assert store.vote_for_upkeep("w1") is True
    assert second.vote_for_upkeep("w2") is False
    assert second.vote_for_auditor("w2") is True, "who keeps logs need not be the auditor"
    assert second.current_upkeep_worker() == "w1"
    root = f"{metadata_world.root}-upkeep"
    assert [name[:2] for name in tree_of(store).children(f"{root}/election")] == ["V_", "V_"]
    metadata_world.expire(store)
    until(lambda: second.vote_for_upkeep("w2"))
    assert store.vote_for_upkeep("w1") is False
    second.withdraw_upkeep_vote()
    assert store.vote_for_upkeep("w1") is True
