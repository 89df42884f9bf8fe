# SPDX-License-Identifier: Apache-2.0
"""How every metadata store treats a ledgers root: a new cluster, an existing one, another program's, or none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bk_core.errors import MetadataCorruptError, NoClusterError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.tree.tree import ensure_path
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, before_write, tree_of


def test_cluster_is_made_once_and_keeps_its_id(metadata_world: MetadataWorld) -> None:
    first, second = metadata_world.open(), metadata_world.open()
    instance_id = first.initialize_cluster()
    assert second.initialize_cluster() == instance_id
    assert metadata_world.open().instance_id() == instance_id
    assert len(instance_id) == 36


@pytest.mark.rule("M1")
def test_new_cluster_has_apaches_nodes_and_the_layout_hierarchical(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    tree, root = tree_of(store), metadata_world.root
    assert tree.children(root) == ["INSTANCEID", "LAYOUT", "available"]
    assert tree.children(f"{root}/available") == ["readonly"]
    assert tree.get(f"{root}/LAYOUT")[0] == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert tree.get(f"{root}/INSTANCEID")[0].decode() == store.instance_id()
    assert {tree.get(f"{root}{path}")[0] for path in ("", "/available", "/available/readonly")} == {b""}


def test_of_several_who_make_a_cluster_at_once_exactly_one_does(metadata_world: MetadataWorld) -> None:
    stores = [metadata_world.open() for _ in range(5)]
    found: dict[str, str] = {}
    begin = threading.Barrier(len(stores))

    def make(number: int) -> None:
        begin.wait(10)
        found[f"instance {number}"] = stores[number].initialize_cluster(f"instance {number}")

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(make, range(len(stores))))
    assert len(found) == len(stores)
    assert len(set(found.values())) == 1
    assert sum(mine == theirs for mine, theirs in found.items()) == 1


def test_one_who_comes_second_in_the_last_moment_goes_on_with_the_firsts_cluster(metadata_world: MetadataWorld) -> None:
    first, second = metadata_world.open(), metadata_world.open()
    ensure_path(tree_of(second), metadata_world.root.rpartition("/")[0])
    before_write(second, 0, lambda: first.initialize_cluster("first"))
    assert second.initialize_cluster("second") == "first"


@pytest.mark.parametrize("applied", [True, False])
def test_making_a_cluster_survives_a_lost_answer_and_knows_that_it_was_the_one(
    metadata_world: MetadataWorld, applied: bool
) -> None:
    store = metadata_world.open()
    ensure_path(tree_of(store), metadata_world.root.rpartition("/")[0])
    metadata_world.lose_next_answer(store, applied=applied)
    assert store.initialize_cluster("mine") == metadata_world.open().instance_id() == "mine"


def test_an_empty_root_that_is_there_becomes_the_cluster(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open()
    ensure_path(tree_of(store), metadata_world.root)
    assert store.initialize_cluster("mine") == "mine"
    assert tree_of(store).children(metadata_world.root) == ["INSTANCEID", "LAYOUT", "available"]


def test_a_root_that_holds_something_else_is_refused_and_left_as_it_is(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open()
    ensure_path(tree_of(store), f"{metadata_world.root}/brokers")
    with pytest.raises(NoClusterError, match=r"other nodes; .*brokers.*empty or does not exist"):
        store.initialize_cluster()
    assert tree_of(store).children(metadata_world.root) == ["brokers"]


@pytest.mark.parametrize("lost", ["INSTANCEID", "LAYOUT"])
def test_the_remains_of_a_cluster_are_refused_with_what_is_missing(metadata_world: MetadataWorld, lost: str) -> None:
    metadata_world.open().initialize_cluster()
    tree_of(metadata_world.open()).delete(f"{metadata_world.root}/{lost}")
    store = metadata_world.open()
    with pytest.raises(MetadataCorruptError, match=f"no {lost};.*backup"):
        store.create_ledger(a_ledger()) if lost == "LAYOUT" else store.initialize_cluster()


def test_root_without_a_cluster_is_no_cluster_and_the_error_says_how_to_make_one(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open()
    with pytest.raises(NoClusterError, match=f"{metadata_world.root}.*bk cluster init --metadata-service-uri"):
        store.instance_id()
    with pytest.raises(NoClusterError, match="no cluster"):
        store.create_ledger(a_ledger())


@pytest.mark.parametrize("place", ["beside", "below", "in a folder beside"])
def test_mistyped_root_is_told_of_the_cluster_nearby(metadata_world: MetadataWorld, place: str) -> None:
    store = metadata_world.open()
    other = {
        "beside": f"{metadata_world.root}2",
        "below": f"{metadata_world.root}/bk",
        "in a folder beside": f"{metadata_world.root}2/ledgers",
    }[place]
    ensure_path(tree_of(store), other)
    tree_of(store).create(f"{other}/INSTANCEID", b"theirs")
    with pytest.raises(NoClusterError, match=f"there is a cluster at {other}[; ]"):
        store.instance_id()
