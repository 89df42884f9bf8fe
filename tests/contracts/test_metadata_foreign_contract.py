# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with nodes of other systems: it reads them."""

from __future__ import annotations

from bk_core.metadata.port import MetadataStore
from bk_core.metadata.tree.tree import ensure_path
from bk_core.model import Versioned
from tests.kit.metadata_worlds import tree_of


def test_nodes_of_other_systems_are_read_by_path(store: MetadataStore) -> None:
    tree = tree_of(store)
    ensure_path(tree, "/foreign/folder")
    for name in ("b", "a%2Fc"):
        if tree.exists(f"/foreign/folder/{name}") is None:
            tree.create(f"/foreign/folder/{name}", b"data of " + name.encode())
    assert store.read_foreign_node("/foreign/folder/b") == Versioned(b"data of b", 0)
    assert store.read_foreign_node("/foreign/folder/none") is None
    assert store.list_foreign_nodes("/foreign/folder") == ["a%2Fc", "b"]
    assert store.list_foreign_nodes("/foreign/folder/b") == []
    assert store.list_foreign_nodes("/foreign/none") is None
