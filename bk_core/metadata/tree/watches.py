# SPDX-License-Identifier: Apache-2.0
"""Lasting watches, built from ZooKeeper's one-shot watches.

When a watch fires, or is lost with the connection, the node is read again with a new watch. A listener is called when
the new state differs from the last state that it got. So a listener always gets the newest state, even after an outage,
but may miss states in between. If a node cannot be read, the error is logged, and the read is repeated for as long as
the node has listeners. So no watch ends silently.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from bk_core.errors import ClientClosedError, ForkedHandleError, MetadataUnavailableError
from bk_core.metadata.port import CancelWatch
from bk_core.metadata.tree.tree import NodeStat, NoNodeError, Tree, Watcher
from bk_core.metadata.worker import Worker

logger = logging.getLogger(__name__)
_RETRY_S = 0.5
_RETRY_REFUSED_S = 5.0

Snapshot: TypeAlias = Any
"""The result of a read, such as (data, stat), or None if the node does not exist."""
Read: TypeAlias = Callable[[Tree, str, Watcher | None], Snapshot]


def read_data(tree: Tree, path: str, watch: Watcher | None) -> tuple[bytes, NodeStat] | None:
    """Return a node's data and stat, and set a watch. If the node does not exist, return None and set no watch."""
    try:
        return tree.get(path, watch)
    except NoNodeError:
        return None


class _Node:
    """A watched node. ``armed`` says that a watch is set in the store. ``queued`` says that a job that reads the node
    again is queued. ``reading`` is held while the node is read and compared, so that listeners get snapshots in order.
    """

    __slots__ = ("armed", "listeners", "path", "queued", "read", "reading", "snapshot")

    def __init__(self, path: str, read: Read) -> None:
        self.path, self.read = path, read
        self.reading = threading.Lock()
        self.snapshot: Snapshot = None
        self.armed = self.queued = False
        self.listeners: dict[object, list[Any]] = {}  # key → [callback, the last snapshot that it got]


class Watches:
    """All watches of one store. Listeners are called on the thread of ``worker``."""

    def __init__(self, tree: Tree, worker: Worker) -> None:
        self._tree, self._worker = tree, worker
        self._lock = threading.Lock()  # guards flags and dicts; never held while a node is read
        self._nodes: dict[tuple[str, Read], _Node] = {}

    def add(self, path: str, read: Read, listener: Callable[[Snapshot], None]) -> tuple[Snapshot, CancelWatch]:
        """Watch a node. Return its present state, and a function that ends the watch. ``listener`` is called with later
        states until the watch is ended or the node is deleted. The watch is set before this returns. Raises the error
        of the read."""
        node = self._node(path, read)
        with node.reading:
            if not node.armed:
                self._read(node)
            key = object()
            with self._lock:
                if self._kept(node):
                    node.listeners[key] = [listener, node.snapshot]
                return node.snapshot, lambda: self._remove(node, key)

    def read(self, path: str, read: Read) -> Snapshot:
        """Read the node and return its state. :meth:`seen` then returns this state until a watch reports a change.
        Raises the error of the read."""
        node = self._node(path, read)
        with node.reading:
            if node.armed:
                found = read(self._tree, path, None)
                if found != node.snapshot and found is not None:
                    node.snapshot = found  # the watch fires for this change too, and the node is read once more
                return found
            self._read(node)
            with self._lock:
                self._kept(node)
            return node.snapshot

    def _node(self, path: str, read: Read) -> _Node:
        with self._lock:
            return self._nodes.setdefault((path, read), _Node(path, read))

    def _kept(self, node: _Node) -> bool:
        """Keep a node that was just read, and return True. If it does not exist, return False; then it has no watch.
        The lock is held."""
        if node.snapshot is None:
            node.armed = False
            return False
        self._nodes[node.path, node.read] = node
        return True

    def seen(self, path: str, read: Read) -> Snapshot:
        """Return the state that was last read, or None if a watch has reported a change since. This sends no
        request."""
        with self._lock:
            node = self._nodes.get((path, read))
            return node.snapshot if node is not None and node.armed else None

    def _remove(self, node: _Node, key: object) -> None:
        with self._lock:  # the node is kept while its watch is set, so that a new listener needs no second watch
            node.listeners.pop(key, None)

    def _read(self, node: _Node) -> None:
        with self._lock:
            node.armed = True  # before the read, because an event from here on needs another read
        try:
            node.snapshot = node.read(self._tree, node.path, lambda: self._fired(node))
        except BaseException:
            with self._lock:
                node.armed = False
            raise

    def _fired(self, node: _Node) -> None:
        with self._lock:
            node.armed = False
            if node.queued:
                return
            node.queued = True
        self._worker.submit(lambda: self._reread(node))

    def _reread(self, node: _Node) -> None:
        with node.reading:
            with self._lock:
                node.queued = False
                if not node.listeners:
                    if not node.armed:  # otherwise a later reader has set a watch, which will fire for that reader
                        self._nodes.pop((node.path, node.read), None)
                    return
            try:
                self._read(node)
            except (ClientClosedError, ForkedHandleError):
                return
            except MetadataUnavailableError:
                self._reread_later(node, _RETRY_S)
                return
            except Exception:
                logger.exception("a watch of %s could not be set again; the next try follows", node.path)
                self._reread_later(node, _RETRY_REFUSED_S)
                return
            news = self._news(node)
        for callback in news:
            try:
                callback(node.snapshot)
            except Exception:
                logger.exception("a watch of %s failed", node.path)

    def _reread_later(self, node: _Node, delay_s: float) -> None:
        with self._lock:
            node.queued = True
        self._worker.submit(lambda: self._reread(node), delay_s)

    def _news(self, node: _Node) -> list[Callable[[Snapshot], None]]:
        """Return the listeners to call with the new snapshot. A deleted node is forgotten."""
        with self._lock:
            entries = [entry for entry in node.listeners.values() if entry[1] != node.snapshot]
            for entry in entries:
                entry[1] = node.snapshot
            if node.snapshot is None:
                node.armed = False
                node.listeners.clear()
                self._nodes.pop((node.path, node.read), None)
            return [entry[0] for entry in entries]
