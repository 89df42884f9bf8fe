# SPDX-License-Identifier: Apache-2.0
"""Measures the processor time that each kind of process spends during a measurement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CLIENT, BOOKIES, ZOOKEEPER, RAW_SERVERS, BROKER = "client", "bookies", "ZooKeeper", "raw servers", "broker"
"""Kinds of processes. ``CLIENT`` is this process: our client runs in it, and the peers' clients that are Python."""
APACHES_CLIENT, APACHES_BOOKIES = "Apache's client", "Apache's bookies"
OURS = (CLIENT, BOOKIES, ZOOKEEPER)
PEERS = {
    "raw": (CLIENT, RAW_SERVERS),
    "kafka": (CLIENT, BROKER),
    "pulsar": (BROKER, BOOKIES),
    "apache": (APACHES_CLIENT, APACHES_BOOKIES, ZOOKEEPER),
}
"""The kinds of processes that work for each peer. The others idle meanwhile, but an idle Java still uses some time."""


class Processes:
    """Processes by their kind, each with all its descendants. Without ``/proc`` all costs are empty."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[int]] = {}

    @contextmanager
    def born(self, kind: str) -> Iterator[None]:
        """Record the processes that this process starts in the block as of ``kind``."""
        before = set(_children_of(os.getpid()))
        yield
        self._kinds.setdefault(kind, []).extend(set(_children_of(os.getpid())) - before)

    def spent_s(self) -> dict[str, float]:
        """Return the processor seconds of each kind since it began."""
        table = _table()
        spent = {kind: sum(_with_descendants(table, pid) for pid in pids) for kind, pids in self._kinds.items()}
        return {CLIENT: table.get(os.getpid(), (0, 0.0))[1], **spent}

    def resident_bytes(self, kind: str) -> int:
        """Return the resident memory of the processes of a kind."""
        table = _table()
        return sum(_resident(table, pid) for pid in self._kinds.get(kind, ()))


def cost(
    before: Mapping[str, float], after: Mapping[str, float], kinds: Iterable[str], payload_bytes: int
) -> dict[str, float]:
    """Return the seconds per gigabyte of payload of each kind; empty if there was no payload."""
    if not payload_bytes:
        return {}
    spent = {kind: after[kind] - before.get(kind, 0.0) for kind in kinds if kind in after}
    return {kind: seconds / payload_bytes * 1e9 for kind, seconds in spent.items()}


def _children_of(pid: int) -> list[int]:
    return [child for child, (parent, _) in _table().items() if parent == pid]


def _table() -> dict[int, tuple[int, float]]:
    """Return the parent and the processor seconds of each process."""
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


def _resident(table: Mapping[int, tuple[int, float]], pid: int) -> int:
    found = sum(_resident(table, child) for child, (parent, _) in table.items() if parent == pid)
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return found  # it has just ended
    return found + pages * os.sysconf("SC_PAGE_SIZE")
