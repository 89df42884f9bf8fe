# SPDX-License-Identifier: Apache-2.0
"""A metadata store in memory, for tests and benchmarks, under URIs ``memory://name``.

It runs the same code and writes the same bytes as the store on ZooKeeper (:mod:`bk_core.metadata.tree.store`), on a
tree of dicts. Several stores may be open on one :class:`MemoryCluster`, each with its own session. A test can lose an
answer, suspend or expire a session, leave it behind as ``kill -9`` does, or put it on a server that lags.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from bk_core.errors import ClientClosedError, InvalidArgumentError, MetadataUnavailableError, Outcome
from bk_core.metadata import OPENERS
from bk_core.metadata.layout import DEFAULT_ROOT, Layout, ServiceUri
from bk_core.metadata.port import CancelWatch, SessionState
from bk_core.metadata.tree.store import TreeStore
from bk_core.metadata.tree.tree import (
    ANY_VERSION,
    MULTI_BYTES_MAX,
    NODE_BYTES_MAX,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    Op,
    Set,
    Watcher,
    multi_bytes,
)
from bk_core.metadata.worker import Worker


@dataclass(slots=True)
class _Node:
    data: bytes
    ctime_ms: int
    mtime_ms: int
    owner: int = 0
    version: int = 0
    children: set[str] = field(default_factory=set)
    next_number: int = 0  # for sequential children

    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.ctime_ms, self.owner, self.mtime_ms)


_WatchKey: TypeAlias = tuple[str, str]  # "data" or "children", and the path


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)


class MemoryCluster:
    """The tree that sessions share. ``clock_ms`` returns the time for new and changed nodes."""

    def __init__(self, clock_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.RLock()
        self._nodes: dict[str, _Node] = {"/": _Node(b"", clock_ms(), clock_ms())}
        self._watches: dict[_WatchKey, list[tuple[int, Watcher]]] = defaultdict(list)
        self._session_ids = itertools.count(1)
        self.listed = Counter[str]()
        """How often the children of each path were read."""

    def new_session(self) -> int:
        """Return the number of a new session."""
        return next(self._session_ids)

    def end_session(self, session_id: int) -> None:
        """Delete the ephemeral nodes of a session, as ZooKeeper does when a session is closed or expires."""
        with self._lock:
            owned = [path for path, node in self._nodes.items() if node.owner == session_id]
            fired = self._fired([key for path in owned for key in self._delete(path, ANY_VERSION)])
        _call(fired)

    def drop_watches(self, session_id: int) -> None:
        """Remove a session's watches and call each, as a lost connection does."""
        with self._lock:
            fired = []
            for watches in self._watches.values():
                fired += [watch for owner, watch in watches if owner == session_id]
                watches[:] = [entry for entry in watches if entry[0] != session_id]
        _call(fired)

    def copy(self) -> MemoryCluster:
        """Return a copy of all nodes. It stands for the state of a server that gets no later write."""
        with self._lock:
            twin = MemoryCluster(self._clock_ms)
            twin._nodes = {path: _copy(node) for path, node in self._nodes.items()}
            return twin

    def get(self, path: str, session_id: int, watch: Watcher | None) -> tuple[bytes, NodeStat]:
        with self._lock:
            node = self._node(path)
            self._add_watch("data", path, session_id, watch)
            return node.data, node.stat()

    def exists(self, path: str, session_id: int, watch: Watcher | None) -> NodeStat | None:
        with self._lock:
            self._add_watch("data", path, session_id, watch)
            return self._nodes[path].stat() if path in self._nodes else None

    def children(self, path: str, session_id: int, watch: Watcher | None) -> list[str]:
        with self._lock:
            self.listed[path] += 1
            names = sorted(self._node(path).children)
            self._add_watch("children", path, session_id, watch)
            return names

    def create(self, path: str, data: bytes, owner: int, sequential: bool) -> str:
        with self._lock:
            path, keys = self._create(path, data, owner, sequential)
            fired = self._fired(keys)
        _call(fired)
        return path

    def multi(self, ops: Sequence[Op], owner: int = 0) -> list[str]:
        """Apply all operations or none. ``owner`` is the session to which ephemeral nodes belong."""
        made: list[str] = []
        with self._lock:
            touched = {path for op in ops for path in (op.path, _parent(op.path))}
            before = {path: _copy(self._nodes[path]) for path in touched if path in self._nodes}
            try:
                fired = self._fired([key for op in ops for key in self._apply(op, owner, made)])
            except Exception:
                for path in {*touched, *made} - before.keys():
                    self._nodes.pop(path, None)
                self._nodes.update(before)
                raise
        _call(fired)
        return made

    def _apply(self, op: Op, owner: int, made: list[str]) -> list[_WatchKey]:
        match op:
            case Create():
                path, keys = self._create(op.path, op.data, owner if op.ephemeral else 0, op.sequential)
                made.append(path)
                return keys
            case Set():
                return self._set(op.path, op.data, op.version)
            case Delete():
                return self._delete(op.path, op.version)
            case Check():
                self._checked(op.path, op.version)
                return []

    def _create(self, path: str, data: bytes, owner: int, sequential: bool) -> tuple[str, list[_WatchKey]]:
        folder, name = _parent(path), path.rpartition("/")[2]
        parent = self._node(folder, path)
        if sequential:
            name, path = f"{name}{parent.next_number:010d}", f"{path}{parent.next_number:010d}"
        if path in self._nodes:
            raise NodeExistsError(path)
        parent.next_number += 1
        parent.children.add(name)
        now_ms = self._clock_ms()
        self._nodes[path] = _Node(data, now_ms, now_ms, owner)
        return path, [("data", path), ("children", folder)]

    def _set(self, path: str, data: bytes, version: int) -> list[_WatchKey]:
        node = self._checked(path, version)
        node.data, node.version, node.mtime_ms = data, node.version + 1, self._clock_ms()
        return [("data", path)]

    def _delete(self, path: str, version: int) -> list[_WatchKey]:
        if self._checked(path, version).children:
            raise NotEmptyError(path)
        folder = _parent(path)
        del self._nodes[path]
        self._nodes[folder].children.discard(path.rpartition("/")[2])
        return [("data", path), ("children", path), ("children", folder)]

    def _node(self, path: str, asked: str | None = None) -> _Node:
        if path not in self._nodes:
            raise NoNodeError(asked or path)
        return self._nodes[path]

    def _checked(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(path)
        return node

    def _add_watch(self, kind: str, path: str, session_id: int, watch: Watcher | None) -> None:
        if watch is not None:
            self._watches[kind, path].append((session_id, watch))

    def _fired(self, keys: list[_WatchKey]) -> list[Watcher]:
        return [watch for key in keys for _, watch in self._watches.pop(key, [])]


def _copy(node: _Node) -> _Node:
    return replace(node, children=set(node.children))


def _call(watches: list[Watcher]) -> None:
    for watch in watches:
        watch()


class MemoryTree:
    """A session on a cluster: a :class:`~bk_core.metadata.tree.tree.Tree` with faults that tests can cause."""

    def __init__(self, cluster: MemoryCluster, *, timeout_s: float, session_timeout_s: float) -> None:
        self._cluster, self._timeout_s, self.session_timeout_s = cluster, timeout_s, session_timeout_s
        self._changed = threading.Condition()
        self._connected, self._closed = True, False
        self._session_id = cluster.new_session()
        self._behind: MemoryCluster | None = None  # the state that this session reads while its server lags
        self._dies: tuple[int, bool] | None = None  # how many writes come first; whether the last is applied
        self._losses: list[bool] = []  # for each coming write whose answer is lost: whether it is applied
        self._listeners: list[Callable[[SessionState], None]] = []
        self._events = Worker("bookkeeper-memory-session")

    @property
    def session_id(self) -> int:
        return self._session_id

    # --- the tree ---

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, NodeStat]:
        self._await_connected(path)
        return self._server.get(path, self._session_id, watch)

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        found: list[tuple[bytes, NodeStat] | None] = []
        for path in paths:
            try:
                found.append(self.get(path))
            except NoNodeError:
                found.append(None)
        return found

    def exists(self, path: str, watch: Watcher | None = None) -> NodeStat | None:
        self._await_connected(path)
        return self._server.exists(path, self._session_id, watch)

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        self._await_connected(path)
        return self._server.children(path, self._session_id, watch)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        owner = self._session_id if ephemeral else 0
        made: list[str] = []
        self._write(path, len(data), lambda: made.append(self._cluster.create(path, data, owner, sequential)))
        return made[0]

    def set(self, path: str, data: bytes, version: int) -> int:
        self._write(path, len(data), lambda: self._cluster.multi([Set(path, data, version)]))
        return version + 1

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._write(path, 0, lambda: self._cluster.multi([Delete(path, version)]))

    def multi(self, ops: Sequence[Op]) -> list[str]:
        made: list[str] = []
        path = ops[0].path if ops else "/"
        self._write(
            path,
            multi_bytes(ops),
            lambda: made.extend(self._cluster.multi(ops, self._session_id)),
            MULTI_BYTES_MAX,
        )
        return made

    def sync(self, path: str) -> None:
        self._await_connected(path)
        self.catch_up()

    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def close(self) -> None:
        self.abandon()
        self._cluster.end_session(self._session_id)

    # --- faults for tests ---

    def lose_next_answer(self, *, applied: bool) -> None:
        """Make the next write fail with outcome UNKNOWN, ``applied`` or not."""
        self._losses.append(applied)

    def die_at_write(self, number: int, *, applied: bool) -> None:
        """End as ``kill -9`` does at the write after ``number`` others: before the write, or once it is ``applied``."""
        self._dies = number, applied

    def lag(self, at: MemoryCluster | None = None) -> None:
        """Let this session's server get no write from now on, or none since ``at`` was copied. It catches up at a sync
        or a write of this session."""
        self._behind = at or self._cluster.copy()

    @property
    def lags(self) -> bool:
        """Return whether the server still lags."""
        return self._behind is not None

    def catch_up(self) -> None:
        """Let the server catch up with all writes. All watches that were set while it lagged fire."""
        behind, self._behind = self._behind, None
        if behind is not None:
            behind.drop_watches(self._session_id)

    def suspend(self) -> None:
        """Lose the connection. The session goes on, with a server that does not lag."""
        self.catch_up()
        with self._changed:
            self._connected = False
        self._cluster.drop_watches(self._session_id)
        self._tell(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Connect again, in the same session."""
        with self._changed:
            self._connected = True
            self._changed.notify_all()
        self._tell(SessionState.CONNECTED)

    def expire(self) -> None:
        """Lose the session, and begin another."""
        self.suspend()
        self._cluster.end_session(self._session_id)
        self._tell(SessionState.LOST)
        self._session_id = self._cluster.new_session()
        self.resume()

    def abandon(self) -> None:
        """Stop as ``kill -9`` does: the session's nodes stay until ``MemoryCluster.end_session`` is called."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._cluster.drop_watches(self._session_id)
        self._events.stop()

    # --- inside ---

    @property
    def _server(self) -> MemoryCluster:
        return self._behind or self._cluster

    def _tell(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            self._events.submit(partial(listener, state))

    def _await_connected(self, path: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._connected or self._closed, self._timeout_s)
            if self._closed:
                raise ClientClosedError("The metadata store is closed", outcome=Outcome.NOT_APPLIED)
            if not self._connected:
                raise MetadataUnavailableError(
                    f"The metadata store is not reachable for {self._timeout_s} s",
                    value=path,
                    outcome=Outcome.NOT_APPLIED,
                )

    def _write(self, path: str, size: int, change: Callable[[], object], size_max: int = NODE_BYTES_MAX) -> None:
        if size > size_max:
            raise InvalidArgumentError(f"A record has at most {size_max} bytes", value=f"{path}: {size} bytes")
        self._await_connected(path)
        if self._dies is not None and self._dies[0] == 0:
            if self._dies[1]:
                change()
            self.abandon()
            self._await_connected(path)
        self._dies = None if self._dies is None else (self._dies[0] - 1, self._dies[1])
        applied = self._losses.pop(0) if self._losses else None
        if applied is not False:
            try:
                change()
            finally:
                self.catch_up()  # a server that answers a write, even with a refusal, knows all earlier ones
        if applied is not None:
            raise MetadataUnavailableError("The answer of the metadata store was lost", value=path)


class MemoryStore(TreeStore):
    """A store on a cluster in memory; tests cause faults through ``tree``. Two stores on one cluster are two
    clients."""

    def __init__(
        self,
        cluster: MemoryCluster | None = None,
        *,
        uri: str = "memory://private",
        layout: Layout | None = None,
        timeout_s: float = 10.0,
        session_timeout_s: float = 10.0,
    ) -> None:
        self.cluster = cluster or MemoryCluster()
        self.tree = MemoryTree(self.cluster, timeout_s=timeout_s, session_timeout_s=session_timeout_s)
        super().__init__(self.tree, ServiceUri((), DEFAULT_ROOT, layout))
        self._name = uri

    @property
    def uri(self) -> str:
        return self._name


_clusters: dict[str, MemoryCluster] = {}
_clusters_lock = threading.Lock()


def shared_cluster(uri: str) -> MemoryCluster:
    """Return the cluster of this URI. It is made on first use and lives as long as the process."""
    with _clusters_lock:
        return _clusters.setdefault(uri, MemoryCluster())


def _open(uri: str, timeout_s: float, session_timeout_s: float) -> MemoryStore:
    return MemoryStore(shared_cluster(uri), uri=uri, timeout_s=timeout_s, session_timeout_s=session_timeout_s)


OPENERS["memory"] = _open
