# SPDX-License-Identifier: Apache-2.0
"""Checks the ACLs of a cluster's nodes. Sets them to the ACLs of ``zookeeper_acl``, or opens the nodes to everybody
again.

It may be stopped at any node and run again, because nodes with the right ACL are not changed. A folder is changed
before its content.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from bk_core.access.zookeeper_acl import BESIDE_ROOT, FIRST_FOLDERS, OPEN_ACL, Acl, ZooKeeperAcl, kind_of, may_change
from bk_core.errors import InvalidArgumentError, MetadataAccessError
from bk_core.metadata.tree.tree import NoNodeError, ensure_path
from bk_core.metadata.zookeeper.session import ZooKeeperTree

AT_ONCE = 200
NAMED = 3
_LEAVES = ("ledgers", "registrations", "cookies", "marks", "locks", "votes", "ids", "orders", "bookies' states")


@dataclass(slots=True)
class Looked:
    """The result of a walk over a cluster's nodes.

    ``nodes`` is the number of nodes. ``open_kinds`` counts the nodes that everybody may change, by kind, and
    ``open_paths`` has a few of their paths. ``other`` is the number of nodes that had another ACL than wanted, and
    ``changed`` the number of nodes that got another ACL. ``is_whole`` says that the walk has read every node.
    """

    nodes: int = 0
    open_kinds: Counter[str] = field(default_factory=Counter)
    open_paths: list[str] = field(default_factory=list)
    other: int = 0
    changed: int = 0
    is_whole: bool = True


def find_open_nodes(tree: ZooKeeperTree, root: str, *, nodes_max: int, within_s: float) -> Looked:
    """Check at most about ``nodes_max`` nodes, for about ``within_s`` seconds. The ledgers, which are the most nodes,
    come last."""
    looked, until = Looked(), time.monotonic() + within_s
    for part in _parts(_nodes(tree, root)):
        for path, found in zip(part, tree.acls(part), strict=True):
            if found is not None:
                _note(looked, root, path, found[0])
        if looked.nodes >= nodes_max or time.monotonic() > until:
            looked.is_whole = False
            break
    return looked


def secure(tree: ZooKeeperTree, root: str, acl: ZooKeeperAcl, *, undo: bool, apply: bool) -> Looked:
    """Give every node the ACL that ``acl`` has for it or, with ``undo``, an ACL that is open to everybody. Without
    ``apply`` only count the nodes that have another ACL. Raises MetadataAccessError, before anything is changed, if the
    identity of this process could not undo the change."""
    wanted_here = {} if undo else _own(tree, root, acl)
    if apply and not undo and acl.members:
        for folder in FIRST_FOLDERS:
            ensure_path(tree, root + folder)
    looked = Looked()
    for part in _parts(_nodes(tree, root)):
        wrong: list[tuple[str, Acl, int]] = []
        for path, found in zip(part, tree.acls(part), strict=True):
            if found is None:
                continue
            _note(looked, root, path, found[0])
            wanted = OPEN_ACL if undo else acl.of(path, root)
            if sorted(found[0]) != sorted(wanted_here.get(wanted, wanted)):
                wrong.append((path, wanted, found[1]))
        looked.other += len(wrong)
        if apply:
            looked.changed += tree.set_acls(wrong)
    return looked


def bookies_without_acls(tree: ZooKeeperTree, root: str) -> list[str]:
    """Return the registered bookies that run with ``zookeeper_acl=open`` or without an identity. Their nodes are open
    to everybody."""
    paths = [
        f"{folder}/{name}"
        for folder in (f"{root}/available", f"{root}/available/readonly")
        for name in _children(tree, folder)
        if name != "readonly"
    ]
    found = zip(paths, tree.acls(paths), strict=True)
    return sorted(path.rpartition("/")[2] for path, each in found if each is not None and may_change(each[0]))


def _own(tree: ZooKeeperTree, root: str, acl: ZooKeeperAcl) -> dict[Acl, Acl]:
    """Prove on a temporary node that the identity of this process keeps its rights. Return the ACL that ZooKeeper
    stores for an ACL with ``auth:``."""
    if acl.is_open:
        raise InvalidArgumentError(
            "There is nothing to secure: this ACL lets everybody change new nodes",
            value="zookeeper_acl=open",
            remedy="give --zookeeper-acl creator or a list, the same that bookies and clients have; or --undo",
        )
    probe = tree.create(f"{root}/ID-", ephemeral=True, sequential=True)
    try:
        found = tree.acls([probe])[0]
        assert found is not None, "the node of this session"
        tree.set_acl(probe, acl.of(probe, root), found[1])
    except MetadataAccessError as error:
        raise MetadataAccessError(
            "The identity of this command is not an admin in zookeeper_acl: it could not undo its changes",
            value=error.value,
            remedy="name it as admin=… there, or give another --zookeeper-auth-path",
        ) from error
    finally:
        with contextlib.suppress(MetadataAccessError):  # the node ends with the session
            tree.delete(probe)
    return {} if acl.members else {acl.of(probe, root): found[0]}


def _note(looked: Looked, root: str, path: str, acl: Acl) -> None:
    looked.nodes += 1
    if may_change(acl):
        looked.open_kinds[kind_of(path, root)] += 1
        if len(looked.open_paths) < NAMED:
            looked.open_paths.append(path)


def _nodes(tree: ZooKeeperTree, root: str) -> Iterator[str]:
    for ending in ("", *BESIDE_ROOT):
        if tree.exists(root + ending) is not None:
            yield root + ending
    for ending in (*BESIDE_ROOT, ""):  # the folder of ledgers, which has the most nodes, last
        yield from _below(tree, root, root + ending)


def _below(tree: ZooKeeperTree, root: str, folder: str) -> Iterator[str]:
    names = [name for name in _children(tree, folder) if not name.startswith("ID-")]
    children = [f"{folder}/{name}" for name in names]
    yield from children
    for child in children:
        if kind_of(child, root) not in _LEAVES:
            yield from _below(tree, root, child)


def _children(tree: ZooKeeperTree, folder: str) -> list[str]:
    try:
        return tree.children(folder)
    except NoNodeError:
        return []


def _parts(paths: Iterator[str]) -> Iterator[list[str]]:
    while part := list(islice(paths, AT_ONCE)):
        yield part
