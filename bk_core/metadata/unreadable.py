# SPDX-License-Identifier: Apache-2.0
"""Nodes of the metadata store that cannot be read (rule M6). A walk skips such a node, notes it here, and goes on with
the other nodes. A look-up of one node notes it here, too, and raises an error that names the node's path."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bk_core.errors import MetadataCorruptError

logger = logging.getLogger(__name__)

NODES_MAX = 10_000
"""The number of nodes that are kept by path. Of more nodes, which are of one cause then, only the first are named."""
LOG_AGAIN_S = 3600.0
"""How long a node that a walk meets again and again is not logged again: auto-recovery walks every few seconds."""
LINES_MAX = 20
"""The number of nodes that the log names within LINES_S: a damaged tree must not fill the disk of the log."""
LINES_S = 60.0


class NodeKind(enum.Enum):
    """What a node holds. The values are its name in words."""

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
    NodeKind.MARK: "upgrade if a newer version wrote it, else delete the node: what is still missing is marked again",
    NodeKind.LOCK: "none is needed: it goes with the session of the worker that made it",
    NodeKind.VOTE: "none is needed: it goes with the session that cast it",
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
    """A node at ``path``, and ``why`` it cannot be read."""

    kind: NodeKind
    path: str
    why: str
    remedy: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def as_object(self) -> dict[str, object]:
        """As programs and the web page get it."""
        return {"kind": self.kind.value, "path": self.path, "why": self.why, "remedy": self.remedy}

    def __str__(self) -> str:
        return f"the {self.kind.value} at {self.path} cannot be read and is skipped: {self.why}"


class UnreadableNodes:
    """The unreadable nodes that one store has met and that are still there, as far as it knows. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._nodes: dict[str, UnreadableNode] = {}
        self._met: dict[str, int] = {}  # path → the number of the meeting, which grows
        self._meetings = 0
        self._logged: dict[str, float] = {}  # path → when; bounded with the nodes
        self._lines: list[float] = []  # when the last lines were logged

    def nodes(self) -> tuple[UnreadableNode, ...]:
        """All of them, by path."""
        with self._lock:
            return tuple(self._nodes[path] for path in sorted(self._nodes))

    def of(self, *kinds: NodeKind) -> tuple[UnreadableNode, ...]:
        return tuple(node for node in self.nodes() if node.kind in kinds)

    def __len__(self) -> int:
        return len(self._nodes)

    @contextlib.contextmanager
    def reading(self, kind: NodeKind, path: str, about: str = "") -> Iterator[None]:
        """Wraps the decoding of one node: a MetadataCorruptError is noted, and raised with the path in it, behind
        ``about``."""
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
        """Wraps the decoding of one node of a walk: a MetadataCorruptError is noted, and the walk goes on."""
        try:
            yield
        except MetadataCorruptError as error:
            self._note(self._node(kind, path, error))
        else:
            self.forget(path)

    @contextlib.contextmanager
    def whole_walk(self, kind: NodeKind, folder: str, *, nested: bool = False) -> Iterator[None]:
        """Wraps a walk that meets every node of a kind in ``folder``, with ``nested`` also in the folders below it: the
        nodes of this kind that it did not meet are gone. A walk that is given up, or that fails, says nothing of
        them."""
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
        """A walk met the node without reading it."""
        if path in self._nodes:
            with self._lock:
                if path in self._nodes:
                    self._meet(path)

    def forget(self, path: str) -> None:
        """The node can be read, or is gone."""
        if path in self._nodes:  # without the lock: nearly always there is none
            with self._lock:
                for each in (self._nodes, self._met, self._logged):
                    each.pop(path, None)

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
        """The line for the log, empty if the log has had enough. The lock is held."""
        now = self._clock()
        if now - self._logged.get(node.path, float("-inf")) < LOG_AGAIN_S:
            return ""
        self._lines = [at for at in self._lines if now - at < LINES_S]
        if len(self._lines) > LINES_MAX:
            return ""  # the node is logged when it is met after that
        self._lines.append(now)
        if len(self._lines) > LINES_MAX:
            return "more nodes of the metadata store cannot be read: bk doctor names them"
        self._logged[node.path] = now
        return f"{node}; {node.remedy}" if node.remedy else str(node)
