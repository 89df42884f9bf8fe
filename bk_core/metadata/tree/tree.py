# SPDX-License-Identifier: Apache-2.0
"""The port to a tree of versioned nodes with sessions, ephemeral nodes and one-shot watches. Apache's layout is built
on it.

:mod:`bk_core.metadata.zookeeper.session` implements it with kazoo. Tests have a tree in memory, on which the parts in
:mod:`bk_core.metadata.tree` run the same code with the same bytes. Paths are absolute. The exceptions of this file are
refusals of the store, and never leave the package. A call that gets no answer raises MetadataUnavailableError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.port import CancelWatch, SessionState

ANY_VERSION = -1
NODE_BYTES_MAX = 1_000_000
"""The maximum size of a node in bytes. ZooKeeper drops the connection after a request over 1 MiB, which would look like
a lost answer."""
MULTI_BYTES_MAX = 0xFFFFF - 1000
"""The maximum size of a multi in bytes (:func:`multi_bytes`). It is ZooKeeper's limit, jute.maxbuffer, minus a
reserve."""
_OP_BYTES = 48  # an operation's size without path and data: headers, lengths, version, access rights

WRITE_TRIES = 4
"""The number of times that a write is sent if its answers are lost. Each try has the tree's deadline."""

Watcher: TypeAlias = Callable[[], None]
"""A function that is called once, when the state that was read may have changed, or when the watch was lost with the
connection. It must not block."""


class TreeError(Exception):
    """The base class of refusals. The store refused the call, and nothing was changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNodeError(TreeError):
    """The node, or the parent of a new node, does not exist."""


class NodeExistsError(TreeError):
    """A node at this path exists already."""


class BadVersionError(TreeError):
    """The node has another version."""


class NotEmptyError(TreeError):
    """The node has children."""


class NodeStat(NamedTuple):
    """A node's version, its times by the store's clock, and its owner. The owner of an ephemeral node is its session,
    of any other node 0."""

    version: int
    ctime_ms: int
    owner: int
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


Op: TypeAlias = Create | Set | Delete | Check


def multi_bytes(ops: Sequence[Op]) -> int:
    """Return an upper bound on the bytes of a multi's request."""
    return sum(_OP_BYTES + len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0) for op in ops)


class Tree(Protocol):
    """A session with the store that holds the tree. Every call has a deadline. A read is repeated within the deadline;
    a write that may have been sent is not repeated."""

    @property
    def session_id(self) -> int:
        """The id of the present session. Each session has a different one."""
        ...

    @property
    def session_timeout_s(self) -> float: ...
    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, NodeStat]:
        """Return a node's data and stat, and set the watch. Raises NoNodeError; then no watch is set."""
        ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Return the data and stat of several nodes, read in one round trip, with None for each node that does not
        exist."""
        ...

    def exists(self, path: str) -> NodeStat | None: ...
    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """Return the names of a node's children, sorted, and set the watch, which fires when a child is created or
        deleted. Raises NoNodeError; then no watch is set."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its path, which for a sequential node ends in ten digits. Raises NodeExistsError, or
        NoNodeError if the parent is missing."""
        ...

    def set(self, path: str, data: bytes, version: int) -> int:
        """Write a node's data if the node has this version, and return the new version. Raises NoNodeError,
        BadVersionError."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node if it has this version. Raises NoNodeError, BadVersionError, NotEmptyError."""
        ...

    def multi(self, ops: Sequence[Op]) -> list[str]:
        """Carry out all operations or none, and return the paths of the created nodes. Raises the error of the first
        operation that was refused, and InvalidArgumentError for more than MULTI_BYTES_MAX."""
        ...

    def sync(self, path: str) -> None: ...
    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch: ...
    def close(self) -> None: ...


def ensure_path(tree: Tree, path: str) -> None:
    """Create ``path`` and its missing parents, with empty data. Existing nodes are not changed."""
    for last_try in (*[False] * (WRITE_TRIES - 1), True):
        if path in ("", "/") or tree.exists(path) is not None:
            return
        ensure_path(tree, path.rpartition("/")[0])
        try:
            tree.create(path)
            return
        except NodeExistsError:
            return
        except (NoNodeError, MetadataUnavailableError):
            if last_try:
                raise
