# SPDX-License-Identifier: Apache-2.0
"""The port below Apache's layout: a tree of versioned nodes with sessions, ephemeral nodes and one-shot watches.

:mod:`bk_core.metadata.zookeeper.session` implements it with kazoo. Tests have a tree in memory, on which the parts in
:mod:`bk_core.metadata.tree` run the same code with the same bytes. Paths are absolute. The exceptions here are answers
of the store and never leave the package; a call that gets no answer raises MetadataUnavailableError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.port import CancelWatch, SessionState

ANY_VERSION = -1
NODE_BYTES_MAX = 1_000_000
"""Limits the bytes of a node: ZooKeeper drops the connection on a request over 1 MiB, which would look like a lost
answer."""
MULTI_BYTES_MAX = 0xFFFFF - 1000
"""Limits the bytes of a multi (:func:`multi_bytes`): ZooKeeper's limit, jute.maxbuffer, less a reserve."""
_OP_BYTES = 48  # of an operation besides its path and data: headers, lengths, version, access rights

WRITE_TRIES = 4
"""The number of times that a write is sent if its answers are lost, each within the tree's deadline."""

Watcher: TypeAlias = Callable[[], None]
"""A function that is called once, when the state that was read may have changed, or the watch was lost with the
connection. It must not block."""


class TreeError(Exception):
    """Base: the store refused the call; nothing was changed."""

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
    """A node's version, its times by the store's clock, and its owner: the session of an ephemeral node, otherwise
    0."""

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
    """A session with the store. Every call has a deadline. Reads are repeated within it; a write that may have been
    sent is not."""

    @property
    def session_id(self) -> int:
        """The id of the present session. Each session has a different one."""
        ...

    @property
    def session_timeout_s(self) -> float: ...
    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, NodeStat]:
        """Return a node's data and stat. Raises NoNodeError, and then sets no watch."""
        ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Read several nodes in one round trip; None for a node that does not exist."""
        ...

    def exists(self, path: str) -> NodeStat | None: ...
    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """Return the children's names, sorted. ``watch`` fires when a child comes or goes. Raises NoNodeError, and then
        sets no watch."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its path, which for a sequential node ends in ten digits. Raises NodeExistsError, or
        NoNodeError if the parent is missing."""
        ...

    def set(self, path: str, data: bytes, version: int) -> int:
        """Write a node's data; return the new version. Raises NoNodeError, BadVersionError."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises NoNodeError, BadVersionError, NotEmptyError."""
        ...

    def multi(self, ops: Sequence[Op]) -> list[str]:
        """Carry out all operations or none; return the paths of the created nodes. Raises the error of the first
        operation that was refused, and InvalidArgumentError for more than MULTI_BYTES_MAX."""
        ...

    def sync(self, path: str) -> None: ...
    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch: ...
    def close(self) -> None: ...


def ensure_path(tree: Tree, path: str) -> None:
    """Create ``path`` and its missing parents, with empty data; existing nodes stay unchanged."""
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
