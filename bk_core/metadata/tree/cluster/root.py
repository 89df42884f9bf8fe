# SPDX-License-Identifier: Apache-2.0
"""Creates the root of a cluster as Apache's ``initnewcluster`` does (M1), and explains why a root has no cluster."""

from __future__ import annotations

import uuid
from difflib import SequenceMatcher

from bk_core.errors import (
    BookKeeperError,
    MetadataCorruptError,
    MetadataError,
    MetadataUnavailableError,
    NoClusterError,
)
from bk_core.metadata.layout import DEFAULT_ROOT, NAMES_BESIDE_LEDGERS, Layout, ServiceUri, encode_layout
from bk_core.metadata.tree.tree import (
    WRITE_TRIES,
    BadVersionError,
    Check,
    Create,
    NodeExistsError,
    NoNodeError,
    Tree,
    ensure_path,
)

_NEARBY_LOOKED_AT = 200  # nodes near the root that are searched for a cluster
_NEARBY_NAMED = 3


def make_cluster(tree: Tree, root: str, layout: Layout | None, instance_id: str | None) -> None:
    """Create the records of a new cluster in one step, so that no client finds only some of them. A root that has
    children is not changed."""
    records = [
        Create(f"{root}/available"),
        Create(f"{root}/available/readonly"),
        Create(f"{root}/INSTANCEID", (instance_id or str(uuid.uuid4())).encode("ascii")),
        Create(f"{root}/LAYOUT", encode_layout(layout or Layout.HIERARCHICAL)),
    ]
    for last_try in (*[False] * (WRITE_TRIES - 1), True):
        try:
            found = tree.exists(root)
            if found is not None and tree.children(root):
                break
            ensure_path(tree, root.rpartition("/")[0])
            tree.multi([Check(root, found.version) if found else Create(root), *records])
            break
        except (NodeExistsError, NoNodeError, BadVersionError, MetadataUnavailableError):
            if last_try:
                raise
    tree.sync(root)  # another client may have made the cluster through another server


def why_no_cluster(tree: Tree, uri: ServiceUri) -> MetadataError:
    """Return the error for a root without INSTANCEID or LAYOUT. It names the nodes that the root has instead."""
    names = _children(tree, uri.root)
    if NAMES_BESIDE_LEDGERS.intersection(names):
        missing = [name for name in ("INSTANCEID", "LAYOUT") if name not in names]
        return MetadataCorruptError(
            "The cluster at this ledgers root lacks a record that every cluster has",
            value=f"{uri}: no {' and no '.join(missing)}" if missing else f"{uri}: INSTANCEID or LAYOUT is empty",
            remedy="put ZooKeeper's data back from a backup; a cluster cannot be made over the remains of one",
        )
    if names:
        return NoClusterError(
            "There is no cluster at this ledgers root, but other nodes",
            value=f"{uri} has {', '.join(names[:_NEARBY_NAMED])}{' …' if len(names) > _NEARBY_NAMED else ''}"
            + _nearby(tree, uri),
            remedy="correct the path of the URI; a new cluster takes a root that is empty or does not exist",
        )
    return NoClusterError(
        "There is no cluster at this ledgers root",
        value=f"{uri}{_nearby(tree, uri)}",
        remedy="correct the path of the URI, usually /ledgers, or make a cluster there: "
        f"bk cluster init --metadata-service-uri '{uri}'",
    )


def _nearby(tree: Tree, uri: ServiceUri) -> str:
    """Return a text that names clusters near the root, in case the root was mistyped, or an empty text if there are
    none."""
    root = uri.root
    folders = dict.fromkeys([root.rpartition("/")[0] or "/", root, "/"])
    try:
        beside = [f"{folder.rstrip('/')}/{name}" for folder in folders for name in _children(tree, folder)]
        roots = list(dict.fromkeys([*beside[:_NEARBY_LOOKED_AT], *(f"{each}{DEFAULT_ROOT}" for each in beside[:20])]))
        nodes = tree.get_many([f"{each}/INSTANCEID" for each in roots])
    except BookKeeperError:  # this process may have no access to other nodes
        return ""
    found = [each for each, node in zip(roots, nodes, strict=True) if node is not None and each != root]
    found.sort(key=lambda each: SequenceMatcher(None, each, root).ratio(), reverse=True)  # the most similar first
    return f"; there is a cluster at {' and at '.join(found[:_NEARBY_NAMED])}" if found else ""


def _children(tree: Tree, path: str) -> list[str]:
    try:
        return tree.children(path)
    except NoNodeError:
        return []
