# SPDX-License-Identifier: Apache-2.0
"""The port below Apache's layout: a tree of versioned nodes with sessions, ephemeral nodes and one-shot watches.

:mod:`bk_core.metadata.zookeeper.session` implements it with kazoo. Tests have a tree in memory, on which the parts in
:mod:`bk_core.metadata.tree` run the same code with the same bytes. Paths are absolute. The exceptions here are answers
of the store and never leave the package; a call without an answer raises MetadataUnavailableError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.port import CancelWatch, SessionState

ANY_VERSION = -1
NODE_BYTES_MAX = 1_000_000
"""The most bytes of a node: ZooKeeper drops the connection on a request over 1 MiB, which would look like a lost
answer."""
MULTI_BYTES_MAX = 0xFFFFF - 1000
"""The most bytes of a multi (:func:`multi_bytes`): ZooKeeper's limit, jute.maxbuffer, less a reserve."""
_OP_BYTES = 48  # of an operation beside its path and data: headers, lengths, version, access rights

WRITE_TRIES = 4
"""A write whose answer was lost is tried this many times, each within the tree's deadline."""

Watcher: TypeAlias = Callable[[], None]
"""Called once, when the state read may have changed or the watch was lost with the connection. It must not block."""


class TreeError(Exception):
    """Base: the store refused the call; nothing was changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNodeError(TreeError):
    """The node, or the parent of a new node, does not exist."""


class NodeExistsError(TreeError):
    """A node of this path exists already."""


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
    """An upper bound on the bytes of a multi's request."""
    return sum(_OP_BYTES + len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0) for op in ops)


class Tree(Protocol):
    """A session with the store. Every call has a deadline. Reads are repeated within it; a write that may have been
    sent is not."""

    @property
    def session_id(self) -> int:
        """The number of the present session; a new session has another one."""
        ...

    @property
    def session_timeout_s(self) -> float: ...
    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, NodeStat]:
        """Raises NoNodeError; no watch is left then."""
        ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Several reads in one round trip; None for a node that does not exist."""
        ...

    def exists(self, path: str) -> NodeStat | None: ...
    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """The children's names, sorted; ``watch`` tells of children that come and go. Raises NoNodeError; no watch is
        left then."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node; returns its path, which for a sequential node ends in ten digits. Raises NodeExistsError, or
        NoNodeError if the parent is missing."""
        ...

    def set(self, path: str, data: bytes, version: int) -> int:
        """Write a node's data; returns the new version. Raises NoNodeError, BadVersionError."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises NoNodeError, BadVersionError, NotEmptyError."""
        ...

    def multi(self, ops: Sequence[Op]) -> list[str]:
        """Carry out all operations or none; returns the paths of the nodes created. Raises the error of the first
        operation that was refused, and InvalidArgumentError for more than MULTI_BYTES_MAX."""
        ...

    def sync(self, path: str) -> None: ...
    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch: ...
    def close(self) -> None: ...


def ensure_path(tree: Tree, path: str) -> None:
    """Creates ``path`` and its missing parents, with empty data; existing nodes stay unchanged."""
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
