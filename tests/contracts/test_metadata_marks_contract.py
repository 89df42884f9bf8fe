# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with marks of under-replicated ledgers: Apache's bytes, merged, never lost."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bk_core.metadata.port import MetadataStore
from bk_core.metadata.tree.tree import ensure_path
from tests.kit.metadata_worlds import MetadataWorld, tree_of


def test_marks_are_apaches_bytes_in_apaches_place(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    before = int(time.time() * 1000)
    store.mark_underreplicated(5, ["b1:3181", "b2:3181"])
    folder = f"{metadata_world.root}/underreplication"
    data, _ = tree_of(store).get(f"{folder}/ledgers/0000/0000/0000/0005/urL0000000005")
    head, ctime, rest = data.rpartition(b"ctime: ")
    assert (head, ctime) == (b'replica: "b1:3181"\nreplica: "b2:3181"\n', b"ctime: ")
    assert before - 60_000 <= int(rest) <= before + 60_000
    assert tree_of(store).get(f"{folder}/LAYOUT")[0] == b'type: "BASIC"\nversion: 1\n'
    assert tree_of(store).children(folder) == ["LAYOUT", "ledgers", "locks"]


def test_marking_again_merges_and_always_makes_a_new_version(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    path = f"{metadata_world.root}/underreplication/ledgers/0000/0001/0000/0003/urL{2**32 + 3:010d}"
    ensure_path(tree_of(store), path.rpartition("/")[0])
    tree_of(store).create(path, b'replica: "b1:3181"\nctime: 17\n')  # as Apache's auditor wrote it
    store.mark_underreplicated(2**32 + 3, ["b2:3181", "b1:3181"])
    assert tree_of(store).get(path)[0] == b'replica: "b1:3181"\nctime: 17\nreplica: "b2:3181"\n'
    store.mark_underreplicated(2**32 + 3, ["b2:3181"])
    # a repair that began before the last call deletes with the version it saw: that must fail
    assert tree_of(store).get(path)[1].version == 2
    assert list(store.list_underreplicated()) == [(2**32 + 3, ("b1:3181", "b2:3181"))]


def test_marks_of_many_ledgers_are_listed(store: MetadataStore) -> None:
    ids = [0, 5, 2**16, 2**31, 2**62 + 1]
    for ledger_id in ids:
        store.mark_underreplicated(ledger_id, [f"b{ledger_id % 3}:3181"])
    assert dict(store.list_underreplicated()) == {i: (f"b{i % 3}:3181",) for i in ids}


def test_marks_by_several_clients_at_once_are_all_kept(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    stores = [store, metadata_world.open(), metadata_world.open()]

    def mark(number: int) -> None:
        for i in range(5):
            stores[number].mark_underreplicated(9, [f"b{number}-{i}:1"])

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(mark, range(len(stores))))
    assert len(dict(store.list_underreplicated())[9]) == 15


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.rule("MUST8")
def test_marking_survives_a_lost_answer(metadata_world: MetadataWorld, store: MetadataStore, applied: bool) -> None:
    for missing in ("b1:3181", "b2:3181"):
        metadata_world.lose_next_answer(store, applied=applied)
        store.mark_underreplicated(5, [missing])
    assert dict(store.list_underreplicated()) == {5: ("b1:3181", "b2:3181")}
