# SPDX-License-Identifier: Apache-2.0
"""Records the nodes of the metadata store that cannot be read (rule M6). A walk notes such a node here, skips it, and
continues with the other nodes. A look-up of one node notes it, too, and raises an error that names the node's path."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bk_core.errors import MetadataCorruptError
from bk_core.observe.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

NODES_MAX = 10_000
"""The maximum number of unreadable nodes that are recorded. More nodes than that have a common cause, so the first
nodes are enough."""
LOG_AGAIN_S = 3600.0
"""The number of seconds after which the same node is logged again. Auto-recovery finds the node every few seconds."""
LINES_MAX = 20
"""The maximum number of nodes that are logged within LINES_S, so that a damaged tree does not fill the log's disk."""
LINES_S = 60.0
"""The number of seconds to which LINES_MAX applies."""


class NodeKind(enum.Enum):
    """The kinds of nodes. The values are their names in messages."""

    MARK = "under-replication mark"
    LOCK = "lock of a repair"
    VOTE = "vote"
    DELAY = "delay before a bookie counts as lost"
    AUDIT_TIME = "time of an audit"
    ORDER = "order of a bookie"
    COOKIE = "cookie"
    REGISTRATION = "registration of a bookie"
    LEDGER = "ledger record"
    LOG = "head of a log"
    PAGE = "page of a log"
    TRANSACTION = "transaction record of a log"
    UNLINKED = "unlinked record of a log"
    DELETED_LOG = "record of a deleted log"


REMEDIES = {
    NodeKind.MARK: "upgrade if a newer version wrote it, else delete it: a ledger that lacks copies is marked again",
    NodeKind.LOCK: "none is needed: it ends with the session of the worker that made it",
    NodeKind.VOTE: "none is needed: it ends with the session that cast it",
    NodeKind.DELAY: "set it again with bk replication delay; until then each auditor's own setting holds",
    NodeKind.AUDIT_TIME: "none is needed: the next check writes it again",
    NodeKind.ORDER: "give the order again with bk bookie drain or bk bookie read-only",
    NodeKind.COOKIE: "restore it from a backup before its bookie is started again",
    NodeKind.REGISTRATION: "restart the bookie, which registers it again",
    NodeKind.DELETED_LOG: "upgrade if a newer version wrote it, else restore it from a backup; its ledgers are kept",
    NodeKind.LEDGER: "upgrade if a newer version wrote it, else restore it from a backup; its entries are kept",
}


@dataclass(frozen=True, slots=True)
class UnreadableNode:
    """A node of the metadata store that cannot be read. ``why`` is the reason, and ``remedy`` tells an operator what to
    do."""

    kind: NodeKind
    path: str
    why: str
    remedy: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def as_object(self) -> dict[str, object]:
        """Return the node as the object that ``--json`` and the web page show."""
        return {"kind": self.kind.value, "path": self.path, "why": self.why, "remedy": self.remedy}

    def __str__(self) -> str:
        return f"the {self.kind.value} at {self.path} cannot be read and is skipped: {self.why}"


class UnreadableNodes:
    """The nodes that one store could not read and has not seen repaired or deleted since. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._nodes: dict[str, UnreadableNode] = {}
        self._met: dict[str, int] = {}  # path → the number of its last meeting with a read; the numbers grow
        self._meetings = 0
        self._throttle = LogThrottle(LOG_AGAIN_S, clock, NODES_MAX)  # by path
        self._lines: list[float] = []  # the times of the last lines

    def nodes(self) -> tuple[UnreadableNode, ...]:
        """Return all unreadable nodes, sorted by path."""
        with self._lock:
            return tuple(self._nodes[path] for path in sorted(self._nodes))

    def of(self, *kinds: NodeKind) -> tuple[UnreadableNode, ...]:
        return tuple(node for node in self.nodes() if node.kind in kinds)

    def __len__(self) -> int:
        return len(self._nodes)

    @contextlib.contextmanager
    def reading(self, kind: NodeKind, path: str, about: str = "") -> Iterator[None]:
        """Wrap the decoding of one node. A MetadataCorruptError is noted, and raised with ``about`` and the node's path
        in its text."""
        try:
            yield
        except MetadataCorruptError as error:
            node = self._node(kind, path, error)
            self._note(node)
            value = f"{about}znode {path}{f': {error.value}' if error.value else ''}"
            raise MetadataCorruptError(error.what, value=value, remedy=node.remedy) from error
        self.forget(path)

    @contextlib.contextmanager
    def skipping(self, kind: NodeKind, path: str) -> Iterator[None]:
        """Wrap the decoding of one node of a walk. A MetadataCorruptError is noted and not raised, so that the walk
        continues."""
        try:
            yield
        except MetadataCorruptError as error:
            self._note(self._node(kind, path, error))
        else:
            self.forget(path)

    @contextlib.contextmanager
    def whole_walk(self, kind: NodeKind, folder: str, *, nested: bool = False) -> Iterator[None]:
        """Wrap a walk that meets every node of a kind in ``folder`` and, with ``nested``, in the folders below it.
        After the walk, forget the nodes of this kind that were noted before and that the walk did not meet, because
        they were deleted. A walk that fails or stops early forgets no node."""
        with self._lock:
            began = self._meetings
        yield
        if self._nodes:
            with self._lock:
                paths = [path for path, node in self._nodes.items() if node.kind is kind and self._met[path] <= began]
                gone = [p for p in paths if p.startswith(f"{folder}/") and (nested or "/" not in p[len(folder) + 1 :])]
            for path in gone:
                self.forget(path)

    def still_there(self, path: str) -> None:
        """Note that a walk found the unreadable node at ``path`` still there, without reading it."""
        if path in self._nodes:
            with self._lock:
                if path in self._nodes:
                    self._meet(path)

    def forget(self, path: str) -> None:
        """Forget a node that can be read, or that was deleted."""
        if path in self._nodes:  # checked without the lock, because there is nearly always no such node
            with self._lock:
                self._nodes.pop(path, None)
                self._met.pop(path, None)
                self._throttle.forget(path)

    def _node(self, kind: NodeKind, path: str, error: MetadataCorruptError) -> UnreadableNode:
        why = f"{error.what}{f': {error.value}' if error.value else ''}"
        return UnreadableNode(kind, path, why, error.remedy or REMEDIES.get(kind, ""))

    def _note(self, node: UnreadableNode) -> None:
        with self._lock:
            if len(self._nodes) >= NODES_MAX and node.path not in self._nodes:
                return
            self._nodes[node.path] = node
            self._meet(node.path)
            line = self._line(node)
        if line:
            logger.warning("%s", line)

    def _meet(self, path: str) -> None:
        self._meetings += 1
        self._met[path] = self._meetings

    def _line(self, node: UnreadableNode) -> str:
        """Return the line to log for a node, or an empty text if enough lines were logged. The lock is held."""
        now = self._clock()
        self._lines = [at for at in self._lines if now - at < LINES_S]
        if len(self._lines) > LINES_MAX or not self._throttle.allows(node.path):
            return ""
        self._lines.append(now)
        if len(self._lines) > LINES_MAX:
            self._throttle.forget(node.path)  # the node is logged when a later walk meets it
            return "more nodes of the metadata store cannot be read: bk doctor names them"
        return f"{node}; {node.remedy}" if node.remedy else str(node)
