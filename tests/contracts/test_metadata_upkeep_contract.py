# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does for the worker that keeps the logs: an election of its own, and a record that only one
worker can write."""

from __future__ import annotations

import pytest

from bk_core.errors import MetadataConflictError
from bk_core.metadata.port import MetadataStore
from bk_core.model import Versioned
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


def test_record_of_upkeep_is_written_by_one_worker_only(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    other = metadata_world.open()
    assert store.read_upkeep_record() is None
    assert store.write_upkeep_record(b"w1", None) == Versioned(b"w1", 0)
    with pytest.raises(MetadataConflictError):
        other.write_upkeep_record(b"w2", None)
    assert other.write_upkeep_record(b"w2", 0) == Versioned(b"w2", 1)
    with pytest.raises(MetadataConflictError):
        store.write_upkeep_record(b"w1", 0)
    assert store.read_upkeep_record() == Versioned(b"w2", 1)


@pytest.mark.parametrize("version", [None, 0])
@pytest.mark.rule("MUST8")
def test_record_whose_answer_was_lost_counts_once(
    metadata_world: MetadataWorld, store: MetadataStore, version: int | None
) -> None:
    if version == 0:
        store.write_upkeep_record(b"before", None)
    metadata_world.lose_next_answer(store, applied=True)
    written = store.write_upkeep_record(b"mine", version)
    assert store.read_upkeep_record() == written
