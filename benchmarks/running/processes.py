# SPDX-License-Identifier: Apache-2.0
"""Who of the processes of a measurement spent how many seconds of a processor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CLIENT, BOOKIES, ZOOKEEPER, RAW_SERVERS, BROKER = "client", "bookies", "ZooKeeper", "raw servers", "broker"
"""``CLIENT`` is this process: our client's, and the one of the peers that are Python."""
APACHES_CLIENT, APACHES_BOOKIES = "Apache's client", "Apache's bookies"
OURS = (CLIENT, BOOKIES, ZOOKEEPER)
PEERS = {
    "raw": (CLIENT, RAW_SERVERS),
    "kafka": (CLIENT, BROKER),
    "apache": (APACHES_CLIENT, APACHES_BOOKIES, ZOOKEEPER),
}
"""Who works for whom. Others idle meanwhile, and a Java that idles is never quite still."""


class Processes:
    """Processes by their kind, each with all that descend from it. Without ``/proc`` nobody spends anything."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[int]] = {}

    @contextmanager
    def born(self, kind: str) -> Iterator[None]:
        """What this process starts in the block is of ``kind``."""
        before = set(_children_of(os.getpid()))
        yield
        self._kinds.setdefault(kind, []).extend(set(_children_of(os.getpid())) - before)

    def spent_s(self) -> dict[str, float]:
        """Seconds of each kind since it began."""
        table = _table()
        spent = {kind: sum(_with_descendants(table, pid) for pid in pids) for kind, pids in self._kinds.items()}
        return {CLIENT: table.get(os.getpid(), (0, 0.0))[1], **spent}


def cost(
    before: Mapping[str, float], after: Mapping[str, float], kinds: Iterable[str], payload_bytes: int
) -> dict[str, float]:
    """Seconds a gigabyte of payload of each of the kinds; empty where there was no payload."""
    if not payload_bytes:
        return {}
    spent = {kind: after[kind] - before.get(kind, 0.0) for kind in kinds if kind in after}
    return {kind: seconds / payload_bytes * 1e9 for kind, seconds in spent.items()}


def _children_of(pid: int) -> list[int]:
    return [child for child, (parent, _) in _table().items() if parent == pid]


def _table() -> dict[int, tuple[int, float]]:
    """Of each process its parent and its seconds."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        found[int(path.name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def _with_descendants(table: Mapping[int, tuple[int, float]], pid: int) -> float:
    children = (child for child, (parent, _) in table.items() if parent == pid)
    return table.get(pid, (0, 0.0))[1] + sum(_with_descendants(table, child) for child in children)
