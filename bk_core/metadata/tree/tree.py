# SPDX-License-Identifier: Apache-2.0
"""What Apache's layout needs of a store: a tree of versioned nodes with sessions, ephemeral nodes and one-shot watches.

Two implementations: :mod:`bk_core.metadata.zookeeper.session` (kazoo) and :mod:`bk_core.metadata.tree.memory`. The
parts in :mod:`bk_core.metadata.tree` are written once, over this; so tests on the memory adapter run the same code
and the same bytes. Paths are absolute. The exceptions here are answers of the store and never leave the package; a call
without an answer raises MetadataUnavailableError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.port import CancelWatch, SessionState

ANY_VERSION = -1
NODE_BYTES_MAX = 1_000_000
"""ZooKeeper drops the connection of a request over 1 MiB, which would look like a lost answer."""
MULTI_BYTES_MAX = 0xFFFFF - 1000
"""Of a multi, whose size is known to the byte (:func:`multi_bytes`): ZooKeeper's own limit, jute.maxbuffer."""
_OP_BYTES = 48  # of an operation beside its path and data: headers, lengths, version, rights

WRITE_TRIES = 4
"""How often a write whose answer was lost is tried, each within the tree's own deadline."""

Watcher: TypeAlias = Callable[[], None]
"""Called once, when what was read may have changed or the watch was lost with the connection. It must not block."""


class TreeError(Exception):
    """Base: the store refused; nothing was changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNodeError(TreeError):
    """The node, or the parent of a new one, is not there."""


class NodeExistsError(TreeError):
    """A node of this path is there already."""


class BadVersionError(TreeError):
    """The node has another version."""


class NotEmptyError(TreeError):
    """The node has children."""


class NodeStat(NamedTuple):
    """What the store knows of a node; times by its own clock. ``owner`` is the session of an ephemeral node, otherwise
    0."""

    version: int
    ctime_ms: int
    owner: int
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""


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
    """How large the request of a multi is at most."""
    return sum(_OP_BYTES + len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0) for op in ops)


class Tree(Protocol):
    """A session with the store. Every call has a deadline; reads are repeated within it, writes never after a loss."""

    @property
    def session_id(self) -> int:
        """The present session; another number after the session was lost."""
        ...

    @property
    def session_timeout_s(self) -> float: ...
    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, NodeStat]:
        """Raises NoNodeError; no watch is left then."""
        ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Several reads in one round trip; None for a node that is not there."""
        ...

    def exists(self, path: str, watch: Watcher | None = None) -> NodeStat | None: ...
    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """Names, sorted. Raises NoNodeError."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """The path made (a sequential one ends in ten digits). Raises NodeExistsError, NoNodeError for the parent."""
        ...

    def set(self, path: str, data: bytes, version: int) -> int:
        """The new version. Raises NoNodeError, BadVersionError."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises NoNodeError, BadVersionError, NotEmptyError."""
        ...

    def multi(self, ops: Sequence[Op]) -> None:
        """All or none. Raises the error of the first operation that was refused, and InvalidArgumentError for more
        than MULTI_BYTES_MAX."""
        ...

    def sync(self, path: str) -> None: ...
    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch: ...
    def close(self) -> None: ...


def ensure_path(tree: Tree, path: str) -> None:
    """Create ``path`` and what is missing above it, with empty data; what is there stays."""
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
